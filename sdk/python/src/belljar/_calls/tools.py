"""Calls of tools over MCP, and the forms in which vendors have tool calls and their results."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..errors import (
    FileNotFoundException,
    InvalidArgumentException,
    RateLimitException,
    ServerException,
    TimeoutException,
)
from ..models import CommandResult, Execution, ExecutionResult, FileEntry
from ._call import Call

REVISION = "2026-07-28"
"""Revision of the Model Context Protocol that calls use."""

OFFERED = ("run_code", "run_command", "read_file", "write_file", "list_directory", "publish_port")
"""The server's own tools that work in one sandbox. They are the ones that `definitions` has."""

OWN = (*OFFERED, "create_sandbox", "list_sandboxes", "kill_sandbox")
"""The server's own tools. All others are stored."""

MAX_LENGTH = 1 << 20
"""Maximum length of a file that the text editor shows or changes, in bytes, as with `read_file`; of a result, in characters."""

MAX_ENTRIES = 1000
"""Maximum number of entries of a directory that the text editor shows, as with `list_directory`."""

MAX_DEPTH = 100
"""Maximum depth of the arguments of a tool. The server reads messages of JSON to a depth of 127, its own part included."""

MAX_INTEGER = (1 << 53) - 1
"""Maximum value of an integer argument: JSON's numbers are exact up to it."""

TEXT_EDITORS = ("str_replace_based_edit_tool", "str_replace_editor")
"""Names of Anthropic's text editor."""

CODE_EXECUTION = ("code_execution", "bash_code_execution", "text_editor_code_execution")
"""Names of the tools of Anthropic's code execution."""

DESCRIPTION = "Runs Python code in a sandbox, which keeps variables and files, and returns its output and the last value."
"""Description of LangChain's tool."""


def listing() -> Call[List[Dict[str, Any]]]:
    """Returns the tools that the server offers."""

    def tools(result: Mapping[str, Any]) -> List[Dict[str, Any]]:
        return list(result.get("tools") or [])

    return _message("default", "tools/list", {}, tools)


def call(profile: str, name: str, arguments: Mapping[str, Any], sandbox_id: str) -> Call[Dict[str, Any]]:
    """Calls a tool: the server's own ones in this sandbox, whichever the arguments name."""
    given = dict(arguments)
    if profile != "default" or name in OFFERED:
        given["sandbox"] = sandbox_id
    elif name in OWN:
        raise InvalidArgumentException(f"{name} is no tool of a sandbox; use one of {', '.join(OFFERED)}", field="name")
    _check_arguments(given)
    return _message(profile, "tools/call", {"name": name, "arguments": given}, dict)


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that a message to the server cannot have."""
    waiting: List[Tuple[Any, int]] = [(arguments, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            check_text("arguments", value)
        elif isinstance(value, (dict, list, tuple)):
            if depth > MAX_DEPTH:
                raise InvalidArgumentException(f"arguments: they are more than {MAX_DEPTH} levels deep", field="arguments")
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            waiting.extend((one, depth + 1) for one in inner)
        elif isinstance(value, (int, float)):
            if not abs(value) <= sys.float_info.max:
                raise InvalidArgumentException("arguments: a number is too large", field="arguments")
        elif value is not None:
            raise InvalidArgumentException(f"arguments: {type(value).__name__} has no form in JSON", field="arguments")


def check_text(name: str, text: str) -> None:
    """Refuses a string that UTF-8 cannot encode. Models can write one in JSON, as an escape."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgumentException(f"{name}: half of a surrogate pair is no text in UTF-8", field=name) from None


