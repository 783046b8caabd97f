"""Raises to a power by squaring."""


def power(base, exponent, modulus=None):
    result = 1
    while exponent:
        if exponent % 2:
            result *= base
        base *= base
        if modulus:
            result, base = result % modulus, base % modulus
        exponent //= 2
    return result


assert power(2, 64) == 18446744073709551616
assert all(power(b, e) == b**e for b in range(-5, 6) for e in range(12))
assert power(3, 10**18, 1_000_007) == pow(3, 10**18, 1_000_007)
