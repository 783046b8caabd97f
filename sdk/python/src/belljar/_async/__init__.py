"""The asynchronous client. `_sync` is made from this by `scripts/make_sync.py`, but for `_io.py`."""
