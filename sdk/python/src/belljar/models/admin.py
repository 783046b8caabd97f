"""Templates, volumes, keys and the audit log."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Mapping, Optional, Tuple

from .. import _json as read


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

    @property
    def snapshot_id(self) -> str:
        """The id, under the name that E2B has for it."""
        return self.template_id

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
class BuildEvent:
    """What happens while a template is built.

    Attributes:
        event: `step` when a step begins, `log` for a line of its output, `layer` for what came of it.
        number: The number of the step, from 1.
        total: How many steps there are; only of `step`.
        kind: What kind of step it is, such as `pip`; only of `step`.
        summary: What it does, in a line; only of `step`.
        cached: Whether it is not run, as what comes of it is known; only of `step`.
        line: The line; only of `log`.
        digest: SHA-256 of the layer's file; only of `layer`.
        size: Its bytes; only of `layer`.
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

    @classmethod
    def from_json(cls, event: str, value: Any) -> BuildEvent:
        """Reads an event of a build."""
        value = read.mapping(value, "the event")
        return cls(
            event=event,
            number=read.integer(value, "number"),
            total=read.optional_integer(value, "total"),
            kind=read.optional_text(value, "kind"),
            summary=read.optional_text(value, "summary"),
            cached=value.get("cached") is True if "cached" in value else None,
            line=read.optional_text(value, "line"),
            digest=read.optional_text(value, "digest"),
            size=read.optional_integer(value, "bytes"),
        )


@dataclass(frozen=True)
class VolumeInfo:
    """A volume: files that outlive sandboxes. `sandboxes` are those that mount it now."""

    volume_id: str
    name: str
    size: int
    tenant: str
    created_at: datetime
    sandboxes: Tuple[str, ...]

    @classmethod
    def from_json(cls, value: Any) -> VolumeInfo:
        """Parses a volume of an answer."""
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
class SecretInfo:
    """A secret stored on the server for network policies, without its value."""

    secret_id: str
    name: str
    version: int
    metadata: Mapping[str, str]
    created_at: datetime
    updated_at: datetime

    @classmethod
    def from_json(cls, value: Any) -> SecretInfo:
        """Reads a secret of an answer."""
        value = read.mapping(value, "the secret")
        return cls(
            secret_id=read.text(value, "id"),
            name=read.text(value, "name"),
            version=read.integer(value, "version"),
            metadata=read.mapping(value.get("metadata") or {}, "`metadata`"),
            created_at=read.time(value, "created_at"),
            updated_at=read.time(value, "updated_at"),
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
