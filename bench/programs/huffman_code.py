"""Encodes letters by frequency, and decodes them."""

import heapq
from collections import Counter


def codes(text):
    heap = [(count, number, {letter: ""}) for number, (letter, count) in enumerate(Counter(text).items())]
    heapq.heapify(heap)
    while len(heap) > 1:
        low, _, left = heapq.heappop(heap)
        high, number, right = heapq.heappop(heap)
        merged = {**{k: "0" + v for k, v in left.items()}, **{k: "1" + v for k, v in right.items()}}
        heapq.heappush(heap, (low + high, number, merged))
    return heap[0][2]


def decode(bits, table):
    back, word, text = {code: letter for letter, code in table.items()}, "", ""
    for bit in bits:
        word += bit
        if word in back:
            text, word = text + back[word], ""
    return text


text = "abracadabra alakazam"
table = codes(text)
bits = "".join(table[letter] for letter in text)
assert decode(bits, table) == text
assert len(bits) < 3 * len(text) and len(table["a"]) == min(map(len, table.values()))
