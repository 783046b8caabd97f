"""Commands and processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, NamedTuple, Optional, Tuple

from .. import _json as read

MAX_SHOWN = 2000
"""Number of characters of each output stream in the `repr` of a result."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    `kind` is `exited` (with `code`), `signalled` (with `signal` and `name`), `timed_out`, `out_of_memory`, `limit` (with
    `limit`), `denied` (with `rule`) or `infrastructure` (with `cause`): Belljar failed; the command is not the cause.
    """

    kind: str
    code: Optional[int] = None
    signal: Optional[int] = None
    name: Optional[str] = None
    limit: Optional[str] = None
    rule: Optional[str] = None
    cause: Optional[str] = None

    @property
    def success(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.kind == "exited" and self.code == 0

    def describe(self) -> str:
        """Describes the outcome as text."""
        return {
            "exited": f"exit code {self.code}",
            "signalled": f"ended by {self.name or f'signal {self.signal}'}",
            "timed_out": "its time ran out",
            "out_of_memory": "its memory ran out",
            "limit": f"it reached the limit {self.limit}",
            "denied": f"the rule {self.rule} forbids it",
            "infrastructure": f"Belljar failed: {self.cause}",
        }.get(self.kind, self.kind)

    @classmethod
    def from_json(cls, value: Any) -> Outcome:
        """Parses an outcome."""
        value = read.mapping(value, "the outcome")
        return cls(
            kind=read.text(value, "kind"),
            code=read.optional_integer(value, "code"),
            signal=read.optional_integer(value, "signal"),
            name=read.optional_text(value, "name"),
            limit=read.optional_text(value, "limit"),
            rule=read.optional_text(value, "rule"),
            cause=read.optional_text(value, "cause"),
        )

    @classmethod
    def from_end(cls, value: Mapping[str, Any]) -> Outcome:
        """Parses `outcome`, or `exit_code` and `signal` if it is missing."""
        if value.get("outcome") is not None:
            return cls.from_json(value["outcome"])
        if value.get("signal") is not None:
            return cls(kind="signalled", name=str(value["signal"]))
        return cls(kind="exited", code=read.integer(value, "exit_code"))


@dataclass(frozen=True)
class StreamOutput:
    """The kept part of an output stream: all of it, or its head and its tail, joined.

    Attributes:
        data: The kept bytes.
        total_bytes: Number of bytes written.
        truncated: Whether bytes between head and tail were omitted.
        omitted_bytes: Number of omitted bytes.
        head_bytes: Number of bytes of `data` before the omitted ones.
    """

    data: bytes = field(repr=False)
    total_bytes: int
    truncated: bool = False
    omitted_bytes: int = 0
    head_bytes: int = 0

    @property
    def text(self) -> str:
        """The kept bytes as text; invalid UTF-8 is replaced by U+FFFD."""
        return self.data.decode("utf-8", "replace")

    @classmethod
    def from_json(cls, value: Any) -> StreamOutput:
        """Parses a stream of a result."""
        value = read.mapping(value, "the output")
        data = read.data(value)
        return cls(
            data=data,
            total_bytes=read.integer(value, "bytes", len(data)),
            truncated=bool(value.get("truncated")),
            omitted_bytes=read.integer(value, "omitted_bytes", 0),
            head_bytes=read.integer(value, "head_bytes", len(data)),
        )


@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    Attributes:
        outcome: How it ended.
        exit_code: Its exit code, or None if it did not end by itself.
        signal: The name of the signal that ended it, or None.
        output: The kept standard output, with sizes.
        error_output: The kept standard error, with sizes.
        process: Belljar's own id of the process, never reused in this sandbox.
        wall_ms: Time from its start to its end, in milliseconds; None if not measured.
        cpu_ms: Processor time of its processes, in milliseconds; None if not measured.
        peak_memory_bytes: Peak memory use; None if not measured.
        left_behind: Number of processes that it left running, which were ended with it.
        hint: A suggestion for the user, or None.
        session_state: For a command in a session: `preserved`, or `lost` if its shell ended; else None.
    """

    outcome: Outcome
    exit_code: Optional[int]
    signal: Optional[str]
    output: StreamOutput
    error_output: StreamOutput
    process: Optional[int] = None
    wall_ms: Optional[float] = None
    cpu_ms: Optional[float] = None
    peak_memory_bytes: Optional[int] = None
    left_behind: int = 0
    hint: Optional[str] = None
    session_state: Optional[str] = None

    def __repr__(self) -> str:
        """Shows the outcome and the output."""
        how = f"exit_code={self.exit_code}" if self.outcome.kind == "exited" else f"error={self.error!r}"
        return f"{type(self).__name__}({how}, stdout={_shown(self.stdout)}, stderr={_shown(self.stderr)})"

    @property
    def stdout(self) -> str:
        """Standard output, as text."""
        return self.output.text

    @property
    def stderr(self) -> str:
        """Standard error, as text."""
        return self.error_output.text

    @property
    def error(self) -> Optional[str]:
        """None if it ended by itself with exit code 0, else the outcome as text."""
        return None if self.outcome.success else self.outcome.describe()

    @classmethod
    def from_json(cls, value: Any) -> CommandResult:
        """Parses the result of an exec."""
        value = read.mapping(value, "the result")
        return cls(
            outcome=Outcome.from_end(value),
            exit_code=read.optional_integer(value, "exit_code"),
            signal=read.optional_text(value, "signal"),
            output=StreamOutput.from_json(value.get("stdout")),
            error_output=StreamOutput.from_json(value.get("stderr")),
            process=read.optional_integer(value, "process"),
            wall_ms=read.optional_number(value, "wall_ms"),
            cpu_ms=read.optional_number(value, "cpu_ms"),
            peak_memory_bytes=read.optional_integer(value, "peak_memory_bytes"),
            left_behind=read.integer(value, "left_behind", 0),
            hint=read.optional_text(value, "hint"),
            session_state=read.optional_text(value, "session_state"),
        )

    @classmethod
    def from_exit(cls, value: Mapping[str, Any], process: int, output: StreamOutput, error_output: StreamOutput) -> CommandResult:
        """Combines the end of a background process with its collected output."""
        return cls(
            outcome=Outcome.from_end(value),
            exit_code=read.optional_integer(value, "exit_code"),
            signal=read.optional_text(value, "signal"),
            output=output,
            error_output=error_output,
            process=process,
            wall_ms=read.optional_number(value, "wall_ms"),
            cpu_ms=read.optional_number(value, "cpu_ms"),
            peak_memory_bytes=read.optional_integer(value, "peak_memory_bytes"),
            left_behind=read.integer(value, "left_behind", 0),
            hint=read.optional_text(value, "hint"),
        )


