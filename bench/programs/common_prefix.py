"""Finds the common prefix of texts."""

import os.path
from itertools import takewhile


def common_prefix(texts):
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts))
    return "".join(letters[0] for letters in same)


assert common_prefix(["flower", "flow", "flight"]) == "fl"
assert common_prefix(["dog", "car"]) == ""
assert common_prefix([]) == ""
assert common_prefix(["same", "same"]) == os.path.commonprefix(["same", "same"])
