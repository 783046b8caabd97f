"""Classifies triangles by their sides."""


def kind(*sides):
    a, b, c = sorted(sides)
    if a <= 0 or a + b <= c:
        return "none"
    names = {1: "equilateral", 2: "isosceles", 3: "scalene"}
    right = " and right" if a * a + b * b == c * c else ""
    return names[len({a, b, c})] + right


assert kind(2, 2, 2) == "equilateral" and kind(3, 4, 4) == "isosceles"
assert kind(5, 3, 4) == "scalene and right"
assert kind(1, 1, 3) == kind(0, 0, 0) == kind(1, 2, 3) == "none"
right = [(a, b, c) for c in range(1, 30) for b in range(1, c) for a in range(1, b) if kind(a, b, c).endswith("right")]
assert len(right) == 10 and right[0] == (3, 4, 5)
