"""Finds the longest part of a text in which no letter comes twice."""


def longest(text):
    last, start, best = {}, 0, ""
    for at, letter in enumerate(text):
        start = max(start, last.get(letter, -1) + 1)
        last[letter] = at
        if at + 1 - start > len(best):
            best = text[start : at + 1]
    return best


assert longest("abcabcbb") == "abc"
assert longest("bbbb") == "b" and longest("") == ""
assert longest("pwwkew") == "wke"
assert longest("dvdf") == "vdf"
