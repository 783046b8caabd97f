"""What the service tells, as values. All of them are immutable."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from . import _json as read


@dataclass(frozen=True)
class Limits:
    """What a sandbox may use at most. None: the server did not say."""

    memory_bytes: Optional[int]
    cpus: Optional[float]
    timeout_s: Optional[float]
    pids: Optional[int]
    tmp_bytes: Optional[int]
    disk_bytes: Optional[int]
    inodes: Optional[int]
    output_bytes: Optional[int]
    open_files: Optional[int]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Limits:
        """Reads `limits` of an answer."""
        return cls(
            memory_bytes=read.optional_integer(value, "memory_bytes"),
            cpus=read.optional_number(value, "cpus"),
            timeout_s=read.optional_number(value, "timeout_s"),
            pids=read.optional_integer(value, "pids"),
            tmp_bytes=read.optional_integer(value, "tmp_bytes"),
            disk_bytes=read.optional_integer(value, "disk_bytes"),
            inodes=read.optional_integer(value, "inodes"),
            output_bytes=read.optional_integer(value, "output_bytes"),
            open_files=read.optional_integer(value, "open_files"),
        )


@dataclass(frozen=True)
class SandboxInfo:
    """What the server knows of a sandbox.

    `state` is one of `creating`, `running`, `paused`, `stopping` and `gone`. `raw` is the whole answer, for what has no
    attribute here.
    """

    sandbox_id: str
    name: Optional[str]
    state: str
    template: str
    labels: Mapping[str, str]
    created_at: datetime
    started_at: Optional[datetime]
    expires_at: Optional[datetime]
    idle_timeout_s: Optional[float]
    on_timeout: Optional[str]
    auto_resume: bool
    paused_at: Optional[datetime]
    ended_at: Optional[datetime]
    reason: Optional[str]
    engine: Optional[str]
    limits: Limits
    network: Optional[str]
    isolation: Mapping[str, Any]
    home: Optional[str]
    hostname: Optional[str]
    ports: Tuple[int, ...]
    host: Optional[str]
    pooled: bool
    start_ms: Optional[float]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The labels, under the name that E2B has for them."""
        return self.labels

    @classmethod
    def from_json(cls, value: Any) -> SandboxInfo:
        """Reads a sandbox of an answer."""
        value = read.mapping(value, "the sandbox")
        return cls(
            sandbox_id=read.text(value, "id"),
            name=read.optional_text(value, "name"),
            state=read.text(value, "state"),
            template=read.text(value, "template"),
            labels=read.texts(value, "labels"),
            created_at=read.time(value, "created_at"),
            started_at=read.optional_time(value, "started_at"),
            expires_at=read.optional_time(value, "expires_at"),
            idle_timeout_s=read.optional_number(value, "idle_timeout_s"),
            on_timeout=read.optional_text(value, "on_timeout"),
            auto_resume=bool(value.get("auto_resume")),
            paused_at=read.optional_time(value, "paused_at"),
            ended_at=read.optional_time(value, "ended_at"),
            reason=read.optional_text(value, "reason"),
            engine=read.optional_text(value, "engine"),
            limits=Limits.from_json(read.mapping(value.get("limits") or {}, "`limits`")),
            network=read.optional_text(value, "network"),
            isolation=read.mapping(value.get("isolation") or {}, "`isolation`"),
            home=read.optional_text(value, "home"),
            hostname=read.optional_text(value, "hostname"),
            ports=tuple(int(port) for port in value.get("ports") or ()),
            host=read.optional_text(value, "host"),
            pooled=bool(value.get("pooled")),
            start_ms=read.optional_number(value, "start_ms"),
            raw=value,
        )


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    `kind` is `exited` (with `code`), `signalled` (with `signal` and `name`), `timed_out`, `out_of_memory`, `limit` (with
    `limit`), `denied` (with `rule`) or `infrastructure` (with `cause`): Belljar failed, which says nothing about the command.
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
        """Whether it ended by itself with exit code 0."""
        return self.kind == "exited" and self.code == 0

    def describe(self) -> str:
        """How it ended, in words."""
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
        """Reads an outcome of an answer."""
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
        """Reads how a process ended from `outcome`, or from `exit_code` and `signal` where there is none."""
        if value.get("outcome") is not None:
            return cls.from_json(value["outcome"])
        if value.get("signal") is not None:
            return cls(kind="signalled", name=str(value["signal"]))
        return cls(kind="exited", code=read.integer(value, "exit_code"))


