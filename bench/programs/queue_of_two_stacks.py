"""A queue made of two stacks."""

from collections import deque


class Queue:
    def __init__(self):
        self.into, self.out = [], []

    def put(self, item):
        self.into.append(item)

    def get(self):
        if not self.out:
            while self.into:
                self.out.append(self.into.pop())
        return self.out.pop()

    def __len__(self):
        return len(self.into) + len(self.out)


queue, model = Queue(), deque()
for number in range(50):
    queue.put(number)
    model.append(number)
    if number % 3 == 2:
        assert queue.get() == model.popleft()
assert len(queue) == len(model) == 34
assert [queue.get() for _ in range(len(queue))] == list(model)
