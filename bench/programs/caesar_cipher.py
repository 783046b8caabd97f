"""Moves letters along the alphabet, and back."""

import string


def shift(text, by):
    table = {}
    for letters in (string.ascii_lowercase, string.ascii_uppercase):
        by %= 26
        table.update(str.maketrans(letters, letters[by:] + letters[:by]))
    return text.translate(table)


assert shift("Hello, World!", 3) == "Khoor, Zruog!"
assert shift("xyz", 3) == "abc"
text = "The quick brown fox; 42 dogs."
assert all(shift(shift(text, by), -by) == text for by in range(-30, 31))
assert shift(text, 13) == __import__("codecs").encode(text, "rot13")
