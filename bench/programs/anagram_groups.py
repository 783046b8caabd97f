"""Groups words that have the same letters."""

from collections import defaultdict


def groups(words):
    found = defaultdict(list)
    for word in words:
        found["".join(sorted(word.lower()))].append(word)
    return sorted(sorted(group) for group in found.values())


assert groups(["eat", "tea", "tan", "ate", "nat", "bat"]) == [["ate", "eat", "tea"], ["bat"], ["nat", "tan"]]
assert groups([]) == []
assert groups(["Ab", "bA", "c"]) == [["Ab", "bA"], ["c"]]
