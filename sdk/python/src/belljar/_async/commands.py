"""Commands in a sandbox."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Deque, List, Literal, Mapping, Optional, Union, overload

from .. import _calls as calls
from .. import _json as read
from .._calls._call import Duration, Size
from .._calls.commands import Command, Signal, Stdin
from .._output import OutputCollector
from .._sse import ServerEvent
from ..errors import (
    CommandExitException,
    CommandTimeoutException,
    ConnectionException,
    InvalidArgumentException,
    ProcessNotFoundException,
    SandboxException,
    error_from_problem,
    is_interruption,
)
from ..models import CommandResult, Output, ProcessInfo
from . import _io
from ._io import InputData, OutputCallback
from ._transport import AsyncEventStream, AsyncTransport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._config import RequestOptions
    from .pty import AsyncPtyHandle

    ProcessRef = Union[int, ProcessInfo, "AsyncCommandHandle", "AsyncPtyHandle"]


class AsyncCommands:
    """Runs commands in a sandbox."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str, default_timeout: Optional[float]) -> None:
        """Created by a sandbox. `default_timeout`: seconds for commands without their own timeout; None: unknown."""
        self._transport = transport
        self._sandbox_id = sandbox_id
        self._default_timeout = default_timeout

    @overload
    async def run(
        self,
        cmd: Command,
        background: Literal[False] = False,
        *,
        envs: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        timeout: Optional[Duration] = None,
        stdin: Optional[Stdin] = None,
        output: Optional[Size] = None,
        check: bool = True,
        **options: Unpack[RequestOptions],
    ) -> CommandResult: ...

    @overload
    async def run(
        self,
        cmd: Command,
        background: Literal[True],
        *,
        envs: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        timeout: Optional[Duration] = None,
        stdin: Optional[Union[Stdin, bool]] = None,
        output: Optional[Size] = None,
        check: bool = True,
        **options: Unpack[RequestOptions],
    ) -> AsyncCommandHandle: ...

    async def run(
        self,
        cmd: Command,
        background: bool = False,
        *,
        envs: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        timeout: Optional[Duration] = None,
        stdin: Optional[Union[Stdin, bool]] = None,
        output: Optional[Size] = None,
        check: bool = True,
        **options: Unpack[RequestOptions],
    ) -> Union[CommandResult, AsyncCommandHandle]:
        """Runs a command and waits for its end, or starts it in the background and returns a handle.

        Args:
            cmd: A shell command line, or a list of a program and its arguments, without a shell.
            background: Whether to return immediately. The command then keeps running when this program ends.
            envs: Variables, added to those of the sandbox.
            cwd: Working directory: absolute, or relative to the home directory.
            on_stdout: Called with each piece of standard output.
            on_stderr: Called with each piece of standard error.
            timeout: Time limit of the command. Default: the sandbox's `limits.timeout` (none for a background command);
                0: no limit.
            stdin: Standard input, at most 1 MiB. In the background True keeps it open for `send_stdin`.
            output: Number of bytes kept of each stream; of longer ones, head and tail. Callbacks get everything.
            check: Whether to raise if it does not end with exit code 0. With `background`, use this argument of `wait`.
            options: `request_timeout`: seconds without data from the server beyond the command's own time, 0 for no limit.
                `user`: who runs it, in a machine, such as `root`; default: the sandbox's own user, `user`.

        Raises:
            CommandExitException: It did not end with exit code 0.
            CommandTimeoutException: It timed out.
        """
        if background:
            user = options.pop("user", None)
            call = calls.commands.start(
                self._sandbox_id, cmd, envs=envs, cwd=cwd, timeout=timeout, stdin=stdin, output=output, user=user
            )
            handle = AsyncCommandHandle(self, await self._transport.request(call, **options))
            if on_stdout is not None or on_stderr is not None:
                handle._start(on_stdout, on_stderr)
            return handle
        if stdin is True:
            raise InvalidArgumentException("only background=True can leave standard input open", field="stdin")
        return await self._execute(
            cmd,
            envs=envs,
            cwd=cwd,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            timeout=timeout,
            stdin=None if isinstance(stdin, bool) else stdin,
            output=output,
            check=check,
            session=None,
            **options,
        )

    async def list(self) -> List[ProcessInfo]:
        """Lists the processes that were started in this sandbox, running and ended."""
        return await self._transport.request(calls.commands.list_processes(self._sandbox_id))

    async def get_info(self, process: ProcessRef) -> ProcessInfo:
        """Returns information about a process, given by its pid, its handle or an older info."""
        return await self._transport.request(calls.commands.info(self._sandbox_id, await self._number(process)))

    async def connect(
        self,
        process: ProcessRef,
        *,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
    ) -> AsyncCommandHandle:
        """Connects to a background process, whoever started it. Its output is read from the beginning."""
        handle = AsyncCommandHandle(self, await self.get_info(process))
        if on_stdout is not None or on_stderr is not None:
            handle._start(on_stdout, on_stderr)
        return handle

    async def kill(self, process: ProcessRef) -> bool:
        """Kills a process and all its descendants. Returns False if it is not running."""
        return await self.send_signal(process, "SIGKILL")

    async def send_signal(self, process: ProcessRef, signal: Signal = "SIGTERM", *, tree: bool = True) -> bool:
        """Signals a process, and its descendants unless `tree` is False. Returns False if it is not running."""
        try:
            number = await self._number(process)
            await self._transport.request(calls.commands.send_signal(self._sandbox_id, number, signal, tree))
        except ProcessNotFoundException:
            return False
        return True

    async def send_stdin(self, process: ProcessRef, data: Union[str, bytes], *, close: bool = False) -> int:
        """Sends data to a process that was started with `stdin=True`, and returns its size in bytes.

        `close`: closes standard input afterwards.
        """
        body = calls.commands.stdin_bytes(data)
        call = calls.commands.send_stdin(self._sandbox_id, await self._number(process), close)
        return await self._transport.request(call, body)

    async def stream_input(self, process: ProcessRef, data: InputData, *, close: bool = False) -> int:
        """Sends data piece by piece to a process that was started with `stdin=True`, and returns its size in bytes.

        `data` is an iterator over strings or bytes, or an open file. The next piece is fetched when the process has taken the
        previous one. `close`: closes standard input afterwards.
        """
        number = await self._number(process)
        pieces = (data,) if isinstance(data, (str, bytes)) else data
        calls.files.check_stream(pieces)
        sent = 0
        async for piece in _io.pieces(pieces):
            body = calls.commands.stdin_bytes(piece)
            sent += await self._transport.request(calls.commands.send_stdin(self._sandbox_id, number, False), body)
        if close:
            await self._transport.request(calls.commands.send_stdin(self._sandbox_id, number, True), b"")
        return sent

    async def close_stdin(self, process: ProcessRef) -> None:
        """Closes the standard input of a process."""
        await self.send_stdin(process, b"", close=True)

    async def _number(self, process: ProcessRef) -> int:
        if not isinstance(process, int):
            return process.process
        found = calls.commands.choose_process(await self.list(), process)
        if found is None:
            raise ProcessNotFoundException(f"there is no process with pid {process} in the sandbox", code="process_not_found")
        return found.process

    async def _execute(
        self,
        cmd: Command,
        *,
        envs: Optional[Mapping[str, str]],
        cwd: Optional[str],
        on_stdout: Optional[OutputCallback],
        on_stderr: Optional[OutputCallback],
        timeout: Optional[Duration],
        stdin: Optional[Stdin],
        output: Optional[Size],
        check: bool,
        session: Optional[int],
        **options: Unpack[RequestOptions],
    ) -> CommandResult:
        user = options.pop("user", None)
        call = calls.commands.execute(
            self._sandbox_id,
            cmd,
            envs=envs,
            cwd=cwd,
            timeout=timeout,
            stdin=stdin,
            output=output,
            user=user,
            session=session,
            default_timeout=self._default_timeout,
        )
        if on_stdout is None and on_stderr is None:
            result = await self._transport.request(call, **options)
        else:
            result = await self._execute_streamed(calls.commands.streamed(call), on_stdout, on_stderr, **options)
        return checked(result) if check else result

    async def _execute_streamed(
        self,
        call: calls.Call[CommandResult],
        on_stdout: Optional[OutputCallback],
        on_stderr: Optional[OutputCallback],
        **options: Unpack[RequestOptions],
    ) -> CommandResult:
        # Nothing is kept here: the result has what the server kept.
        streams = {"stdout": (OutputCollector(0), on_stdout), "stderr": (OutputCollector(0), on_stderr)}
        stream = await self._transport.events(call, **options)
        try:
            while True:
                event = await stream.receive()
                if event is None:
                    raise ConnectionException("the stream ended before the command; the server has ended the command")
                if event.name == "error":
                    raise error_from_problem(event.data)
                if event.name in streams:
                    collector, callback = streams[event.name]
                    text = collector.text(collector.feed(read.integer(event.data, "offset"), read.data(event.data)))
                    if text and callback is not None:
                        await _io.notify(callback, text)
                if event.name == "result":
                    for collector, callback in streams.values():
                        text = collector.text(b"", final=True)
                        if text and callback is not None:
                            await _io.notify(callback, text)
                    return call.parse(event.data)
        finally:
            await stream.close()


