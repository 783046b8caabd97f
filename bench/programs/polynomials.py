"""Adds, multiplies and evaluates polynomials."""

from itertools import zip_longest


class Polynomial:
    def __init__(self, *terms):
        self.terms = list(terms)
        while self.terms and self.terms[-1] == 0:
            self.terms.pop()

    def __add__(self, other):
        return Polynomial(*(a + b for a, b in zip_longest(self.terms, other.terms, fillvalue=0)))

    def __mul__(self, other):
        result = [0] * (len(self.terms) + len(other.terms))
        for i, a in enumerate(self.terms):
            for j, b in enumerate(other.terms):
                result[i + j] += a * b
        return Polynomial(*result)

    def __call__(self, x):
        value = 0
        for term in reversed(self.terms):
            value = value * x + term
        return value

    def __eq__(self, other):
        return self.terms == other.terms


one, other = Polynomial(1, 1), Polynomial(-1, 1)
assert one * other == Polynomial(-1, 0, 1)
assert one + Polynomial(0, -1) == Polynomial(1)
assert all((one * one * other)(x) == (x + 1) ** 2 * (x - 1) for x in range(-5, 6))
