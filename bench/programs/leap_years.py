"""Finds leap years, as the calendar does."""

import calendar


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


assert is_leap(2000) and is_leap(2024)
assert not is_leap(1900) and not is_leap(2023)
assert all(is_leap(year) == calendar.isleap(year) for year in range(1, 3000))
