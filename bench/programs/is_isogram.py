"""Tells whether no letter comes twice."""


def is_isogram(text):
    letters = [letter for letter in text.casefold() if letter.isalpha()]
    return len(letters) == len(set(letters))


assert is_isogram("background") and is_isogram("six-year-old") and is_isogram("")
assert not is_isogram("isograms") and not is_isogram("Alphabet")
