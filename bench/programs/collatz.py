"""Follows the sequence of Collatz to its end."""


def collatz(number):
    yield number
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        yield number


assert list(collatz(6)) == [6, 3, 10, 5, 16, 8, 4, 2, 1]
assert len(list(collatz(27))) == 112
assert max(range(1, 1000), key=lambda n: sum(1 for _ in collatz(n))) == 871
