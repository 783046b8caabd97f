"""Finds texts in other texts without the library, and with."""


def failure(pattern):
    table, length = [0], 0
    for letter in pattern[1:]:
        while length and pattern[length] != letter:
            length = table[length - 1]
        length += pattern[length] == letter
        table.append(length)
    return table


def places(text, pattern):
    table, length, found = failure(pattern), 0, []
    for at, letter in enumerate(text):
        while length and (length == len(pattern) or pattern[length] != letter):
            length = table[length - 1]
        length += pattern[length] == letter
        if length == len(pattern):
            found.append(at - length + 1)
    return found


assert failure("abacaba") == [0, 0, 1, 0, 1, 2, 3]
assert places("aaaa", "aa") == [0, 1, 2]
text = "abcabcabdabcabd"
assert places(text, "abcabd") == [n for n in range(len(text)) if text.startswith("abcabd", n)] == [3, 9]
assert places("abc", "z") == []
