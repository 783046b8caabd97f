# Made by scripts/make_sync.py from ../_async/commands.py. Change that one.
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
    NotFoundException,
    SandboxException,
    error_from_problem,
    is_interruption,
)
from ..models import CommandResult, Output, ProcessInfo
from . import _io
from ._io import OutputCallback
from ._transport import EventStream, Transport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._config import RequestOptions
    from .pty import PtyHandle

    ProcessRef = Union[int, ProcessInfo, "CommandHandle", "PtyHandle"]


class Commands:
    """Runs commands in a sandbox."""

    def __init__(self, transport: Transport, sandbox_id: str, default_timeout: Optional[float]) -> None:
        """Belongs to a sandbox. `default_timeout` is how many seconds a command may take that does not say; None: unknown."""
        self._transport = transport
        self._sandbox_id = sandbox_id
        self._default_timeout = default_timeout

    @overload
    def run(
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
    def run(
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
    ) -> CommandHandle: ...

    def run(
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
    ) -> Union[CommandResult, CommandHandle]:
        """Runs a command and waits for its end, or starts it in the background and hands back a handle.

        Args:
            cmd: A line for the shell, or a list of a program and its arguments, which no shell looks at.
            background: Whether to come back at once. The command then goes on when this program ends.
            envs: Variables, added to those of the sandbox.
            cwd: Where it runs: absolute, or relative to the home directory.
            on_stdout: Called with each piece of standard output as it comes.
            on_stderr: The same for standard error.
            timeout: How long the command may run; then it is ended. The sandbox's `limits.timeout` if not given (none for
                a command in the background), 0: no limit.
            stdin: What it reads, at most 1 MiB. In the background True keeps standard input open for `send_stdin`.
            output: How many bytes of each stream are kept; of more than that, head and tail. Callbacks get everything.
            check: Whether to raise if it does not end with exit code 0. With `background` it is `wait` that has this switch.
            options: `request_timeout`: seconds that the server may be silent beyond the command's own time, 0 for no limit.
                `user`: E2B's argument; everything in a sandbox runs as its one user, `user`.

        Raises:
            CommandExitException: It ended in another way than with exit code 0.
            CommandTimeoutException: Its time ran out.
        """
        if background:
            call = calls.commands.start(self._sandbox_id, cmd, envs=envs, cwd=cwd, timeout=timeout, stdin=stdin, output=output)
            handle = CommandHandle(self, self._transport.request(call, **options))
            if on_stdout is not None or on_stderr is not None:
                handle._start(on_stdout, on_stderr)
            return handle
        if stdin is True:
            raise InvalidArgumentException("only background=True can leave standard input open", field="stdin")
        return self._execute(
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

    def list(self) -> List[ProcessInfo]:
        """The processes that were started in this sandbox, running and ended."""
        return self._transport.request(calls.commands.list_processes(self._sandbox_id))

    def get_info(self, process: ProcessRef) -> ProcessInfo:
        """What is known of a process, given by its pid, its handle or an older info."""
        return self._transport.request(calls.commands.info(self._sandbox_id, self._number(process)))

    def connect(
        self,
        process: ProcessRef,
        *,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
    ) -> CommandHandle:
        """Takes up a process that was started in the background, by whomever. Its output comes from its beginning."""
        handle = CommandHandle(self, self.get_info(process))
        if on_stdout is not None or on_stderr is not None:
            handle._start(on_stdout, on_stderr)
        return handle

    def kill(self, process: ProcessRef) -> bool:
        """Ends a process and all that it started, at once. False: it does not run any more, or never did."""
        return self.send_signal(process, "SIGKILL")

    def send_signal(self, process: ProcessRef, signal: Signal = "SIGTERM", *, tree: bool = True) -> bool:
        """Sends a signal to a process, and to all that it started unless `tree` is False. False: it does not run."""
        try:
            number = self._number(process)
            self._transport.request(calls.commands.send_signal(self._sandbox_id, number, signal, tree))
        except NotFoundException as error:
            if error.code == "process_not_found":
                return False
            raise
        return True

    def send_stdin(self, process: ProcessRef, data: Union[str, bytes], *, close: bool = False) -> int:
        """Hands data to a process that was started with `stdin=True`, and says how many bytes that was.

        `close`: there will be no more.
        """
        body = data.encode("utf-8") if isinstance(data, str) else bytes(data)
        call = calls.commands.send_stdin(self._sandbox_id, self._number(process), close)
        return self._transport.request(call, body)

    def close_stdin(self, process: ProcessRef) -> None:
        """Says to a process that there will be no more input."""
        self.send_stdin(process, b"", close=True)

    def _number(self, process: ProcessRef) -> int:
        if not isinstance(process, int):
            return process.process
        found = calls.commands.choose_process(self.list(), process)
        if found is None:
            raise NotFoundException(f"there is no process with pid {process} in the sandbox", code="process_not_found")
        return found.process

    def _execute(
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
        call = calls.commands.execute(
            self._sandbox_id,
            cmd,
            envs=envs,
            cwd=cwd,
            timeout=timeout,
            stdin=stdin,
            output=output,
            session=session,
            default_timeout=self._default_timeout,
        )
        if on_stdout is None and on_stderr is None:
            result = self._transport.request(call, **options)
        else:
            result = self._execute_streamed(calls.commands.streamed(call), on_stdout, on_stderr, **options)
        return checked(result) if check else result

    def _execute_streamed(
        self,
        call: calls.Call[CommandResult],
        on_stdout: Optional[OutputCallback],
        on_stderr: Optional[OutputCallback],
        **options: Unpack[RequestOptions],
    ) -> CommandResult:
        # Nothing is kept here: the result brings what the server kept.
        streams = {"stdout": (OutputCollector(0), on_stdout), "stderr": (OutputCollector(0), on_stderr)}
        stream = self._transport.events(call, **options)
        try:
            while True:
                event = stream.receive()
                if event is None:
                    raise ConnectionException("the stream ended before the command; the server has ended the command")
                if event.name == "error":
                    raise error_from_problem(event.data)
                if event.name in streams:
                    collector, callback = streams[event.name]
                    text = collector.text(collector.feed(read.integer(event.data, "offset"), read.data(event.data)))
                    if text and callback is not None:
                        _io.notify(callback, text)
                if event.name == "result":
                    for collector, callback in streams.values():
                        text = collector.text(b"", final=True)
                        if text and callback is not None:
                            _io.notify(callback, text)
                    return call.parse(event.data)
        finally:
            stream.close()


class CommandHandle:
    """A command in the background. Iterate over its output, or `wait` for its end; it goes on if you do neither."""

    def __init__(self, commands: Commands, info: ProcessInfo) -> None:
        """Takes up a process."""
        self._commands = commands
        self._transport = commands._transport
        self._info = info
        self._stdout = OutputCollector()
        self._stderr = OutputCollector()
        self._ready: Deque[Output] = deque()
        self._end: Optional[Mapping[str, Any]] = None
        self._stream: Optional[EventStream] = None
        self._breaks = 0
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
    def stdout(self) -> str:
        """What has been read of standard output so far."""
        return self._stdout.result().text

    @property
    def stderr(self) -> str:
        """What has been read of standard error so far."""
        return self._stderr.result().text

    @property
    def exit_code(self) -> Optional[int]:
        """Its exit code, once its end has been read; None before, and if it did not end by itself."""
        return None if self._end is None else read.optional_integer(self._end, "exit_code")

    def __iter__(self) -> CommandHandle:
        """The output, piece by piece, until the end."""
        return self

    def __next__(self) -> Output:
        """The next piece of output."""
        if self._reader is not None:
            raise SandboxException("the output of this command goes to callbacks; it cannot be iterated over as well")
        output = self._receive()
        if output is None:
            raise StopIteration
        return output

    def wait(
        self,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        *,
        check: bool = True,
    ) -> CommandResult:
        """Waits for the end. Callbacks get the output that has not been read yet.

        Raises:
            CommandExitException: It ended in another way than with exit code 0, and `check` is True.
        """
        if self._reader is None:
            self._read_all(on_stdout, on_stderr)
        elif on_stdout is not None or on_stderr is not None:
            raise SandboxException("the output of this command goes to callbacks already")
        else:
            self._reader.join()
        if self._end is None:
            raise SandboxException("the handle was disconnected; take the command up again with commands.connect")
        result = CommandResult.from_exit(self._end, self.process, self._stdout.result(), self._stderr.result())
        return checked(result) if check else result

    def kill(self) -> bool:
        """Ends the command and all that it started, at once. False: it has ended already."""
        return self._commands.kill(self)

    def send_signal(self, signal: Signal = "SIGTERM", *, tree: bool = True) -> bool:
        """Sends a signal to the command, and to all that it started unless `tree` is False. False: it has ended."""
        return self._commands.send_signal(self, signal, tree=tree)

    def send_stdin(self, data: Union[str, bytes], *, close: bool = False) -> int:
        """Hands data to the command, if it was started with `stdin=True`. `close`: there will be no more."""
        return self._commands.send_stdin(self, data, close=close)

    def close_stdin(self) -> None:
        """Says to the command that there will be no more input."""
        self._commands.close_stdin(self)

    def disconnect(self) -> None:
        """Stops reading. The command goes on; `commands.connect` takes it up again."""
        self._disconnected = True
        if self._reader is not None:
            self._reader.stop()
        else:
            self._interrupt()

    def __repr__(self) -> str:
        """The command and its numbers."""
        return f"{type(self).__name__}(process={self.process}, pid={self.pid}, cmd={self._info.cmd!r})"

    def _start(self, on_stdout: Optional[OutputCallback], on_stderr: Optional[OutputCallback]) -> None:
        self._reader = _io.Background(lambda: self._read_all(on_stdout, on_stderr), self._interrupt)

    def _interrupt(self) -> None:
        self._disconnected = True
        stream = self._stream
        if stream is not None:
            stream.interrupt()

    def _read_all(self, on_stdout: Optional[OutputCallback], on_stderr: Optional[OutputCallback]) -> None:
        try:
            while True:
                output = self._receive()
                if output is None:
                    return
                if output.stdout is not None and on_stdout is not None:
                    _io.notify(on_stdout, output.stdout)
                if output.stderr is not None and on_stderr is not None:
                    _io.notify(on_stderr, output.stderr)
        finally:
            self._close()

    def _receive(self) -> Optional[Output]:
        """The next piece of output; None: it has ended, or was disconnected. A broken connection is taken up again."""
        while not self._ready:
            if self._end is not None or self._disconnected:
                self._close()
                return None
            failure: SandboxException = ConnectionException("the server ended the stream before the command's end")
            try:
                if self._stream is None:
                    self._stream = self._transport.events(self._follow())
                event = self._stream.receive()
                if event is not None:
                    self._take(event)
                    self._breaks = 0
                    continue
            except SandboxException as error:
                if not is_interruption(error):
                    raise
                failure = error
            self._close()
            if self._disconnected:
                return None
            delay = self._transport.retries.after_break(self._breaks, safe=True, opened=True)
            if delay is None:
                raise failure
            self._breaks += 1
            _io.sleep(delay)
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

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def checked(result: CommandResult) -> CommandResult:
    """The result, if the command succeeded; else it is raised."""
    if result.outcome.success:
        return result
    if result.outcome.kind == "timed_out":
        raise CommandTimeoutException(result)
    raise CommandExitException(result)
