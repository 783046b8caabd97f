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
from .commands import AsyncCommands, checked

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._config import RequestOptions
    from .commands import ProcessRef

DEFAULT_SHELL = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi"
"""The default program of a terminal."""


class AsyncPty:
    """Starts programs on terminals, and reconnects to them."""

    def __init__(self, commands: AsyncCommands) -> None:
        """Created by a sandbox."""
        self._commands = commands
        self._transport = commands._transport
        self._sandbox_id = commands._sandbox_id

    async def create(
        self,
        size: Optional[PtySize] = None,
        on_data: Optional[BytesCallback] = None,
        *,
        cmd: Optional[Command] = None,
        cwd: Optional[str] = None,
        envs: Optional[Mapping[str, str]] = None,
        timeout: Optional[Duration] = 0,
        **options: Unpack[RequestOptions],
    ) -> AsyncPtyHandle:
        """Starts a program on a new terminal.

        Args:
            size: The size of the terminal; default: 24 rows of 80 columns.
            on_data: Called with each piece of output. Without it iterate over the handle.
            cmd: The program; default: an interactive shell.
            cwd: Working directory.
            envs: Variables, added to those of the sandbox. `TERM` defaults to `xterm-256color`.
            timeout: Time limit; 0: none.
            options: `request_timeout` and `user`, as for `commands.run`.
        """
        user = options.pop("user", None)
        call = calls.commands.start(
            self._sandbox_id,
            DEFAULT_SHELL if cmd is None else cmd,
            envs={"TERM": "xterm-256color", **(envs or {})},
            cwd=cwd,
            timeout=timeout,
            stdin=None,
            user=user,
            terminal=size or PtySize(),
        )
        return await self._attach(await self._transport.request(call, **options), on_data)

    async def connect(self, process: ProcessRef, on_data: Optional[BytesCallback] = None) -> AsyncPtyHandle:
        """Reconnects to a program on a terminal. Its output starts at the oldest byte that is still kept."""
        return await self._attach(await self._commands.get_info(process), on_data)

    async def send_stdin(self, process: ProcessRef, data: Union[str, bytes]) -> None:
        """Sends input to the terminal of a process."""
        await self._commands.send_stdin(process, data)

    async def resize(self, process: ProcessRef, size: PtySize) -> None:
        """Changes the size of the terminal of a process."""
        number = await self._commands._number(process)
        await self._transport.request(calls.commands.resize(self._sandbox_id, number, size))

    async def kill(self, process: ProcessRef) -> bool:
        """Kills a process and all its descendants. Returns False if it has already ended."""
        return await self._commands.kill(process)

    async def _attach(self, info: ProcessInfo, on_data: Optional[BytesCallback]) -> AsyncPtyHandle:
        handle = AsyncPtyHandle(self, info)
        await handle._open()
        if on_data is not None:
            handle._start(on_data)
        return handle


class AsyncPtyHandle:
    """A program on a terminal. Iterate over its output; `wait` reads it to the end and drops it.

    Input uses the same connection, so that it arrives in order.
    """

    def __init__(self, pty: AsyncPty, info: ProcessInfo) -> None:
        """Connects to a process that has a terminal."""
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
        """The process id inside the sandbox."""
        return self._info.pid

    @property
    def process(self) -> int:
        """Belljar's own id of the process, never reused in this sandbox."""
        return self._info.process

    @property
    def exit_code(self) -> Optional[int]:
        """The exit code, once the end has been read; None before, and if it did not end by itself."""
        return None if self._end is None else read.optional_integer(self._end, "exit_code")

    def __aiter__(self) -> AsyncPtyHandle:
        """Yields the output, piece by piece, until the end."""
        return self

    async def __anext__(self) -> bytes:
        """The next piece of output."""
        if self._reader is not None:
            raise SandboxException("the output of this terminal is passed to a callback; it cannot be iterated over as well")
        data = await self._receive()
        if data is None:
            raise StopAsyncIteration
        return data

    async def send_stdin(self, data: Union[str, bytes]) -> None:
        """Sends input."""
        await self._send(data.encode("utf-8") if isinstance(data, str) else bytes(data))

    async def resize(self, size: PtySize) -> None:
        """Changes the size of the terminal."""
        await self._send(frames.resize_frame(size))

    async def send_signal(self, signal: Signal = "SIGTERM", *, tree: bool = True) -> bool:
        """Signals the program, and its descendants unless `tree` is False. Returns False if it has ended."""
        return await self._pty._commands.send_signal(self, signal, tree=tree)

    async def kill(self) -> bool:
        """Kills the program and all its descendants. Returns False if it has already ended."""
        return await self._pty.kill(self)

    async def wait(self, on_data: Optional[BytesCallback] = None, *, check: bool = False) -> CommandResult:
        """Waits for the end. `on_data` gets the unread output; the result contains no output.

        A shell ends with the exit code of its last command, so that is an error only with `check`.
        """
        if self._reader is None:
            await self._read_all(on_data)
        elif on_data is not None:
            raise SandboxException("the output of this terminal is already passed to a callback")
        else:
            await self._reader.join()
        if self._end is None:
            raise SandboxException("the handle was disconnected; reconnect with pty.connect")
        none = StreamOutput(data=b"", total_bytes=0)
        result = CommandResult.from_exit(self._end, self.process, none, none)
        return checked(result) if check else result

    async def disconnect(self) -> None:
        """Stops reading. The program keeps running; `pty.connect` reconnects to it."""
        self._disconnected = True
        if self._reader is not None:
            await self._reader.stop()
        await self._close()

    def __repr__(self) -> str:
        """Shows the program and its ids."""
        return f"{type(self).__name__}(process={self.process}, pid={self.pid})"

    async def _open(self) -> None:
        path = calls.commands.attach_path(self._pty._sandbox_id, self.process)
        self._socket = await self._pty._transport.open_socket(path, {"terminal": str(self._offset)})

    def _start(self, on_data: BytesCallback) -> None:
        self._reader = _io.Background(lambda: self._read_all(on_data), self._close)

    async def _send(self, frame: Union[str, bytes]) -> None:
        socket = self._socket
        if socket is None:
            raise SandboxException("the terminal is not connected any more")
        await socket.send(frame)

    async def _read_all(self, on_data: Optional[BytesCallback]) -> None:
        try:
            while True:
                data = await self._receive()
                if data is None:
                    return
                if on_data is not None:
                    await _io.notify(on_data, data)
        finally:
            await self._close()

    async def _receive(self) -> Optional[bytes]:
        """Returns the next piece of output; None if it has ended or was disconnected. Reconnects after a broken connection."""
        while self._end is None and not self._disconnected:
            failure: SandboxException = ConnectionException(
                "the server closed the terminal's connection before the program's end"
            )
            frame: Optional[Union[str, bytes]] = None
            try:
                if self._socket is None:
                    await self._open()
                if self._socket is not None:
                    frame = await self._socket.receive()
            except SandboxException as error:
                if not is_interruption(error):
                    raise
                failure = error
            if frame is not None:
                data = self._take(frame)
                if data:
                    return data
                continue
            await self._close()
            delay = self._pty._transport.retries.after_break(self._breaks, safe=True, opened=True)
            if self._disconnected:
                return None
            if delay is None:
                raise failure
            self._breaks += 1
            await _io.sleep(delay)
        await self._close()
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

    async def _close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
