"""Runs a little program on a stack."""

import operator

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


def run(program, names=None):
    stack, names = [], dict(names or {})
    for word in program.split():
        if word in SIGNS:
            right, left = stack.pop(), stack.pop()
            stack.append(SIGNS[word](left, right))
        elif word == "dup":
            stack.append(stack[-1])
        elif word.startswith("="):
            names[word[1:]] = stack.pop()
        else:
            stack.append(names[word] if word in names else int(word))
    return stack


assert run("3 4 + 2 *") == [14]
assert run("5 dup *") == [25]
assert run("10 =x x x * x -") == [90]
assert run("n 1 - 2 /", {"n": 11}) == [5]
try:
    run("1 +")
except IndexError:
    empty = True
assert empty