class AsyncCommandHandle:
    """A background command. Iterate over its output, or `wait` for its end; it keeps running if you do neither."""

    def __init__(self, commands: AsyncCommands, info: ProcessInfo) -> None:
        """Connects to a process."""
        self._commands = commands
        self._transport = commands._transport
        self._info = info
        self._stdout = OutputCollector()
        self._stderr = OutputCollector()
        self._ready: Deque[Output] = deque()
        self._end: Optional[Mapping[str, Any]] = None
        self._stream: Optional[AsyncEventStream] = None
        self._breaks = 0
        self._disconnected = False
        self._receiving = False
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
    def stdout(self) -> str:
        """Standard output read so far."""
        return self._stdout.result().text

    @property
    def stderr(self) -> str:
        """Standard error read so far."""
        return self._stderr.result().text

    @property
    def exit_code(self) -> Optional[int]:
        """The exit code, once the end has been read; None before, and if it did not end by itself."""
        return None if self._end is None else read.optional_integer(self._end, "exit_code")

    def __aiter__(self) -> AsyncCommandHandle:
        """Yields the output, piece by piece, until the end."""
        return self

    async def __anext__(self) -> Output:
        """The next piece of output."""
        if self._reader is not None:
            raise SandboxException("the output of this command is passed to callbacks; it cannot be iterated over as well")
        output = await self._receive()
        if output is None:
            raise StopAsyncIteration
        return output

    async def wait(
        self,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        *,
        check: bool = True,
    ) -> CommandResult:
        """Waits for the end. Callbacks get the output that has not been read yet.

        Raises:
            CommandExitException: It did not end with exit code 0, and `check` is True.
        """
        if self._reader is None:
            await self._read_all(on_stdout, on_stderr)
        elif on_stdout is not None or on_stderr is not None:
            raise SandboxException("the output of this command is already passed to callbacks")
        else:
            await self._reader.join()
        if self._end is None:
            raise SandboxException("the handle was disconnected; reconnect with commands.connect")
        result = CommandResult.from_exit(self._end, self.process, self._stdout.result(), self._stderr.result())
        return checked(result) if check else result

    async def kill(self) -> bool:
        """Kills the command and all its descendants. Returns False if it has already ended."""
        return await self._commands.kill(self)

    async def send_signal(self, signal: Signal = "SIGTERM", *, tree: bool = True) -> bool:
        """Signals the command, and its descendants unless `tree` is False. Returns False if it has ended."""
        return await self._commands.send_signal(self, signal, tree=tree)

    async def send_stdin(self, data: Union[str, bytes], *, close: bool = False) -> int:
        """Sends data to the command, if it was started with `stdin=True`. `close`: closes standard input afterwards."""
        return await self._commands.send_stdin(self, data, close=close)

    async def stream_input(self, data: InputData, *, close: bool = False) -> int:
        """Sends data piece by piece to the command, as `commands.stream_input` does."""
        return await self._commands.stream_input(self, data, close=close)

    async def close_stdin(self) -> None:
        """Closes the standard input of the command."""
        await self._commands.close_stdin(self)

    async def disconnect(self) -> None:
        """Stops reading. The command keeps running; `commands.connect` reconnects to it."""
        self._disconnected = True
        if self._reader is not None:
            await self._reader.stop()
        else:
            await self._interrupt()
            # A reader in another thread closes the stream itself.
            if not self._receiving:
                await self._close()

    def __repr__(self) -> str:
        """Shows the command and its ids."""
        return f"{type(self).__name__}(process={self.process}, pid={self.pid}, cmd={self._info.cmd!r})"

    def _start(self, on_stdout: Optional[OutputCallback], on_stderr: Optional[OutputCallback]) -> None:
        self._reader = _io.Background(lambda: self._read_all(on_stdout, on_stderr), self._interrupt)

    async def _interrupt(self) -> None:
        self._disconnected = True
        stream = self._stream
        if stream is not None:
            await stream.interrupt()

    async def _read_all(self, on_stdout: Optional[OutputCallback], on_stderr: Optional[OutputCallback]) -> None:
        try:
            while True:
                output = await self._receive()
                if output is None:
                    return
                if output.stdout is not None and on_stdout is not None:
                    await _io.notify(on_stdout, output.stdout)
                if output.stderr is not None and on_stderr is not None:
                    await _io.notify(on_stderr, output.stderr)
        finally:
            await self._close()

    async def _receive(self) -> Optional[Output]:
        """Returns the next piece of output; None if it has ended or was disconnected. Reconnects after a broken connection."""
        self._receiving = True
        try:
            return await self._next()
        finally:
            self._receiving = False

    async def _next(self) -> Optional[Output]:
        while not self._ready:
            if self._end is not None or self._disconnected:
                await self._close()
                return None
            failure: SandboxException = ConnectionException("the server ended the stream before the command's end")
            try:
                if self._stream is None:
                    self._stream = await self._transport.events(self._follow())
                    # It may have been disconnected meanwhile.
                    continue
                event = await self._stream.receive()
                if event is not None:
                    self._take(event)
                    self._breaks = 0
                    continue
            except SandboxException as error:
                if not is_interruption(error):
                    await self._close()
                    raise
                failure = error
            await self._close()
            if self._disconnected:
                return None
            delay = self._transport.retries.after_break(self._breaks, safe=True, opened=True)
            if delay is None:
                raise failure
            self._breaks += 1
            await _io.sleep(delay)
        return self._ready.popleft()

    def _follow(self) -> calls.Call[None]:
        return calls.commands.follow(self._commands._sandbox_id, self.process, self._stdout.offset, self._stderr.offset, 0, True)

    def _take(self, event: ServerEvent) -> None:
        if event.name == "error":
            raise error_from_problem(event.data)
        if event.name == "exited":
            self._end = event.data
            last = Output(stdout=self._stdout.text(b"", final=True)), Output(stderr=self._stderr.text(b"", final=True))
            self._ready.extend(output for output in last if output.stdout or output.stderr)
        elif event.name in ("stdout", "stderr", "terminal"):
            data, offset = read.data(event.data), read.integer(event.data, "offset")
            if event.name == "stdout":
                output = Output(stdout=self._stdout.text(self._stdout.feed(offset, data)))
            elif event.name == "stderr":
                output = Output(stderr=self._stderr.text(self._stderr.feed(offset, data)))
            else:
                output = Output(pty=data)
            if output.stdout or output.stderr or output.pty:
                self._ready.append(output)

    async def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()


def checked(result: CommandResult) -> CommandResult:
    """Returns the result if the command succeeded, else raises it."""
    if result.outcome.success:
        return result
    if result.outcome.kind == "timed_out":
        raise CommandTimeoutException(result)
    raise CommandExitException(result)
