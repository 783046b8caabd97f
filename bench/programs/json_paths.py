"""Walks through JSON by paths."""

import json

TEXT = '{"a": {"b": [1, {"c": null}, "x"]}, "d e": true, "n": 1.5}'


def paths(value, at="$"):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, f"{at}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from paths(inner, f"{at}[{number}]")
    else:
        yield at, value


found = dict(paths(json.loads(TEXT)))
assert found == {"$.a.b[0]": 1, "$.a.b[1].c": None, "$.a.b[2]": "x", "$.d e": True, "$.n": 1.5}
assert json.loads(json.dumps(json.loads(TEXT), indent=2)) == json.loads(TEXT)
try:
    json.loads("{'a': 1}")
except json.JSONDecodeError as error:
    assert (error.lineno, error.colno) == (1, 2)
