"""Joins intervals that overlap or touch."""


def merge(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [tuple(one) for one in merged]


assert merge([(1, 3), (2, 6), (8, 10), (15, 18)]) == [(1, 6), (8, 10), (15, 18)]
assert merge([(1, 4), (4, 5)]) == [(1, 5)]
assert merge([(1, 10), (2, 3)]) == [(1, 10)]
assert merge([]) == []
