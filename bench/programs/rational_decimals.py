"""Writes fractions as decimals, with the part that repeats in brackets."""


def decimal(top, bottom):
    whole, rest = divmod(top, bottom)
    digits, seen = "", {}
    while rest and rest not in seen:
        seen[rest] = len(digits)
        digit, rest = divmod(rest * 10, bottom)
        digits += str(digit)
    if rest:
        digits = f"{digits[: seen[rest]]}({digits[seen[rest] :]})"
    return f"{whole}.{digits}" if digits else str(whole)


assert decimal(1, 2) == "0.5" and decimal(4, 2) == "2"
assert decimal(1, 3) == "0.(3)" and decimal(1, 6) == "0.1(6)"
assert decimal(22, 7) == "3.(142857)"
assert max(range(1, 100), key=lambda n: len(decimal(1, n))) == 97
