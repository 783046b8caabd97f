"""Templates, volumes, keys, the audit log and the server itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Mapping, Optional, Tuple, Union

from .. import _json as read
from .._arguments import texts
from ..models import AccountInfo, AuditPage, AuditVerdict, KeyInfo, SecretInfo, TemplateInfo, VolumeInfo
from ..template import Template
from ._call import (
    Call,
    Duration,
    Size,
    delete,
    duration,
    get,
    given,
    given_query,
    nothing,
    number,
    post,
    segment,
    volume_path,
)


def list_templates() -> Call[List[TemplateInfo]]:
    """Lists the templates."""
    return get("/v1/templates", lambda value: read.list_of(value, "templates", TemplateInfo.from_json))


def list_snapshots(source: Optional[str]) -> Call[Tuple[List[TemplateInfo], Optional[str]]]:
    """Lists the snapshots, of one sandbox if `source` is its id. There is a single page."""

    def parse(value: Any) -> Tuple[List[TemplateInfo], Optional[str]]:
        found = list_templates().parse(value)
        return [one for one in found if one.kind == "snapshot" and source in (None, one.source)], None

    return get("/v1/templates", parse)


def get_template(template: str) -> Call[TemplateInfo]:
    """Returns a template, by id or name."""
    return get(f"/v1/templates/{segment(template, 'template')}", TemplateInfo.from_json)


def delete_template(template: str) -> Call[None]:
    """Removes a template."""
    return delete(f"/v1/templates/{segment(template, 'template')}")


def build_template(
    template: Union[Template, str], *, name: Optional[str], mirror: Optional[str], image: Optional[str], fresh: bool
) -> Call[None]:
    """Builds a template; the response is a stream of events."""
    text = template if isinstance(template, str) else template.to_toml()
    files = [] if isinstance(template, str) else template.files()
    body = given(definition=text, files=files or None, name=name, mirror=mirror, image=image, fresh=fresh or None)
    return Call("POST", "/v1/templates", nothing, body=body, headers={"Accept": "text/event-stream"})


def export_template(template: str) -> Call[None]:
    """Exports a built template as one file."""
    path = f"/v1/templates/{segment(template, 'template')}/export"
    return Call("GET", path, nothing, headers={"Accept": "application/octet-stream"}, safe=True)


def import_template(name: Optional[str]) -> Call[TemplateInfo]:
    """Imports a template from an exported file."""
    query = given_query(("name", name))
    return Call(
        "POST",
        "/v1/templates/import",
        TemplateInfo.from_json,
        query=query,
        headers={"Content-Type": "application/octet-stream"},
        takes=float("inf"),
    )


def create_volume(name: str, size: Optional[Size]) -> Call[VolumeInfo]:
    """Creates a volume."""
    return post("/v1/volumes", VolumeInfo.from_json, name=name, size=size)


def list_volumes() -> Call[List[VolumeInfo]]:
    """Lists the volumes of the key's tenant."""
    return get("/v1/volumes", lambda value: read.list_of(value, "volumes", VolumeInfo.from_json))


def get_volume(volume: str) -> Call[VolumeInfo]:
    """Returns a volume by id or name."""
    return get(volume_path(volume), VolumeInfo.from_json)


def delete_volume(volume: str) -> Call[None]:
    """Removes a volume."""
    return delete(volume_path(volume))


def create_key(
    name: str,
    *,
    role: str,
    tenant: Optional[str],
    expires: Optional[Duration],
    quotas: Optional[Mapping[str, Any]],
) -> Call[KeyInfo]:
    """Creates an API key."""
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
    """Lists the API keys."""
    return get("/v1/keys", lambda value: read.list_of(value, "keys", KeyInfo.from_json))


def revoke_key(key_id: str) -> Call[None]:
    """Revokes an API key."""
    return delete(f"/v1/keys/{segment(key_id, 'key_id')}")


def create_secret(name: str, value: str, metadata: Optional[Mapping[str, str]]) -> Call[SecretInfo]:
    """Stores a secret."""
    return post("/v1/secrets", SecretInfo.from_json, name=name, value=value, metadata=texts(metadata, "metadata"))


def update_secret(secret: str, value: str, metadata: Optional[Mapping[str, str]]) -> Call[SecretInfo]:
    """Changes a secret's value."""
    body = given(value=value, metadata=texts(metadata, "metadata"))
    return Call("PUT", _secret_path(secret), SecretInfo.from_json, body=body)


def get_secret(secret: str) -> Call[SecretInfo]:
    """Returns a secret, without its value."""
    return get(_secret_path(secret), SecretInfo.from_json)


def list_secrets(limit: Optional[int], cursor: Optional[str]) -> Call[Tuple[List[SecretInfo], Optional[str]]]:
    """Returns a page of secrets."""
    return get(
        "/v1/secrets",
        lambda value: (read.list_of(value, "secrets", SecretInfo.from_json), read.optional_text(value, "next_cursor")),
        ("limit", number(limit)),
        ("cursor", cursor),
    )


def delete_secret(secret: str) -> Call[None]:
    """Removes a secret."""
    return delete(_secret_path(secret))


def _secret_path(secret: str) -> str:
    return f"/v1/secrets/{segment(secret, 'secret')}"


def me() -> Call[AccountInfo]:
    """Returns the owner of the key."""
    return get("/v1/me", AccountInfo.from_json)


def audit(
    *,
    after: Optional[int],
    limit: Optional[int],
    sandbox: Optional[str],
    action: Optional[str],
    tenant: Optional[str],
) -> Call[AuditPage]:
    """Returns a page of the audit log."""
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
    """Exports the whole audit log, one JSON object per line."""
    return get("/v1/audit/export", nothing)


def verify_audit() -> Call[AuditVerdict]:
    """Verifies the audit log."""
    return replace(Call("POST", "/v1/audit/verify", AuditVerdict.from_json), takes=float("inf"))


def health() -> Call[Mapping[str, Any]]:
    """Returns the health of the server."""
    return get("/health", _object, needs_key=False)


def ready() -> Call[Mapping[str, Any]]:
    """Returns the readiness of the server."""
    return get("/ready", _object, needs_key=False)


def version() -> Call[Mapping[str, Any]]:
    """Returns the version of the server."""
    return get("/version", _object, needs_key=False)


def metrics() -> Call[None]:
    """Returns the server's own metrics."""
    return get("/metrics", nothing)


def _object(value: Any) -> Mapping[str, Any]:
    return read.mapping(value, "the answer")
