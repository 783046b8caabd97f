"""Sorts numbers digit by digit, without comparing two of them."""


def radix_sort(numbers, base=16):
    numbers, place = list(numbers), 1
    while numbers and place <= max(numbers):
        buckets = [[] for _ in range(base)]
        for number in numbers:
            buckets[number // place % base].append(number)
        numbers = [number for bucket in buckets for number in bucket]
        place *= base
    return numbers


numbers = [(n * n * 31) % 10007 for n in range(300)]
assert radix_sort(numbers) == sorted(numbers)
assert radix_sort(numbers, base=2) == radix_sort(numbers, base=1000)
assert radix_sort([]) == [] and radix_sort([0, 0]) == [0, 0]
