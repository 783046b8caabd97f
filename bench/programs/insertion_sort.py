"""Sorts by putting each card into its place, and keeps equals in order."""


def insertion_sort(values, key=lambda value: value):
    result = []
    for value in values:
        at = len(result)
        while at and key(result[at - 1]) > key(value):
            at -= 1
        result.insert(at, value)
    return result


words = ["pear", "fig", "apple", "kiwi", "date", "plum"]
assert insertion_sort(words) == sorted(words)
assert insertion_sort(words, key=len) == ["fig", "pear", "kiwi", "date", "plum", "apple"]
assert insertion_sort([]) == []
