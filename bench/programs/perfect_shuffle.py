"""Counts the perfect shuffles that bring cards back into order."""


def shuffled(cards):
    half = len(cards) // 2
    return [card for pair in zip(cards[:half], cards[half:]) for card in pair]


def shuffles(count):
    ordered = list(range(count))
    cards, times = shuffled(ordered), 1
    while cards != ordered:
        cards, times = shuffled(cards), times + 1
    return times


assert shuffled([1, 2, 3, 4]) == [1, 3, 2, 4]
assert shuffles(52) == 8 and shuffles(2) == 1
for count in range(4, 60, 2):
    assert pow(2, shuffles(count), count - 1) == 1
