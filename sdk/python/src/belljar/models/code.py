"""Code in contexts, and its results."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union, cast

from .. import _json as read
from ..errors import ServerException
from .charts import AnyChart, chart_from_json

TABLE = "application/vnd.belljar.table.v1+json"
CHART = "application/vnd.belljar.chart.v1+json"

_FORMS: Mapping[str, str] = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
    "latex": "text/latex",
    "json": "application/json",
    "javascript": "application/javascript",
    "data": TABLE,
    "chart": CHART,
}


ContextState = Literal["idle", "busy", "lost"]
ExecutionStatus = Literal["ok", "error", "interrupted", "timed_out", "died"]
VariablesState = Literal["preserved", "lost", "unknown"]


class Question(str):
    """A question of the code (`input()`): its text.

    Attributes:
        password: Whether the input should be hidden.
    """

    password: bool

    def __new__(cls, prompt: str, password: bool = False) -> Question:
        """A question."""
        made = super().__new__(cls, prompt)
        made.password = password
        return made


@dataclass(frozen=True)
class CodeContext:
    """An interpreter whose variables persist from one execution to the next.

    Attributes:
        id: Its id: the language's name for the default context, else `c1`, `c2`, …
        language: Its language.
        cwd: Its working directory.
        state: `lost`: its interpreter has ended, and the next execution gets a fresh one.
        pid: The interpreter's process inside, if there is one.
        executions: Number of executions since the interpreter started.
        idle_ms: Milliseconds since the last execution ended; 0 while one runs.
        version: Version of the language, as reported by the interpreter.
        start: How the interpreter was started: `plain`, as an ordinary process, or `warm`, from a prepared one.
        start_note: Why it is not warm, if a warm one was requested.
        generation: Number of starts of the interpreter, 1 for the first.
    """

    id: str
    language: str
    cwd: str
    state: ContextState
    pid: Optional[int] = None
    executions: int = 0
    idle_ms: int = 0
    version: str = ""
    start: str = "plain"
    start_note: Optional[str] = None
    generation: int = 1

    @classmethod
    def from_json(cls, value: Any) -> CodeContext:
        """Parses a context."""
        value = read.mapping(value, "the context")
        return cls(
            id=read.text(value, "id"),
            language=read.text(value, "language"),
            cwd=read.text(value, "cwd"),
            state=cast(ContextState, read.text(value, "state")),
            pid=read.optional_integer(value, "pid"),
            executions=read.integer(value, "executions", 0),
            idle_ms=read.integer(value, "idle_ms", 0),
            version=read.optional_text(value, "version") or "",
            start=read.optional_text(value, "start") or "plain",
            start_note=read.optional_text(value, "start_note"),
            generation=read.integer(value, "generation", 1),
        )


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name.
        type: `integer`, `number`, `boolean`, `datetime`, `duration`, `string` or `other`.
    """

    name: str
    type: str


@dataclass(frozen=True)
class Table:
    """A data frame as data. Times are ISO 8601; missing values are None.

    Attributes:
        columns: Its columns, at most 100.
        rows: Its rows, at most 1,000.
        row_count: Total number of rows.
        truncated: Whether rows or columns were omitted.
        index: The rows' names, if they have any.
    """

    columns: Tuple[Column, ...]
    rows: Tuple[Tuple[Any, ...], ...] = field(repr=False)
    row_count: int
    truncated: bool = False
    index: Optional[Mapping[str, Any]] = field(default=None, repr=False)

    def __getitem__(self, column: str) -> List[Any]:
        """Returns the values of a column."""
        for at, found in enumerate(self.columns):
            if found.name == column:
                return [row[at] for row in self.rows]
        raise KeyError(column)

    def to_dict(self) -> Dict[str, List[Any]]:
        """Columns by name. Of several columns with the same name the last one is kept."""
        return {column.name: [row[at] for row in self.rows] for at, column in enumerate(self.columns)}

    def records(self) -> List[Dict[str, Any]]:
        """Returns rows as dicts."""
        return [{column.name: row[at] for at, column in enumerate(self.columns)} for row in self.rows]

    @classmethod
    def from_json(cls, value: Any) -> Table:
        """Parses a table."""
        value = read.mapping(value, "the table")
        columns = read.list_of(value, "columns", _column)
        rows = value.get("rows")
        if not isinstance(rows, list) or any(not isinstance(row, list) or len(row) != len(columns) for row in rows):
            raise ServerException("unexpected response from the server: `rows` is not a list of rows")
        index = value.get("index")
        return cls(
            columns=tuple(columns),
            rows=tuple(tuple(row) for row in rows),
            row_count=read.integer(value, "row_count", len(rows)),
            truncated=bool(value.get("truncated")),
            index=index if isinstance(index, dict) else None,
        )


