"""Counts a game of tenpin bowling."""


def score(rolls):
    total, at = 0, 0
    for _ in range(10):
        if rolls[at] == 10:
            total += sum(rolls[at : at + 3])
            at += 1
        elif sum(rolls[at : at + 2]) == 10:
            total += sum(rolls[at : at + 3])
            at += 2
        else:
            total += sum(rolls[at : at + 2])
            at += 2
    return total


assert score([10] * 12) == 300
assert score([9, 0] * 10) == 90
assert score([5, 5] * 10 + [5]) == 150
assert score([10, 3, 4] + [0] * 16) == 24
