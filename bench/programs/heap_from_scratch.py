"""A heap, compared with the library's."""

import heapq


class Heap:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)
        at = len(self.items) - 1
        while at and self.items[(at - 1) // 2] > self.items[at]:
            parent = (at - 1) // 2
            self.items[at], self.items[parent] = self.items[parent], self.items[at]
            at = parent

    def pop(self):
        items = self.items
        items[0], items[-1] = items[-1], items[0]
        least, at = items.pop(), 0
        while (below := 2 * at + 1) < len(items):
            if below + 1 < len(items) and items[below + 1] < items[below]:
                below += 1
            if items[at] <= items[below]:
                break
            items[at], items[below] = items[below], items[at]
            at = below
        return least


heap, other = Heap(), []
for number in [(n * 7919) % 101 for n in range(60)]:
    heap.push(number)
    heapq.heappush(other, number)
assert [heap.pop() for _ in range(60)] == [heapq.heappop(other) for _ in range(60)]
