"""Inverts a mapping, with all keys of each value."""

from collections import defaultdict


def inverted(mapping):
    result = defaultdict(set)
    for key, value in mapping.items():
        result[value].add(key)
    return dict(result)


ages = {"Ann": 30, "Bob": 25, "Cid": 30}
assert inverted(ages) == {30: {"Ann", "Cid"}, 25: {"Bob"}}
assert inverted({}) == {}
assert {key: value for value, keys in inverted(ages).items() for key in keys} == ages
