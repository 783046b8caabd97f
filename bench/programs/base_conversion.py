"""Writes numbers in any base from 2 to 36."""

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def to_base(number, base):
    if number < 0:
        return "-" + to_base(-number, base)
    head, last = divmod(number, base)
    return (to_base(head, base) if head else "") + DIGITS[last]


assert to_base(255, 16) == "ff" and to_base(8, 2) == "1000" and to_base(0, 7) == "0"
assert to_base(-35, 36) == "-z"
for base in range(2, 37):
    assert all(int(to_base(number, base), base) == number for number in range(-50, 500, 13))
