"""Factors numbers into primes."""

from collections import Counter
from math import prod


def factors(number):
    found, divisor = Counter(), 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found[divisor] += 1
            number //= divisor
        divisor += 1
    if number > 1:
        found[number] += 1
    return found


assert factors(360) == {2: 3, 3: 2, 5: 1}
assert factors(97) == {97: 1} and factors(1) == {}
assert all(prod(p**n for p, n in factors(number).items()) == number for number in range(1, 3000))
assert factors(600851475143) == {71: 1, 839: 1, 1471: 1, 6857: 1}
