"""Sorts around pivots, in place."""


def quick_sort(values, low=0, high=None):
    high = len(values) - 1 if high is None else high
    if low >= high:
        return
    pivot, border = values[high], low
    for at in range(low, high):
        if values[at] < pivot:
            values[at], values[border] = values[border], values[at]
            border += 1
    values[border], values[high] = values[high], values[border]
    quick_sort(values, low, border - 1)
    quick_sort(values, border + 1, high)


for values in ([], [1], [2, 1], [5, 3, 9, 3, 1], [(n * 61) % 47 for n in range(80)]):
    expected = sorted(values)
    quick_sort(values)
    assert values == expected
