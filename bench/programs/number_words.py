"""Says numbers in words."""

ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def words(number):
    if number < 20:
        return ONES[number]
    if number < 100:
        ten, one = divmod(number, 10)
        return TENS[ten] + (f"-{ONES[one]}" if one else "")
    for size, name in ((1_000_000, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size:
            count, rest = divmod(number, size)
            return f"{words(count)} {name}" + (f" {words(rest)}" if rest else "")
    raise ValueError(number)


assert words(0) == "zero" and words(14) == "fourteen" and words(90) == "ninety"
assert words(123) == "one hundred twenty-three"
assert words(1_002_345) == "one million two thousand three hundred forty-five"
assert len({words(number) for number in range(3000)}) == 3000
