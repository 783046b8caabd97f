"""Sorts letters by frequency."""

from collections import Counter


def frequency_sort(text):
    counts = Counter(text)
    return "".join(sorted(text, key=lambda letter: (-counts[letter], letter)))


assert frequency_sort("tree") == "eert"
assert frequency_sort("cccaaa") == "aaaccc"
assert frequency_sort("Aabb") == "bbAa"
assert sorted(frequency_sort("mississippi")) == sorted("mississippi")
