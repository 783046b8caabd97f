"""Vectors with overloaded operators."""

import math


class Vector:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __repr__(self):
        return f"Vector({self.x!r}, {self.y!r})"

    def __eq__(self, other):
        return isinstance(other, Vector) and (self.x, self.y) == (other.x, other.y)

    def __hash__(self):
        return hash((self.x, self.y))

    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y)

    def __mul__(self, by):
        return Vector(self.x * by, self.y * by)

    __rmul__ = __mul__

    def __matmul__(self, other):
        return self.x * other.x + self.y * other.y

    def __abs__(self):
        return math.hypot(self.x, self.y)

    def __bool__(self):
        return bool(self.x or self.y)


v = Vector(3, 4)
assert abs(v) == 5 and v @ Vector(-4, 3) == 0 and not Vector(0, 0)
assert 2 * v == v * 2 == v + v == Vector(6, 8) and v != (3, 4)
assert eval(repr(v)) == v and len({v, Vector(3, 4)}) == 1
