"""Counts places that differ, and finds the code words that are far apart."""

from itertools import combinations


def hamming(one, other):
    if len(one) != len(other):
        raise ValueError("they have different lengths")
    return sum(a != b for a, b in zip(one, other))


assert hamming("karolin", "kathrin") == 3
words = ["00000", "01011", "10101", "11110"]
assert min(hamming(a, b) for a, b in combinations(words, 2)) == 3
try:
    hamming("a", "ab")
except ValueError as error:
    assert "lengths" in str(error)
else:
    raise AssertionError
