"""Sorts by swapping neighbours, and counts the swaps."""


def bubble_sort(values):
    values, swaps = list(values), 0
    for end in range(len(values) - 1, 0, -1):
        for at in range(end):
            if values[at] > values[at + 1]:
                values[at], values[at + 1] = values[at + 1], values[at]
                swaps += 1
    return values, swaps


assert bubble_sort([3, 2, 1]) == ([1, 2, 3], 3)
assert bubble_sort([]) == ([], 0)
mixed = [(n * 37) % 23 for n in range(23)]
inversions = sum(a > b for i, a in enumerate(mixed) for b in mixed[i:])
assert bubble_sort(mixed) == (sorted(mixed), inversions)
