"""Writes a file, reads it line by line, and counts."""

import pathlib
import tempfile

with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory) / "notes" / "poem.txt"
    path.parent.mkdir()
    path.write_text("one two\n\nthree\nfour five six", encoding="utf-8")
    with path.open(encoding="utf-8") as lines:
        counts = [len(line.split()) for line in lines]
    assert counts == [2, 0, 1, 3]
    assert path.stat().st_size == 28
    assert [found.name for found in pathlib.Path(directory).rglob("*.txt")] == ["poem.txt"]
assert not path.exists()
