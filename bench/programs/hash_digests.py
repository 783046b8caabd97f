"""Hashes in pieces and at once, and checks a known digest."""

import hashlib
import hmac

data = bytes(range(256)) * 50
whole = hashlib.sha256(data).hexdigest()
pieces = hashlib.sha256()
for start in range(0, len(data), 333):
    pieces.update(data[start : start + 333])
assert pieces.hexdigest() == whole
assert hashlib.sha256(b"abc").hexdigest() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
mark = hmac.new(b"key", data, "sha256").digest()
assert hmac.compare_digest(mark, hmac.digest(b"key", data, "sha256"))
assert mark != hmac.digest(b"kez", data, "sha256")
