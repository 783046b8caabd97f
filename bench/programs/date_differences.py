"""Counts days between dates, and working days."""

from datetime import date, timedelta


def working_days(first, last):
    days = (first + timedelta(n) for n in range((last - first).days))
    return sum(day.weekday() < 5 for day in days)


assert (date(2024, 3, 1) - date(2024, 2, 1)).days == 29
assert (date(2023, 3, 1) - date(2023, 2, 1)).days == 28
assert working_days(date(2024, 1, 1), date(2024, 1, 8)) == 5
assert working_days(date(2024, 1, 6), date(2024, 1, 8)) == 0
