"""Computes large Fibonacci numbers by powers of a matrix."""


def multiply(one, other):
    (a, b), (c, d) = one
    (e, f), (g, h) = other
    return ((a * e + b * g, a * f + b * h), (c * e + d * g, c * f + d * h))


def fibonacci(number):
    result, step = ((1, 0), (0, 1)), ((1, 1), (1, 0))
    while number:
        if number & 1:
            result = multiply(result, step)
        step = multiply(step, step)
        number >>= 1
    return result[0][1]


first = [0, 1]
while len(first) < 60:
    first.append(first[-1] + first[-2])
assert [fibonacci(number) for number in range(60)] == first
assert fibonacci(300) == fibonacci(299) + fibonacci(298) and len(str(fibonacci(300))) == 63
