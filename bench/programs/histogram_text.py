"""Draws a histogram of letters and reads the bars."""

from collections import Counter


def histogram(values):
    counts = Counter(values)
    return [f"{value} {'#' * count}" for value, count in sorted(counts.items())]


assert histogram("banana") == ["a ###", "b #", "n ##"]
assert histogram([3, 1, 3]) == ["1 #", "3 ##"]
assert sum(line.count("#") for line in histogram("mississippi")) == 11
