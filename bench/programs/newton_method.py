"""Finds zeros of functions by Newton's method."""

import math


def zero(function, slope, guess):
    for _ in range(100):
        step = function(guess) / slope(guess)
        guess -= step
        if abs(step) < 1e-12:
            return guess
    raise ArithmeticError("no zero was found")


assert math.isclose(zero(lambda x: x * x - 2, lambda x: 2 * x, 1), math.sqrt(2))
assert math.isclose(zero(math.sin, math.cos, 3), math.pi)
assert math.isclose(zero(lambda x: x**3 - x - 2, lambda x: 3 * x * x - 1, 1.5), 1.5213797068045676)
try:
    zero(lambda x: x * x + 1, lambda x: 2 * x, 0.5)
except ArithmeticError as error:
    assert "no zero" in str(error)
else:
    raise AssertionError
