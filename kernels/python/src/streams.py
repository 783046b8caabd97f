"""Standard output and error of the code."""

import io
import sys

# The streams that the kernel has made: flushing them runs no code of the user's.
_own_streams = []


def flush(own=False):
    """Everything that the code has printed is in the pipes; `own` leaves streams out that the code has made."""
    streams = _own_streams if own else [sys.stdout, sys.stderr, *_own_streams]
    for stream in streams:
        try:
            stream.flush()
        except Exception:
            continue
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None:
        try:
            ctypes.pythonapi.fflush(None)
        except Exception:
            return


# What Python itself has opened: it closes the descriptors when it goes, so that it stays.
_first = []


def _make(name):
    raw = io.FileIO({"stdout": 1, "stderr": 2}[name], "w", closefd=False)
    raw.name = f"<{name}>"
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def prepare_streams():
    """Output line by line, in UTF-8, whatever the characters; code that closes a stream does not close the descriptor."""
    _own_streams.clear()
    for name in ("stdout", "stderr"):
        before = getattr(sys, name)
        if before is not None:
            before.flush()
            _first.append(before)
        stream = _make(name)
        _own_streams.append(stream)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def repair_streams():
    """Puts own streams back where the code has left nothing that can be written to."""
    for at, name in enumerate(("stdout", "stderr")):
        if _own_streams[at].closed:
            _own_streams[at] = _make(name)
            setattr(sys, f"__{name}__", _own_streams[at])
        stream = getattr(sys, name, None)
        if not callable(getattr(stream, "write", None)) or getattr(stream, "closed", False) is True:
            setattr(sys, name, _own_streams[at])
