"""Writes text along a fence, and reads it back."""

from itertools import cycle, islice


def rails(size, count):
    zigzag = [*range(count), *range(count - 2, 0, -1)]
    return sorted(range(size), key=list(islice(cycle(zigzag), size)).__getitem__)


def encode(text, count):
    return "".join(text[at] for at in rails(len(text), count))


def decode(text, count):
    result = [""] * len(text)
    for letter, at in zip(text, rails(len(text), count)):
        result[at] = letter
    return "".join(result)


assert encode("WEAREDISCOVEREDFLEEATONCE", 3) == "WECRLTEERDSOEEFEAOCAIVDEN"
text = "some longer text with spaces"
assert all(decode(encode(text, count), count) == text for count in range(2, 9))
