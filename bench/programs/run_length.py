"""Packs repeated letters, and unpacks them."""

import re
from itertools import groupby


def pack(text):
    sizes = ((letter, len(list(group))) for letter, group in groupby(text))
    return "".join(f"{size}{letter}" if size > 1 else letter for letter, size in sizes)


def unpack(text):
    return re.sub(r"(\d+)(\D)", lambda match: match[2] * int(match[1]), text)


assert pack("WWWWBWWB") == "4WB2WB"
for text in ["", "abc", "zzz ZZ  zZ", "a" * 100 + "b"]:
    assert unpack(pack(text)) == text
assert len(pack("x" * 1000)) == 5
