"""Evaluates sums and products with brackets by recursive descent."""

import re


def evaluate(text):
    tokens = re.findall(r"\d+|[-+*/()]", text)

    def factor():
        token = tokens.pop(0)
        if token == "(":
            value = expression()
            assert tokens.pop(0) == ")"
            return value
        return -factor() if token == "-" else int(token)

    def term():
        value = factor()
        while tokens and tokens[0] in "*/":
            value = value * factor() if tokens.pop(0) == "*" else value // factor()
        return value

    def expression():
        value = term()
        while tokens and tokens[0] in "+-":
            value = value + term() if tokens.pop(0) == "+" else value - term()
        return value

    return expression()


for text in ["1+2*3", "(1+2)*3", "2*(3+4)*5-6", "-(2+3)*4", "100/7", "7-2-1"]:
    assert evaluate(text) == eval(text.replace("/", "//")), text
