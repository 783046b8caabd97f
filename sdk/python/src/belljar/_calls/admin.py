"""Templates, volumes, keys, the audit log and the server itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from .. import _json as read
from .._arguments import mapping, text_list, texts
from ..models import (
    AccountInfo,
    ApprovalInfo,
    AuditPage,
    AuditVerdict,
    KeyInfo,
    Network,
    NetworkForecast,
    NetworkOffer,
    ScreenReport,
    SecretInfo,
    TemplateInfo,
    VolumeInfo,
)
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
from .sandboxes import limits_of, network_policy

T = TypeVar("T")


def _page(
    name: str, parse: Callable[[Any], T], limit: Optional[int], cursor: Optional[str]
) -> Call[Tuple[List[T], Optional[str]]]:
    """Returns a page of the list at `/v1/NAME`."""
    return get(
        f"/v1/{name}",
        lambda value: (read.list_of(value, name, parse), read.optional_text(value, "next_cursor")),
        ("limit", number(limit)),
        ("cursor", cursor),
    )


def list_templates(limit: Optional[int], cursor: Optional[str]) -> Call[Tuple[List[TemplateInfo], Optional[str]]]:
    """Returns a page of templates; without `limit` all."""
    return _page("templates", TemplateInfo.from_json, limit, cursor)


def list_snapshots(source: Optional[str]) -> Call[Tuple[List[TemplateInfo], Optional[str]]]:
    """Lists the snapshots, of one sandbox if `source` is its id. There is a single page."""

    def parse(value: Any) -> Tuple[List[TemplateInfo], Optional[str]]:
        found, _ = list_templates(None, None).parse(value)
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


def import_image(name: Optional[str]) -> Call[TemplateInfo]:
    """Imports an image from a file."""
    return Call(
        "POST",
        "/v1/images/import",
        TemplateInfo.from_json,
        query=given_query(("name", name)),
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
    owner: Optional[str],
    approval: Optional[str],
) -> Call[KeyInfo]:
    """Creates an API key."""
    return post(
        "/v1/keys",
        KeyInfo.from_json,
        name=name,
        role=role,
        tenant=tenant,
        expires=duration(expires, "expires"),
        quotas=None if quotas is None else _quotas(quotas),
        owner=owner,
        approval=approval,
    )


def update_key(
    key_id: str,
    *,
    name: Optional[str],
    role: Optional[str],
    expires: Optional[Duration],
    quotas: Optional[Mapping[str, Any]],
    owner: Optional[str],
    approval: Optional[str],
) -> Call[KeyInfo]:
    """Changes an API key."""
    body = given(
        name=name,
        role=role,
        expires=duration(expires, "expires"),
        quotas=None if quotas is None else _quotas(quotas),
        owner=owner,
        approval=approval,
    )
    return Call("PATCH", f"/v1/keys/{segment(key_id, 'key_id')}", KeyInfo.from_json, body=body)


def _quotas(quotas: Mapping[str, Any]) -> Dict[str, Any]:
    return dict(mapping(quotas, "quotas", '{"sandboxes": 10}'))


def list_keys(limit: Optional[int], cursor: Optional[str]) -> Call[Tuple[List[KeyInfo], Optional[str]]]:
    """Returns a page of API keys; without `limit` all."""
    return _page("keys", KeyInfo.from_json, limit, cursor)


def revoke_key(key_id: str) -> Call[None]:
    """Revokes an API key."""
    return delete(f"/v1/keys/{segment(key_id, 'key_id')}")


def create_secret(
    name: str, value: str, hosts: Optional[Sequence[str]], header: Optional[str], metadata: Optional[Mapping[str, str]]
) -> Call[SecretInfo]:
    """Stores a secret."""
    return post("/v1/secrets", SecretInfo.from_json, name=name, value=value, **_secret(hosts, header, metadata))


def update_secret(
    secret: str, value: str, hosts: Optional[Sequence[str]], header: Optional[str], metadata: Optional[Mapping[str, str]]
) -> Call[SecretInfo]:
    """Changes a secret's value, and its hosts if they are given."""
    body = given(value=value, **_secret(hosts, header, metadata))
    return Call("PUT", _secret_path(secret), SecretInfo.from_json, body=body)


