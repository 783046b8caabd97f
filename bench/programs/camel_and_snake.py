"""Converts names from camel case to snake case, and back."""

import re


def snake(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


assert snake("CamelCaseName") == "camel_case_name"
assert camel("camel_case_name") == "CamelCaseName"
for name in ["One", "TwoWords", "ThreeWholeWords"]:
    assert camel(snake(name)) == name
