"""Compares a guess with a secret: right places, and right digits elsewhere."""

from collections import Counter


def compare(secret, guess):
    bulls = sum(one == other for one, other in zip(secret, guess))
    common = sum((Counter(secret) & Counter(guess)).values())
    return bulls, common - bulls


assert compare("1807", "7810") == (1, 3)
assert compare("1123", "0111") == (1, 1)
assert compare("1234", "1234") == (4, 0)
assert compare("1111", "2222") == (0, 0)
