"""Counts vowels, whatever their case or accent."""

import unicodedata


def vowels(text):
    plain = unicodedata.normalize("NFD", text.casefold())
    return sum(letter in "aeiou" for letter in plain)


assert vowels("Programming") == 3
assert vowels("ÀÉÎõü") == 5
assert vowels("rhythm") == 0
assert vowels("") == 0
