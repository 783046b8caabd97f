"""Finds numbers that are the sum of their digits, each raised to the number of digits."""


def is_armstrong(number):
    digits = str(number)
    return number == sum(int(digit) ** len(digits) for digit in digits)


found = [number for number in range(10_000) if is_armstrong(number)]
assert found == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 153, 370, 371, 407, 1634, 8208, 9474]
assert not is_armstrong(10) and is_armstrong(54748)
