"""Packs records into bytes, and reads them back."""

import struct

HEADER = struct.Struct(">4sHH")
RECORD = struct.Struct("<if8s")


def pack(records):
    body = b"".join(RECORD.pack(number, value, name.encode()) for number, value, name in records)
    return HEADER.pack(b"RECS", 1, len(records)) + body


def unpack(data):
    magic, version, count = HEADER.unpack_from(data)
    assert (magic, version) == (b"RECS", 1)
    rows = RECORD.iter_unpack(data[HEADER.size :])
    found = [(number, value, name.rstrip(b"\0").decode()) for number, value, name in rows]
    assert len(found) == count
    return found


RECORDS = [(1, 0.5, "one"), (-7, 2.25, "seven"), (2**31 - 1, -0.0, "")]
assert unpack(pack(RECORDS)) == RECORDS
assert len(pack(RECORDS)) == 8 + 3 * 16
try:
    RECORD.pack(2**31, 0, b"")
except struct.error:
    refused = True
assert refused
