"""Checks numbers of cards, and makes the last digit."""


def total(digits):
    doubled = (digit * 2 if at % 2 else digit for at, digit in enumerate(reversed(digits)))
    return sum(digit - 9 if digit > 9 else digit for digit in doubled)


def is_valid(text):
    digits = [int(letter) for letter in text.replace(" ", "")]
    return len(digits) > 1 and total(digits) % 10 == 0


def with_check(text):
    return text + str(-total([*map(int, text), 0]) % 10)


assert is_valid("4539 3195 0343 6467") and not is_valid("8273 1232 7352 0569")
assert with_check("7992739871") == "79927398713"
assert all(is_valid(with_check(str(number))) for number in range(1, 3000, 37))
