"""Finds the longest common subsequence of two texts."""

from functools import lru_cache


def common(one, other):
    @lru_cache(maxsize=None)
    def from_(i, j):
        if i == len(one) or j == len(other):
            return ""
        if one[i] == other[j]:
            return one[i] + from_(i + 1, j + 1)
        return max(from_(i + 1, j), from_(i, j + 1), key=len)

    return from_(0, 0)


assert len(common("AGGTAB", "GXTXAYB")) == 4
assert common("abc", "abc") == "abc" and common("abc", "xyz") == ""
found = common("nematode knowledge", "empty bottle")
assert len(found) == 7
for text in ("nematode knowledge", "empty bottle"):
    letters = iter(text)
    assert all(letter in letters for letter in found)
