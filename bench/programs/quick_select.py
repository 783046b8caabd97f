"""Finds the k-th smallest number without sorting all."""

import random


def select(numbers, k, generator):
    pivot = generator.choice(numbers)
    low = [n for n in numbers if n < pivot]
    same = numbers.count(pivot)
    if k < len(low):
        return select(low, k, generator)
    if k < len(low) + same:
        return pivot
    return select([n for n in numbers if n > pivot], k - len(low) - same, generator)


generator = random.Random(3)
numbers = [generator.randrange(100) for _ in range(101)]
ordered = sorted(numbers)
assert all(select(numbers, k, generator) == ordered[k] for k in range(0, 101, 10))
assert select([7], 0, generator) == 7
