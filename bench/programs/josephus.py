"""Finds who is left when every n-th person leaves the circle."""

from collections import deque


def by_circle(count, step):
    circle = deque(range(count))
    while len(circle) > 1:
        circle.rotate(1 - step)
        circle.popleft()
    return circle[0]


def by_formula(count, step):
    place = 0
    for size in range(2, count + 1):
        place = (place + step) % size
    return place


assert by_circle(41, 3) == 30
assert all(by_circle(count, step) == by_formula(count, step) for count in range(1, 30) for step in range(1, 6))
