"""Sandboxes: lifecycle, ports, tokens, metrics and logs."""

from __future__ import annotations

import base64
from dataclasses import asdict, replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from .. import _json as read
from .._arguments import mapping, text_list, texts, wrong_type
from ..errors import InvalidArgumentException, SandboxException, error_from_problem
from ..models import (
    LogPage,
    Network,
    NetworkSecret,
    PortInfo,
    PortList,
    SandboxInfo,
    SandboxMetrics,
    SessionInfo,
    TemplateInfo,
    Token,
    VolumeMount,
)
from ._call import (
    Call,
    Duration,
    delete,
    duration,
    get,
    given,
    given_query,
    new_idempotency_key,
    number,
    post,
    sandbox_path,
    segment,
)

Page = Tuple[List[SandboxInfo], Optional[str]]


def create(
    *,
    template: Optional[str],
    timeout: Optional[Duration],
    labels: Optional[Mapping[str, str]],
    metadata: Optional[Mapping[str, str]],
    envs: Optional[Mapping[str, str]],
    name: Optional[str],
    if_exists: Optional[str],
    idle_timeout: Optional[Duration],
    on_timeout: Optional[str],
    auto_resume: Optional[bool],
    limits: Optional[Mapping[str, Any]],
    network: Optional[Network],
    engine: Optional[str],
    grade: Optional[str],
    machine: Optional[bool],
    user: Optional[str],
    hostname: Optional[str],
    port_host: Optional[str],
    mounts: Optional[Sequence[str]],
    volumes: Optional[Sequence[VolumeMount]],
    files: Optional[Mapping[str, Union[str, bytes]]],
    wait: bool,
) -> Call[SandboxInfo]:
    """Creates a sandbox."""
    body = given(
        template=template,
        name=name,
        if_exists=if_exists,
        timeout=duration(timeout, "timeout"),
        idle_timeout=duration(idle_timeout, "idle_timeout"),
        on_timeout=on_timeout,
        auto_resume=auto_resume,
        labels=_labels(labels, metadata),
        env=texts(envs, "envs"),
        limits=limits_of(limits),
        network=network_policy(network),
        engine=engine,
        grade=grade,
        machine=machine,
        user=user,
        hostname=hostname,
        port_host=port_host,
        mounts=text_list(mounts, "mounts", "/srv/data:/mnt/data"),
        volumes=_volumes(volumes),
        files=_new_files(files),
    )
    headers = {"Idempotency-Key": new_idempotency_key()}
    query = () if wait else (("wait", "false"),)
    return Call("POST", "/v1/sandboxes", SandboxInfo.from_json, query=query, body=body, headers=headers, safe=True)


def page(
    *,
    state: Optional[Union[str, Sequence[str]]],
    labels: Optional[Mapping[str, str]],
    name: Optional[str],
    limit: Optional[int],
    order: Optional[str],
    cursor: Optional[str],
) -> Call[Page]:
    """Lists one page of the matching sandboxes."""
    states = state if state is None or isinstance(state, str) else ",".join(state)
    query = given_query(
        ("state", states),
        *(("label", f"{key}={value}") for key, value in (texts(labels, "labels") or {}).items()),
        ("name", name),
        ("limit", number(limit)),
        ("cursor", cursor),
        ("order", order),
    )
    return Call("GET", "/v1/sandboxes", _page, query=query, safe=True)


def info(sandbox_id: str) -> Call[SandboxInfo]:
    """Returns information about a sandbox."""
    return get(sandbox_path(sandbox_id), SandboxInfo.from_json)


def update(
    sandbox_id: str,
    *,
    labels: Optional[Mapping[str, Optional[str]]],
    limits: Optional[Mapping[str, Any]],
    idle_timeout: Optional[Duration],
    on_timeout: Optional[str],
    auto_resume: Optional[bool],
    network: Optional[Network],
) -> Call[SandboxInfo]:
    """Changes the given settings."""
    body = given(
        labels=texts(labels, "labels", removable=True),
        limits=limits_of(limits),
        idle_timeout=duration(idle_timeout, "idle_timeout"),
        on_timeout=on_timeout,
        auto_resume=auto_resume,
        network=network_policy(network),
    )
    return Call("PATCH", sandbox_path(sandbox_id), SandboxInfo.from_json, body=body)


