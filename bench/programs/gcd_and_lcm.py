"""Finds the greatest common divisor with its two factors."""

import math
from functools import reduce


def extended(a, b):
    if b == 0:
        return a, 1, 0
    divisor, x, y = extended(b, a % b)
    return divisor, y, x - a // b * y


for a in range(1, 60, 7):
    for b in range(1, 90, 11):
        divisor, x, y = extended(a, b)
        assert divisor == math.gcd(a, b) == a * x + b * y
assert reduce(math.lcm, range(1, 21)) == 232792560