def _column(value: Any) -> Column:
    # Column names need not be strings; their displayed form is used.
    value = read.mapping(value, "a column")
    return Column(name=str(value.get("name", "")), type=str(value.get("type", "other")))


@dataclass(frozen=True, repr=False)
class Result:
    """A result of code, in one or several representations.

    A notebook displays it like a local result.

    Attributes:
        mime: The representations, by MIME type: strings, JSON values, and bytes of pictures and PDF.
        is_main_result: Whether it is the value of the code's last expression; otherwise it was displayed explicitly.
        metadata: Hints by MIME type, such as a picture's width.
        display_id: A later result with `update` replaces an earlier one with the same id.
        update: Whether it replaces earlier ones.
        cut: Representations that were omitted or shortened because they were too large, one sentence each.
    """

    mime: Mapping[str, Any]
    is_main_result: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: Optional[str] = None
    update: bool = False
    cut: Tuple[str, ...] = ()

    @property
    def text(self) -> Optional[str]:
        """As text."""
        return self._string("text/plain")

    @property
    def html(self) -> Optional[str]:
        """As HTML."""
        return self._string("text/html")

    @property
    def markdown(self) -> Optional[str]:
        """As Markdown."""
        return self._string("text/markdown")

    @property
    def svg(self) -> Optional[str]:
        """As SVG."""
        return self._string("image/svg+xml")

    @property
    def png(self) -> Optional[bytes]:
        """As PNG: the bytes of the file."""
        return self._bytes("image/png")

    @property
    def jpeg(self) -> Optional[bytes]:
        """As JPEG: the bytes of the file."""
        return self._bytes("image/jpeg")

    @property
    def pdf(self) -> Optional[bytes]:
        """As PDF: the bytes of the file."""
        return self._bytes("application/pdf")

    @property
    def latex(self) -> Optional[str]:
        """As LaTeX."""
        return self._string("text/latex")

    @property
    def json(self) -> Any:
        """As a JSON value."""
        return self.mime.get("application/json")

    @property
    def javascript(self) -> Optional[str]:
        """As JavaScript, for a page to run."""
        return self._string("application/javascript")

    @property
    def data(self) -> Optional[Table]:
        """A data frame as data."""
        found = self.mime.get(TABLE)
        return None if found is None else Table.from_json(found)

    @property
    def chart(self) -> Optional[AnyChart]:
        """The data of a chart: its type, title, axes and series."""
        found = self.mime.get(CHART)
        return None if found is None else chart_from_json(found)

    @property
    def extra(self) -> Dict[str, Any]:
        """Other representations, by MIME type."""
        return {mime: value for mime, value in self.mime.items() if mime not in _FORMS.values()}

    def formats(self) -> List[str]:
        """Lists the available representations: `text`, `png`, …, and MIME types of `extra`."""
        return [name for name, mime in _FORMS.items() if mime in self.mime] + list(self.extra)

    def to_dict(self) -> Dict[str, Any]:
        """Returns all representations by name, or by MIME type if they have none, as JSON values: bytes in base64."""
        names = {mime: name for name, mime in _FORMS.items()}
        return {
            **{names.get(mime, mime): _plain(value) for mime, value in self.mime.items()},
            "is_main_result": self.is_main_result,
            "metadata": dict(self.metadata),
            "cut": list(self.cut),
        }

    def __getitem__(self, name: str) -> Any:
        """Returns a representation by its name or MIME type."""
        if name in _FORMS:
            return getattr(self, name)
        return self.mime[name]

    def __repr__(self) -> str:
        """Shows the representations and the text."""
        text = self.text
        shown = "" if text is None else f", text={text if len(text) <= 200 else text[:200] + '…'!r}"
        return f"Result(formats={self.formats()!r}{shown})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Returns all representations, for notebooks."""
        return dict(self.mime), dict(self.metadata)

    def _string(self, mime: str) -> Optional[str]:
        found = self.mime.get(mime)
        return found if isinstance(found, str) else None

    def _bytes(self, mime: str) -> Optional[bytes]:
        found = self.mime.get(mime)
        return found if isinstance(found, bytes) else None

    @classmethod
    def from_json(cls, value: Any) -> Result:
        """Parses a result."""
        value = read.mapping(value, "the result")
        forms = read.mapping(value.get("data"), "`data`")
        cut = value.get("cut") or []
        return cls(
            mime={mime: _form(mime, form) for mime, form in forms.items()},
            is_main_result=bool(value.get("main")),
            metadata=read.mapping(value.get("metadata") or {}, "`metadata`"),
            display_id=read.optional_text(value, "display_id"),
            update=bool(value.get("update")),
            cut=tuple(str(one) for one in cut) if isinstance(cut, list) else (),
        )


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _form(mime: str, value: Any) -> Any:
    textual = mime.startswith("text/") or mime == "application/javascript" or mime.endswith(("+xml", "/xml"))
    if textual or mime == "application/json" or mime.endswith("+json") or not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise ServerException(f"unexpected response from the server: `{mime}` is not base64") from None


