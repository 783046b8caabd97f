"""A cipher with a word as its key."""

from itertools import cycle
from string import ascii_uppercase as ABC


def crypt(text, key, sign=1):
    moves = cycle(ABC.index(letter) for letter in key)
    return "".join(ABC[(ABC.index(letter) + sign * next(moves)) % 26] if letter in ABC else letter for letter in text)


assert crypt("ATTACKATDAWN", "LEMON") == "LXFOPVEFRNHR"
text = "MEET ME AT NOON, BY THE GATE"
assert crypt(crypt(text, "SECRET"), "SECRET", -1) == text
assert crypt(text, "A") == text