@dataclass(frozen=True)
class StreamOutput:
    """What is kept of an output stream: all of it, or its head and its tail, joined.

    Attributes:
        data: The bytes that are kept.
        total_bytes: How many bytes were written.
        truncated: Whether bytes between head and tail were left out.
        omitted_bytes: How many.
        head_bytes: How many bytes of `data` come before those that were left out.
    """

    data: bytes = field(repr=False)
    total_bytes: int
    truncated: bool = False
    omitted_bytes: int = 0
    head_bytes: int = 0

    @property
    def text(self) -> str:
        """The kept bytes as text; what is not UTF-8 is shown as U+FFFD."""
        return self.data.decode("utf-8", "replace")

    @classmethod
    def from_json(cls, value: Any) -> StreamOutput:
        """Reads a stream of a result."""
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
    """What came of a command.

    Attributes:
        outcome: How it ended.
        exit_code: Its own exit code, or None if it did not end by itself.
        signal: The name of the signal that ended it, or None.
        output: What is kept of standard output, with sizes.
        error_output: The same of standard error.
        process: The number that Belljar gave the process in this sandbox; it is never used again.
        wall_ms: Time from its start to its end, in milliseconds; None where it was not measured.
        cpu_ms: Processor time of its processes, in milliseconds; None where it was not measured.
        peak_memory_bytes: The most memory in use at once; None where it was not measured.
        left_behind: How many processes it had left running, which were ended with it.
        hint: What to do about it, in plain words, or None.
        session_state: Of a command in a session: `preserved`, or `lost` if its shell ended; else None.
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

    @property
    def stdout(self) -> str:
        """What it wrote to standard output, as text."""
        return self.output.text

    @property
    def stderr(self) -> str:
        """What it wrote to standard error, as text."""
        return self.error_output.text

    @property
    def error(self) -> Optional[str]:
        """None if it ended by itself with exit code 0, else how it ended, in words."""
        return None if self.outcome.success else self.outcome.describe()

    @classmethod
    def from_json(cls, value: Any) -> CommandResult:
        """Reads the result of an exec."""
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
        """Joins the end of a background process with the output that was collected from it."""
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


class Output(NamedTuple):
    """A piece of output as it comes: exactly one of the three is not None."""

    stdout: Optional[str] = None
    stderr: Optional[str] = None
    pty: Optional[bytes] = None


@dataclass(frozen=True)
class ProcessInfo:
    """A process that was started in a sandbox, running or ended.

    `process` is the number that Belljar gave it and never gives again; `pid` is what programs in the sandbox know it by.
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
        """The program, as it was called."""
        return self.argv[0] if self.argv else ""

    @property
    def args(self) -> Tuple[str, ...]:
        """Its arguments."""
        return self.argv[1:]

    @classmethod
    def from_json(cls, value: Any) -> ProcessInfo:
        """Reads a process of an answer."""
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


