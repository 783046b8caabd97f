"""Speaks Pig Latin."""

import re


def word(text):
    if match := re.match(r"([^aeiou]*qu|[^aeiouy]+|y(?=[aeiou]))(.*)", text):
        return match[2] + match[1] + "ay"
    return text + "ay"


def pig(text):
    return " ".join(map(word, text.split()))


assert pig("apple") == "appleay" and pig("koala") == "oalakay"
assert pig("chair square yellow") == "airchay aresquay ellowyay"
assert pig("quick fast run") == "ickquay astfay unray"
assert pig("my rhythm") == "ymay ythmrhay"
