"""Says which rules a password breaks."""

import re

RULES = {
    "a digit": r"\d",
    "a small letter": r"[a-z]",
    "a capital": r"[A-Z]",
    "a sign": r"[^\w\s]",
    "eight letters": r".{8,}",
}


def missing(password):
    return [name for name, pattern in RULES.items() if not re.search(pattern, password)]


assert missing("Tr0ub4dor&3") == []
assert missing("short1") == ["a capital", "a sign", "eight letters"]
assert missing("") == list(RULES)
assert missing("CorrectHorse") == ["a digit", "a sign"]