@dataclass(frozen=True)
class FileEntry:
    """A file, directory, link or other thing in the tree of a sandbox.

    `kind` is `file`, `directory`, `symlink`, `fifo`, `socket` or `device`. `mode` holds the permission bits. `path_bytes`
    is the exact path; `path` shows what is not UTF-8 in it as U+FFFD.
    """

    path: str
    kind: str
    size: int
    mode: int
    modified_at: Optional[datetime]
    symlink_target: Optional[str]
    path_bytes: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2] or self.path

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.kind == "file"

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"

    @property
    def permissions(self) -> str:
        """The permission bits as `ls` writes them, such as `rw-r--r--`."""
        return "".join(letter if self.mode & (0o400 >> position) else "-" for position, letter in enumerate("rwxrwxrwx"))

    @classmethod
    def from_json(cls, value: Any) -> FileEntry:
        """Reads a file of an answer."""
        value = read.mapping(value, "the file")
        path = read.text(value, "path")
        exact = read.optional_text(value, "path_base64")
        return cls(
            path=path,
            kind=read.text(value, "kind"),
            size=read.integer(value, "bytes", 0),
            mode=int(str(value.get("mode") or "0"), 8),
            modified_at=read.optional_time(value, "modified_at"),
            symlink_target=read.optional_text(value, "symlink_target"),
            path_bytes=path.encode("utf-8", "surrogatepass") if exact is None else base64.b64decode(exact),
        )


@dataclass(frozen=True)
class FilesystemEvent:
    """Something that happened in a watched directory.

    `type` is `created`, `changed`, `removed`, `moved_from`, `moved_to`, or `overflow`: more happened than could be told, so
    look for yourself. `path` is None for an overflow.
    """

    type: str
    path: Optional[str]
    is_dir: bool

    @property
    def name(self) -> str:
        """The last part of the path, or nothing."""
        return (self.path or "").rpartition("/")[2]


@dataclass(frozen=True)
class SearchMatch:
    """A file that a search found, and where in it. Lines and columns count from 1; None where only the name was asked for."""

    path: str
    line_number: Optional[int]
    line: Optional[str]
    column: Optional[int]


@dataclass(frozen=True)
class SearchResult:
    """What a search found. `truncated`: there is more than the limit."""

    matches: Tuple[SearchMatch, ...]
    truncated: bool

    @classmethod
    def from_json(cls, value: Any) -> SearchResult:
        """Reads the answer of a search."""
        return cls(
            matches=tuple(
                SearchMatch(
                    path=read.text(match, "path"),
                    line_number=read.optional_integer(match, "line_number"),
                    line=read.optional_text(match, "line"),
                    column=read.optional_integer(match, "column"),
                )
                for match in read.items(value, "matches")
            ),
            truncated=bool(value.get("truncated")),
        )


@dataclass(frozen=True)
class ArchiveResult:
    """What an unpacked archive came to. `skipped` names what was left out because it could reach outside of the target."""

    entries: int
    size: int
    skipped: Tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> ArchiveResult:
        """Reads the answer of an archive that was put."""
        value = read.mapping(value, "the archive")
        return cls(entries=read.integer(value, "entries", 0), size=read.integer(value, "bytes", 0))


@dataclass(frozen=True)
class DiskUsage:
    """How full one file system of a sandbox is."""

    path: str
    bytes_used: int
    bytes_total: Optional[int]
    inodes_used: Optional[int]
    inodes_total: Optional[int]


@dataclass(frozen=True)
class SandboxMetrics:
    """What a sandbox uses now. `cpu_s` is processor time since its start; None where it is not measured."""

    at: datetime
    cpu_s: Optional[float]
    memory_bytes: Optional[int]
    memory_peak_bytes: Optional[int]
    memory_limit_bytes: Optional[int]
    cpus: Optional[float]
    pids: Optional[int]
    pids_limit: Optional[int]
    disks: Tuple[DiskUsage, ...]
    oom_kills: Optional[int]
    uptime_s: Optional[float]

    @classmethod
    def from_json(cls, value: Any) -> SandboxMetrics:
        """Reads the metrics of an answer."""
        value = read.mapping(value, "the metrics")
        disks = read.items(value, "disks") if value.get("disks") is not None else []
        return cls(
            at=read.time(value, "at"),
            cpu_s=read.optional_number(value, "cpu_s"),
            memory_bytes=read.optional_integer(value, "memory_bytes"),
            memory_peak_bytes=read.optional_integer(value, "memory_peak_bytes"),
            memory_limit_bytes=read.optional_integer(value, "memory_limit_bytes"),
            cpus=read.optional_number(value, "cpus"),
            pids=read.optional_integer(value, "pids"),
            pids_limit=read.optional_integer(value, "pids_limit"),
            disks=tuple(
                DiskUsage(
                    path=read.text(disk, "path"),
                    bytes_used=read.integer(disk, "bytes_used", 0),
                    bytes_total=read.optional_integer(disk, "bytes_total"),
                    inodes_used=read.optional_integer(disk, "inodes_used"),
                    inodes_total=read.optional_integer(disk, "inodes_total"),
                )
                for disk in disks
            ),
            oom_kills=read.optional_integer(value, "oom_kills"),
            uptime_s=read.optional_number(value, "uptime_s"),
        )


