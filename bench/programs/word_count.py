"""Counts words of a text."""

import re
from collections import Counter


def words(text):
    return Counter(re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower()))


TEXT = "Don't stop! The cat's cat, the CAT; 1st and 2nd."
counts = words(TEXT)
assert counts["the"] == counts["cat"] == 2
assert counts == {"don't": 1, "stop": 1, "the": 2, "cat's": 1, "cat": 2, "1st": 1, "and": 1, "2nd": 1}
assert sum(counts.values()) == 10 and words("") == Counter()
