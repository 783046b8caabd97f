"""Computes the roots of unity."""

import cmath


def roots(count):
    return [cmath.exp(2j * cmath.pi * k / count) for k in range(count)]


for count in range(1, 12):
    found = roots(count)
    assert all(abs(root**count - 1) < 1e-9 for root in found)
    if count > 1:
        assert abs(sum(found)) < 1e-9
assert abs(roots(4)[1] - 1j) < 1e-12
