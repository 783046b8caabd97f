"""Lists divisors, and finds perfect numbers."""

from math import isqrt


def divisors(number):
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


assert divisors(28) == [1, 2, 4, 7, 14, 28]
assert divisors(1) == [1] and divisors(49) == [1, 7, 49]
assert [n for n in range(2, 1000) if sum(divisors(n)) == 2 * n] == [6, 28, 496]
