"""What schemathesis is told of the service: ids that exist, ids of another tenant, and that nothing of it may be seen.

`run.py` starts it, with what it needs in BELLJAR_FUZZ.
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

WORLD: Dict[str, Any] = json.loads(os.environ["BELLJAR_FUZZ"])
URL: str = WORLD["url"]
OWN: Dict[str, str] = {"Authorization": f"Bearer {WORLD['key']}"}
# Of the right form, and of nobody.
MISSING = "a0000000000000000000"
# What each request has to be made with.
TIMEOUT = 60
# Names that mean something in the sandbox; what schemathesis makes up mostly does not.
PATHS = ("a.txt", "dir", "dir/b.txt", ".", "/etc/passwd", "/", "new", "/proc/self/environ")


def chosen(value: Any, among: int) -> int:
    """The same for the same value, so that a failure can be had again."""
    return zlib.crc32(repr(value).encode("utf-8", "surrogatepass")) % among


class Own:
    """A sandbox of the tenant's own, made anew when the last one has come to harm."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._id: Optional[str] = None

    def id(self) -> str:
        with self._lock:
            if self._id is None:
                self._id = self._make()
            return self._id

    def forget(self, sandbox: str) -> None:
        """This one is of no more use."""
        with self._lock:
            if sandbox == self._id:
                self._id = None
        requests.delete(f"{URL}/v1/sandboxes/{sandbox}", headers=OWN, timeout=TIMEOUT)

    def _make(self) -> str:
        body = {
            "timeout": 600,
            "limits": {"timeout": 2, "memory": "256m"},
            "labels": {"made_by": "hooks"},
            "files": [{"path": "a.txt", "content": "own\n"}, {"path": "dir/b.txt", "content": "0123456789" * 100}],
        }
        made = requests.post(f"{URL}/v1/sandboxes", json=body, headers=OWN, timeout=TIMEOUT)
        if made.status_code == 429:
            # Those that were made by fuzzing take up the quota.
            end_all()
            made = requests.post(f"{URL}/v1/sandboxes", json=body, headers=OWN, timeout=TIMEOUT)
        assert made.status_code == 201, made.text
        sandbox: str = made.json()["id"]
        base = f"{URL}/v1/sandboxes/{sandbox}"
        for path, given in (
            ("processes", {"command": "echo out; echo err >&2; exec cat", "stdin_open": True}),
            ("sessions", {}),
            ("ports", {"port": 8000}),
        ):
            answer = requests.post(f"{base}/{path}", json=given, headers=OWN, timeout=TIMEOUT)
            assert answer.status_code == 201, answer.text
        return sandbox


def own_volume() -> str:
    """The name of a volume of the tenant's own, created again when fuzzing has removed it."""
    made = requests.post(f"{URL}/v1/volumes", json={"name": "own", "size": "16m"}, headers=OWN, timeout=TIMEOUT)
    if made.status_code == 201:
        for path in ("a.txt", "dir/b.txt"):
            content = f"{URL}/v1/volumes/own/files/content?path={path}"
            assert requests.put(content, data=b"own\n", headers=OWN, timeout=TIMEOUT).status_code == 200
    return "own"


def end_all() -> None:
    """Ends all sandboxes of the tenant, and removes its volumes."""
    while True:
        page = requests.get(f"{URL}/v1/sandboxes?limit=100", headers=OWN, timeout=TIMEOUT).json()["sandboxes"]
        if not page:
            break
        for sandbox in page:
            requests.delete(f"{URL}/v1/sandboxes/{sandbox['id']}", headers=OWN, timeout=TIMEOUT)
    for volume in requests.get(f"{URL}/v1/volumes", headers=OWN, timeout=TIMEOUT).json()["volumes"]:
        requests.delete(f"{URL}/v1/volumes/{volume['id']}", headers=OWN, timeout=TIMEOUT)


own = Own()
# How often each status came: shows that a run has reached something.
answers: Dict[str, int] = {}


@atexit.register
def tell() -> None:
    """Leaves the counts for `run.py`."""
    with open(WORLD["answers"], "w", encoding="utf-8") as file:
        json.dump(answers, file)



@schemathesis.hook
def before_load_schema(ctx: Any, raw_schema: Dict[str, Any]) -> None:
    """OpenAPI 3.1 has no words for the events of a stream: the document calls a stream a string, which no event is."""
    for item in raw_schema["paths"].values():
        for operation in item.values():
            for response in operation["responses"].values():
                response.get("content", {}).get("text/event-stream", {}).pop("schema", None)


@schemathesis.hook
def filter_query(ctx: Any, query: Any) -> bool:
    """Leaves out empty values: they count as missing, which the document cannot say of a number."""
    return not any(is_empty(value) for value in (query or {}).values())


