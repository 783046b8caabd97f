"""Counts the edits that turn one word into another."""


def distance(one, other):
    row = list(range(len(other) + 1))
    for y, letter in enumerate(one, 1):
        before, row[0] = row[0], y
        for x, wanted in enumerate(other, 1):
            before, row[x] = row[x], min(row[x] + 1, row[x - 1] + 1, before + (letter != wanted))
    return row[-1]


assert distance("kitten", "sitting") == 3
assert distance("", "abc") == distance("abc", "") == 3
assert distance("flaw", "lawn") == distance("lawn", "flaw") == 2
assert distance("same", "same") == 0
