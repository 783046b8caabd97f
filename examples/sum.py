"""Sums up sales by region, from the given file or from standard input."""

import csv
import sys
from collections import defaultdict
from decimal import Decimal


def sums(lines):
    units = defaultdict(int)
    revenue = defaultdict(Decimal)
    for row in csv.DictReader(lines):
        units[row["region"]] += int(row["units"])
        revenue[row["region"]] += int(row["units"]) * Decimal(row["price"])
    return units, revenue


def print_table(units, revenue):
    print(f"{'region':<8}{'units':>8}{'revenue':>12}")
    for region in sorted(units):
        print(f"{region:<8}{units[region]:>8}{revenue[region]:>12.2f}")
    print(f"{'total':<8}{sum(units.values()):>8}{sum(revenue.values()):>12.2f}")


if len(sys.argv) > 1:
    with open(sys.argv[1], newline="", encoding="utf-8") as file:
        print_table(*sums(file))
else:
    print_table(*sums(sys.stdin))
