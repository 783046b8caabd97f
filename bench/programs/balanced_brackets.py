"""Tells whether brackets of three kinds are balanced."""

PAIRS = {")": "(", "]": "[", "}": "{"}


def is_balanced(text):
    open_ones = []
    for letter in text:
        if letter in PAIRS.values():
            open_ones.append(letter)
        elif letter in PAIRS and (not open_ones or open_ones.pop() != PAIRS[letter]):
            return False
    return not open_ones


assert is_balanced("{[()]}(a)[b]")
assert is_balanced("")
for bad in ["(", ")", "([)]", "{{}", "())("]:
    assert not is_balanced(bad), bad
