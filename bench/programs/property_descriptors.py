"""A descriptor that keeps numbers within bounds."""


class Bounded:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name, self.low)

    def __set__(self, instance, value):
        if not self.low <= value <= self.high:
            raise ValueError(f"{self.name[1:]}: {value} is not in {self.low}..{self.high}")
        setattr(instance, self.name, value)


class Colour:
    red, green = Bounded(0, 255), Bounded(0, 255)


colour = Colour()
colour.red = 255
assert (colour.red, colour.green) == (255, 0) and Colour.red.high == 255
try:
    colour.green = 256
except ValueError as error:
    assert str(error) == "green: 256 is not in 0..255"
else:
    raise AssertionError
