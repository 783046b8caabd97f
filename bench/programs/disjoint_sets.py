"""Joins sets, and counts those that are left."""


class Sets:
    def __init__(self, count):
        self.parent = list(range(count))
        self.count = count

    def find(self, item):
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def join(self, one, other):
        one, other = self.find(one), self.find(other)
        if one != other:
            self.parent[one] = other
            self.count -= 1
        return one != other


sets = Sets(10)
assert sets.join(1, 2) and sets.join(3, 4) and sets.join(2, 3)
assert not sets.join(1, 4)
assert sets.count == 7 and sets.find(1) == sets.find(4) != sets.find(5)
