"""Lets numbers flow through steps, only as many as are taken."""

from itertools import count, islice

made = []


def numbers():
    for number in count(1):
        made.append(number)
        yield number


def squares(values):
    for value in values:
        yield value * value


def odd(values):
    return (value for value in values if value % 2)


assert list(islice(odd(squares(numbers())), 4)) == [1, 9, 25, 49]
assert made == [1, 2, 3, 4, 5, 6, 7]