@dataclass(frozen=True)
class ExecutionError:
    """An error that code raised.

    Attributes:
        name: Its name, such as `ValueError`.
        value: Its message.
        traceback: As the interpreter prints it.
    """

    name: str
    value: str
    traceback: str = field(default="", repr=False)

    @classmethod
    def from_json(cls, value: Any) -> ExecutionError:
        """Parses an error."""
        value = read.mapping(value, "the error")
        return cls(read.text(value, "name"), read.text(value, "value"), read.optional_text(value, "traceback") or "")


@dataclass(frozen=True)
class KernelDied(ExecutionError):
    """The interpreter ended before the code did, and the variables of the context are lost. The next execution gets a fresh one.

    Attributes:
        cause: What ended it: `timed_out`, `out_of_memory`, `pids` or `stopped`, if it was one of them.
        exit_code: Its exit code, if it ended by itself.
        signal: The name of the signal that ended it.
    """

    cause: Optional[str] = None
    exit_code: Optional[int] = None
    signal: Optional[str] = None


@dataclass(frozen=True)
class Logs:
    """Printed output of code.

    Attributes:
        stdout: Standard output, in the pieces received.
        stderr: Standard error, in the pieces received.
        truncated: Whether some of it was omitted because it exceeded the limit.
    """

    stdout: Tuple[str, ...] = ()
    stderr: Tuple[str, ...] = ()
    truncated: bool = False


@dataclass(frozen=True)
class CodeCall:
    """A call of a function that waits for its result."""

    id: str
    name: str
    arguments: Mapping[str, Any]

    @classmethod
    def from_json(cls, value: Any) -> CodeCall:
        """Parses a call."""
        value = read.mapping(value, "the call")
        return cls(read.text(value, "id"), read.text(value, "name"), read.mapping(value.get("arguments"), "`arguments`"))


