"""Compares moments of several zones."""

from datetime import datetime, timedelta, timezone

east, west = timezone(timedelta(hours=9), "EAST"), timezone(-timedelta(hours=5, minutes=30))
noon = datetime(2024, 2, 29, 12, tzinfo=timezone.utc)
assert noon.astimezone(east).hour == 21 and noon.astimezone(west).strftime("%H:%M %z") == "06:30 -0530"
assert noon.astimezone(east) == noon and noon.astimezone(east).tzname() == "EAST"
assert datetime.fromisoformat("2024-02-29T21:00:00+09:00") == noon
assert datetime.fromtimestamp(0, timezone.utc).isoformat() == "1970-01-01T00:00:00+00:00"
try:
    noon < datetime(2024, 1, 1)
except TypeError as error:
    assert "naive" in str(error)
else:
    raise AssertionError
