"""A mapping that remembers which key was used last."""

from collections import OrderedDict


class Recent(OrderedDict):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def __getitem__(self, key):
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.size:
            self.popitem(last=False)


cache = Recent(2)
cache["a"], cache["b"] = 1, 2
assert cache["a"] == 1
cache["c"] = 3
assert list(cache) == ["a", "c"] and "b" not in cache
