"""Hooks for schemathesis: existing ids, ids of another tenant, and checks that nothing of that tenant is visible.

`run.py` starts schemathesis with the configuration in BELLJAR_FUZZ.
"""

from __future__ import annotations

import atexit
import copy
import json
import os
import threading
import zlib
from typing import Any, Dict, List, Optional

import requests
import schemathesis
from schemathesis.specs.openapi.checks import use_after_free

CONFIG: Dict[str, Any] = json.loads(os.environ["BELLJAR_FUZZ"])
URL: str = CONFIG["url"]
HEADERS: Dict[str, str] = {"Authorization": f"Bearer {CONFIG['key']}"}
# A well-formed id that does not exist.
MISSING = "a0000000000000000000"
# In seconds.
TIMEOUT = 60
# Paths that exist or are otherwise meaningful; generated ones mostly are not.
PATHS = ("a.txt", "dir", "dir/b.txt", ".", "/etc/passwd", "/", "new", "/proc/self/environ")


def pick(value: Any, among: int) -> int:
    """Returns a number derived from the value, so that failures are reproducible."""
    return zlib.crc32(repr(value).encode("utf-8", "surrogatepass")) % among


class OwnSandbox:
    """A sandbox of the tenant, replaced when it is no longer usable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._id: Optional[str] = None

    def id(self) -> str:
        with self._lock:
            if self._id is None:
                self._id = self._make()
            return self._id

    def forget(self, sandbox: str) -> None:
        """Removes a sandbox that is no longer usable."""
        with self._lock:
            if sandbox == self._id:
                self._id = None
        requests.delete(f"{URL}/v1/sandboxes/{sandbox}", headers=HEADERS, timeout=TIMEOUT)

    def _make(self) -> str:
        body = {
            "timeout": 600,
            "limits": {"timeout": 2, "memory": "256m"},
            "labels": {"made_by": "hooks"},
            "files": [{"path": "a.txt", "content": "own\n"}, {"path": "dir/b.txt", "content": "0123456789" * 100}],
        }
        made = requests.post(f"{URL}/v1/sandboxes", json=body, headers=HEADERS, timeout=TIMEOUT)
        if made.status_code == 429:
            # Sandboxes created by fuzzing use up the quota.
            end_all()
            made = requests.post(f"{URL}/v1/sandboxes", json=body, headers=HEADERS, timeout=TIMEOUT)
        assert made.status_code == 201, made.text
        sandbox: str = made.json()["id"]
        base = f"{URL}/v1/sandboxes/{sandbox}"
        for path, given in (
            ("processes", {"command": "echo out; echo err >&2; exec cat", "stdin_open": True}),
            ("sessions", {}),
            ("ports", {"port": 8000}),
        ):
            answer = requests.post(f"{base}/{path}", json=given, headers=HEADERS, timeout=TIMEOUT)
            assert answer.status_code == 201, answer.text
        return sandbox


def own_volume() -> str:
    """Returns the name of the tenant's volume, which is created again if fuzzing has removed it."""
    made = requests.post(f"{URL}/v1/volumes", json={"name": "own", "size": "16m"}, headers=HEADERS, timeout=TIMEOUT)
    if made.status_code == 201:
        for path in ("a.txt", "dir/b.txt"):
            content = f"{URL}/v1/volumes/own/files/content?path={path}"
            assert requests.put(content, data=b"own\n", headers=HEADERS, timeout=TIMEOUT).status_code == 200
    return "own"


def end_all() -> None:
    """Ends all sandboxes of the tenant, and removes its volumes."""
    while True:
        page = requests.get(f"{URL}/v1/sandboxes?limit=100", headers=HEADERS, timeout=TIMEOUT).json()["sandboxes"]
        if not page:
            break
        for sandbox in page:
            requests.delete(f"{URL}/v1/sandboxes/{sandbox['id']}", headers=HEADERS, timeout=TIMEOUT)
    for volume in requests.get(f"{URL}/v1/volumes", headers=HEADERS, timeout=TIMEOUT).json()["volumes"]:
        requests.delete(f"{URL}/v1/volumes/{volume['id']}", headers=HEADERS, timeout=TIMEOUT)


own = OwnSandbox()
# The number of responses by status, which shows that requests had an effect.
status_counts: Dict[str, int] = {}


@atexit.register
def write_counts() -> None:
    """Writes the counts for `run.py`."""
    with open(CONFIG["answers"], "w", encoding="utf-8") as file:
        json.dump(status_counts, file)


@schemathesis.hook
def before_load_schema(ctx: Any, raw_schema: Dict[str, Any]) -> None:
    """Removes schemas of event streams: OpenAPI 3.1 cannot describe their events, so the document calls a stream a string."""
    for item in raw_schema["paths"].values():
        for operation in item.values():
            for response in operation["responses"].values():
                response.get("content", {}).get("text/event-stream", {}).pop("schema", None)


@schemathesis.hook
def filter_query(ctx: Any, query: Any) -> bool:
    """Leaves out empty values: they count as missing, which the document cannot express for a number."""
    return not any(is_empty(value) for value in (query or {}).values())