@dataclass(frozen=True)
class LogEntry:
    """Something that happened to a sandbox, such as `created`, `exec`, `exit` or `paused`."""

    at: datetime
    seq: int
    event: str
    process: Optional[int]
    detail: Any


@dataclass(frozen=True)
class LogPage:
    """A part of a sandbox's log. Ask with `after=next` for what comes later."""

    entries: Tuple[LogEntry, ...]
    next: int

    @classmethod
    def from_json(cls, value: Any) -> LogPage:
        """Reads a page of a log."""
        entries = tuple(
            LogEntry(
                at=read.time(entry, "at"),
                seq=read.integer(entry, "seq"),
                event=read.text(entry, "event"),
                process=read.optional_integer(entry, "process"),
                detail=entry.get("detail"),
            )
            for entry in read.items(value, "entries")
        )
        return cls(entries=entries, next=read.integer(value, "next", entries[-1].seq if entries else 0))


@dataclass(frozen=True)
class Token:
    """A credential that opens one thing for a time. Its text is not part of `repr`."""

    token: str = field(repr=False)
    expires_at: Optional[datetime]
    url: Optional[str] = field(default=None, repr=False)

    @classmethod
    def from_json(cls, value: Any) -> Token:
        """Reads a token of an answer."""
        value = read.mapping(value, "the token")
        return cls(
            token=read.text(value, "token"),
            expires_at=read.optional_time(value, "expires_at"),
            url=read.optional_text(value, "url"),
        )


@dataclass(frozen=True)
class PortInfo:
    """A port of a sandbox that can be reached from outside. `path_url` works without a domain of one's own."""

    port: int
    public: bool
    url: Optional[str]
    path_url: Optional[str]

    @classmethod
    def from_json(cls, value: Any) -> PortInfo:
        """Reads a port of an answer."""
        value = read.mapping(value, "the port")
        return cls(
            port=read.integer(value, "port"),
            public=bool(value.get("public")),
            url=read.optional_text(value, "url"),
            path_url=read.optional_text(value, "path_url"),
        )


@dataclass(frozen=True)
class PortList:
    """The ports that are published, and those on which something listens inside."""

    ports: Tuple[PortInfo, ...]
    listening: Tuple[int, ...]

    @classmethod
    def from_json(cls, value: Any) -> PortList:
        """Reads the ports of an answer."""
        ports = tuple(PortInfo.from_json(port) for port in read.items(value, "ports"))
        return cls(ports=ports, listening=tuple(int(port) for port in value.get("listening") or ()))


@dataclass(frozen=True)
class SessionInfo:
    """A shell in a sandbox that remembers directory, variables and functions between commands."""

    session_id: int
    shell: Optional[str]

    @classmethod
    def from_json(cls, value: Any) -> SessionInfo:
        """Reads a session of an answer."""
        value = read.mapping(value, "the session")
        return cls(session_id=read.integer(value, "session"), shell=read.optional_text(value, "shell"))


