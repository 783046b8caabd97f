"""Lists all subsets."""

from itertools import chain, combinations


def power_set(items):
    items = list(items)
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def by_bits(items):
    return [tuple(item for at, item in enumerate(items) if mask >> at & 1) for mask in range(2 ** len(items))]


assert list(power_set("abc")) == [(), ("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")]
for size in range(8):
    assert sorted(power_set(range(size))) == sorted(by_bits(range(size)))