def _message(profile: str, method: str, params: Dict[str, Any], parse: Callable[[Mapping[str, Any]], Any]) -> Call[Any]:
    meta = {"io.modelcontextprotocol/protocolVersion": REVISION, "io.modelcontextprotocol/clientCapabilities": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": REVISION, "Mcp-Method": method}
    name = params.get("name")
    if name is not None:
        if not isinstance(name, str) or re.fullmatch("[!-~]{1,128}", name) is None:
            raise InvalidArgumentException(f"{name!r} is no name of a tool", field="name")
        headers["Mcp-Name"] = name

    def result(answer: Any) -> Any:
        answer = answer if isinstance(answer, dict) else {}
        if "error" in answer:
            reason = str(answer["error"].get("message"))
            if "tool" in (answer["error"].get("data") or {}):
                # Of the server's own, only some are tools of a sandbox.
                reason = f"unknown tool {name!r}; use one of {', '.join(OFFERED)}, or a stored tool"
            raise InvalidArgumentException(reason, field="name")
        if not isinstance(answer.get("result"), dict):
            raise ServerException("unexpected response from the server: a message without `result`")
        return parse(answer["result"])

    query = () if profile == "default" else (("tools", profile),)
    # A call may wait for the approval of a person.
    takes = float("inf") if name else 0.0
    return Call("POST", "/mcp", result, query=query, body=body, headers=headers, takes=takes)


def is_stored(tool: Mapping[str, Any]) -> bool:
    """Reports whether a tool is a stored one."""
    return tool["name"] not in OWN


def definition(tool: Mapping[str, Any], vendor: str) -> Dict[str, Any]:
    """Returns the definition of a tool in the form of an interface."""
    schema = json.loads(json.dumps(tool["inputSchema"]))
    # Which sandbox is not for the model to say.
    schema.get("properties", {}).pop("sandbox", None)
    name, description = tool["name"], tool.get("description") or ""
    if vendor == "anthropic":
        return {"name": name, "description": description, "input_schema": schema}
    if vendor == "openai":
        return {"type": "function", "name": name, "description": description, "parameters": schema, "strict": False}
    if vendor == "mcp":
        return {"name": name, "description": description, "inputSchema": schema}
    raise InvalidArgumentException(f"{vendor!r} is not known; give anthropic, openai or mcp", field="vendor")


def plain(value: Any) -> Dict[str, Any]:
    """Returns a block or an item as a dictionary: it may be an object of the vendor's SDK, whose values stay as they are."""
    value = dict(value) if hasattr(value, "model_dump") else value
    if not isinstance(value, Mapping):
        raise InvalidArgumentException(f"{type(value).__name__} is no tool call; give one call at a time", field="call")
    return dict(value)


def _part(item: Mapping[str, Any], name: str) -> Dict[str, Any]:
    """Returns a part of an item, empty if there is none."""
    value = item.get(name)
    return plain(value) if isinstance(value, Mapping) or hasattr(value, "model_dump") else {}


def required(arguments: Mapping[str, Any], name: str, default: Optional[str] = None) -> str:
    """Returns an argument that must be a string; if it is missing, `default`."""
    value = arguments.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise InvalidArgumentException(f"{name}: give a string", field=name)
    check_text(name, value)
    return value


def _integer(value: Any) -> Optional[int]:
    """Returns a number of JSON as an integer, or None if it is none."""
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return int(value) if whole else None


def _optional_integer(arguments: Mapping[str, Any], name: str, least: int) -> Optional[int]:
    """Returns an argument that must be an integer, or None if it is missing."""
    if arguments.get(name) is None:
        return None
    value = _integer(arguments[name])
    if value is None or not least <= value <= MAX_INTEGER:
        raise InvalidArgumentException(f"{name}: give an integer from {least} to {MAX_INTEGER}", field=name)
    return value


def anthropic_call(block: Any) -> Tuple[str, str, Dict[str, Any]]:
    """Returns id, name and arguments of a `tool_use` block."""
    block = plain(block)
    arguments = block.get("input")
    if not isinstance(block.get("id"), str) or not isinstance(block.get("name"), str) or not isinstance(arguments, Mapping):
        reason = "id, name or input is missing; give one block of a message's content at a time"
        raise InvalidArgumentException(f"no tool_use block: {reason}", field="block")
    return block["id"], block["name"], dict(arguments)


def anthropic_result(call_id: str, result: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns a `tool_result` block."""
    content: List[Dict[str, Any]] = []
    for part in result.get("content") or []:
        if part.get("type") == "image":
            source = {"type": "base64", "media_type": part["mimeType"], "data": part["data"]}
            content.append({"type": "image", "source": source})
        elif part.get("text"):
            # Empty texts are refused.
            content.append({"type": "text", "text": part["text"]})
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": bool(result.get("isError"))}


def check_limit(most: Optional[int]) -> None:
    """Refuses a `max_characters` that is no length."""
    if most is not None and (type(most) is not int or most < 0):
        raise InvalidArgumentException("max_characters: give an integer from 0", field="max_characters")


def bounded(text: str, most: Optional[int] = None) -> str:
    """Returns at most `most` characters of a text, `MAX_LENGTH` if not given, and how many are left out."""
    most = MAX_LENGTH if most is None else most
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} characters left out]"


def text_result(text: str, most: Optional[int] = None) -> Dict[str, Any]:
    """Returns a result that is a text, of at most `most` characters."""
    return {"content": [{"type": "text", "text": bounded(text, most)}], "isError": False}


def error_result(error: Exception) -> Dict[str, Any]:
    """Returns the result of a call that failed."""
    return {**text_result(f"Error: {error}"), "isError": True}


def openai_call(item: Mapping[str, Any]) -> Tuple[str, str, Any]:
    """Returns id, name and arguments of a function's call, of Responses or of Chat Completions."""
    function = _part(item, "function") if item.get("type") == "function" else item
    call_id = item.get("id") if item.get("type") == "function" else item.get("call_id")
    if item.get("type") not in ("function", "function_call"):
        kind = item.get("type")
        raise InvalidArgumentException(
            f"{kind!r} cannot be run; give one function_call, shell_call, apply_patch_call or tool call at a time", field="type"
        )
    if not isinstance(call_id, str) or not isinstance(function.get("name"), str):
        raise InvalidArgumentException("no function's call: its id or its name is missing", field="item")
    return call_id, function["name"], function.get("arguments")


def parsed_arguments(text: Any) -> Dict[str, Any]:
    """Parses the arguments of a function, which models may get wrong."""
    source = required({"arguments": text}, "arguments", "")
    try:
        arguments = json.loads(source or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentException(f"arguments: {error}", field="arguments") from None
    if not isinstance(arguments, dict):
        raise InvalidArgumentException("arguments: give an object", field="arguments")
    return arguments


def openai_result(item: Mapping[str, Any], call_id: str, result: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the output of a function, as an item of Responses or a message of Chat Completions."""
    parts = result.get("content") or []
    text = "\n".join(part["text"] for part in parts if part.get("text"))
    pictures = [part for part in parts if part.get("type") == "image"]
    if item.get("type") == "function":
        shown = "\n".join(part for part in (text, _left_out(len(pictures))) if part)
        return {"role": "tool", "tool_call_id": call_id, "content": shown}
    output: Any = text
    if pictures:
        output = [{"type": "input_text", "text": text}] if text else []
        output += [
            {"type": "input_image", "image_url": f"data:{part['mimeType']};base64,{part['data']}", "detail": "auto"}
            for part in pictures
        ]
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def shell_commands(item: Mapping[str, Any]) -> Tuple[Dict[str, Any], Sequence[Any]]:
    """Returns the action of a `shell_call`, and its commands."""
    action = _part(item, "action")
    commands = action.get("commands")
    if not isinstance(commands, Sequence) or isinstance(commands, str):
        raise InvalidArgumentException("no shell_call: action.commands is missing", field="action")
    return action, commands


def shell_limits(action: Mapping[str, Any]) -> Tuple[Optional[float], Optional[int]]:
    """Returns time limit in seconds and longest output in characters of a `shell_call`."""
    timeout_ms = _optional_integer(action, "timeout_ms", 1)
    return None if timeout_ms is None else timeout_ms / 1000, _optional_integer(action, "max_output_length", 0)


def shell_command(command: Any) -> str:
    """Returns a command of a `shell_call`."""
    return required({"command": command}, "command")


def shell_output(done: CommandResult, most: Optional[int]) -> Dict[str, Any]:
    """Returns the output of one command of a `shell_call`."""
    timed_out = done.outcome.kind == "timed_out"
    # A shell's own number for what did not end by itself.
    code = 137 if done.exit_code is None else done.exit_code
    outcome: Dict[str, Any] = {"type": "timeout"} if timed_out else {"type": "exit", "exit_code": code}
    if most is None:
        stdout, stderr = bounded(done.stdout), bounded(done.stderr)
    else:
        stdout = done.stdout[: min(most, MAX_LENGTH)]
        stderr = done.stderr[: min(most - len(stdout), MAX_LENGTH)]
    return {"stdout": stdout, "stderr": stderr, "outcome": outcome}


def shell_error(error: Exception) -> Dict[str, Any]:
    """Returns the output of a command that could not be run."""
    return {"stdout": "", "stderr": bounded(f"Error: {error}"), "outcome": {"type": "exit", "exit_code": 1}}


def shell_result(item: Mapping[str, Any], output: List[Dict[str, Any]], most: Optional[int]) -> Dict[str, Any]:
    """Returns a `shell_call_output`."""
    result = {"type": "shell_call_output", "call_id": item.get("call_id"), "output": output}
    return result if most is None else {**result, "max_output_length": most}


def patch(item: Mapping[str, Any]) -> str:
    """Returns the operation of an `apply_patch_call` as a patch."""
    operation = _part(item, "operation")
    kind, path, diff = required(operation, "type"), required(operation, "path"), required(operation, "diff", "")
    head = {"create_file": "Add", "update_file": "Update", "delete_file": "Delete"}.get(kind)
    if head is None:
        raise InvalidArgumentException(f"type: {kind!r} is no operation", field="type")
    # Else the rest of a path, or a line of a diff, could be another operation.
    if "\n" in path or "\r" in path:
        raise InvalidArgumentException("path: it has more than one line", field="path")
    lines = [] if head == "Delete" else lines_of(diff)
    if any(line.startswith("*** ") and line not in ("*** End of File", "*** End of File\r") for line in lines):
        raise InvalidArgumentException("diff: it is of one file, without lines that begin with ***", field="diff")
    return "\n".join(["*** Begin Patch", f"*** {head} File: {path}", *lines, "*** End Patch"])


def patch_result(item: Mapping[str, Any], result: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns an `apply_patch_call_output`."""
    text = "\n".join(part["text"] for part in result.get("content") or [] if part.get("text"))
    status = "failed" if result.get("isError") else "completed"
    return {"type": "apply_patch_call_output", "call_id": item.get("call_id"), "status": status, "output": text}


def file_text(path: str, data: bytes) -> str:
    """Returns the text of a file, of which at most one byte more than allowed was read."""
    if len(data) > MAX_LENGTH:
        raise InvalidArgumentException(f"path: {path} has more than {MAX_LENGTH} bytes; use a command for it", field="path")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidArgumentException(f"path: {path} is no text in UTF-8; use a command for it", field="path") from None


def lines_of(text: str) -> List[str]:
    """Returns the lines of a text without the newlines that end them. Nothing else ends a line."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def listed(path: str, entries: Sequence[FileEntry], is_whole: bool) -> Tuple[str, Dict[str, Any]]:
    """Returns a directory as the text editor shows it. Hidden entries, and those below them, are left out."""
    prefix = 0 if path in ("", ".") else len(path)
    shown = [entry for entry in entries if "/." not in f"/{entry.path[prefix:]}"]
    names = sorted(f"{entry.path}/" if entry.is_dir else entry.path for entry in shown[:MAX_ENTRIES])
    lines = [f"Files and directories in {path}, down to two levels:", *names]
    if not is_whole or len(shown) > MAX_ENTRIES:
        lines.append("[more entries; list a directory below]")
    text = "\n".join(lines)
    return text, {"content": text, "num_lines": len(lines), "start_line": 1, "total_lines": len(lines)}


def viewed(text: str, given: Any) -> Tuple[str, Dict[str, Any]]:
    """Returns lines of a file with their numbers; a last line of -1 is the end."""
    lines = lines_of(text)
    first, last = 1, len(lines)
    if given is not None:
        pair = [_integer(one) for one in given] if isinstance(given, (list, tuple)) and len(given) == 2 else [None, None]
        first, last = pair[0] or 0, len(lines) if pair[1] == -1 else pair[1] or 0
        if not 1 <= first <= last <= max(len(lines), 1):
            raise InvalidArgumentException(f"view_range: give two lines from 1 to {len(lines)}", field="view_range")
    shown = lines[first - 1 : last]
    numbered = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(shown, first))
    told = {"content": "\n".join(shown), "num_lines": len(shown), "start_line": first, "total_lines": len(lines)}
    return numbered, told


def replaced(path: str, text: str, old: str, new: str) -> Tuple[str, Dict[str, Any]]:
    """Replaces a text that occurs once."""
    count = text.count(old) if old else 0
    if count != 1:
        reason = "did not appear verbatim" if count == 0 else f"appears {count} times; it must be unique"
        raise InvalidArgumentException(f"no replacement was performed: old_str {reason} in {path}", field="old_str")
    start = text[: text.index(old)].count("\n") + 1
    removed, added = lines_of(old), lines_of(new)
    lines = [*(f"-{line}" for line in removed), *(f"+{line}" for line in added)]
    told = {
        "lines": lines, "old_start": start, "old_lines": len(removed), "new_start": start, "new_lines": len(added),
    }  # fmt: skip
    return text.replace(old, new), told


def inserted(text: str, line: Any, new: str) -> Tuple[str, Dict[str, Any]]:
    """Inserts lines after a line, or at the beginning after line 0. A newline is added only where a line has none."""
    lines, line = lines_of(text), _integer(line)
    if line is None or not 0 <= line <= len(lines):
        raise InvalidArgumentException(f"insert_line: give a line from 0 to {len(lines)}", field="insert_line")
    place = sum(len(one) + 1 for one in lines[:line])
    before, after, added = text[:place], text[place:], lines_of(new)
    told = {
        "lines": [f"+{one}" for one in added], "old_start": line, "old_lines": 0, "new_start": line + 1, "new_lines": len(added),
    }  # fmt: skip
    parts = [part if part.endswith("\n") else f"{part}\n" for part in (before, new) if part]
    return "".join([*parts, after]) if new else text, told


def code_execution(kind: str, done: Execution) -> Dict[str, Any]:
    """Returns the content of a result of code execution."""
    if done.status == "timed_out":
        return {"type": f"{kind}_tool_result_error", "error_code": "execution_time_exceeded"}
    result = ExecutionResult.of(done)
    shown = [part for part in (result.value, _left_out(_pictures_of(done))) if part]
    return {
        "type": f"{kind}_result",
        "stdout": bounded(result.stdout + "".join(f"{part}\n" for part in shown)),
        "stderr": bounded(result.stderr),
        "return_code": result.exit_code,
        "content": [],
    }


def edit_execution(arguments: Mapping[str, Any], edited: Tuple[str, Dict[str, Any]]) -> Dict[str, Any]:
    """Returns the content of a result of code execution's text editor."""
    command = arguments.get("command")
    kind = f"text_editor_code_execution_{'str_replace' if command == 'insert' else command}_result"
    return {"type": kind, **edited[1], **({"file_type": "text"} if command == "view" else {})}


def execution_error(kind: str, error: Exception) -> Dict[str, Any]:
    """Returns the content of a result of code execution that failed."""
    codes = [
        (FileNotFoundException, "file_not_found" if kind.startswith("text_editor") else "invalid_tool_input"),
        (InvalidArgumentException, "invalid_tool_input"),
        (RateLimitException, "too_many_requests"),
        (TimeoutException, "execution_time_exceeded"),
    ]
    code = next((code for of, code in codes if isinstance(error, of)), "unavailable")
    content = {"type": f"{kind}_tool_result_error", "error_code": code}
    return {**content, "error_message": bounded(str(error))} if kind.startswith("text_editor") else content


def _pictures_of(done: Execution) -> int:
    return sum(any(mime.startswith("image/") for mime in result.mime) for result in done.results)


def _left_out(pictures: int) -> str:
    """Returns how many pictures a result has no place for, empty if there are none."""
    return f"[pictures left out: {pictures}; code can save them to files]" if pictures else ""


def code_text(done: Execution) -> str:
    """Returns the outcome of code as a text for a model."""
    result = ExecutionResult.of(done)
    parts = [result.stdout.rstrip("\n"), result.value or "", _left_out(_pictures_of(done)), result.stderr.rstrip("\n")]
    return bounded("\n".join(part for part in parts if part)) or "[no output]"