def kill(sandbox_id: str) -> Call[None]:
    """Ends a sandbox."""
    return delete(sandbox_path(sandbox_id))


def set_timeout(sandbox_id: str, timeout: Duration) -> Call[SandboxInfo]:
    """Sets the timeout of a sandbox, counted from now."""
    return post(sandbox_path(sandbox_id, "timeout"), SandboxInfo.from_json, timeout=duration(timeout, "timeout"))


def pause(sandbox_id: str) -> Call[SandboxInfo]:
    """Pauses a sandbox."""
    return Call("POST", sandbox_path(sandbox_id, "pause"), SandboxInfo.from_json)


def resume(sandbox_id: str, timeout: Optional[Duration]) -> Call[SandboxInfo]:
    """Resumes a paused sandbox."""
    return post(sandbox_path(sandbox_id, "resume"), SandboxInfo.from_json, timeout=duration(timeout, "timeout"))


def snapshot(sandbox_id: str, name: Optional[str], note: Optional[str]) -> Call[TemplateInfo]:
    """Creates a template from a sandbox's files."""
    call = post(sandbox_path(sandbox_id, "snapshot"), TemplateInfo.from_json, name=name, note=note)
    return replace(call, takes=float("inf"))


def fork(
    sandbox_id: str,
    *,
    count: int,
    timeout: Optional[Duration],
    labels: Optional[Mapping[str, str]],
    metadata: Optional[Mapping[str, str]],
    envs: Optional[Mapping[str, str]],
) -> Call[Tuple[List[SandboxInfo], List[SandboxException]]]:
    """Forks a sandbox: creates sandboxes with its files."""
    call = post(
        sandbox_path(sandbox_id, "fork"),
        _forks,
        count=count,
        timeout=duration(timeout, "timeout"),
        labels=_labels(labels, metadata),
        env=texts(envs, "envs"),
    )
    return replace(call, takes=float("inf"))


def metrics(sandbox_id: str) -> Call[SandboxMetrics]:
    """Returns the resource usage of a sandbox."""
    return get(sandbox_path(sandbox_id, "metrics"), SandboxMetrics.from_json)


def logs(sandbox_id: str, after: Optional[int], limit: Optional[int]) -> Call[LogPage]:
    """Returns the log of a sandbox."""
    path = sandbox_path(sandbox_id, "logs")
    return get(path, LogPage.from_json, ("after", number(after)), ("limit", number(limit)))


def network_log(sandbox_id: str, after: Optional[int], follow: bool) -> Call[None]:
    """Streams the decisions about a sandbox's connections as events."""
    query = given_query(("after", number(after)), ("follow", "true" if follow else "false"))
    path = sandbox_path(sandbox_id, "network", "log")
    return Call("GET", path, lambda _: None, query=query, headers={"Accept": "text/event-stream"}, safe=True)


def create_token(sandbox_id: str, expires: Duration) -> Call[Token]:
    """Creates a token for this sandbox only."""
    return post(sandbox_path(sandbox_id, "tokens"), Token.from_json, expires=duration(expires, "expires"))


def publish_port(sandbox_id: str, port: int, public: bool) -> Call[PortInfo]:
    """Publishes a port."""
    return post(sandbox_path(sandbox_id, "ports"), PortInfo.from_json, port=port, public=public)


def list_ports(sandbox_id: str) -> Call[PortList]:
    """Returns the published ports, and the listening ones."""
    return get(sandbox_path(sandbox_id, "ports"), PortList.from_json)


def unpublish_port(sandbox_id: str, port: int) -> Call[None]:
    """Unpublishes a port."""
    return delete(sandbox_path(sandbox_id, "ports", segment(port, "port")))


