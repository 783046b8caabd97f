"""Splits any iterable into chunks."""

from itertools import islice


def chunked(items, size):
    items = iter(items)
    while piece := list(islice(items, size)):
        yield piece


assert list(chunked(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
assert list(chunked("", 2)) == []
assert [len(piece) for piece in chunked((n for n in range(100)), 30)] == [30, 30, 30, 10]
