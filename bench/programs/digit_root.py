"""Adds digits until there is one left."""


def digit_root(number):
    steps = 0
    while number > 9:
        number = sum(map(int, str(number)))
        steps += 1
    return number, steps


assert digit_root(38) == (2, 2)
assert digit_root(0) == (0, 0)
assert all(digit_root(number)[0] == 1 + (number - 1) % 9 for number in range(1, 2000))
