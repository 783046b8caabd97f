"""Templates, volumes, keys and the audit log."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Mapping, Optional, Tuple

from .. import _json as read


@dataclass(frozen=True)
class TemplateStep:
    """A step of a built template: its kind, such as `pip`, and its packages or a one-line summary."""

    kind: str
    summary: str

    @classmethod
    def from_json(cls, value: Any) -> TemplateStep:
        """Parses a step."""
        value = read.mapping(value, "the step")
        return cls(kind=read.text(value, "kind"), summary=read.text(value, "summary"))


@dataclass(frozen=True)
class ImageInfo:
    """An image that a template was made of, and its settings.

    `layers` has the digest of each layer and its size in bytes, if the image has it. `imported` tells whether it came from a
    file. `ignored` names the settings that have no effect on sandboxes, such as `ENTRYPOINT`.
    """

    digest: str
    imported: bool = False
    layers: Tuple[Tuple[str, Optional[int]], ...] = ()
    envs: Tuple[str, ...] = ()
    workdir: Optional[str] = None
    user: Optional[str] = None
    entrypoint: Tuple[str, ...] = ()
    cmd: Tuple[str, ...] = ()
    volumes: Tuple[str, ...] = ()
    ports: Tuple[str, ...] = ()
    stop_signal: Optional[str] = None
    ignored: Tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> ImageInfo:
        """Parses an image."""
        value = read.mapping(value, "the image")

        def words(key: str) -> Tuple[str, ...]:
            return tuple(str(word) for word in value.get(key) or ())

        layers = (read.mapping(layer, "the layer") for layer in value.get("layers") or ())
        return cls(
            digest=read.text(value, "digest"),
            imported=bool(value.get("imported")),
            layers=tuple((read.text(layer, "digest"), read.optional_integer(layer, "bytes")) for layer in layers),
            envs=words("env"),
            workdir=read.optional_text(value, "workdir"),
            user=read.optional_text(value, "user"),
            entrypoint=words("entrypoint"),
            cmd=words("cmd"),
            volumes=words("volumes"),
            ports=words("ports"),
            stop_signal=read.optional_text(value, "stop_signal"),
            ignored=words("ignored"),
        )


@dataclass(frozen=True)
class TemplateInfo:
    """A template: built in, built, or a snapshot of a sandbox.

    `base` is the base of its files: `host`, the machine's own file system, or `own`, none. `warm` has the modules that a
    pre-warmed interpreter of it has imported. `parent` is the template that its file is based on, and `steps` has the steps of
    its file, each with its packages or a summary. `limits` and `envs` are those of its sandboxes, where the request sets none.
    If `machine`, its sandboxes are machines. `start` is the command that is started in each, `ready` the one that succeeds once
    it is ready for use, and `workdir` their directory.
    `image` is the image that it was made of, if its file is based on one.
    """

    template_id: str
    name: Optional[str]
    kind: str
    size: Optional[int]
    digest: Optional[str]
    created_at: Optional[datetime]
    source: Optional[str]
    note: Optional[str]
    base: Optional[str] = None
    warm: Tuple[str, ...] = ()
    parent: Optional[str] = None
    steps: Tuple[TemplateStep, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    envs: Mapping[str, str] = field(default_factory=dict)
    image: Optional[ImageInfo] = None
    machine: bool = False
    start: Optional[str] = None
    ready: Optional[str] = None
    workdir: Optional[str] = None

    @property
    def snapshot_id(self) -> str:
        """The id, under the name that E2B has for it."""
        return self.template_id

    @classmethod
    def from_json(cls, value: Any) -> TemplateInfo:
        """Parses a template."""
        value = read.mapping(value, "the template")
        image = value.get("image")
        return cls(
            template_id=read.text(value, "id"),
            name=read.optional_text(value, "name"),
            kind=read.text(value, "kind"),
            size=read.optional_integer(value, "bytes"),
            digest=read.optional_text(value, "digest"),
            created_at=read.optional_time(value, "created_at"),
            source=read.optional_text(value, "source"),
            note=read.optional_text(value, "note"),
            base=read.optional_text(value, "base"),
            warm=tuple(str(module) for module in value.get("warm") or ()),
            parent=read.optional_text(value, "parent"),
            steps=tuple(TemplateStep.from_json(step) for step in value.get("steps") or ()),
            limits={str(name): str(limit) for name, limit in (value.get("limits") or {}).items()},
            envs={str(name): str(text) for name, text in (value.get("env") or {}).items()},
            image=None if image is None else ImageInfo.from_json(image),
            machine=bool(value.get("machine")),
            start=read.optional_text(value, "start"),
            ready=read.optional_text(value, "ready"),
            workdir=read.optional_text(value, "workdir"),
        )


@dataclass(frozen=True)
class BuildEvent:
    """An event of a template build.

    Attributes:
        event: `build` first, `queued` while it waits for other builds, `step` when a step begins, `log` for a line of its output,
            `packing` while its changes are packed, `layer` for its result. A step that changes nothing has none.
        number: The number of the step, from 1; 0 is the base.
        total: The number of steps; only for `step`.
        kind: The kind of the step, such as `pip`; only for `step`.
        summary: The step in one line; only for `step`.
        cached: Whether the step is skipped because its result is cached; only for `step`.
        line: The line; only for `log`.
        digest: SHA-256 of the layer's file; only for `layer`.
        size: Its size in bytes, or the bytes packed so far; only for `layer` and `packing`.
        build_id: The build's id; only for `build`.
        ahead: The number of builds before it; only for `queued`.
    """

    event: str
    number: int
    total: Optional[int] = None
    kind: Optional[str] = None
    summary: Optional[str] = None
    cached: Optional[bool] = None
    line: Optional[str] = None
    digest: Optional[str] = None
    size: Optional[int] = None
    build_id: Optional[str] = None
    ahead: Optional[int] = None

    @classmethod
    def from_json(cls, event: str, value: Any) -> BuildEvent:
        """Parses an event of a build."""
        value = read.mapping(value, "the event")
        return cls(
            event=event,
            number=read.optional_integer(value, "number") or 0,
            total=read.optional_integer(value, "total"),
            kind=read.optional_text(value, "kind"),
            summary=read.optional_text(value, "summary"),
            cached=value.get("cached") is True if "cached" in value else None,
            line=read.optional_text(value, "line"),
            digest=read.optional_text(value, "digest"),
            size=read.optional_integer(value, "bytes"),
            build_id=read.optional_text(value, "id"),
            ahead=read.optional_integer(value, "ahead"),
        )


@dataclass(frozen=True)
class VolumeInfo:
    """A volume: files that outlive sandboxes. `sandboxes` lists those that currently mount it."""

    volume_id: str
    name: str
    size: int
    tenant: str
    created_at: datetime
    sandboxes: Tuple[str, ...]

    @classmethod
    def from_json(cls, value: Any) -> VolumeInfo:
        """Parses a volume."""
        value = read.mapping(value, "the volume")
        return cls(
            volume_id=read.text(value, "id"),
            name=read.text(value, "name"),
            size=read.integer(value, "bytes"),
            tenant=read.text(value, "tenant"),
            created_at=read.time(value, "created_at"),
            sandboxes=tuple(str(sandbox) for sandbox in value.get("sandboxes") or ()),
        )


@dataclass(frozen=True)
class KeyInfo:
    """An API key. `hint` is its beginning; `key` is the full key, only in the response that created it, and not in `repr`."""

    key_id: str
    hint: Optional[str]
    name: Optional[str]
    role: str
    tenant: str
    quotas: Mapping[str, Any]
    usage: Mapping[str, Any]
    created_at: Optional[datetime]
    expires_at: Optional[datetime]
    revoked_at: Optional[datetime]
    last_used_at: Optional[datetime]
    key: Optional[str] = field(default=None, repr=False)
    owner: Optional[str] = None
    approval: str = "never"

    @classmethod
    def from_json(cls, value: Any) -> KeyInfo:
        """Parses a key."""
        value = read.mapping(value, "the key")
        return cls(
            key_id=read.text(value, "id"),
            hint=read.optional_text(value, "hint"),
            name=read.optional_text(value, "name"),
            role=read.text(value, "role"),
            tenant=read.text(value, "tenant"),
            quotas=read.mapping(value.get("quotas") or {}, "`quotas`"),
            usage=read.mapping(value.get("usage") or {}, "`usage`"),
            created_at=read.optional_time(value, "created_at"),
            expires_at=read.optional_time(value, "expires_at"),
            revoked_at=read.optional_time(value, "revoked_at"),
            last_used_at=read.optional_time(value, "last_used_at"),
            key=read.optional_text(value, "key"),
            owner=read.optional_text(value, "owner"),
            approval=read.optional_text(value, "approval") or "never",
        )


@dataclass(frozen=True)
class ApprovalDecision:
    """The decision of a person, with the key and the note. `budget` has the further calls that it covers."""

    at: datetime
    key_id: str
    person: str
    note: str
    budget: Optional[Mapping[str, Any]] = None

    @classmethod
    def from_json(cls, value: Any) -> ApprovalDecision:
        """Parses a decision."""
        value = read.mapping(value, "the decision")
        budget = value.get("budget")
        return cls(
            at=read.time(value, "at"),
            key_id=read.text(value, "key"),
            person=read.text(value, "person"),
            note=read.text(value, "note"),
            budget=None if budget is None else read.mapping(budget, "`budget`"),
        )


@dataclass(frozen=True)
class CallingCode:
    """Running code that makes a call, as `belljar.tools.NAME(…)`. Its sandbox is frozen while the call waits.

    `code` is the code, or its first 32 KiB, of `code_bytes` in all; `code_sha256` is the digest of the whole.
    """

    sandbox_id: str
    context: str
    language: str
    execution: int
    code: str
    code_bytes: int
    code_sha256: str

    @classmethod
    def from_json(cls, value: Any) -> CallingCode:
        """Parses calling code."""
        value = read.mapping(value, "`calling_code`")
        return cls(
            sandbox_id=read.text(value, "sandbox"),
            context=read.text(value, "context"),
            language=read.text(value, "language"),
            execution=read.integer(value, "execution"),
            code=read.data(read.mapping(value.get("code"), "`code`")).decode("utf-8", "replace"),
            code_bytes=read.integer(value, "code_bytes"),
            code_sha256=read.text(value, "code_sha256"),
        )


@dataclass(frozen=True)
class ApprovalInfo:
    """An approval: a call that waits for a person's decision, or has waited.

    Attributes:
        state: `pending`, `approved`, `denied`, `expired`, `cancelled` or `outcome_unknown`.
        requester: The person who made the call: the owner of the key, or its id without one.
        digest: SHA-256 of the call.
        request: The call, in the server's format: code or command, files, environment, tool, template and network.
        expires_at: When the call is refused if nobody has decided.
        decision: The decision of a person.
        granted_by: The approval whose budget has allowed the call, which did not wait then.
        outcome: How the call has ended, or why it did not run.
        calling_code: The running code that makes the call, if code does.
    """

    approval_id: str
    state: str
    tenant: str
    key_id: str
    requester: str
    digest: str
    request: Mapping[str, Any]
    created_at: datetime
    expires_at: datetime
    decision: Optional[ApprovalDecision] = None
    granted_by: Optional[str] = None
    started_at: Optional[datetime] = None
    ended_at: Optional[datetime] = None
    outcome: Optional[str] = None
    calling_code: Optional[CallingCode] = None

    @classmethod
    def from_json(cls, value: Any) -> ApprovalInfo:
        """Parses an approval."""
        value = read.mapping(value, "the approval")
        decision = value.get("decision")
        request = read.mapping(value.get("request"), "`request`")
        calling_code = request.get("calling_code")
        return cls(
            approval_id=read.text(value, "id"),
            state=read.text(value, "state"),
            tenant=read.text(value, "tenant"),
            key_id=read.text(value, "key"),
            requester=read.text(value, "requester"),
            digest=read.text(value, "digest"),
            request=request,
            created_at=read.time(value, "created_at"),
            expires_at=read.time(value, "expires_at"),
            decision=None if decision is None else ApprovalDecision.from_json(decision),
            granted_by=read.optional_text(value, "granted_by"),
            started_at=read.optional_time(value, "started_at"),
            ended_at=read.optional_time(value, "ended_at"),
            outcome=read.optional_text(value, "outcome"),
            calling_code=None if calling_code is None else CallingCode.from_json(calling_code),
        )


@dataclass(frozen=True)
class SecretInfo:
    """A secret stored on the server for network policies, without its value.

    `hosts` are the only hosts that it is sent to; if there are none, only the key that stored it and administrators may use it,
    for any host. `header` is the only header that it is put into; None: any.
    """

    secret_id: str
    name: str
    version: int
    metadata: Mapping[str, str]
    created_at: datetime
    updated_at: datetime
    hosts: Tuple[str, ...] = ()
    header: Optional[str] = None

    @classmethod
    def from_json(cls, value: Any) -> SecretInfo:
        """Parses a secret."""
        value = read.mapping(value, "the secret")
        return cls(
            secret_id=read.text(value, "id"),
            name=read.text(value, "name"),
            version=read.integer(value, "version"),
            metadata=read.mapping(value.get("metadata") or {}, "`metadata`"),
            created_at=read.time(value, "created_at"),
            updated_at=read.time(value, "updated_at"),
            hosts=tuple(str(host) for host in value.get("hosts") or ()),
            header=read.optional_text(value, "header"),
        )


@dataclass(frozen=True)
class ScreenFinding:
    """What a screening has found: the rule, its severity (`low`, `medium`, `high`), the place, and what the walls do about it.

    `name` is what the rule has matched; `inside` is the language, if that is in code inside of the code.
    """

    rule: str
    severity: str
    line: int
    column: int
    end_line: int
    end_column: int
    name: str
    inside: Optional[str]
    meaning: str
    walls: str

    @classmethod
    def from_json(cls, value: Any) -> ScreenFinding:
        """Parses a finding."""
        value = read.mapping(value, "the finding")
        return cls(
            rule=read.text(value, "rule"),
            severity=read.text(value, "severity"),
            line=read.integer(value, "line"),
            column=read.integer(value, "column"),
            end_line=read.integer(value, "end_line"),
            end_column=read.integer(value, "end_column"),
            name=read.text(value, "name"),
            inside=read.optional_text(value, "inside"),
            meaning=read.text(value, "meaning"),
            walls=read.text(value, "walls"),
        )


@dataclass(frozen=True)
class ScreenReport:
    """The result of a screening. It is advice: code can do what its text does not show.

    `risk` is the gravest severity of a finding, `low` if there is none. `complete` tells whether all of the code was read, and
    `left_out` is the number of findings beyond the first 100.
    """

    language: str
    risk: str
    complete: bool
    findings: Tuple[ScreenFinding, ...]
    left_out: int
    advice: str

    @classmethod
    def from_json(cls, value: Any) -> ScreenReport:
        """Parses a report."""
        value = read.mapping(value, "the report")
        return cls(
            language=read.text(value, "language"),
            risk=read.text(value, "risk"),
            complete=value.get("complete") is True,
            findings=tuple(read.list_of(value, "findings", ScreenFinding.from_json)),
            left_out=read.integer(value, "left_out", 0),
            advice=read.text(value, "advice"),
        )


@dataclass(frozen=True)
class AccountInfo:
    """The owner of the key, its quotas and its usage."""

    key: Optional[str]
    tenant: Optional[str]
    role: Optional[str]
    quotas: Mapping[str, Any]
    usage: Mapping[str, Any]

    @classmethod
    def from_json(cls, value: Any) -> AccountInfo:
        """Parses the owner of a key."""
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
    """A page of the audit log. Pass `after=next` for the next page; `head` is the newest record's position and hash, and `base`
    those of the last record that is archived and no longer listed (`seq` is 0 if none is)."""

    records: Tuple[Mapping[str, Any], ...]
    next: int
    head: Mapping[str, Any]
    base: Mapping[str, Any]

    @classmethod
    def from_json(cls, value: Any) -> AuditPage:
        """Parses a page of the audit log."""
        records = tuple(read.items(value, "records"))
        head = read.mapping(value.get("head") or {}, "`head`")
        base = read.mapping(value.get("base") or {}, "`base`")
        return cls(records=records, next=read.integer(value, "next", 0), head=head, base=base)


@dataclass(frozen=True)
class AuditVerdict:
    """Result of a verification of the audit log. It checked `records` from number `first` on: earlier ones are archived. If it
    failed, `seq` is the first invalid record and `why` the reason."""

    ok: bool
    records: Optional[int]
    first: Optional[int]
    head: Any
    seq: Optional[int]
    why: Optional[str]

    @classmethod
    def from_json(cls, value: Any) -> AuditVerdict:
        """Parses the result of a verification."""
        value = read.mapping(value, "the verdict")
        return cls(
            ok=value.get("ok") is True,
            records=read.optional_integer(value, "records"),
            first=read.optional_integer(value, "first"),
            head=value.get("head"),
            seq=read.optional_integer(value, "seq"),
            why=read.optional_text(value, "why"),
        )
