"""Permissions as flags that can be combined."""

from enum import Flag, auto


class Right(Flag):
    READ = auto()
    WRITE = auto()
    RUN = auto()
    ALL = READ | WRITE | RUN


mine = Right.READ | Right.RUN
assert Right.READ in mine and Right.WRITE not in mine
assert mine | Right.WRITE == Right.ALL
assert ~mine & Right.ALL == Right.WRITE
assert Right.ALL.value == 7 and Right(5) == mine
assert not mine & Right.WRITE
