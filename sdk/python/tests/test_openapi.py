"""The package sends and reads everything that the server's OpenAPI document has for the schemas of sdk/conformance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Set

import httpx
import pytest

import belljar
from belljar import models

SDK = Path(__file__).resolve().parent.parent
DOCUMENT = SDK.parent.parent / "docs" / "openapi.json"
TABLE = SDK.parent / "conformance" / "cases.json"
if not DOCUMENT.exists():
    pytest.skip("SKIPPED: this is not a checkout", allow_module_level=True)
SCHEMAS: Mapping[str, Any] = json.loads(DOCUMENT.read_text("utf-8"))["components"]["schemas"]
COVERED: Mapping[str, List[str]] = json.loads(TABLE.read_text("utf-8"))["schemas"]

REQUESTS: Dict[str, Callable[[belljar.Belljar], Any]] = {
    "CreateSandbox": lambda client: client.sandboxes.create(
        "t",
        1,
        labels={"a": "b"},
        envs={"a": "b"},
        name="n",
        if_exists="return",
        idle_timeout=1,
        on_timeout="pause",
        auto_resume=True,
        limits={"memory": 1},
        network="open",
        engine="local",
        grade="cgroup",
        machine=True,
        user="root",
        hostname="h",
        port_host="localhost:{port}",
        mounts=["/a:/b"],
        volumes=[{"name": "v", "path": "/v"}],
        files={"f": "text"},
    ),
    "UpdateSandbox": lambda client: sandbox(client).update(
        labels={"a": None}, limits={"memory": 1}, idle_timeout=1, on_timeout="kill", auto_resume=False, network="disabled"
    ),
    "NewKey": lambda client: client.keys.create(
        "n", role="user", tenant="t", expires="1h", quotas={"stored_secrets": False}, owner="o", approval="never"
    ),
    "KeyUpdate": lambda client: client.keys.update(
        "k", name="n", role="read", expires="1h", quotas={"stored_secrets": False}, owner="", approval="always"
    ),
    "Approve": lambda client: client.approvals.approve("a", note="n", uses=2, within="1m", scope="tool"),
    "Deny": lambda client: client.approvals.deny("a", note="n"),
    "NewSecret": lambda client: client.secrets.create("n", "v", hosts=["h"], header="x", metadata={"a": "b"}),
    "SecretUpdate": lambda client: client.secrets.update("n", "v", hosts=["h"], header="x", metadata={"a": "b"}),
    "CheckNetwork": lambda client: client.network.check("open", hosts=["h"], sandbox_id="s"),
    "ToolDefinition": lambda client: client.tools.schema(
        "t",
        definition={
            "name": "t",
            "description": "d",
            "languages": ["bash"],
            "session": True,
            "approval": "never",
            "limits": {"memory": 1},
            "network": "disabled",
            "template": "t",
            "timeout": 1,
        },
    ),
    "NewVolume": lambda client: client.volumes.create("v", "64m"),
    "BuildTemplate": lambda client: client.templates.build(
        belljar.Template("t").copy(__file__, "/x"), name="n", mirror="/m", image="/i", fresh=True
    ),
    "Snapshot": lambda client: sandbox(client).create_snapshot("n", "note"),
}

ANSWERS: Dict[str, Callable[[Any], Any]] = {
    "Sandbox": models.SandboxInfo.from_json,
    "KeyInfo": models.KeyInfo.from_json,
    "CreatedKey": models.KeyInfo.from_json,
    "Approval": models.ApprovalInfo.from_json,
    "SecretInfo": models.SecretInfo.from_json,
    "TemplateInfo": models.TemplateInfo.from_json,
    "Volume": models.VolumeInfo.from_json,
    "Metrics": models.SandboxMetrics.from_json,
    "NetworkOffer": models.NetworkOffer.from_json,
    "NetworkForecast": models.NetworkForecast.from_json,
    "PortInfo": models.PortInfo.from_json,
}


class Recorded(Dict[str, Any]):
    """An object of an answer that knows which of its properties were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.seen: Set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)


def resolved(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the parts of a schema without references."""
    if "$ref" in schema:
        yield from resolved(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    for part in schema.get("allOf", []):
        yield from resolved(part)
    if "oneOf" in schema:
        yield from resolved(next(part for part in schema["oneOf"] if part.get("type") != "null"))
    if "type" in schema:
        yield schema


def properties(name: str) -> Dict[str, Any]:
    return {key: value for part in resolved(SCHEMAS[name]) for key, value in part.get("properties", {}).items()}


def sandbox(client: belljar.Belljar) -> belljar.Sandbox:
    return belljar.Sandbox(client, models.SandboxInfo.from_json(sample("Sandbox")))


def value_of(schema: Mapping[str, Any]) -> Any:
    parts = list(resolved(schema))
    kind = parts[0]["type"]
    kind = next(one for one in kind if one != "null") if isinstance(kind, list) else kind
    if kind == "object":
        return Recorded({key: value_of(one) for part in parts for key, one in part.get("properties", {}).items()})
    if kind == "array":
        return [value_of(parts[0]["items"])]
    if kind == "string":
        return "2026-11-21T15:04:05Z" if parts[0].get("format") == "date-time" else parts[0].get("enum", ["text"])[0]
    return {"integer": 1, "number": 1.5, "boolean": True}[kind]


def sample(name: str) -> Any:
    """Returns a value of a schema with all of its properties."""
    return value_of(SCHEMAS[name])


@pytest.mark.parametrize("name", COVERED["requests"])
def test_requests_have_everything(name: str) -> None:
    bodies: List[Any] = []

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(400, json={"code": "invalid_field", "status": 400, "detail": "enough"})

    with belljar.Belljar("bj_x", transport=httpx.MockTransport(handle)) as client:
        with pytest.raises(belljar.InvalidArgumentException, match="enough"):
            REQUESTS[name](client)
    assert set(bodies[0]) == set(properties(name))


@pytest.mark.parametrize("name", COVERED["answers"])
def test_answers_are_read_whole(name: str) -> None:
    value = sample(name)
    ANSWERS[name](value)
    assert value.seen >= set(properties(name))
