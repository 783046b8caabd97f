"""Shows bytes as a hex dump, and reads it back."""


def dump(data):
    lines = []
    for start in range(0, len(data), 16):
        piece = data[start : start + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{start:08x}  {piece.hex(' '):<47}  |{shown}|")
    return "\n".join(lines)


def undump(text):
    return b"".join(bytes.fromhex(line[10:57]) for line in text.splitlines())


assert dump(b"Hi\n!") == "00000000  48 69 0a 21" + " " * 36 + "  |Hi.!|"
data = bytes(range(0, 256, 5))
assert undump(dump(data)) == data and len(dump(data).splitlines()) == 4
