"""Adds two numbers that are written in binary."""


def add_binary(one, other):
    result, carry = [], 0
    one, other = list(one), list(other)
    while one or other or carry:
        carry += int(one.pop()) if one else 0
        carry += int(other.pop()) if other else 0
        result.append(str(carry % 2))
        carry //= 2
    return "".join(reversed(result)) or "0"


assert add_binary("11", "1") == "100"
assert add_binary("", "") == "0"
for a in range(40):
    for b in range(0, 40, 7):
        assert int(add_binary(f"{a:b}", f"{b:b}"), 2) == a + b
