"""Points that can be added and compared."""

from typing import NamedTuple


class Point(NamedTuple):
    x: int = 0
    y: int = 0

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)


one, other = Point(1, 2), Point(y=5)
assert one + other == Point(1, 7) == (1, 7)
assert one._replace(x=9) == Point(9, 2) and one._asdict() == {"x": 1, "y": 2}
assert sorted([Point(2, 1), Point(1, 9), Point(1, 3)])[0] == Point(1, 3)
try:
    one.x = 5
except AttributeError:
    changed = False
assert not changed
