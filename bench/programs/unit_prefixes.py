"""Writes sizes for people, and reads them."""

import re

UNITS = ["B", "KiB", "MiB", "GiB", "TiB"]


def show(size):
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            return f"{size:g} {unit}" if size == int(size) else f"{size:.1f} {unit}"
        size /= 1024


def read(text):
    number, unit = re.fullmatch(r"([\d.]+) (\w+)", text).groups()
    return int(float(number) * 1024 ** UNITS.index(unit))


assert show(0) == "0 B" and show(1023) == "1023 B" and show(1024) == "1 KiB"
assert show(1536) == "1.5 KiB" and show(5 * 2**40) == "5 TiB"
assert all(read(show(2**power)) == 2**power for power in range(50))
