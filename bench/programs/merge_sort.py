"""Sorts by merging halves, and counts inversions."""


def merge_sort(values):
    if len(values) < 2:
        return list(values), 0
    middle = len(values) // 2
    (left, a), (right, b) = merge_sort(values[:middle]), merge_sort(values[middle:])
    result, wrong, at = [], a + b, 0
    for value in right:
        while at < len(left) and left[at] <= value:
            result.append(left[at])
            at += 1
        wrong += len(left) - at
        result.append(value)
    return result + left[at:], wrong


assert merge_sort([2, 4, 1, 3, 5]) == ([1, 2, 3, 4, 5], 3)
assert merge_sort([]) == ([], 0)
numbers = [(n * 41) % 29 for n in range(29)]
expected = sum(a > b for i, a in enumerate(numbers) for b in numbers[i:])
assert merge_sort(numbers) == (sorted(numbers), expected)
