"""A search tree: what is put in comes out sorted."""


class Node:
    def __init__(self, value):
        self.value, self.left, self.right = value, None, None

    def add(self, value):
        side = "left" if value < self.value else "right"
        below = getattr(self, side)
        if below is None:
            setattr(self, side, Node(value))
        else:
            below.add(value)

    def __iter__(self):
        if self.left:
            yield from self.left
        yield self.value
        if self.right:
            yield from self.right

    def height(self):
        return 1 + max((below.height() for below in (self.left, self.right) if below), default=0)


numbers = [50, 20, 70, 10, 30, 60, 80, 30]
root = Node(numbers[0])
for number in numbers[1:]:
    root.add(number)
assert list(root) == sorted(numbers)
assert root.height() == 4
