"""Computes mean and deviation in one pass, as the library does."""

import math
import statistics


def spread(numbers):
    mean = squares = 0.0
    for count, number in enumerate(numbers, 1):
        step = number - mean
        mean += step / count
        squares += step * (number - mean)
    return mean, math.sqrt(squares / len(numbers))


numbers = [2, 4, 4, 4, 5, 5, 7, 9]
assert spread(numbers) == (5.0, 2.0)
shifted = [number + 1e6 for number in numbers]
assert math.isclose(spread(shifted)[1], 2.0, rel_tol=1e-6)
assert math.isclose(spread(numbers)[1], statistics.pstdev(numbers))
assert statistics.multimode("aabbc") == ["a", "b"] and statistics.quantiles(range(1, 12), n=4) == [3, 6, 9]
