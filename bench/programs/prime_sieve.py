"""Finds primes with the sieve of Eratosthenes."""


def primes(limit):
    sieve = bytearray([1]) * limit
    sieve[:2] = bytes(2)
    for number in range(2, int(limit**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, limit, number)))
    return [number for number, is_prime in enumerate(sieve) if is_prime]


assert primes(30) == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
assert len(primes(100_000)) == 9592
assert [(p, p + 2) for p in primes(50) if p + 2 in primes(50)] == [(3, 5), (5, 7), (11, 13), (17, 19), (29, 31), (41, 43)]
