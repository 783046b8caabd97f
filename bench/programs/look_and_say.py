"""Reads numbers aloud."""

from itertools import groupby


def say(digits):
    return "".join(f"{len(list(group))}{digit}" for digit, group in groupby(digits))


row = ["1"]
while len(row) < 12:
    row.append(say(row[-1]))
assert row[:6] == ["1", "11", "21", "1211", "111221", "312211"]
assert not set("".join(row)) - set("123")
assert [len(one) for one in row] == [1, 2, 2, 4, 6, 6, 8, 10, 14, 20, 26, 34]
