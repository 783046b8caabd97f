"""Tells how deep lists are nested, and flattens them."""


def depth(value):
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def flat(value):
    if not isinstance(value, list):
        return [value]
    return [item for inner in value for item in flat(inner)]


nested = [1, [2, [3, [4]], 5], [], [[6]]]
assert depth(nested) == 4 and depth([]) == 1 and depth(7) == 0
assert flat(nested) == [1, 2, 3, 4, 5, 6]
