"""Notifies listeners in order."""

from collections import defaultdict


class Emitter:
    def __init__(self):
        self.listeners = defaultdict(list)

    def on(self, event):
        def add(function):
            self.listeners[event].append(function)
            return function

        return add

    def emit(self, event, *arguments):
        return [function(*arguments) for function in self.listeners.get(event, [])]


emitter = Emitter()


@emitter.on("add")
def total(a, b):
    return a + b


@emitter.on("add")
def show(a, b):
    return f"{a}+{b}"


assert emitter.emit("add", 2, 3) == [5, "2+3"]
assert emitter.emit("nothing") == [] and "nothing" not in emitter.listeners
