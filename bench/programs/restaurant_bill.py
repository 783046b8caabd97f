"""Adds up a bill with data classes."""

from dataclasses import dataclass, replace
from decimal import Decimal


@dataclass(frozen=True)
class Item:
    name: str
    price: Decimal
    count: int = 1

    @property
    def total(self):
        return self.price * self.count


bill = [Item("tea", Decimal("2.40"), 2), Item("cake", Decimal("3.15"))]
assert sum(item.total for item in bill) == Decimal("7.95")
assert replace(bill[0], count=3).total == Decimal("7.20") and bill[0].count == 2
assert {Item("a", Decimal(1)): 1}[Item("a", Decimal("1.0"))] == 1
try:
    bill[0].count = 5
except AttributeError:
    frozen = True
assert frozen
