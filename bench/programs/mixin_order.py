"""Calls the methods of several parents in their order."""


class Base:
    def steps(self):
        return ["base"]


class Logged(Base):
    def steps(self):
        return ["logged", *super().steps()]


class Timed(Base):
    def steps(self):
        return ["timed", *super().steps()]


class Both(Logged, Timed):
    def steps(self):
        return ["both", *super().steps()]


assert Both().steps() == ["both", "logged", "timed", "base"]
assert [one.__name__ for one in Both.__mro__] == ["Both", "Logged", "Timed", "Base", "object"]
try:
    type("Bad", (Base, Logged), {})
except TypeError as error:
    assert "consistent method resolution" in str(error)
else:
    raise AssertionError
