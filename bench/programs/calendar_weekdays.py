"""Finds each Friday the 13th of a few years."""

import calendar
import datetime


def unlucky(year):
    return [month for month in range(1, 13) if datetime.date(year, month, 13).weekday() == calendar.FRIDAY]


assert unlucky(2015) == [2, 3, 11]
assert unlucky(2016) == [5]
assert all(1 <= len(unlucky(year)) <= 3 for year in range(1990, 2040))
assert calendar.monthrange(2024, 2) == (calendar.THURSDAY, 29)
