"""Counts the set bits of numbers in three ways, which agree."""


def by_shift(number):
    count = 0
    while number:
        count += number & 1
        number >>= 1
    return count


def by_clearing(number):
    count = 0
    while number:
        number &= number - 1
        count += 1
    return count


table = [0] * 256
for number in range(1, 256):
    table[number] = table[number // 2] + number % 2
for number in range(256):
    assert by_shift(number) == by_clearing(number) == table[number] == bin(number).count("1")
assert by_clearing(2**200 - 1) == 200
