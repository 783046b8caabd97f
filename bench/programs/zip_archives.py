"""Packs files into an archive in memory, and looks at them again."""

import gzip
import io
import zipfile
import zlib

FILES = {"a.txt": b"hello " * 100, "dir/b.bin": bytes(range(256))}
memory = io.BytesIO()
with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, data in FILES.items():
        archive.writestr(name, data)
with zipfile.ZipFile(io.BytesIO(memory.getvalue())) as archive:
    assert archive.testzip() is None
    assert {info.filename: archive.read(info) for info in archive.infolist()} == FILES
    assert archive.getinfo("a.txt").compress_size < 40 and archive.getinfo("a.txt").CRC == zlib.crc32(FILES["a.txt"])
for data in FILES.values():
    assert gzip.decompress(gzip.compress(data)) == zlib.decompress(zlib.compress(data)) == data
