"""Parses log lines with named groups."""

import re
from collections import Counter

LINE = re.compile(r"(?P<time>\d\d:\d\d) \[(?P<level>\w+)\] (?P<what>.*?)(?: \(took (?P<ms>\d+) ms\))?$")
LOG = """\
09:00 [INFO] started
09:01 [WARN] slow answer (took 250 ms)
09:02 [INFO] answer (took 30 ms)
this is no line
09:05 [ERROR] failed"""

found = [match.groupdict() for match in map(LINE.match, LOG.splitlines()) if match]
assert Counter(entry["level"] for entry in found) == {"INFO": 2, "WARN": 1, "ERROR": 1}
assert [int(entry["ms"]) for entry in found if entry["ms"]] == [250, 30]
assert found[1]["what"] == "slow answer" and found[0]["ms"] is None