def _shown(text: str) -> str:
    """Returns a string for `repr`; a long one is reduced to its beginning and its end, where errors are."""
    return repr(text) if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN // 2]!r}…{text[-MAX_SHOWN // 2 :]!r}"


class Output(NamedTuple):
    """A piece of streamed output: exactly one of the three is not None."""

    stdout: Optional[str] = None
    stderr: Optional[str] = None
    pty: Optional[bytes] = None


@dataclass(frozen=True)
class ProcessInfo:
    """A process that was started in a sandbox, running or ended.

    `process` is Belljar's own id, never reused; `pid` is the process id inside the sandbox.
    """

    process: int
    pid: int
    argv: Tuple[str, ...]
    running: bool
    exit_code: Optional[int]
    signal: Optional[str]
    outcome: Optional[Outcome]
    stdout_bytes: int
    stderr_bytes: int
    terminal_bytes: int

    @property
    def cmd(self) -> str:
        """The program, as it was invoked."""
        return self.argv[0] if self.argv else ""

    @property
    def args(self) -> Tuple[str, ...]:
        """Its arguments."""
        return self.argv[1:]

    @classmethod
    def from_json(cls, value: Any) -> ProcessInfo:
        """Parses a process."""
        value = read.mapping(value, "the process")
        outcome = value.get("outcome")
        return cls(
            process=read.integer(value, "process"),
            pid=read.integer(value, "pid", 0),
            argv=tuple(str(word) for word in value.get("argv") or ()),
            running=bool(value.get("running")),
            exit_code=read.optional_integer(value, "exit_code"),
            signal=read.optional_text(value, "signal"),
            outcome=None if outcome is None else Outcome.from_json(outcome),
            stdout_bytes=read.integer(value, "stdout_bytes", 0),
            stderr_bytes=read.integer(value, "stderr_bytes", 0),
            terminal_bytes=read.integer(value, "terminal_bytes", 0),
        )


@dataclass(frozen=True)
class PtySize:
    """The size of a terminal, in characters."""

    rows: int = 24
    cols: int = 80
