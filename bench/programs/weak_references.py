"""Objects without references are freed."""

import copy
import gc
import weakref


class Thing:
    def __init__(self, parts):
        self.parts = parts


known = weakref.WeakValueDictionary()
one = Thing([[1], [2]])
known["one"] = one
shallow, deep = copy.copy(one), copy.deepcopy(one)
one.parts[0].append(9)
assert shallow.parts[0] == [1, 9] and deep.parts[0] == [1]
assert known["one"] is one
del one
gc.collect()
assert "one" not in known and shallow.parts[1] == [2]
