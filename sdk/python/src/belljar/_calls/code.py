"""Code in contexts."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from .. import _json as read
from .._arguments import text, text_list, texts, wrong_type
from ..errors import InvalidArgumentException
from ..models import CodeContext, CodeStep, Execution
from ._call import Call, Duration, Size, delete, duration, get, given, new_idempotency_key, nothing, post, sandbox_path, segment
from .commands import work_seconds

ContextRef = Union[str, CodeContext]
"""A context, or its id."""

Function = Callable[..., Any]
"""A function that code may call, with arguments by name. Its result is JSON; it may be a coroutine in the asynchronous client."""

MAX_ERROR = 16_000
"""Maximum length of an error that code gets, in characters: 64 KiB at most."""


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


def answer_call(sandbox_id: str, context: str, execution: int, call: int, answer: Mapping[str, Any]) -> Call[None]:
    """Answers a call of a function; `answer` has its `result`, or an `error`."""
    body = {"execution": execution, "call": call, **answer}
    return Call("POST", _path(sandbox_id, context, "answer"), nothing, body=body)


def named(functions: Union[Mapping[str, Function], Iterable[Function], None]) -> Dict[str, Function]:
    """Returns functions by the names by which code calls them."""
    if functions is None:
        return {}
    if isinstance(functions, Mapping):
        pairs = list(functions.items())
    elif callable(functions) or isinstance(functions, str):
        raise wrong_type("functions", functions, "a list or a mapping of functions, such as [lookup]")
    else:
        pairs = [(getattr(function, "__name__", ""), function) for function in functions]
    found: Dict[str, Function] = {}
    for name, function in pairs:
        if not callable(function):
            raise wrong_type("functions", function, "functions themselves, such as [lookup]")
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgumentException(f"functions: {name!r} is no name; give a mapping of names", field="functions")
        if name in found:
            raise InvalidArgumentException(f"functions: {name!r} is given twice", field="functions")
        found[name] = function
    return found


def to_answer(name: str, result: object) -> Dict[str, Any]:
    """Returns the answer to a call: the function's result, or an error if it is no JSON."""
    try:
        json.dumps(result, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return {"error": f"{name}() returned what is no JSON: {error}"[:MAX_ERROR]}
    return {"result": result}


def to_failure(error: BaseException) -> Dict[str, Any]:
    """Returns the answer to a call whose function has failed. It has one, whatever the error's text is."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except Exception:
        text = name
    return {"error": text.encode("utf-8", "backslashreplace").decode()[:MAX_ERROR]}


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
    tools: Optional[Sequence[str]],
    functions: Sequence[str],
    max_tool_calls: Optional[int],
    on_disconnect: Optional[str],
    output: Optional[Size],
    default_timeout: Optional[float],
    streamed: bool,
) -> Call[Execution]:
    """Runs code; `streamed`: the response is a stream of events."""
    body, takes = _request(
        code,
        language=language,
        context=context,
        envs=envs,
        cwd=cwd,
        timeout=timeout,
        tools=tools,
        functions=functions,
        max_tool_calls=max_tool_calls,
        on_disconnect=on_disconnect,
        output=output,
        default_timeout=default_timeout,
    )
    if allow_input:
        body["allow_input"] = True
    headers = {"Idempotency-Key": new_idempotency_key()}
    if streamed:
        headers["Accept"] = "text/event-stream"
    path = sandbox_path(sandbox_id, "code")
    return Call("POST", path, Execution.from_json, body=body, headers=headers, safe=True, takes=takes)


def begin(
    sandbox_id: str, code: str, *, functions: Sequence[str], call_timeout: Optional[Duration], **options: Any
) -> Call[CodeStep]:
    """Runs code to its first calls of functions, which have these names. It is not sent again: a step is not to begin twice."""
    names = text_list(functions, "functions", "lookup")
    if not names:
        raise InvalidArgumentException("functions: give the names of those that the code may call", field="functions")
    body, takes = _request(code, functions=names, **options)
    body.update(given(call_timeout=duration(call_timeout, "call_timeout")))
    return Call("POST", sandbox_path(sandbox_id, "code"), CodeStep.from_json, body=body, takes=takes)


def go_on(sandbox_id: str, results: Mapping[str, Any]) -> Call[CodeStep]:
    """Answers the calls of a step, by their ids, and runs the code to its next ones."""

    def to_result(call: str, result: Any) -> Dict[str, Any]:
        if isinstance(result, BaseException):
            return {"call_id": call, **to_failure(result)}
        try:
            json.dumps(result, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentException(f"the result for {call} is no JSON: {error}", field="code") from None
        return {"call_id": call, "result": result}

    body = {"tool_results": [to_result(text(call, "code"), result) for call, result in results.items()]}
    # How long the code may take was said when it began.
    return Call("POST", sandbox_path(sandbox_id, "code", "continue"), CodeStep.from_json, body=body, takes=float("inf"))


def _request(
    code: str,
    *,
    language: Optional[str],
    context: Optional[ContextRef],
    envs: Optional[Mapping[str, str]],
    cwd: Optional[str],
    timeout: Optional[Duration],
    tools: Optional[Sequence[str]],
    functions: Sequence[str],
    max_tool_calls: Optional[int],
    on_disconnect: Optional[str],
    output: Optional[Size],
    default_timeout: Optional[float],
) -> Tuple[Dict[str, Any], float]:
    """Returns the body of a request to run code, and the seconds that the code may take."""
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
        tools=text_list(tools, "tools", "analyse"),
        functions=list(functions) or None,
        max_tool_calls=max_tool_calls,
        on_disconnect=on_disconnect,
        output=output,
    )
    return body, work_seconds(timeout, default_timeout)


def _path(sandbox_id: str, context: ContextRef, *rest: str) -> str:
    return sandbox_path(sandbox_id, "contexts", segment(context_id(context), "context"), *rest)
