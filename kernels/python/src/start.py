"""Start of a kernel as an ordinary process."""

import os
import sys

from _belljar import packages
from _belljar.bundle import plain
from _belljar.warm import Failed, prepare


def report_failure(fd, message):
    """Reports that the kernel cannot work."""
    import socket

    try:
        sock = socket.socket(fileno=fd)
        import json

        body = json.dumps({"op": "failed", "message": plain(message)[:16000]}).encode()
        sock.sendall(len(body).to_bytes(4, "big") + body)
    except OSError:
        pass
    os._exit(1)


def close_source():
    """Closes the descriptor that this file was read from."""
    import re

    found = re.fullmatch(r"/(?:proc/self|dev)/fd/(\d+)", sys.argv[0] if sys.argv else "")
    if found and int(found[1]) > 3:
        try:
            os.close(int(found[1]))
        except OSError:
            pass


def _no_input():
    """Replaces standard input, which is the rest of this file, so that code reads an end of input."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null != 0:
        os.close(null)


def main():
    """Starts a kernel as an ordinary process."""
    fd = int(os.environ.pop("BELLJAR_KERNEL_FD", "3"))
    os.environ.pop("BELLJAR_KERNEL_LANGUAGE", None)
    os.set_inheritable(fd, False)
    close_source()
    _no_input()
    # Files in the code's own directory must not shadow Python's modules while the kernel starts.
    place = sys.path.pop(0) if sys.path and not getattr(sys.flags, "safe_path", False) else None
    sys.argv = [""]
    try:
        kernel = prepare([], to_fork=False)
    except Failed as error:
        report_failure(fd, str(error))
    except BaseException as error:
        report_failure(fd, f"the Python kernel cannot start: {type(error).__name__}: {error}")
    if place is not None:
        sys.path.insert(0, "")
    packages.use_directory()
    kernel.connect(fd)
    kernel.serve()
