"""Squares digits again and again until they are happy or repeat."""


def is_happy(number):
    seen = set()
    while number not in seen:
        seen.add(number)
        number = sum(int(digit) ** 2 for digit in str(number))
    return number == 1


assert [number for number in range(1, 50) if is_happy(number)] == [1, 7, 10, 13, 19, 23, 28, 31, 32, 44, 49]
assert not is_happy(4)
