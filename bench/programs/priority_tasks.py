"""Takes tasks by priority, equal ones in order of arrival."""

import heapq
from dataclasses import dataclass, field
from itertools import count

number = count()


@dataclass(order=True)
class Task:
    priority: int
    order: int = field(default_factory=lambda: next(number))
    name: str = field(default="", compare=False)


queue = []
for priority, name in [(2, "b"), (1, "a"), (2, "c"), (0, "first"), (1, "d")]:
    heapq.heappush(queue, Task(priority, name=name))
names = [heapq.heappop(queue).name for _ in range(len(queue))]
assert names == ["first", "a", "d", "b", "c"]
