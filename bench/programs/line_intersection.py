"""Finds where two lines meet."""

from fractions import Fraction


def meet(one, other):
    (x1, y1), (x2, y2) = one
    (x3, y3), (x4, y4) = other
    cross = (x1 - x2) * (y3 - y4) - (y1 - y2) * (x3 - x4)
    if cross == 0:
        return None
    a, b = x1 * y2 - y1 * x2, x3 * y4 - y3 * x4
    return Fraction(a * (x3 - x4) - (x1 - x2) * b, cross), Fraction(a * (y3 - y4) - (y1 - y2) * b, cross)


assert meet(((0, 0), (2, 2)), ((0, 2), (2, 0))) == (1, 1)
assert meet(((0, 0), (1, 0)), ((0, 1), (1, 1))) is None
assert meet(((0, 0), (3, 1)), ((1, 0), (1, 5))) == (1, Fraction(1, 3))
