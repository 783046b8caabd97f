"""Compares two versions of settings."""


def compare(old, new):
    added = {key: new[key] for key in new.keys() - old.keys()}
    removed = sorted(old.keys() - new.keys())
    changed = {key: (old[key], new[key]) for key in old.keys() & new.keys() if old[key] != new[key]}
    return added, removed, changed


old = {"host": "a", "port": 80, "debug": True}
new = {"host": "b", "port": 80, "log": "x"}
assert compare(old, new) == ({"log": "x"}, ["debug"], {"host": ("a", "b")})
assert compare(old, old) == ({}, [], {})
assert set("abc") ^ set("bcd") == {"a", "d"} and {1, 2} <= {1, 2, 3}
