"""Commands that tell when a template is ready, for `Template.set_start_cmd`."""

from __future__ import annotations

import shlex


def wait_for_port(port: int) -> str:
    """Returns a command that succeeds when a program listens on a port."""
    return f"cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qE ':{port:04X} [0-9A-F]+:0000 0A '"


def wait_for_url(url: str, status: int = 200) -> str:
    """Returns a command that succeeds when a GET of a URL has this status. The template needs curl."""
    return f"test \"$(curl -s -o /dev/null -w '%{{http_code}}' {shlex.quote(url)})\" = {status}"


def wait_for_process(name: str) -> str:
    """Returns a command that succeeds when a process with this name runs. The template needs pgrep."""
    return f"pgrep -x {shlex.quote(name)} > /dev/null"


def wait_for_file(path: str) -> str:
    """Returns a command that succeeds when a file exists."""
    return f"test -e {shlex.quote(path)}"


def wait_for_timeout(seconds: float) -> str:
    """Returns a command that succeeds after some seconds."""
    return f"sleep {seconds:g}"
