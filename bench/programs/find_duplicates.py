"""Finds duplicates, in the order of their second occurrence."""


def duplicates(items):
    seen, told, found = set(), set(), []
    for item in items:
        if item in seen and item not in told:
            told.add(item)
            found.append(item)
        seen.add(item)
    return found


assert duplicates([1, 2, 3, 2, 1, 2]) == [2, 1]
assert duplicates("hello world") == ["l", "o"]
assert duplicates(range(5)) == []
