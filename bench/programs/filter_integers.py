"""Keeps the whole numbers of a mixed list."""


def integers(values):
    return [value for value in values if isinstance(value, int) and not isinstance(value, bool)]


assert integers(["a", 3.14, 5]) == [5]
assert integers([1, 2, 3, "abc", {}, []]) == [1, 2, 3]
assert integers([True, 0, False, 7]) == [0, 7]
assert integers([]) == []
