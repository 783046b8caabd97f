"""Fills templates, and keeps unknown placeholders."""

from string import Formatter, Template


def fields(text):
    return [name for _, name, _, _ in Formatter().parse(text) if name is not None]


assert Template("Dear $name, pay $$${amount}.").substitute(name="Ann", amount=5) == "Dear Ann, pay $5."
assert Template("$a and $b").safe_substitute(a=1) == "1 and $b"
assert fields("{a} {b.c} {d[0]:>5} {{no}}") == ["a", "b.c", "d[0]"]
assert "{:>8.2f}|{:^7}|{:#x}".format(3.14159, "ab", 255) == "    3.14|  ab   |0xff"
assert f"{1234567.891:,.1f}" == "1,234,567.9"
