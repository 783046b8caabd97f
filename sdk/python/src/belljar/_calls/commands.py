"""Commands and processes."""

from __future__ import annotations

import base64
import os
import signal as signals
from dataclasses import replace
from datetime import timedelta
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Union

from .. import _json as read
from .._arguments import texts, wrong_type
from ..models import CommandResult, ProcessInfo, PtySize
from ._call import (
    Call,
    Duration,
    Size,
    duration,
    flag,
    get,
    given,
    given_query,
    new_idempotency_key,
    nothing,
    post,
    sandbox_path,
    segment,
)

Command = Union[str, Sequence[str]]
"""A shell command line, or a program and its arguments."""

Stdin = Union[str, bytes]
"""Standard input of a command."""

Signal = Union[str, int, signals.Signals]
"""A signal: its name, with or without SIG, or its number."""


def execute(
    sandbox_id: str,
    cmd: Command,
    *,
    envs: Optional[Mapping[str, str]],
    cwd: Optional[str],
    timeout: Optional[Duration],
    stdin: Optional[Stdin],
    output: Optional[Size],
    user: Optional[str],
    session: Optional[int],
    default_timeout: Optional[float],
) -> Call[CommandResult]:
    """Runs a command and waits for its end."""
    body = _exec_body(cmd, envs, cwd, timeout, stdin, output, user)
    if session is not None:
        body["session"] = session
    return Call(
        "POST",
        sandbox_path(sandbox_id, "exec"),
        CommandResult.from_json,
        body=body,
        headers={"Idempotency-Key": new_idempotency_key()},
        safe=True,
        takes=work_seconds(timeout, default_timeout),
    )


def streamed(call: Call[CommandResult]) -> Call[CommandResult]:
    """Runs a command with streamed output. Not retried, because the end of the connection ends the command."""
    headers = {**call.headers, "Accept": "text/event-stream"}
    return replace(call, headers=headers)


def start(
    sandbox_id: str,
    cmd: Command,
    *,
    envs: Optional[Mapping[str, str]],
    cwd: Optional[str],
    timeout: Optional[Duration],
    stdin: Optional[Union[Stdin, bool]],
    output: Optional[Size] = None,
    user: Optional[str] = None,
    terminal: Optional[PtySize] = None,
) -> Call[ProcessInfo]:
    """Starts a command in the background. Standard input stays open if `stdin` is True."""
    given_stdin = None if isinstance(stdin, bool) else stdin
    body = _exec_body(cmd, envs, cwd, timeout, given_stdin, output, user)
    if terminal is not None:
        body["terminal"] = _size(terminal)
    elif stdin is True:
        body["stdin_open"] = True
    return Call("POST", sandbox_path(sandbox_id, "processes"), ProcessInfo.from_json, body=body)


def list_processes(sandbox_id: str) -> Call[List[ProcessInfo]]:
    """Lists the processes that were started in a sandbox."""
    path = sandbox_path(sandbox_id, "processes")
    return get(path, lambda value: read.list_of(value, "processes", ProcessInfo.from_json))


def info(sandbox_id: str, process: int) -> Call[ProcessInfo]:
    """Returns information about a process."""
    return get(_process_path(sandbox_id, process), ProcessInfo.from_json)


def follow(sandbox_id: str, process: int, stdout: int, stderr: int, terminal: int, follow: bool) -> Call[None]:
    """Streams the output of a process as events, from these offsets."""
    return get(
        _process_path(sandbox_id, process, "output"),
        nothing,
        ("stdout", str(stdout)),
        ("stderr", str(stderr)),
        ("terminal", str(terminal)),
        ("follow", flag(follow)),
        headers={"Accept": "text/event-stream"},
    )


def send_stdin(sandbox_id: str, process: int, close: bool) -> Call[int]:
    """Sends the body to the standard input of a process."""
    return Call(
        "POST",
        _process_path(sandbox_id, process, "stdin"),
        lambda value: read.integer(read.mapping(value, "the answer"), "bytes"),
        query=given_query(("close", flag(close))),
        headers={"Content-Type": "application/octet-stream"},
    )


def send_signal(sandbox_id: str, process: int, signal: Signal, tree: bool) -> Call[int]:
    """Signals a process, and its descendants if `tree`."""
    return post(
        _process_path(sandbox_id, process, "signal"),
        lambda value: read.integer(read.mapping(value, "the answer"), "signalled"),
        signal=signal_name(signal),
        tree=tree,
    )


def resize(sandbox_id: str, process: int, size: PtySize) -> Call[None]:
    """Resizes the terminal of a process."""
    return Call("POST", _process_path(sandbox_id, process, "resize"), nothing, body=_size(size))


def attach_path(sandbox_id: str, process: int) -> str:
    """Returns the path of the WebSocket of a process."""
    return _process_path(sandbox_id, process, "attach")


def signal_name(signal: Signal) -> Union[str, int]:
    """Returns a signal in the server's format."""
    if isinstance(signal, signals.Signals):
        return int(signal)
    if isinstance(signal, int):
        return signal
    name = signal.upper()
    return name if name.startswith("SIG") else f"SIG{name}"


def choose_process(processes: Sequence[ProcessInfo], pid: int) -> Optional[ProcessInfo]:
    """Returns the process with `pid`: the running one, else the last one with that pid."""
    fitting = [process for process in processes if process.pid == pid]
    return max(fitting, key=lambda process: (process.running, process.process), default=None)


def _process_path(sandbox_id: str, process: int, *rest: str) -> str:
    return sandbox_path(sandbox_id, "processes", segment(process, "process"), *rest)


def _exec_body(
    cmd: Command,
    envs: Optional[Mapping[str, str]],
    cwd: Optional[str],
    timeout: Optional[Duration],
    stdin: Optional[Stdin],
    output: Optional[Size],
    user: Optional[str],
) -> Dict[str, Any]:
    is_line = isinstance(cmd, str)
    return given(
        command=cmd if is_line else None,
        argv=None if is_line else _argv(cmd),
        cwd=cwd,
        env=texts(envs, "envs"),
        timeout=duration(timeout, "timeout"),
        output=output,
        user=user,
        **_stdin_body(stdin),
    )


def _argv(cmd: Command) -> List[str]:
    wanted = 'a command line, or a program and its arguments, such as ["ls", "-l"]'
    if isinstance(cmd, (bytes, bytearray, Mapping)) or not isinstance(cmd, Iterable):
        raise wrong_type("cmd", cmd, wanted)
    words = list(cmd)
    for at, word in enumerate(words):
        if not isinstance(word, (str, int, float, os.PathLike)):
            raise wrong_type(f"cmd[{at}]", word, "a string")
    return [str(word) for word in words]


def stdin_bytes(data: Union[str, bytes], name: str = "data") -> bytes:
    """Returns data for standard input as bytes."""
    if isinstance(data, str):
        return data.encode("utf-8")
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise wrong_type(name, data, "a string or bytes")


def _stdin_body(stdin: Optional[Stdin]) -> Dict[str, Any]:
    if stdin is None or isinstance(stdin, str):
        return {} if stdin is None else {"stdin": stdin}
    return {"stdin_base64": base64.b64encode(stdin_bytes(stdin, "stdin")).decode("ascii")}


def work_seconds(timeout: Optional[Duration], default: Optional[float]) -> float:
    """Returns the seconds allowed by this time limit. `default` is the sandbox's own limit."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else default if timeout is None else timeout
    # A limit unknown to the client: the server enforces it.
    return seconds if seconds and not isinstance(seconds, str) else float("inf")


def _size(size: PtySize) -> Dict[str, Any]:
    return {"rows": size.rows, "columns": size.cols}
