"""A decorator that caches results, with a cache that can be cleared."""

from functools import wraps


def memoize(function):
    known = {}

    @wraps(function)
    def remembered(*arguments):
        if arguments not in known:
            known[arguments] = function(*arguments)
        return known[arguments]

    remembered.forget = known.clear
    return remembered


calls = []


@memoize
def slow(a, b):
    """Adds."""
    calls.append((a, b))
    return a + b


assert [slow(1, 2), slow(1, 2), slow(2, 1)] == [3, 3, 3]
assert calls == [(1, 2), (2, 1)]
slow.forget()
assert slow(1, 2) == 3 and len(calls) == 3
assert slow.__name__ == "slow" and slow.__doc__ == "Adds."
