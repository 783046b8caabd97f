"""A coroutine that keeps a running mean of what it is sent."""


def mean():
    total, count, value = 0, 0, None
    while True:
        value = yield value
        total += value
        count += 1
        value = total / count


running = mean()
assert next(running) is None
assert [running.send(number) for number in (10, 20, 60)] == [10, 15, 30]
running.close()
try:
    running.send(1)
except StopIteration:
    closed = True
assert closed