def _secret(hosts: Optional[Sequence[str]], header: Optional[str], metadata: Optional[Mapping[str, str]]) -> Dict[str, Any]:
    return {
        "hosts": text_list(hosts, "hosts", "api.example.com"),
        "header": header,
        "metadata": texts(metadata, "metadata"),
    }


def get_secret(secret: str) -> Call[SecretInfo]:
    """Returns a secret, without its value."""
    return get(_secret_path(secret), SecretInfo.from_json)


def list_secrets(limit: Optional[int], cursor: Optional[str]) -> Call[Tuple[List[SecretInfo], Optional[str]]]:
    """Returns a page of secrets."""
    return _page("secrets", SecretInfo.from_json, limit, cursor)


def delete_secret(secret: str) -> Call[None]:
    """Removes a secret."""
    return delete(_secret_path(secret))


def _secret_path(secret: str) -> str:
    return f"/v1/secrets/{segment(secret, 'secret')}"


def screen(
    code: str, language: str, allow_modules: Optional[Sequence[str]], deny_modules: Optional[Sequence[str]]
) -> Call[ScreenReport]:
    """Reads code, and reports what it seems to do."""
    modules = given(
        allow=text_list(allow_modules, "allow_modules", "numpy"), deny=text_list(deny_modules, "deny_modules", "socket")
    )
    body = {"code": code, "language": language, "modules": modules}
    return Call("POST", "/v1/screen", ScreenReport.from_json, body=body, safe=True)


def network_offer() -> Call[NetworkOffer]:
    """Returns what network policies can be made of."""
    return get("/v1/network", NetworkOffer.from_json)


def check_network(network: Optional[Network], hosts: Sequence[str], sandbox: Optional[str]) -> Call[NetworkForecast]:
    """Decides about destinations by a policy, or by that of a sandbox."""
    body = given(network=network_policy(network), hosts=text_list(hosts, "hosts", "pypi.org"), sandbox=sandbox)
    return Call("POST", "/v1/network/check", NetworkForecast.from_json, body=body, safe=True)


def tool_schema(name: str, vendor: str, definition: Optional[Mapping[str, Any]]) -> Call[Dict[str, Any]]:
    """Returns the description of a stored tool, or the one that a tool with this definition would have."""
    path = f"/v1/tools/{segment(name, 'name')}/schema"

    def parse(value: Any) -> Dict[str, Any]:
        return dict(read.mapping(value, "the description"))

    if definition is None:
        return get(path, parse, ("for", vendor))
    body = given(**mapping(definition, "definition", '{"description": "Analyses data.", "languages": ["python"]}'))
    body["languages"] = text_list(body.get("languages"), "languages", "python")
    for field, convert in (("limits", limits_of), ("network", network_policy)):
        if field in body:
            body[field] = convert(body[field])
    if "timeout" in body:
        body["timeout"] = duration(body["timeout"], "timeout")
    return Call("POST", path, parse, query=(("for", vendor),), body=given(**body), safe=True)


def list_approvals(
    state: Optional[str], limit: Optional[int], cursor: Optional[str]
) -> Call[Tuple[List[ApprovalInfo], Optional[str]]]:
    """Returns a page of approvals."""
    return get(
        "/v1/approvals",
        lambda value: (read.list_of(value, "approvals", ApprovalInfo.from_json), read.optional_text(value, "next_cursor")),
        ("state", state),
        ("limit", number(limit)),
        ("cursor", cursor),
    )


def get_approval(approval_id: str) -> Call[ApprovalInfo]:
    """Returns an approval."""
    return get(_approval_path(approval_id), ApprovalInfo.from_json)


def approve(
    approval_id: str, note: Optional[str], uses: Optional[int], within: Optional[Duration], scope: Optional[str]
) -> Call[ApprovalInfo]:
    """Approves a call."""
    path = f"{_approval_path(approval_id)}/approve"
    within_s = duration(within, "within")
    return post(path, ApprovalInfo.from_json, note=note, uses=uses, within=within_s, scope=scope)


def deny(approval_id: str, note: Optional[str]) -> Call[ApprovalInfo]:
    """Denies a call."""
    return post(f"{_approval_path(approval_id)}/deny", ApprovalInfo.from_json, note=note)


def _approval_path(approval_id: str) -> str:
    return f"/v1/approvals/{segment(approval_id, 'approval_id')}"


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
