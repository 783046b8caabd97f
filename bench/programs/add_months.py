"""Walks through months, also those that are too short."""

import calendar
from datetime import date


def add_months(day, months):
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return date(year, month + 1, min(day.day, last))


start = date(2024, 1, 31)
assert add_months(start, 1) == date(2024, 2, 29)
assert add_months(start, 13) == date(2025, 2, 28)
assert add_months(start, -2) == date(2023, 11, 30)
assert [add_months(start, n).day for n in range(5)] == [31, 29, 31, 30, 31]
