"""Tells whether a point is inside of a polygon."""


def is_inside(point, corners):
    x, y = point
    inside = False
    for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1]):
        if (y1 > y) != (y2 > y) and x < (x2 - x1) * (y - y1) / (y2 - y1) + x1:
            inside = not inside
    return inside


def area(corners):
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1]))) / 2


SHAPE = [(0, 0), (10, 0), (10, 10), (5, 5), (0, 10)]
assert is_inside((2, 2), SHAPE) and is_inside((9, 8), SHAPE)
assert not is_inside((5, 8), SHAPE) and not is_inside((11, 1), SHAPE)
assert area(SHAPE) == 75 and area([(0, 0), (4, 0), (0, 3)]) == 6