def is_empty(value: Any) -> bool:
    """Reports whether a parameter with this value is sent without one; of an object, the keys are sent."""
    return value is None or (not any(value) if isinstance(value, (dict, list)) else value == "")


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Dict[str, Any]) -> None:
    """Puts in ids and paths that mean something."""
    parameters, path = case.path_parameters or {}, case.operation.path
    if WORLD["follows"]:
        # The ids are those that earlier answers gave.
        pass
    elif "id" in parameters and path.startswith("/v1/sandboxes/"):
        kind = chosen(parameters, 8)
        if kind < 5:
            parameters["id"] = own.id()
        elif kind == 5:
            parameters["id"] = WORLD["foreign"].get("sandbox", MISSING)
    elif "id" in parameters and path.startswith("/v1/volumes/"):
        kind = chosen(parameters, 4)
        if kind < 2:
            parameters["id"] = own_volume()
        elif kind == 2:
            parameters["id"] = WORLD["foreign"].get("volume", MISSING)
    elif "id" in parameters and path.startswith("/v1/templates/"):
        kind = chosen(parameters, 4)
        if kind < 2 and case.method.upper() == "GET":
            parameters["id"] = "default"
        elif kind == 2:
            parameters["id"] = WORLD["foreign"].get("template", "nothing")
    if parameters.get("id") == WORLD["key_id"]:
        # Whoever revokes its own key has nothing left to test.
        parameters["id"] = "key_0000000000000000"
    for name, there in (("process", 1), ("session", 1), ("port", 8000)):
        if not WORLD["follows"] and name in parameters and chosen(parameters[name], 3) > 0:
            parameters[name] = there
    # What is empty counts as not given, which the document has no words for: it would be wrong of no type.
    query = {name: value for name, value in (case.query or {}).items() if value not in ("", {}, [])}
    if "path" in query and "path_base64" not in query and chosen(query["path"], 2) == 0:
        query["path"] = PATHS[chosen((query["path"], 1), len(PATHS))]
    if path.endswith("/files/archive") and (str(query.get("path", "")).startswith("/") or ".." in str(query.get("path", ""))):
        # An archive of the whole tree has gigabytes, which schemathesis keeps in memory.
        query["path"] = "."
    if path.endswith("/output") and query.get("follow") is not False and chosen(query, 2) == 0:
        query["follow"] = False
    # It goes on for ever.
    wanted = str(query.get("follow")).lower()
    if (path == "/v1/audit/export" and wanted == "true") or (path == "/v1/events" and wanted in ("true", "none")):
        query["follow"] = False
    if query != (case.query or {}):
        case.query = query


@schemathesis.hook
def after_call(ctx: Any, case: Any, response: Any) -> None:
    """Looks whether the sandbox can be used further."""
    status = str(response.status_code)
    answers[status] = answers.get(status, 0) + 1
    if response.status_code == 429 and code(response) == "quota_exceeded":
        end_all()
    sandbox = (case.path_parameters or {}).get("id")
    if sandbox is None or sandbox != own._id:
        return
    ended = case.method.upper() == "DELETE" and response.status_code == 204 and case.operation.path == "/v1/sandboxes/{id}"
    if ended or response.status_code in (410, 504) or code(response) in ("wrong_state", "resource_exhausted"):
        own.forget(sandbox)


def code(response: Any) -> Optional[str]:
    """The code of a problem."""
    try:
        return response.json().get("code")
    except (ValueError, AttributeError):
        return None


def text_of(response: Any) -> str:
    content = response.content or b""
    return f"{response.headers}{content.decode('utf-8', 'replace')}"


@schemathesis.check
def nothing_of_another_tenant(ctx: Any, response: Any, case: Any) -> None:
    """No answer has anything in it that only the other tenant knows."""
    sent = json.dumps([case.path_parameters, case.query, case.headers, str(case.body)], default=str)
    said = text_of(response)
    found = [mark for mark in WORLD["marks"] if mark in said and mark not in sent]
    assert not found, f"the answer has {found} of another tenant in it"


@schemathesis.check
def foreign_is_as_missing(ctx: Any, response: Any, case: Any) -> None:
    """An id of another tenant is answered like one that nobody has."""
    parameters = case.path_parameters or {}
    foreign = parameters.get("id")
    if foreign not in WORLD["foreign"].values():
        return
    assert not 200 <= response.status_code < 300, f"something was done to what is another tenant's: {response.status_code}"
    twin = copy.copy(response.request)
    assert twin.url is not None
    twin.url = twin.url.replace(foreign, MISSING)
    with requests.Session() as session:
        session.trust_env = False
        other = session.send(twin, timeout=TIMEOUT)
    assert alike(response.status_code, response.json(), foreign) == alike(other.status_code, other.json(), MISSING), (
        f"another tenant's id is told apart from one that nobody has: {response.status_code} {response.json()}, "
        f"{other.status_code} {other.json()}"
    )


def alike(status: int, problem: Dict[str, Any], name: str) -> List[Any]:
    """What an answer tells, without the id that was asked for."""
    return [status, problem.get("code"), problem.get("field"), str(problem.get("detail")).replace(name, "ID")]


@schemathesis.check
def problems_are_problems(ctx: Any, response: Any, case: Any) -> None:
    """Every error has a stable code, and no error is the server's own."""
    if response.status_code >= 400 and case.method.upper() != "HEAD":
        problem = response.json()
        assert problem["status"] == response.status_code and problem["code"] and problem["detail"], problem
        assert problem["request_id"] == response.headers["x-request-id"][0], problem
