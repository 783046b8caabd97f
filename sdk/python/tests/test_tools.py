"""Tool calls of models: the vendors' own types go in, and what comes out fits theirs."""

from __future__ import annotations

import base64
import json
from typing import Any, Dict, List, Mapping, Tuple

import pytest
from anthropic.types import ToolUseBlock
from anthropic.types.beta import (
    BetaBashCodeExecutionToolResultBlock,
    BetaCodeExecutionToolResultBlock,
    BetaTextEditorCodeExecutionToolResultBlock,
)
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionToolMessageParam
from openai.types.responses import (
    FunctionToolParam,
    ResponseApplyPatchToolCall,
    ResponseFunctionShellToolCall,
    ResponseFunctionToolCall,
)
from openai.types.responses.response_input_item_param import ApplyPatchCallOutput, FunctionCallOutput, ShellCallOutput
from pydantic import TypeAdapter

import belljar

pytestmark = pytest.mark.usefixtures("real")


def fits(kind: Any, value: Mapping[str, Any]) -> None:
    """Checks a value against a vendor's type, without further keys."""
    assert set(value) <= set(kind.__annotations__), f"{value} has more than {kind.__name__}"
    TypeAdapter(kind).validate_python(value)


def tool_use(name: str, **arguments: Any) -> ToolUseBlock:
    return ToolUseBlock.model_validate({"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments})


def text(block: Mapping[str, Any]) -> str:
    assert (block["type"], block["tool_use_id"]) == ("tool_result", "toolu_1")
    return "".join(part["text"] for part in block["content"])


@pytest.mark.asyncio
async def test_bash_keeps_its_state(sbx: Any) -> None:
    assert (await sbx.tools.anthropic(tool_use("bash", command="cd /tmp; x=5")))["is_error"] is False
    assert "/tmp 5" in text(await sbx.tools.anthropic(tool_use("bash", command="echo $PWD $x")))
    failed = await sbx.tools.anthropic(tool_use("bash", command="echo out; echo err >&2; (exit 3)"))
    assert failed["is_error"] is True and "out" in text(failed) and "err" in text(failed)
    assert (await sbx.tools.anthropic(tool_use("bash", restart=True)))["is_error"] is False
    assert text(await sbx.tools.anthropic(tool_use("bash", command="echo x${x}x"))).strip() == "xx"
    # What a model gets wrong is a result.
    for arguments in ({}, {"command": 7}, {"command": "true", "more": 1}):
        assert (await sbx.tools.anthropic(tool_use("bash", **arguments)))["is_error"] is True


@pytest.mark.asyncio
async def test_text_editor_changes_files(sbx: Any) -> None:
    async def edit(**arguments: Any) -> Dict[str, Any]:
        found: Dict[str, Any] = await sbx.tools.anthropic(tool_use("str_replace_based_edit_tool", **arguments))
        return found

    async def good(**arguments: Any) -> str:
        block = await edit(**arguments)
        assert block["is_error"] is False, block
        return text(block)

    assert "created" in await good(command="create", path="a/b.txt", file_text="one\ntwo\nthree")
    assert await good(command="view", path="a/b.txt", view_range=[2, -1]) == "     2\ttwo\n     3\tthree"
    await good(command="str_replace", path="a/b.txt", old_str="two", new_str="2")
    await good(command="insert", path="a/b.txt", insert_line=0, insert_text="zero")
    await good(command="insert", path="a/b.txt", insert_line=4, insert_text="four\nfive\n")
    assert await sbx.files.read("a/b.txt") == "zero\none\n2\nthree\nfour\nfive\n"
    assert "a/b.txt" in await good(command="view", path="a")
    await good(command="str_replace", path="a/b.txt", old_str="four\n")
    wrong: List[Tuple[Dict[str, Any], str]] = [
        ({"command": "view", "path": "nosuch"}, "nosuch"),
        ({"command": "view", "path": "a/b.txt", "view_range": [0, 2]}, "view_range"),
        ({"command": "view", "path": "a/b.txt", "view_range": [2, 99]}, "view_range"),
        ({"command": "view", "path": "a/b.txt", "view_range": "1"}, "view_range"),
        ({"command": "str_replace", "path": "a/b.txt", "old_str": "nosuch", "new_str": ""}, "did not appear"),
        ({"command": "str_replace", "path": "a/b.txt", "old_str": "e", "new_str": ""}, "appears"),
        ({"command": "str_replace", "path": "a/b.txt", "old_str": "", "new_str": "x"}, "did not appear"),
        ({"command": "insert", "path": "a/b.txt", "insert_line": 99, "insert_text": "x"}, "insert_line"),
        ({"command": "insert", "path": "a/b.txt", "insert_line": True, "insert_text": "x"}, "insert_line"),
        ({"command": "undo_edit", "path": "a/b.txt"}, "undo_edit"),
        ({"command": "create", "path": "a/b.txt"}, "file_text"),
        ({"path": "a/b.txt"}, "command"),
    ]
    for arguments, reason in wrong:
        block = await edit(**arguments)
        assert block["is_error"] is True and reason in text(block), block
    long = tool_use("str_replace_based_edit_tool", command="view", path="a/b.txt")
    assert "characters left out" in text(await sbx.tools.anthropic(long, max_characters=8))


@pytest.mark.asyncio
async def test_code_execution_has_its_shapes(sbx: Any) -> None:
    run = sbx.tools.anthropic_code_execution
    done = await run(tool_use("code_execution", code="import sys\nprint('a')\nprint('b', file=sys.stderr)\n6 * 7"))
    content: Any = BetaCodeExecutionToolResultBlock.model_validate(done).content
    assert (content.type, content.return_code) == ("code_execution_result", 0)
    assert (content.stdout, content.stderr, content.content) == ("a\n42\n", "b\n", [])
    done = await run(tool_use("code_execution", code="1 / 0"))
    content = BetaCodeExecutionToolResultBlock.model_validate(done).content
    assert content.return_code == 1 and "ZeroDivisionError" in content.stderr
    done = await run(tool_use("bash_code_execution", command="echo a; exit 3"))
    content = BetaBashCodeExecutionToolResultBlock.model_validate(done).content
    assert (content.type, content.stdout) == ("bash_code_execution_result", "a\n") and content.return_code != 0
    edits: List[Tuple[Dict[str, Any], str]] = [
        ({"command": "create", "path": "f", "file_text": "one\ntwo\n"}, "create"),
        ({"command": "view", "path": "f"}, "view"),
        ({"command": "str_replace", "path": "f", "old_str": "two", "new_str": "2"}, "str_replace"),
    ]
    for arguments, kind in edits:
        done = await run(tool_use("text_editor_code_execution", **arguments))
        content = BetaTextEditorCodeExecutionToolResultBlock.model_validate(done).content
        assert content.type == f"text_editor_code_execution_{kind}_result", done
    done = await run(tool_use("text_editor_code_execution", command="view", path="nosuch"))
    assert BetaTextEditorCodeExecutionToolResultBlock.model_validate(done).content.error_code == "file_not_found"  # type: ignore[union-attr]
    done = await run(tool_use("code_execution"))
    assert BetaCodeExecutionToolResultBlock.model_validate(done).content.error_code == "invalid_tool_input"  # type: ignore[union-attr]
    done = await run(tool_use("nosuch"))
    assert done["content"]["error_code"] == "invalid_tool_input"


@pytest.mark.asyncio
async def test_shell_calls_have_an_output_for_each_command(sbx: Any) -> None:
    action = {"commands": ["echo a", "echo b >&2; exit 3", "sleep 60"], "timeout_ms": 2000, "max_output_length": 100}
    call = {
        "type": "shell_call",
        "id": "sh_1",
        "call_id": "call_1",
        "status": "in_progress",
        "action": action,
        "environment": None,
    }
    done = await sbx.tools.openai(ResponseFunctionShellToolCall.model_validate(call))
    fits(ShellCallOutput, done)
    assert done["output"] == [
        {"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
        {"stdout": "", "stderr": "b\n", "outcome": {"type": "exit", "exit_code": 3}},
        {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
    ]
    assert (done["call_id"], done["max_output_length"]) == ("call_1", 100)
    short = {**call, "action": {"commands": ["echo abcdef; echo ghi >&2"], "max_output_length": 4}}
    assert (await sbx.tools.openai(short))["output"][0]["stdout"] == "abcd"
    with pytest.raises(belljar.InvalidArgumentException):
        await sbx.tools.openai({"type": "shell_call", "call_id": "c"})


@pytest.mark.asyncio
async def test_patches_are_applied(sbx: Any) -> None:
    async def patch(kind: str, path: str, diff: str = "") -> Dict[str, Any]:
        operation = {"type": kind, "path": path, **({"diff": diff} if kind != "delete_file" else {})}
        call = {"type": "apply_patch_call", "id": "p_1", "call_id": "call_1", "status": "completed", "operation": operation}
        done: Dict[str, Any] = await sbx.tools.openai(ResponseApplyPatchToolCall.model_validate(call))
        fits(ApplyPatchCallOutput, done)
        return done

    assert (await patch("create_file", "src/a.py", "+one = 1\n+two = 2\n"))["status"] == "completed"
    assert (await patch("update_file", "src/a.py", "@@\n one = 1\n-two = 2\n+two = 3\n"))["status"] == "completed"
    assert await sbx.files.read("src/a.py") == "one = 1\ntwo = 3\n"
    # A patch that does not fit, and one that hides another file's, change nothing.
    for diff in ("@@\n-nosuch\n+x\n", "@@\n one = 1\n*** Delete File: src/a.py\n"):
        done = await patch("update_file", "src/a.py", diff)
        assert done["status"] == "failed" and done["output"], done
    assert (await patch("update_file", "a\n*** Delete File: src/a.py", "@@\n"))["status"] == "failed"
    assert await sbx.files.read("src/a.py") == "one = 1\ntwo = 3\n"
    assert (await patch("delete_file", "src/a.py"))["status"] == "completed"
    assert not await sbx.files.exists("src/a.py")


@pytest.mark.asyncio
async def test_functions_are_called(sbx: Any) -> None:
    tools = await sbx.tools.definitions("openai")
    for tool in tools:
        fits(FunctionToolParam, tool)
        assert "sandbox" not in tool["parameters"]["properties"]
    assert {"run_code", "run_command", "read_file"} <= {tool["name"] for tool in tools}
    anthropic = await sbx.tools.definitions("anthropic")
    assert [tool["name"] for tool in anthropic] == [tool["name"] for tool in tools]
    arguments = json.dumps({"code": "6 * 7", "sandbox": "another"})
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "run_code", "arguments": arguments}
    done = await sbx.tools.openai(ResponseFunctionToolCall.model_validate(call))
    fits(FunctionCallOutput, done)
    assert done["call_id"] == "call_1" and "42" in done["output"]
    chat = {"type": "function", "id": "call_2", "function": {"name": "run_command", "arguments": '{"command": "echo hi"}'}}
    answer = await sbx.tools.openai(ChatCompletionMessageFunctionToolCall.model_validate(chat))
    fits(ChatCompletionToolMessageParam, answer)
    assert (answer["tool_call_id"], answer["content"].strip()) == ("call_2", "hi")
    # Pictures are content.
    png = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
    await sbx.files.write("dot.png", png)
    call = {**call, "name": "read_file", "arguments": '{"path": "dot.png"}'}
    done = await sbx.tools.openai(call)
    fits(FunctionCallOutput, done)
    assert done["output"][-1]["image_url"].startswith("data:image/png;base64,")
    block = await sbx.tools.anthropic(tool_use("read_file", path="dot.png"))
    assert any(part["type"] == "image" and part["source"]["media_type"] == "image/png" for part in block["content"])
    # What a model gets wrong is an output; what no model makes is an error.
    for wrong in ({"name": "nosuch"}, {"arguments": "{"}, {"arguments": "[]"}, {"name": "kill_sandbox"}, {"name": "a\nb"}):
        assert "Error" in (await sbx.tools.openai({**call, **wrong}))["output"], wrong
    for item in ({"type": "web_search_call"}, {"type": "function_call", "name": "run_code"}, {}, 7):
        with pytest.raises(belljar.InvalidArgumentException):
            await sbx.tools.openai(item)


@pytest.mark.asyncio
async def test_langchain_gets_a_tool(sbx: Any) -> None:
    tool = getattr(sbx, "inner", sbx).tools.langchain()
    assert (tool.name, list(tool.args)) == ("run_code", ["code"])
    assert (await tool.ainvoke({"code": "x = 20"})) == "[no output]"
    assert (await tool.ainvoke({"code": "print('a'); x + 1"})) == "a\n21"
    assert "ZeroDivisionError" in await tool.ainvoke({"code": "1 / 0"})


@pytest.mark.asyncio
async def test_provider_has_one_sandbox(api: Any) -> None:
    provider = api.SandboxProvider(timeout=120)
    done = await provider.execute("x = 1; print('a'); x")
    assert (done.success, done.stdout, done.value, done.exit_code) == (True, "a\n", "1", 0)
    assert (await provider.execute("x + 1")).value == "2"
    failed = await provider.execute("1 / 0")
    assert (failed.success, failed.exit_code) == (False, 1) and "ZeroDivisionError" in failed.stderr
    slow = await provider.execute("import time; time.sleep(60)", timeout=1)
    assert (slow.success, slow.exit_code) == (False, 124)
    first = (await provider.create_sandbox()).sandbox_id
    second = await provider.create_sandbox(None, timeout=60)
    assert second.sandbox_id != first
    await provider.cleanup()
    await provider.cleanup()
    assert not await second.is_running()
