"""Writes and reads Roman numbers."""

SIGNS = [
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
]


def to_roman(number):
    result = ""
    for value, sign in SIGNS:
        count, number = divmod(number, value)
        result += sign * count
    return result


def from_roman(text):
    values = [dict((sign, value) for value, sign in SIGNS)[letter] for letter in text]
    return sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0]))


assert to_roman(1994) == "MCMXCIV" and from_roman("MMXXIV") == 2024
assert all(from_roman(to_roman(number)) == number for number in range(1, 4000))
