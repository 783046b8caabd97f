"""A buffer that forgets the oldest when it is full."""

from collections import deque


class Ring:
    def __init__(self, size):
        self.items, self.start, self.count = [None] * size, 0, 0

    def push(self, item):
        self.items[(self.start + self.count) % len(self.items)] = item
        if self.count < len(self.items):
            self.count += 1
        else:
            self.start = (self.start + 1) % len(self.items)

    def __iter__(self):
        return (self.items[(self.start + at) % len(self.items)] for at in range(self.count))


ring, model = Ring(4), deque(maxlen=4)
assert list(ring) == []
for number in range(11):
    ring.push(number)
    model.append(number)
    assert list(ring) == list(model)
