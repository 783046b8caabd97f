"""Finds the longest palindrome in a text."""


def longest(text):
    best = ""
    for middle in range(len(text)):
        for left, right in ((middle, middle), (middle, middle + 1)):
            while left >= 0 and right < len(text) and text[left] == text[right]:
                left, right = left - 1, right + 1
            best = max(best, text[left + 1 : right], key=len)
    return best


assert longest("babad") == "bab" and longest("cbbd") == "bb"
assert longest("forgeeksskeegfor") == "geeksskeeg"
assert longest("") == "" and longest("a") == "a"
assert sum(number == int(str(number)[::-1]) for number in range(1000, 10000)) == 90
