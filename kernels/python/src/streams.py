"""Standard output and error of the code."""

import io
import os
import select
import sys

# Streams created by the kernel: flushing them runs no user code.
_own_streams = []


def flush(own=False):
    """Flushes everything that the code has printed; with `own`, only streams created by the kernel."""
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


# Python's own streams: they close the descriptors when freed, so they are kept.
_first = []


def _make(name):
    raw = io.FileIO({"stdout": 1, "stderr": 2}[name], "w", closefd=False)
    raw.name = f"<{name}>"
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def prepare_streams():
    """Makes output line-buffered UTF-8, with any characters; closing a stream does not close the descriptor."""
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


# Copies of the descriptors 1 and 2, with what they were.
_copies = {}


def _identify(fd):
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def keep_descriptors():
    """Keeps copies of standard output and error, which no child process inherits."""
    import fcntl

    for number in (1, 2):
        copy = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10)
        _copies[number] = copy, _identify(copy)


def forget_descriptors():
    """In a forked child: closes the copies, so that the pipes end with the child's own output."""
    for copy, identity in _copies.values():
        if _identify(copy) == identity:
            os.close(copy)
    _copies.clear()


def write_mark(mark):
    """Writes a mark to the pipes of the guest, wherever the code's output goes, after what is in them."""
    for copy, identity in _copies.values():
        if _identify(copy) == identity:
            _write_whole(copy, mark)


def _write_whole(fd, data):
    """Writes a few bytes to a pipe, which takes them all or none."""
    while True:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            # A child process has made the pipe non-blocking, and it is full.
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
        except OSError:
            # The guest is gone.
            return 0


def repair_streams():
    """Restores standard output and error: descriptors that the code has closed or replaced, and streams that are not writable."""
    for number, (copy, identity) in _copies.items():
        if _identify(number) != identity and _identify(copy) == identity:
            os.dup2(copy, number)
    for at, name in enumerate(("stdout", "stderr")):
        if _own_streams[at].closed:
            _own_streams[at] = _make(name)
            setattr(sys, f"__{name}__", _own_streams[at])
        stream = getattr(sys, name, None)
        if not callable(getattr(stream, "write", None)) or getattr(stream, "closed", False) is True:
            setattr(sys, name, _own_streams[at])