@dataclass(frozen=True)
class CodeStep:
    """How a step of code has ended: with calls that wait for their results, or with the end of the code.

    Attributes:
        tool_calls: Calls that wait. The sandbox is frozen until all of them are answered, or their time is over.
        expires_at: When their time is over.
        execution: The outcome of the code, once no call waits, with the output of all steps.
    """

    tool_calls: Tuple[CodeCall, ...] = ()
    expires_at: Optional[datetime] = None
    execution: Optional[Execution] = None

    @classmethod
    def from_json(cls, value: Any) -> CodeStep:
        """Parses the end of a step."""
        value = read.mapping(value, "the answer")
        if value.get("status") != "tool_calls":
            return cls(execution=Execution.from_json(value))
        calls = read.list_of(value, "tool_calls", CodeCall.from_json)
        return cls(tool_calls=tuple(calls), expires_at=read.time(value, "expires_at"))


@dataclass(frozen=True)
class Execution:
    """The outcome of code.

    Attributes:
        results: The displayed results, in order.
        logs: The printed output.
        error: Why it did not end well; None if `status` is `ok`. An error that the code raised, a `KernelDied` if its interpreter
            ended, or an error with the name `TimeoutError` or `KeyboardInterrupt`.
        status: How it ended; `died`: the interpreter ended before the code did.
        state: State of the context's variables.
        reason: Why they are not preserved.
        context: The id of the context that it ran in.
        execution: Its number in the sandbox, never reused.
        execution_count: Its number in the interpreter: 1 for the first.
        rebuilt: Set if the interpreter is a fresh one because the previous one was lost: the reason for that.
        cause: What ended the interpreter: `timed_out`, `out_of_memory`, `pids` or `stopped`.
        exit_code: The interpreter's exit code, if it ended by itself; of code in bash also if it failed.
        signal: The name of the signal that ended the interpreter.
        hint: What to do about it, such as which limit to raise.
        wall_ms: Time from start to end, in milliseconds.
        cpu_ms: Processor time, in milliseconds.
    """

    results: Tuple[Result, ...] = ()
    logs: Logs = field(default_factory=Logs)
    error: Optional[ExecutionError] = None
    status: ExecutionStatus = "ok"
    state: VariablesState = "preserved"
    reason: Optional[str] = None
    context: str = ""
    execution: int = 0
    execution_count: int = 0
    rebuilt: Optional[str] = None
    cause: Optional[str] = None
    exit_code: Optional[int] = None
    signal: Optional[str] = None
    hint: Optional[str] = None
    wall_ms: float = 0.0
    cpu_ms: float = 0.0

    @property
    def text(self) -> Optional[str]:
        """The value of the last expression, as text."""
        for result in self.results:
            if result.is_main_result:
                return result.text
        return None

    @property
    def stdout(self) -> str:
        """Standard output in one piece."""
        return "".join(self.logs.stdout)

    @property
    def stderr(self) -> str:
        """Standard error in one piece."""
        return "".join(self.logs.stderr)

    @property
    def ok(self) -> bool:
        """Whether the code ended without an error."""
        return self.status == "ok"

    def to_json(self) -> str:
        """Returns everything as JSON, with pictures in base64."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("results", "logs", "error")}
        error = (
            None
            if self.error is None
            else {"name": self.error.name, "value": self.error.value, "traceback": self.error.traceback}
        )
        results = [result.to_dict() for result in self.results]
        return json.dumps({"results": results, "logs": asdict(self.logs), "error": error, **fields}, ensure_ascii=False)

    @classmethod
    def from_parts(
        cls,
        head: Mapping[str, Any],
        results: Sequence[Result],
        logs: Logs,
        error: Optional[ExecutionError],
        end: Mapping[str, Any],
    ) -> Execution:
        """Assembles an execution from its events."""
        context: Union[str, Mapping[str, Any]] = head.get("context") or ""
        return cls(
            results=tuple(results),
            logs=logs,
            error=error if error is not None else _error_of_end(end),
            status=cast(ExecutionStatus, read.text(end, "status")),
            state=cast(VariablesState, read.text(end, "state")),
            reason=read.optional_text(end, "reason"),
            context=context if isinstance(context, str) else read.text(context, "id"),
            execution=read.integer(head, "execution", 0),
            execution_count=read.integer(head, "count", 0),
            rebuilt=read.optional_text(head, "rebuilt") or None,
            cause=read.optional_text(end, "cause"),
            exit_code=read.optional_integer(end, "exit_code"),
            signal=read.optional_text(end, "signal"),
            hint=read.optional_text(end, "hint"),
            wall_ms=read.number(end, "wall_ms"),
            cpu_ms=read.number(end, "cpu_ms"),
        )

    @classmethod
    def from_json(cls, value: Any) -> Execution:
        """Parses a complete execution."""
        from .commands import StreamOutput

        value = read.mapping(value, "the execution")
        streams = [StreamOutput.from_json(value.get(name)) for name in ("stdout", "stderr")]
        stdout, stderr = (((stream.text,) if stream.data else ()) for stream in streams)
        error = value.get("error")
        return cls.from_parts(
            value,
            read.list_of(value, "results", Result.from_json),
            Logs(stdout, stderr, any(stream.truncated for stream in streams)),
            None if error is None else ExecutionError.from_json(error),
            value,
        )


_ENDS: Mapping[str, Tuple[str, str]] = {
    "died": ("KernelDied", "the interpreter ended before the code did"),
    "timed_out": ("TimeoutError", "the code took longer than it may"),
    "interrupted": ("KeyboardInterrupt", "the code was interrupted"),
}


def _error_of_end(end: Mapping[str, Any]) -> Optional[ExecutionError]:
    """Returns the error for an end that the interpreter could not report itself."""
    status = read.text(end, "status")
    if status not in _ENDS:
        return None
    name, value = _ENDS[status]
    value = read.optional_text(end, "reason") or value
    traceback = f"{name}: {value}"
    if status != "died":
        return ExecutionError(name, value, traceback)
    return KernelDied(
        name,
        value,
        traceback,
        cause=read.optional_text(end, "cause"),
        exit_code=read.optional_integer(end, "exit_code"),
        signal=read.optional_text(end, "signal"),
    )


@dataclass(frozen=True)
class ExecutionResult:
    """The outcome of code, as programs have it.

    Attributes:
        success: Whether it ended without an error, or by an exit with 0.
        stdout: Standard output.
        stderr: Standard error, with the traceback of an error.
        exit_code: 0, or 1 after an error; code in bash, and an interpreter that exits, have their own; 124 timed out, 130
            interrupted, 137 the interpreter was killed.
        value: The value of the last expression, as text.
        results: All that the code has displayed.
    """

    success: bool
    stdout: str
    stderr: str
    exit_code: int
    value: Optional[str] = None
    results: Tuple[Result, ...] = ()

    @classmethod
    def of(cls, done: Execution) -> ExecutionResult:
        """Returns the result of an execution."""
        code = {"timed_out": 124, "interrupted": 130}.get(done.status, done.exit_code)
        code = {"ok": 0, "error": 1}.get(done.status, 137) if code is None else code
        main = next((result.text for result in done.results if result.is_main_result), None)
        stderr = "".join(done.logs.stderr)
        if done.error is not None:
            error = done.error
            stderr += f"{error.traceback or f'{error.name}: {error.value}'.strip()}\n"
            if done.status == "timed_out" and error.name != "TimeoutError":
                # What the interpreter reports is the interrupt.
                stderr += f"{': '.join(_ENDS[done.status])}\n"
        return cls(
            success=code == 0,
            stdout="".join(done.logs.stdout),
            stderr=stderr,
            exit_code=code,
            value=main,
            results=done.results,
        )
