"""Code in contexts."""

from __future__ import annotations

from typing import List, Mapping, Optional, Union

from .. import _json as read
from .._arguments import text, texts
from ..errors import InvalidArgumentException
from ..models import CodeContext, Execution
from ._call import Call, Duration, Size, delete, duration, get, given, new_idempotency_key, nothing, post, sandbox_path, segment
from .commands import work_seconds

ContextRef = Union[str, CodeContext]
"""A context, or its id."""


def context_id(context: ContextRef) -> str:
    """Returns the id of a context."""
    return context.id if isinstance(context, CodeContext) else context


def create(sandbox_id: str, language: Optional[str], cwd: Optional[str], envs: Optional[Mapping[str, str]]) -> Call[CodeContext]:
    """Creates a context."""
    return post(sandbox_path(sandbox_id, "contexts"), CodeContext.from_json, language=language, cwd=cwd, env=texts(envs, "envs"))


def list_contexts(sandbox_id: str) -> Call[List[CodeContext]]:
    """Lists the contexts of a sandbox."""
    path = sandbox_path(sandbox_id, "contexts")
    return get(path, lambda value: read.list_of(value, "contexts", CodeContext.from_json))


def restart(sandbox_id: str, context: ContextRef) -> Call[CodeContext]:
    """Restarts the interpreter of a context."""
    return post(_path(sandbox_id, context, "restart"), CodeContext.from_json)


def interrupt(sandbox_id: str, context: ContextRef) -> Call[bool]:
    """Interrupts the running code of a context."""
    return post(_path(sandbox_id, context, "interrupt"), lambda value: bool(read.mapping(value, "the answer").get("interrupted")))


def remove(sandbox_id: str, context: ContextRef) -> Call[None]:
    """Ends a context."""
    return delete(_path(sandbox_id, context))


def answer(sandbox_id: str, context: str, execution: int, value: Optional[str]) -> Call[None]:
    """Answers a question; None refuses."""
    path = _path(sandbox_id, context, "answer")
    if value is None:
        return post(path, nothing, execution=execution, end_of_file=True)
    return post(path, nothing, execution=execution, value=value)


def run(
    sandbox_id: str,
    code: str,
    *,
    language: Optional[str],
    context: Optional[ContextRef],
    envs: Optional[Mapping[str, str]],
    cwd: Optional[str],
    timeout: Optional[Duration],
    allow_input: bool,
    on_disconnect: Optional[str],
    output: Optional[Size],
    default_timeout: Optional[float],
    streamed: bool,
) -> Call[Execution]:
    """Runs code; `streamed`: the response is a stream of events."""
    if context is not None and language is not None:
        raise InvalidArgumentException("give either a language or a context, which has its own language", field="language")
    try:
        text(code, "code").encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgumentException("code must be valid UTF-8; it contains a lone surrogate", field="code") from None
    body = given(
        code=code,
        language=language,
        context=None if context is None else context_id(context),
        env=texts(envs, "envs"),
        cwd=cwd,
        timeout=duration(timeout, "timeout"),
        allow_input=True if allow_input else None,
        on_disconnect=on_disconnect,
        output=output,
    )
    headers = {"Idempotency-Key": new_idempotency_key()}
    if streamed:
        headers["Accept"] = "text/event-stream"
    path = sandbox_path(sandbox_id, "code")
    takes = work_seconds(timeout, default_timeout)
    return Call("POST", path, Execution.from_json, body=body, headers=headers, safe=True, takes=takes)


def _path(sandbox_id: str, context: ContextRef, *rest: str) -> str:
    return sandbox_path(sandbox_id, "contexts", segment(context_id(context), "context"), *rest)
