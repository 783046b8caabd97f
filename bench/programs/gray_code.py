"""Lists numbers so that each differs in one bit from the one before."""


def gray(bits):
    return [number ^ number >> 1 for number in range(2**bits)]


def ungray(code):
    number = 0
    while code:
        number ^= code
        code >>= 1
    return number


codes = gray(6)
assert gray(2) == [0, 1, 3, 2]
assert sorted(codes) == list(range(64))
assert all((one ^ other).bit_count() == 1 for one, other in zip(codes, codes[1:] + codes[:1]))
assert [ungray(code) for code in codes] == list(range(64))
