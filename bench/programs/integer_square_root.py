"""Finds whole square roots by Newton's method."""

import math


def root(number):
    if number < 2:
        return number
    guess = 1 << (number.bit_length() + 1) // 2
    while (better := (guess + number // guess) // 2) < guess:
        guess = better
    return guess


assert all(root(number) == math.isqrt(number) for number in range(2000))
large = 10**40 + 12345
assert root(large) ** 2 <= large < (root(large) + 1) ** 2
assert root(2 * 10**20) == 14142135623
