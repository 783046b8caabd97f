"""Adds fractions exactly."""

from fractions import Fraction
from functools import reduce


def harmonic(count):
    return sum((Fraction(1, n) for n in range(1, count + 1)), Fraction())


def continued(terms):
    return reduce(lambda value, term: term + 1 / value, reversed(terms[:-1]), Fraction(terms[-1]))


assert harmonic(4) == Fraction(25, 12)
assert continued([3, 7, 15, 1]) == Fraction(355, 113)
assert abs(continued([1] + [2] * 20) ** 2 - 2) < Fraction(1, 10**12)
assert Fraction("0.125") == Fraction(1, 8)
