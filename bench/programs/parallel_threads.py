"""Adds in several threads; the lock keeps the sum right."""

import threading
from concurrent.futures import ThreadPoolExecutor

total, lock = 0, threading.Lock()


def add(numbers):
    global total
    for number in numbers:
        with lock:
            total += number
    return threading.get_ident()


with ThreadPoolExecutor(max_workers=4) as pool:
    names = list(pool.map(add, [range(n, 2000, 8) for n in range(8)]))
assert total == sum(range(2000))
assert len(names) == 8 and threading.get_ident() not in names
