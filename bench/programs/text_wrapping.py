"""Breaks lines at words, as the library does."""

import textwrap


def wrap(text, width):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line] if line else lines


TEXT = "the quick brown fox jumps over the lazy dog and runs away"
for width in (5, 9, 10, 14, 80):
    assert wrap(TEXT, width) == textwrap.wrap(TEXT, width)
assert textwrap.dedent("    a\n      b\n") == "a\n  b\n" and wrap("", 5) == []
assert textwrap.shorten(TEXT, 20, placeholder="...") == "the quick brown..."
