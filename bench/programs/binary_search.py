"""Finds a number in a sorted list, and where it would have to be."""

import bisect


def place(numbers, wanted):
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


numbers = [1, 3, 3, 3, 8, 13, 21]
for wanted in range(-1, 25):
    assert place(numbers, wanted) == bisect.bisect_left(numbers, wanted)
assert place([], 5) == 0
