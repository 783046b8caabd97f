"""The asynchronous client. `scripts/make_sync.py` generates `_sync` from it, except for `_io.py`."""