@dataclass(frozen=True)
class TemplateInfo:
    """What a sandbox can be made from: built in, or a snapshot of another sandbox."""

    template_id: str
    name: Optional[str]
    kind: str
    size: Optional[int]
    digest: Optional[str]
    created_at: Optional[datetime]
    source: Optional[str]
    note: Optional[str]

    @classmethod
    def from_json(cls, value: Any) -> TemplateInfo:
        """Reads a template of an answer."""
        value = read.mapping(value, "the template")
        return cls(
            template_id=read.text(value, "id"),
            name=read.optional_text(value, "name"),
            kind=read.text(value, "kind"),
            size=read.optional_integer(value, "bytes"),
            digest=read.optional_text(value, "digest"),
            created_at=read.optional_time(value, "created_at"),
            source=read.optional_text(value, "source"),
            note=read.optional_text(value, "note"),
        )


@dataclass(frozen=True)
class KeyInfo:
    """An API key. `hint` is its beginning; `key` is the whole of it, only in the answer that made it, and not in `repr`."""

    key_id: str
    hint: Optional[str]
    name: Optional[str]
    role: str
    tenant: str
    quotas: Mapping[str, Any]
    created_at: Optional[datetime]
    expires_at: Optional[datetime]
    revoked_at: Optional[datetime]
    last_used_at: Optional[datetime]
    key: Optional[str] = field(default=None, repr=False)

    @classmethod
    def from_json(cls, value: Any) -> KeyInfo:
        """Reads a key of an answer."""
        value = read.mapping(value, "the key")
        return cls(
            key_id=read.text(value, "id"),
            hint=read.optional_text(value, "hint"),
            name=read.optional_text(value, "name"),
            role=read.text(value, "role"),
            tenant=read.text(value, "tenant"),
            quotas=read.mapping(value.get("quotas") or {}, "`quotas`"),
            created_at=read.optional_time(value, "created_at"),
            expires_at=read.optional_time(value, "expires_at"),
            revoked_at=read.optional_time(value, "revoked_at"),
            last_used_at=read.optional_time(value, "last_used_at"),
            key=read.optional_text(value, "key"),
        )


@dataclass(frozen=True)
class AccountInfo:
    """Whose key it is, what it may use, and what is used."""

    key: Optional[str]
    tenant: Optional[str]
    role: Optional[str]
    quotas: Mapping[str, Any]
    usage: Mapping[str, Any]

    @classmethod
    def from_json(cls, value: Any) -> AccountInfo:
        """Reads the answer to who am I."""
        value = read.mapping(value, "the account")
        return cls(
            key=read.optional_text(value, "key"),
            tenant=read.optional_text(value, "tenant"),
            role=read.optional_text(value, "role"),
            quotas=read.mapping(value.get("quotas") or {}, "`quotas`"),
            usage=read.mapping(value.get("usage") or {}, "`usage`"),
        )


@dataclass(frozen=True)
class AuditPage:
    """A part of the audit log. Ask with `after=next` for what comes later; `head` is the newest record's place and hash."""

    records: Tuple[Mapping[str, Any], ...]
    next: int
    head: Mapping[str, Any]

    @classmethod
    def from_json(cls, value: Any) -> AuditPage:
        """Reads a page of the audit log."""
        records = tuple(read.items(value, "records"))
        head = read.mapping(value.get("head") or {}, "`head`")
        return cls(records=records, next=read.integer(value, "next", 0), head=head)


@dataclass(frozen=True)
class AuditVerdict:
    """Whether the audit log is as it was written. If not, `seq` is the first bad record and `why` says what is wrong."""

    ok: bool
    records: Optional[int]
    head: Any
    seq: Optional[int]
    why: Optional[str]

    @classmethod
    def from_json(cls, value: Any) -> AuditVerdict:
        """Reads the answer of a verification."""
        value = read.mapping(value, "the verdict")
        return cls(
            ok=value.get("ok") is True,
            records=read.optional_integer(value, "records"),
            head=value.get("head"),
            seq=read.optional_integer(value, "seq"),
            why=read.optional_text(value, "why"),
        )


def read_list(value: Any, key: str, kind: Any) -> List[Any]:
    """The list under `key` of an answer, each item read by `kind.from_json`."""
    return [kind.from_json(item) for item in read.items(value, key)]
