"""Writes and reads Morse code."""

CODE = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --..".split(),
    )
)


def encode(text):
    return " / ".join(" ".join(CODE[letter] for letter in word) for word in text.lower().split())


def decode(signs):
    back = {code: letter for letter, code in CODE.items()}
    return " ".join("".join(back[sign] for sign in word.split()) for word in signs.split(" / "))


assert encode("SOS") == "... --- ..."
assert decode("-- --- .-. ... . / -.-. --- -.. .") == "morse code"
assert len(set(CODE.values())) == 26
text = "the quick brown fox jumps over the lazy dog"
assert decode(encode(text)) == text