def port_token(sandbox_id: str, port: int, expires: Duration) -> Call[Token]:
    """Creates a token for this port only."""
    path = sandbox_path(sandbox_id, "ports", segment(port, "port"), "tokens")
    return post(path, Token.from_json, expires=duration(expires, "expires"))


def create_session(sandbox_id: str, cwd: Optional[str], envs: Optional[Mapping[str, str]]) -> Call[SessionInfo]:
    """Starts a shell session."""
    env = texts(envs, "envs")
    return post(sandbox_path(sandbox_id, "sessions"), SessionInfo.from_json, cwd=cwd, env=env)


def list_sessions(sandbox_id: str) -> Call[List[SessionInfo]]:
    """Lists the open sessions."""
    return get(sandbox_path(sandbox_id, "sessions"), lambda value: read.list_of(value, "sessions", SessionInfo.from_json))


def close_session(sandbox_id: str, session_id: int) -> Call[None]:
    """Ends a session."""
    return delete(sandbox_path(sandbox_id, "sessions", segment(session_id, "session_id")))


def _page(value: Any) -> Page:
    return read.list_of(value, "sandboxes", SandboxInfo.from_json), read.optional_text(value, "next_cursor")


def _forks(value: Any) -> Tuple[List[SandboxInfo], List[SandboxException]]:
    made: List[SandboxInfo] = []
    failed: List[SandboxException] = []
    for item in read.items(value, "sandboxes"):
        if item.get("error") is not None:
            failed.append(error_from_problem(read.mapping(item["error"], "the error")))
        else:
            made.append(SandboxInfo.from_json(item.get("sandbox")))
    return made, failed


def _labels(labels: Optional[Mapping[str, str]], metadata: Optional[Mapping[str, str]]) -> Optional[Dict[str, str]]:
    if labels is not None and metadata is not None:
        raise InvalidArgumentException("labels and metadata are the same; pass only one", field="metadata")
    return texts(metadata, "metadata") if labels is None else texts(labels, "labels")


def network_policy(network: Optional[Network]) -> Optional[Union[str, Dict[str, Any]]]:
    """Returns a network policy as the server reads it."""
    if network is None or isinstance(network, str):
        return network
    policy = mapping(network, "network", '{"presets": ["pip"]}')
    return {key: _plain(said) for key, said in given(**policy).items()}


def _plain(said: Any) -> Any:
    """Converts mappings, sequences and secrets to JSON values."""
    if isinstance(said, NetworkSecret):
        said = asdict(said)
    if isinstance(said, Mapping):
        return {str(key): _plain(item) for key, item in given(**said).items()}
    return [_plain(item) for item in said] if isinstance(said, Iterable) and not isinstance(said, (str, bytes)) else said


def limits_of(limits: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """Returns limits as the server reads them."""
    if limits is None:
        return None
    found = given(**mapping(limits, "limits", '{"memory": "1g"}'))
    if "timeout" in found:
        found["timeout"] = duration(found["timeout"], "limits.timeout")
    return found


def _volumes(volumes: Optional[Sequence[VolumeMount]]) -> Optional[List[Dict[str, Any]]]:
    if volumes is None:
        return None
    if isinstance(volumes, (str, Mapping)) or not all(isinstance(volume, Mapping) for volume in volumes):
        raise wrong_type("volumes", volumes, 'a list such as [{"name": "data", "path": "/mnt/data"}]')
    return [dict(volume) for volume in volumes]


def _new_files(files: Optional[Mapping[str, Union[str, bytes]]]) -> Optional[List[Dict[str, Any]]]:
    if files is None:
        return None
    return [_new_file(path, content) for path, content in mapping(files, "files", '{"a.txt": "text"}').items()]


def _new_file(path: str, content: Union[str, bytes]) -> Dict[str, Any]:
    if isinstance(content, str):
        return {"path": path, "content": content}
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise wrong_type(f"files[{path!r}]", content, "a string or bytes")
    return {"path": path, "content_base64": base64.b64encode(content).decode("ascii")}
