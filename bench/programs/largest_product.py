"""Finds the neighbouring digits with the largest product."""

from math import prod

DIGITS = "7316717653133062491922511967442657474235534919493496983520312774506326239578318016984801869478851843"


def largest(digits, count):
    windows = (digits[start : start + count] for start in range(len(digits) - count + 1))
    return max((prod(map(int, window)), window) for window in windows)


assert largest("123405", 2) == (12, "34")
assert largest(DIGITS, 1) == (9, "9")
value, window = largest(DIGITS, 4)
assert window in DIGITS and value == prod(map(int, window)) and "0" not in window
assert all(prod(map(int, DIGITS[n : n + 4])) <= value for n in range(len(DIGITS) - 3))
