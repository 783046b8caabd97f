"""Checks the last digit of book numbers."""


def is_isbn(text):
    digits = [10 if letter == "X" else int(letter) for letter in text if letter.isdigit() or letter == "X"]
    if len(digits) == 10:
        return sum(weight * digit for weight, digit in zip(range(10, 0, -1), digits)) % 11 == 0
    return len(digits) == 13 and sum(digit * (1, 3)[at % 2] for at, digit in enumerate(digits)) % 10 == 0


assert is_isbn("3-598-21508-8") and is_isbn("3-598-21507-X")
assert is_isbn("978-0-306-40615-7")
assert not is_isbn("3-598-21508-9") and not is_isbn("978-0-306-40615-8") and not is_isbn("123")
