"""Cuts a line of a programming language into tokens."""

import re

KINDS = [
    ("number", r"\d+(\.\d*)?"),
    ("name", r"[A-Za-z_]\w*"),
    ("text", r'"[^"]*"'),
    ("sign", r"[-+*/=<>!]=?|[(),]"),
    ("space", r"\s+"),
    ("error", r"."),
]
PATTERN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in KINDS))


def tokens(line):
    for match in PATTERN.finditer(line):
        if match.lastgroup == "error":
            raise SyntaxError(f"{match[0]!r} at {match.start()}")
        if match.lastgroup != "space":
            yield match.lastgroup, match[0]


assert list(tokens('x1 >= 3.5*(y+"a b")')) == [
    ("name", "x1"),
    ("sign", ">="),
    ("number", "3.5"),
    ("sign", "*"),
    ("sign", "("),
    ("name", "y"),
    ("sign", "+"),
    ("text", '"a b"'),
    ("sign", ")"),
]
try:
    list(tokens("a ? b"))
except SyntaxError as error:
    assert str(error) == "'?' at 2"
else:
    raise AssertionError
