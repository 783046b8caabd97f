"""Templates, keys, the audit log and the server itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Mapping, Optional

from .. import _json as read
from ..models import AccountInfo, AuditPage, AuditVerdict, KeyInfo, TemplateInfo
from ._call import Call, Duration, delete, duration, get, nothing, number, post, segment


def list_templates() -> Call[List[TemplateInfo]]:
    """What sandboxes can be made from."""
    return get("/v1/templates", lambda value: read.list_of(value, "templates", TemplateInfo.from_json))


def get_template(template: str) -> Call[TemplateInfo]:
    """One template, by id or name."""
    return get(f"/v1/templates/{segment(template, 'template')}", TemplateInfo.from_json)


def delete_template(template: str) -> Call[None]:
    """Takes a template away."""
    return delete(f"/v1/templates/{segment(template, 'template')}")


def create_key(
    name: str,
    *,
    role: str,
    tenant: Optional[str],
    expires: Optional[Duration],
    quotas: Optional[Mapping[str, Any]],
) -> Call[KeyInfo]:
    """Makes an API key."""
    return post(
        "/v1/keys",
        KeyInfo.from_json,
        name=name,
        role=role,
        tenant=tenant,
        expires=duration(expires, "expires"),
        quotas=None if quotas is None else dict(quotas),
    )


def list_keys() -> Call[List[KeyInfo]]:
    """The API keys."""
    return get("/v1/keys", lambda value: read.list_of(value, "keys", KeyInfo.from_json))


def revoke_key(key_id: str) -> Call[None]:
    """Makes an API key worthless."""
    return delete(f"/v1/keys/{segment(key_id, 'key_id')}")


def me() -> Call[AccountInfo]:
    """Whose key it is."""
    return get("/v1/me", AccountInfo.from_json)


def audit(
    *,
    after: Optional[int],
    limit: Optional[int],
    sandbox: Optional[str],
    action: Optional[str],
    tenant: Optional[str],
) -> Call[AuditPage]:
    """A part of the audit log."""
    return get(
        "/v1/audit",
        AuditPage.from_json,
        ("after", number(after)),
        ("limit", number(limit)),
        ("sandbox", sandbox),
        ("action", action),
        ("tenant", tenant),
    )


def export_audit() -> Call[None]:
    """The whole audit log, one JSON object a line."""
    return get("/v1/audit/export", nothing)


def verify_audit() -> Call[AuditVerdict]:
    """Whether the audit log is as it was written."""
    return replace(Call("POST", "/v1/audit/verify", AuditVerdict.from_json), takes=float("inf"))


def health() -> Call[Mapping[str, Any]]:
    """Whether the server answers."""
    return get("/health", _object, needs_key=False)


def ready() -> Call[Mapping[str, Any]]:
    """Whether the server takes requests."""
    return get("/ready", _object, needs_key=False)


def version() -> Call[Mapping[str, Any]]:
    """What the server is."""
    return get("/version", _object, needs_key=False)


def metrics() -> Call[None]:
    """The server's own metrics."""
    return get("/metrics", nothing)


def _object(value: Any) -> Mapping[str, Any]:
    return read.mapping(value, "the answer")
