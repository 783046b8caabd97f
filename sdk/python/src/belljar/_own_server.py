"""The server of this user's home, for programs that name none: the program `belljar` finds it, or starts it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from typing import Mapping, Optional, Tuple
from urllib.parse import quote

from .errors import AuthenticationException, ConnectionException

START_SECONDS = 90.0
"""Timeout for the program, in seconds: it waits up to 60 seconds for a server itself."""

_NO_PROGRAM = (
    "no API key, and no program belljar on this machine that could start a server; pass api_key or set BELLJAR_API_KEY "
    "(`belljar key create` creates one), or install the program: `pip install belljar` includes it for Linux on x86-64"
)


def can_start() -> bool:
    """Reports whether this is a system on which a server can run."""
    return sys.platform.startswith("linux")


def find_program(environ: Mapping[str, str]) -> Optional[str]:
    """Returns the path of the program: in `BELLJAR_BIN`, else installed with this package, else on the PATH."""
    named = environ.get("BELLJAR_BIN")
    if named:
        return named
    try:
        installed = importlib.metadata.files("belljar") or []
    except importlib.metadata.PackageNotFoundError:
        installed = []
    for file in installed:
        if file.name == "belljar" and file.parent.name == "bin":
            path = os.path.abspath(str(file.locate()))
            if os.access(path, os.X_OK):
                return path
    return shutil.which("belljar", path=environ.get("PATH"))


def reach(environ: Optional[Mapping[str, str]] = None) -> Tuple[str, Optional[str]]:
    """Returns the URL of the server's socket, and its address if it has one.

    Starts the server if none is running, which takes a moment.
    """
    environ = os.environ if environ is None else environ
    program = find_program(environ)
    if program is None:
        raise AuthenticationException(_NO_PROGRAM)
    command = [program, "status", "--start", "--format", "json"]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
        )
    except OSError as error:
        raise ConnectionException(f"cannot run {program} to find a server: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ConnectionException(f"{program} has found no server within {START_SECONDS:.0f} s") from None
    try:
        # A server that cannot create sandboxes says why when it is asked for one.
        status = json.loads(done.stdout)
        path, address = status["socket"], str(status["server"])
    except (ValueError, KeyError, TypeError):
        path, address = None, ""
    if not isinstance(path, str):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else f"it exited with status {done.returncode}"
        raise ConnectionException(f"no server could be started with {program}: {reason}")
    return f"unix://{quote(path)}", address if address.startswith("http") else None
