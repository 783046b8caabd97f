"""Keeps the median of numbers that come one by one."""

import heapq
import statistics


class Median:
    def __init__(self):
        self.low, self.high = [], []

    def add(self, number):
        heapq.heappush(self.high, -heapq.heappushpop(self.low, -number))
        if len(self.high) > len(self.low):
            heapq.heappush(self.low, -heapq.heappop(self.high))

    def value(self):
        if len(self.low) > len(self.high):
            return -self.low[0]
        return (self.high[0] - self.low[0]) / 2


median, seen = Median(), []
for number in [(n * 73) % 59 for n in range(41)]:
    median.add(number)
    seen.append(number)
    assert median.value() == statistics.median(seen)
