"""Estimates pi with random numbers that are always the same."""

import math
import random


def estimate(count, seed):
    generator = random.Random(seed)
    inside = sum(generator.random() ** 2 + generator.random() ** 2 <= 1 for _ in range(count))
    return 4 * inside / count


assert estimate(1000, 7) == estimate(1000, 7)
assert abs(estimate(20_000, 1) - math.pi) < 0.06
assert estimate(1000, 1) != estimate(1000, 2)
