"""Lists the prefixes of a text, the shortest first."""


def all_prefixes(text):
    return [text[:end] for end in range(1, len(text) + 1)]


assert all_prefixes("") == []
assert all_prefixes("abc") == ["a", "ab", "abc"]
assert all(prefix == "z" * length for length, prefix in enumerate(all_prefixes("zzzz"), 1))
