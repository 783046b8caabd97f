"""Sandboxes and what belongs to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Mapping, Optional, Sequence, Tuple, TypedDict, Union, cast

from .. import _json as read

SandboxState = Literal["creating", "running", "paused", "stopping", "gone"]
"""State of a sandbox."""


class Limits(TypedDict, total=False):
    """Limits of a sandbox. For missing values, or None, the server's defaults apply.

    Sizes are bytes or a string such as `256m`. `timeout` is the time limit of commands without their own.
    """

    memory: Optional[Union[int, str]]
    cpus: Optional[float]
    timeout: Optional[Union[int, float, str, timedelta]]
    pids: Optional[int]
    tmp: Optional[Union[int, str]]
    disk: Optional[Union[int, str]]
    inodes: Optional[int]
    output: Optional[Union[int, str]]
    open_files: Optional[int]


@dataclass(frozen=True)
class NetworkSecret:
    """A secret for one header of requests to one host. Code in the sandbox sees a placeholder; responses omit the value.

    Attributes:
        host: The host, which receives it over HTTPS on port 443. The policy has to allow it.
        header: The header, such as `authorization`.
        value: The secret itself. It is not in the `repr`.
    """

    host: str
    header: str
    value: Optional[str] = field(default=None, repr=False)


class NetworkPolicy(TypedDict, total=False):
    """The network policy of a sandbox. The mode defaults to `whitelist` if presets or `allow` are given.

    `presets` are lists for package managers such as `pip` and `npm`; `allow` and `deny` are rules such as `api.example.com`,
    `*.example.com:443` and `192.0.2.0/24:5432`. `requests` restricts the requests to a host, such as
    `{"api.example.com": ["GET /v1/*"]}`; hosts without an entry are not restricted. The gateway inserts `secrets` into requests,
    each a `NetworkSecret` or a mapping with the same keys, by the name of the variable that contains its placeholder:
    `{"API_KEY": NetworkSecret("api.example.com", "authorization", key)}`. The gateway sets `headers` in requests to their
    hosts (also `*.example.com`), overwriting those set by code. `${secrets.NAME}` in a value refers to a secret stored on the
    server. `tls` is `terminate` for hosts (also `*.example.com`) whose requests the gateway reads on port 443, and `pass` for
    those of presets whose TLS it passes on.
    """

    mode: Literal["disabled", "whitelist", "open"]
    presets: Sequence[str]
    allow: Sequence[str]
    deny: Sequence[str]
    requests: Mapping[str, Sequence[str]]
    secrets: Mapping[str, Union[NetworkSecret, Mapping[str, str]]]
    headers: Sequence[Union[NetworkSecret, Mapping[str, str]]]
    tls: Mapping[str, Literal["terminate", "pass"]]


Network = Union[str, NetworkPolicy]
"""A mode alone (`disabled`, `open`), or a full policy."""


class _VolumeMount(TypedDict):
    name: str
    path: str


class VolumeMount(_VolumeMount, total=False):
    """A volume for a sandbox: its name or id, the path in the sandbox, and the mode: `rw`, the default, or `ro`."""

    mode: Literal["rw", "ro"]


@dataclass(frozen=True)
class MountedVolume:
    """A volume that a sandbox mounts. `mode` is `rw` or `ro`."""

    volume_id: str
    name: str
    path: str
    mode: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MountedVolume:
        """Parses a volume of a sandbox."""
        return cls(
            volume_id=read.text(value, "id"),
            name=read.text(value, "name"),
            path=read.text(value, "path"),
            mode=read.text(value, "mode"),
        )


@dataclass(frozen=True)
class NetworkRecord:
    """What was decided about a connection of a sandbox.

    `event` is `lookup` (a name was not resolved), `connection` (a verdict) or `ended` (the end of an allowed connection).
    """

    number: int
    at: datetime
    event: str
    host: str
    port: Optional[int]
    flow: Optional[int]
    allowed: Optional[bool]
    address: Optional[str]
    rule: Optional[str]
    reason: Optional[str]
    sent: Optional[int]
    received: Optional[int]
    error: Optional[str]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NetworkRecord:
        """Reads a record of the log."""
        allowed = value.get("allowed")
        return cls(
            number=read.integer(value, "number"),
            at=read.time(value, "at"),
            event=read.text(value, "event"),
            host=read.text(value, "host"),
            port=read.optional_integer(value, "port"),
            flow=read.optional_integer(value, "flow"),
            allowed=None if allowed is None else bool(allowed),
            address=read.optional_text(value, "address"),
            rule=read.optional_text(value, "rule"),
            reason=read.optional_text(value, "reason"),
            sent=read.optional_integer(value, "sent"),
            received=read.optional_integer(value, "received"),
            error=read.optional_text(value, "error"),
        )


@dataclass(frozen=True)
class SandboxLimits:
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
    def from_json(cls, value: Mapping[str, Any]) -> SandboxLimits:
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

    `user` is the user as whom programs run that name none, if that is not its own. `held_by` is the id of the approval for which
    a call waits in it, or of a call of its code: it stays paused until somebody has decided or answered. `key` is the id of the
    key that created it. `mounts` are host directories and files that it sees, such as `/srv/data:/data:ro`. `raw` is the whole
    answer, for what has no attribute here.
    """

    sandbox_id: str
    name: Optional[str]
    state: SandboxState
    template: str
    labels: Mapping[str, str]
    created_at: datetime
    started_at: Optional[datetime]
    expires_at: Optional[datetime]
    idle_timeout_s: Optional[float]
    on_timeout: Optional[str]
    auto_resume: bool
    paused_at: Optional[datetime]
    held_by: Optional[str]
    ended_at: Optional[datetime]
    reason: Optional[str]
    engine: Optional[str]
    limits: SandboxLimits
    network: Optional[Network]
    isolation: Mapping[str, Any]
    home: Optional[str]
    hostname: Optional[str]
    user: Optional[str]
    ports: Tuple[int, ...]
    volumes: Tuple[MountedVolume, ...]
    mounts: Tuple[str, ...]
    host: Optional[str]
    pooled: bool
    start_ms: Optional[float]
    tenant: Optional[str]
    key: Optional[str]
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
            state=cast(SandboxState, read.text(value, "state")),
            template=read.text(value, "template"),
            labels=read.texts(value, "labels"),
            created_at=read.time(value, "created_at"),
            started_at=read.optional_time(value, "started_at"),
            expires_at=read.optional_time(value, "expires_at"),
            idle_timeout_s=read.optional_number(value, "idle_timeout_s"),
            on_timeout=read.optional_text(value, "on_timeout"),
            auto_resume=bool(value.get("auto_resume")),
            paused_at=read.optional_time(value, "paused_at"),
            held_by=read.optional_text(value, "held_by"),
            ended_at=read.optional_time(value, "ended_at"),
            reason=read.optional_text(value, "reason"),
            engine=read.optional_text(value, "engine"),
            limits=SandboxLimits.from_json(read.mapping(value.get("limits") or {}, "`limits`")),
            network=value.get("network"),
            isolation=read.mapping(value.get("isolation") or {}, "`isolation`"),
            home=read.optional_text(value, "home"),
            hostname=read.optional_text(value, "hostname"),
            user=read.optional_text(value, "user"),
            ports=tuple(int(port) for port in value.get("ports") or ()),
            volumes=tuple(MountedVolume.from_json(volume) for volume in value.get("volumes") or ()),
            mounts=tuple(str(mount) for mount in value.get("mounts") or ()),
            host=read.optional_text(value, "host"),
            pooled=bool(value.get("pooled")),
            start_ms=read.optional_number(value, "start_ms"),
            tenant=read.optional_text(value, "tenant"),
            key=read.optional_text(value, "key"),
            raw=value,
        )


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
