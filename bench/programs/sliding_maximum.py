"""Finds the largest number of each window."""

from collections import deque


def maxima(numbers, width):
    best, found = deque(), []
    for at, number in enumerate(numbers):
        while best and numbers[best[-1]] <= number:
            best.pop()
        best.append(at)
        if best[0] == at - width:
            best.popleft()
        if at >= width - 1:
            found.append(numbers[best[0]])
    return found


assert maxima([1, 3, -1, -3, 5, 3, 6, 7], 3) == [3, 3, 5, 5, 6, 7]
numbers = [(n * 17) % 23 for n in range(60)]
for width in (1, 2, 7, 60):
    assert maxima(numbers, width) == [max(numbers[n : n + width]) for n in range(61 - width)]
