"""Turns a list in place, by three reversals."""

from collections import deque


def rotate(items, by):
    if not items:
        return
    by %= len(items)
    items.reverse()
    items[:by] = reversed(items[:by])
    items[by:] = reversed(items[by:])


for size in range(6):
    for by in range(-7, 8):
        items, model = list(range(size)), deque(range(size))
        rotate(items, by)
        model.rotate(by)
        assert items == list(model)
