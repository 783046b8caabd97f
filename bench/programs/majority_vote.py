"""Finds the majority element, with one counter."""


def majority(items):
    candidate, count = None, 0
    for item in items:
        if count == 0:
            candidate = item
        count += 1 if item == candidate else -1
    return candidate if items.count(candidate) * 2 > len(items) else None


assert majority([3, 2, 3]) == 3
assert majority(list("abacaba")) == "a"
assert majority([1, 2, 3, 4]) is None
assert majority([]) is None
