"""Converts degrees, exactly."""

from fractions import Fraction


def to_fahrenheit(celsius):
    return Fraction(celsius) * 9 / 5 + 32


def to_celsius(fahrenheit):
    return (Fraction(fahrenheit) - 32) * 5 / 9


assert to_fahrenheit(100) == 212 and to_celsius(32) == 0
assert to_fahrenheit(-40) == -40
assert all(to_celsius(to_fahrenheit(degrees)) == degrees for degrees in range(-273, 300, 17))
assert to_celsius(100) == Fraction(340, 9)
