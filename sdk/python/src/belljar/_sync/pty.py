# Made by scripts/make_sync.py from ../_async/pty.py. Change that one.
"""Terminals in a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional, Union

from .. import _calls as calls
from .. import _frames as frames
from .. import _json as read
from .._calls._call import Duration
from .._calls.commands import Command, Signal
from ..errors import ConnectionException, SandboxException, error_from_problem, is_interruption
from ..models import CommandResult, ProcessInfo, PtySize, StreamOutput
from . import _io
from ._io import BytesCallback
from .commands import Commands, checked

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._config import RequestOptions
    from .commands import ProcessRef

DEFAULT_SHELL = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi"
"""What runs on a terminal that was asked for without a command."""


class Pty:
    """Starts programs on terminals, and takes up those that run on one."""

    def __init__(self, commands: Commands) -> None:
        """Belongs to a sandbox."""
        self._commands = commands
        self._transport = commands._transport
        self._sandbox_id = commands._sandbox_id

    def create(
        self,
        size: Optional[PtySize] = None,
        on_data: Optional[BytesCallback] = None,
        *,
        cmd: Optional[Command] = None,
        cwd: Optional[str] = None,
        envs: Optional[Mapping[str, str]] = None,
        timeout: Optional[Duration] = 0,
        **options: Unpack[RequestOptions],
    ) -> PtyHandle:
        """Starts a program on a new terminal.

        Args:
            size: The size of the terminal, 24 rows of 80 if not given.
            on_data: Called with each piece of output. Without it iterate over the handle.
            cmd: The program, an interactive shell if not given.
            cwd: Where it runs.
            envs: Variables, added to those of the sandbox. `TERM` is `xterm-256color` unless it is given.
            timeout: How long it may run; without end if 0.
            options: `request_timeout` and `user`, as `commands.run` takes them.
        """
        call = calls.commands.start(
            self._sandbox_id,
            DEFAULT_SHELL if cmd is None else cmd,
            envs={"TERM": "xterm-256color", **(envs or {})},
            cwd=cwd,
            timeout=timeout,
            stdin=None,
            terminal=size or PtySize(),
        )
        return self._attach(self._transport.request(call, **options), on_data)

    def connect(self, process: ProcessRef, on_data: Optional[BytesCallback] = None) -> PtyHandle:
        """Takes up a program on a terminal that was started before. Its output comes from as far back as it was kept."""
        return self._attach(self._commands.get_info(process), on_data)

    def send_stdin(self, process: ProcessRef, data: Union[str, bytes]) -> None:
        """Types into the terminal of a process."""
        self._commands.send_stdin(process, data)

    def resize(self, process: ProcessRef, size: PtySize) -> None:
        """Changes the size of the terminal of a process."""
        number = self._commands._number(process)
        self._transport.request(calls.commands.resize(self._sandbox_id, number, size))

    def kill(self, process: ProcessRef) -> bool:
        """Ends a process and all that it started, at once. False: it has ended already."""
        return self._commands.kill(process)

    def _attach(self, info: ProcessInfo, on_data: Optional[BytesCallback]) -> PtyHandle:
        handle = PtyHandle(self, info)
        handle._open()
        if on_data is not None:
            handle._start(on_data)
        return handle


class PtyHandle:
    """A program on a terminal. Iterate over its output; `wait` reads it to the end and drops it.

    Input goes over the same connection, so that it arrives in the order in which it is sent.
    """

    def __init__(self, pty: Pty, info: ProcessInfo) -> None:
        """Takes up a process that has a terminal."""
        self._pty = pty
        self._info = info
        self._socket: Optional[_io.Socket] = None
        self._offset = 0
        self._breaks = 0
        self._end: Optional[Mapping[str, Any]] = None
        self._disconnected = False
        self._reader: Optional[_io.Background[None]] = None

    @property
    def pid(self) -> int:
        """What programs in the sandbox know it by."""
        return self._info.pid

    @property
    def process(self) -> int:
        """The number that Belljar gave it in this sandbox and never gives again."""
        return self._info.process

    @property
    def exit_code(self) -> Optional[int]:
        """Its exit code, once its end has been read; None before, and if it did not end by itself."""
        return None if self._end is None else read.optional_integer(self._end, "exit_code")

    def __iter__(self) -> PtyHandle:
        """The output, piece by piece, until the end."""
        return self

    def __next__(self) -> bytes:
        """The next piece of output."""
        if self._reader is not None:
            raise SandboxException("the output of this terminal goes to a callback; it cannot be iterated over as well")
        data = self._receive()
        if data is None:
            raise StopIteration
        return data

    def send_stdin(self, data: Union[str, bytes]) -> None:
        """Types."""
        self._send(data.encode("utf-8") if isinstance(data, str) else bytes(data))

    def resize(self, size: PtySize) -> None:
        """Changes the size of the terminal."""
        self._send(frames.resize_frame(size))

    def send_signal(self, signal: Signal = "SIGTERM", *, tree: bool = True) -> bool:
        """Sends a signal to the program, and to all that it started unless `tree` is False. False: it has ended."""
        return self._pty._commands.send_signal(self, signal, tree=tree)

    def kill(self) -> bool:
        """Ends the program and all that it started, at once. False: it has ended already."""
        return self._pty.kill(self)

    def wait(self, on_data: Optional[BytesCallback] = None, *, check: bool = False) -> CommandResult:
        """Waits for the end. `on_data` gets the output that has not been read yet; the result holds no output.

        A shell ends with the exit code of its last command, so that is no error unless `check` says so.
        """
        if self._reader is None:
            self._read_all(on_data)
        elif on_data is not None:
            raise SandboxException("the output of this terminal goes to a callback already")
        else:
            self._reader.join()
        if self._end is None:
            raise SandboxException("the handle was disconnected; take the terminal up again with pty.connect")
        none = StreamOutput(data=b"", total_bytes=0)
        result = CommandResult.from_exit(self._end, self.process, none, none)
        return checked(result) if check else result

    def disconnect(self) -> None:
        """Stops reading. The program goes on; `pty.connect` takes it up again."""
        self._disconnected = True
        if self._reader is not None:
            self._reader.stop()
        self._close()

    def __repr__(self) -> str:
        """The program and its numbers."""
        return f"{type(self).__name__}(process={self.process}, pid={self.pid})"

    def _open(self) -> None:
        path = calls.commands.attach_path(self._pty._sandbox_id, self.process)
        self._socket = self._pty._transport.open_socket(path, {"terminal": str(self._offset)})

    def _start(self, on_data: BytesCallback) -> None:
        self._reader = _io.Background(lambda: self._read_all(on_data), self._close)

    def _send(self, frame: Union[str, bytes]) -> None:
        socket = self._socket
        if socket is None:
            raise SandboxException("the terminal is not connected any more")
        socket.send(frame)

    def _read_all(self, on_data: Optional[BytesCallback]) -> None:
        try:
            while True:
                data = self._receive()
                if data is None:
                    return
                if on_data is not None:
                    _io.notify(on_data, data)
        finally:
            self._close()

    def _receive(self) -> Optional[bytes]:
        """The next piece of output; None: it has ended, or was disconnected. A broken connection is taken up again."""
        while self._end is None and not self._disconnected:
            failure: SandboxException = ConnectionException(
                "the server closed the terminal's connection before the program's end"
            )
            frame: Optional[Union[str, bytes]] = None
            try:
                if self._socket is None:
                    self._open()
                if self._socket is not None:
                    frame = self._socket.receive()
            except SandboxException as error:
                if not is_interruption(error):
                    raise
                failure = error
            if frame is not None:
                data = self._take(frame)
                if data:
                    return data
                continue
            self._close()
            delay = self._pty._transport.retries.after_break(self._breaks, safe=True, opened=True)
            if self._disconnected:
                return None
            if delay is None:
                raise failure
            self._breaks += 1
            _io.sleep(delay)
        self._close()
        return None

    def _take(self, frame: Union[str, bytes]) -> bytes:
        parsed = frames.parse_frame(frame)
        if isinstance(parsed, frames.OutputFrame):
            if parsed.stream != frames.TERMINAL:
                return b""
            self._breaks = 0
            data = parsed.data[max(0, self._offset - parsed.offset) :]
            self._offset = max(self._offset, parsed.offset + len(parsed.data))
            return data
        if parsed.get("event") == "exited":
            self._end = parsed
        elif parsed.get("event") == "error":
            problem = parsed.get("error")
            raise error_from_problem(problem if isinstance(problem, dict) else parsed)
        return b""

    def _close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()
