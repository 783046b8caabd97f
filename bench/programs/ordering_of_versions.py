"""Sorts versions as people would."""

import re
from functools import total_ordering


@total_ordering
class Version:
    def __init__(self, text):
        self.text = text
        self.key = [int(part) for part in re.findall(r"\d+", text)]
        while self.key and self.key[-1] == 0:
            self.key.pop()

    def __eq__(self, other):
        return self.key == other.key

    def __lt__(self, other):
        return self.key < other.key


texts = ["1.10", "1.9", "1.9.1", "0.99", "2"]
assert [version.text for version in sorted(map(Version, texts))] == ["0.99", "1.9", "1.9.1", "1.10", "2"]
assert Version("1.0.0") == Version("1") and Version("1.2") >= Version("1.2.0")
assert Version("1.2") < Version("1.2.1") and not Version("2") > Version("10")
