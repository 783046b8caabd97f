"""Puts tasks in an order in which each comes after what it needs."""

from graphlib import CycleError, TopologicalSorter

NEEDS = {"shoes": {"socks", "trousers"}, "trousers": {"pants"}, "coat": {"shirt"}, "shirt": set()}


def order(needs):
    left = {task: set(before) for task, before in needs.items()}
    for before in list(left.values()):
        for task in before:
            left.setdefault(task, set())
    while left:
        ready = sorted(task for task, before in left.items() if not before)
        if not ready:
            raise CycleError("a cycle", sorted(left))
        for task in ready:
            del left[task]
            yield task
        for before in left.values():
            before.difference_update(ready)


for found in (list(order(NEEDS)), list(TopologicalSorter(NEEDS).static_order())):
    assert len(found) == 6
    assert all(found.index(one) < found.index(task) for task, before in NEEDS.items() for one in before)
try:
    list(order({"a": {"b"}, "b": {"a"}}))
except CycleError as error:
    assert error.args[1] == ["a", "b"]
else:
    raise AssertionError