def is_empty(value: Any) -> bool:
    """Reports whether a parameter with this value is sent without one; of an object, the keys are sent."""
    return value is None or (not any(value) if isinstance(value, (dict, list)) else value == "")


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Dict[str, Any]) -> None:
    """Inserts meaningful ids and paths."""
    parameters, path = case.path_parameters or {}, case.operation.path
    if CONFIG["follows"]:
        # The ids are those of earlier responses.
        pass
    elif "id" in parameters and path.startswith("/v1/sandboxes/"):
        kind = pick(parameters, 8)
        if kind < 5:
            parameters["id"] = own.id()
        elif kind == 5:
            parameters["id"] = CONFIG["foreign"].get("sandbox", MISSING)
    elif "id" in parameters and path.startswith("/v1/volumes/"):
        kind = pick(parameters, 4)
        if kind < 2:
            parameters["id"] = own_volume()
        elif kind == 2:
            parameters["id"] = CONFIG["foreign"].get("volume", MISSING)
    elif "id" in parameters and path.startswith("/v1/templates/"):
        kind = pick(parameters, 4)
        if kind < 2 and case.method.upper() == "GET":
            parameters["id"] = "default"
        elif kind == 2:
            parameters["id"] = CONFIG["foreign"].get("template", "nothing")
    if parameters.get("id") == CONFIG["key_id"]:
        # A revoked key cannot test anything further.
        parameters["id"] = "key_0000000000000000"
    for name, existing in (("process", 1), ("session", 1), ("port", 8000)):
        if not CONFIG["follows"] and name in parameters and pick(parameters[name], 3) > 0:
            parameters[name] = existing
    # Empty values count as missing, which the document cannot express: they would be valid for every type.
    query = {name: value for name, value in (case.query or {}).items() if value not in ("", {}, [])}
    if "path" in query and "path_base64" not in query and pick(query["path"], 2) == 0:
        query["path"] = PATHS[pick((query["path"], 1), len(PATHS))]
    if path.endswith("/files/archive") and (str(query.get("path", "")).startswith("/") or ".." in str(query.get("path", ""))):
        # An archive of the whole tree has gigabytes, all of which schemathesis would keep in memory.
        query["path"] = "."
    if path.endswith("/output") and query.get("follow") is not False and pick(query, 2) == 0:
        query["follow"] = False
    # Endless streams.
    follow = str(query.get("follow")).lower()
    if (path == "/v1/audit/export" and follow == "true") or (path == "/v1/events" and follow in ("true", "none")):
        query["follow"] = False
    if query != (case.query or {}):
        case.query = query


@schemathesis.hook
def after_call(ctx: Any, case: Any, response: Any) -> None:
    """Counts the response, and replaces the sandbox if it is no longer usable."""
    status = str(response.status_code)
    status_counts[status] = status_counts.get(status, 0) + 1
    if response.status_code == 429 and problem_code(response) == "quota_exceeded":
        end_all()
    sandbox = (case.path_parameters or {}).get("id")
    if sandbox is None or sandbox != own._id:
        return
    ended = case.method.upper() == "DELETE" and response.status_code == 204 and case.operation.path == "/v1/sandboxes/{id}"
    if ended or response.status_code in (410, 504) or problem_code(response) in ("wrong_state", "resource_exhausted"):
        own.forget(sandbox)


def problem_code(response: Any) -> Optional[str]:
    """Returns the code of a problem."""
    try:
        return response.json().get("code")
    except (ValueError, AttributeError):
        return None


def text_of(response: Any) -> str:
    content = response.content or b""
    return f"{response.headers}{content.decode('utf-8', 'replace')}"


@schemathesis.check
def nothing_of_another_tenant(ctx: Any, response: Any, case: Any) -> None:
    """Checks that no response contains data of the other tenant."""
    sent = json.dumps([case.path_parameters, case.query, case.headers, str(case.body)], default=str)
    received = text_of(response)
    found = [mark for mark in CONFIG["marks"] if mark in received and mark not in sent]
    assert not found, f"the response contains data of another tenant: {found}"


@schemathesis.check
def foreign_is_as_missing(ctx: Any, response: Any, case: Any) -> None:
    """Checks that another tenant's id gets the same response as a nonexistent one."""
    parameters = case.path_parameters or {}
    foreign = parameters.get("id")
    if foreign not in CONFIG["foreign"].values():
        return
    assert not 200 <= response.status_code < 300, f"a request for another tenant's resource succeeded: {response.status_code}"
    twin = copy.copy(response.request)
    assert twin.url is not None
    twin.url = twin.url.replace(foreign, MISSING)
    with requests.Session() as session:
        session.trust_env = False
        other = session.send(twin, timeout=TIMEOUT)
    assert comparable(response.status_code, response.json(), foreign) == comparable(other.status_code, other.json(), MISSING), (
        f"another tenant's id differs from a nonexistent one: {response.status_code} {response.json()}, "
        f"{other.status_code} {other.json()}"
    )


def comparable(status: int, problem: Dict[str, Any], name: str) -> List[Any]:
    """Returns the content of a problem, without the requested id."""
    return [status, problem.get("code"), problem.get("field"), str(problem.get("detail")).replace(name, "ID")]


# What is left of a removed thing on purpose: the record of a cancelled build, and the log of a sandbox.
REMAINS = ("templates_get_build", "sandboxes_logs")


@schemathesis.check
def removed_is_gone(ctx: Any, response: Any, case: Any) -> Any:
    """Checks that what was removed can no longer be used, other than what remains."""
    if case.operation.definition.raw.get("operationId") in REMAINS:
        return None
    return use_after_free(ctx, response, case)


@schemathesis.check
def problems_are_problems(ctx: Any, response: Any, case: Any) -> None:
    """Checks that every error is a problem with a code and the request's id."""
    if response.status_code >= 400 and case.method.upper() != "HEAD":
        problem = response.json()
        assert problem["status"] == response.status_code and problem["code"] and problem["detail"], problem
        assert problem["request_id"] == response.headers["x-request-id"][0], problem
