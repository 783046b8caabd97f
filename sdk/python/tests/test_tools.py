"""Tool calls of models: the vendors' own types go in, and what comes out fits theirs."""

from __future__ import annotations

import base64
import json
import tracemalloc
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


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


HALF = "\ud83d"
"""Half of a surrogate pair, which models send as an escape."""


@pytest.mark.asyncio
async def test_text_editor_bounds_what_it_reads(sbx: Any) -> None:
    # Of code's choice, and free of charge there.
    await sbx.commands.run("truncate -s 300M big; head -c 1048576 /dev/zero | tr '\\0' '\\n' > most; mkfifo fifo")
    edits: List[Dict[str, Any]] = [
        {"command": "view", "path": "big"},
        {"command": "view", "path": "big", "view_range": [1, 2]},
        {"command": "str_replace", "path": "big", "old_str": "a", "new_str": "b"},
        {"command": "insert", "path": "big", "insert_line": 0, "insert_text": "a"},
    ]
    tracemalloc.start()
    try:
        for arguments in edits:
            block = await sbx.tools.anthropic(tool_use("str_replace_based_edit_tool", **arguments))
            assert block["is_error"] is True and "big has more than 1048576 bytes" in text(block), arguments
            done = await sbx.tools.anthropic_code_execution(tool_use("text_editor_code_execution", **arguments))
            assert done["content"]["error_code"] == "invalid_tool_input", arguments
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert (await sbx.files.get_info("big")).size == 300 << 20
    # The longest file has a result that is bounded, too.
    block = await sbx.tools.anthropic(tool_use("str_replace_based_edit_tool", command="view", path="most"))
    assert block["is_error"] is False and text(block).endswith("characters left out]")
    assert len(text(block)) < (1 << 20) + 100
    block = await sbx.tools.anthropic(tool_use("str_replace_based_edit_tool", command="view", path="fifo"))
    assert block["is_error"] is True and "not a regular file" in text(block)
    with pytest.raises(belljar.InvalidArgumentException):
        await sbx.tools.anthropic(tool_use("str_replace_based_edit_tool", command="view", path="most"), max_characters=-1)


@pytest.mark.asyncio
async def test_text_editor_bounds_directories(sbx: Any) -> None:
    many = "mkdir -p many/.git few/.git && cd many && touch $(seq -f f%04g 1 1200) && cd .git && touch $(seq 1 1200)"
    await sbx.commands.run(f"{many} && cd ../../few && touch .git/a b")
    block = await sbx.tools.anthropic(tool_use("str_replace_based_edit_tool", command="view", path="many"))
    lines = text(block).split("\n")
    assert (lines[1], lines[1000], lines[1001:]) == (
        "many/f0001", "many/f1000", ["[more entries; list a directory below]"],
    )  # fmt: skip
    block = await sbx.tools.anthropic(tool_use("str_replace_based_edit_tool", command="view", path="few"))
    assert text(block).split("\n")[1:] == ["few/b"]


@pytest.mark.asyncio
async def test_lines_end_at_newlines_alone(sbx: Any) -> None:
    async def edit(**arguments: Any) -> str:
        block = await sbx.tools.anthropic(tool_use("str_replace_based_edit_tool", path="ls.txt", **arguments))
        assert block["is_error"] is False, block
        return text(block)

    await edit(command="create", file_text="a\x0cb\r\nc\x0bd\u2028e\n")
    assert await edit(command="view") == "     1\ta\x0cb\r\n     2\tc\x0bd\u2028e"
    await edit(command="insert", insert_line=1, insert_text="x\x0cy\r\nz")
    assert await sbx.files.read("ls.txt") == "a\x0cb\r\nx\x0cy\r\nz\nc\x0bd\u2028e\n"
    await edit(command="str_replace", old_str="z\n", new_str="\x85\x1c\u2029\r\n")
    assert await sbx.files.read("ls.txt") == "a\x0cb\r\nx\x0cy\r\n\x85\x1c\u2029\r\nc\x0bd\u2028e\n"
    changed = await sbx.tools.anthropic_code_execution(
        tool_use("text_editor_code_execution", command="str_replace", path="ls.txt", old_str="\x0cy", new_str="\x0c")
    )
    assert (changed["content"]["lines"], changed["content"]["old_start"]) == (["-\x0cy", "+\x0c"], 2)
    # A newline is added only where a line has none.
    for before, line, added, after in [
        ("", 0, "a", "a\n"), ("a", 1, "b", "a\nb\n"), ("a", 0, "b\n", "b\na"), ("a", 1, "", "a"), ("a\n", 1, "\n", "a\n\n"),
    ]:  # fmt: skip
        await sbx.files.write("ls.txt", before)
        await edit(command="insert", insert_line=line, insert_text=added)
        assert await sbx.files.read("ls.txt") == after, (before, line, added)
    operation = {"type": "create_file", "path": "form\x0cfeed", "diff": "+a\x0cb\n+c\u2028d\x85\n"}
    done = await sbx.tools.openai({"type": "apply_patch_call", "call_id": "p", "operation": operation})
    assert done["status"] == "completed", done
    assert await sbx.files.read("form\x0cfeed") == "a\x0cb\nc\u2028d\x85\n"
    update = {"type": "update_file", "path": "form\x0cfeed", "diff": "@@\r\n-c\u2028d\x85\r\n+\x0cc\r\n*** End of File\r\n"}
    done = await sbx.tools.openai({"type": "apply_patch_call", "call_id": "p", "operation": update})
    assert done["status"] == "completed", done
    assert await sbx.files.read("form\x0cfeed") == "a\x0cb\n\x0cc\n"


@pytest.mark.asyncio
async def test_what_is_no_text_is_not_edited(sbx: Any) -> None:
    latin = b"caf\xe9 x\n"
    await sbx.files.write("latin", latin)
    edits: List[Dict[str, Any]] = [
        {"command": "view"},
        {"command": "str_replace", "old_str": " x", "new_str": " y"},
        {"command": "insert", "insert_line": 0, "insert_text": "x"},
    ]
    for arguments in edits:
        block = await sbx.tools.anthropic(tool_use("str_replace_based_edit_tool", path="latin", **arguments))
        assert block["is_error"] is True and "latin is no text in UTF-8" in text(block)
        done = await sbx.tools.anthropic_code_execution(tool_use("text_editor_code_execution", path="latin", **arguments))
        assert done["content"]["error_code"] == "invalid_tool_input"
    assert await sbx.files.read("latin", "bytes") == latin
    # A mark of the byte order is kept.
    await sbx.files.write("marked", b"\xef\xbb\xbfone\n")
    await sbx.tools.anthropic(
        tool_use("str_replace_based_edit_tool", command="str_replace", path="marked", old_str="one", new_str="two")
    )
    assert await sbx.files.read("marked", "bytes") == b"\xef\xbb\xbftwo\n"


@pytest.mark.asyncio
async def test_whatever_a_model_sends_is_answered(sbx: Any) -> None:
    await sbx.files.write("f", "one\n")
    before = [entry.path for entry in await sbx.files.list()]
    edits: List[Tuple[Dict[str, Any], str]] = [
        ({"command": "create", "path": "q", "file_text": HALF}, "file_text: half of a surrogate pair"),
        ({"command": "create", "path": f"q{HALF}", "file_text": ""}, "path: half of a surrogate pair"),
        ({"command": "create", "path": "q\udc83", "file_text": ""}, "path: half of a surrogate pair"),
        ({"command": "create", "path": "q" * 1_000_000, "file_text": ""}, "Error"),
        ({"command": "create", "path": "q\0", "file_text": ""}, "NUL"),
        ({"command": "create", "path": "", "file_text": ""}, "path"),
        ({"command": "create", "path": "q", "file_text": ["one"]}, "file_text: give a string"),
        ({"command": "str_replace", "path": "f", "old_str": "one", "new_str": 5}, "new_str: give a string"),
        ({"command": "str_replace", "path": "f", "old_str": "one", "new_str": 0}, "new_str: give a string"),
        ({"command": "str_replace", "path": "f", "old_str": "one", "new_str": ["a"]}, "new_str: give a string"),
        ({"command": "str_replace", "path": "f", "old_str": "one", "new_str": HALF}, "new_str: half of a surrogate pair"),
        ({"command": "insert", "path": "f", "insert_line": 10**400, "insert_text": "x"}, "insert_line"),
        ({"command": "insert", "path": "f", "insert_line": float("nan"), "insert_text": "x"}, "insert_line"),
        ({"command": "insert", "path": "f", "insert_line": 0, "insert_text": {"a": 1}}, "insert_text: give a string"),
        ({"command": "view", "path": "f", "view_range": [1, -2]}, "view_range"),
        ({"command": "view", "path": "f", "view_range": {"0": 1}}, "view_range"),
        ({"command": "view", "path": "f", "view_range": [deep(5000), 1]}, "view_range"),
        ({"command": deep(5000), "path": "f"}, "command: give a string"),
        ({"command": HALF * 10, "path": "f"}, "command: half of a surrogate pair"),
        ({"command": "x" * 3_000_000, "path": "f"}, "characters left out"),
    ]
    for arguments, reason in edits:
        block = await sbx.tools.anthropic(tool_use("str_replace_based_edit_tool", **arguments))
        assert block["is_error"] is True and reason in text(block), text(block)[:200]
        done = await sbx.tools.anthropic_code_execution(tool_use("text_editor_code_execution", **arguments))
        assert done["content"]["error_code"] == "invalid_tool_input", done
    assert await sbx.files.read("f") == "one\n" and [entry.path for entry in await sbx.files.list()] == before
    bad: List[Tuple[Any, str]] = [
        (HALF, "half of a surrogate pair"), (deep(5000), "levels deep"), (deep(100), "levels deep"), (10**400, "too large"),
        (float("inf"), "too large"), (["a"], "command"), (-1, "command"),
    ]  # fmt: skip
    # As deep as allowed: it is the server that refuses a list.
    assert "a list is not allowed" in text(await sbx.tools.anthropic(tool_use("run_command", command=deep(99))))
    for value, reason in bad:
        for name in ("bash", "run_command"):
            block = await sbx.tools.anthropic(tool_use(name, command=value))
            assert block["is_error"] is True and reason in text(block), (name, text(block)[:200])
        done = await sbx.tools.anthropic_code_execution(tool_use("bash_code_execution", command=value))
        assert done["content"]["error_code"] == "invalid_tool_input"
    for name in (" run_command ", "x" * 100_000, ""):
        block = await sbx.tools.anthropic(tool_use(name, command="true"))
        assert block["is_error"] is True and "is no name of a tool" in text(block)
    call = {"type": "function_call", "call_id": "c", "name": "run_command"}
    nested = '{"command":' + "[" * 5000 + "]" * 5000 + "}"
    texts = [
        nested,
        nested[:3000],
        '{"command": "\\ud83d"}',
        '{"command": 1e999}',
        "5",
        "nul",
        '{"command": NaN}',
        5,
        [],
        0,
        {},
        False,
    ]
    for arguments_text in texts:
        done = await sbx.tools.openai({**call, "arguments": arguments_text})
        assert done["output"].startswith("Error: arguments: "), done["output"][:200]
        chat = {"type": "function", "id": "c", "function": {"name": "run_command", "arguments": arguments_text}}
        assert (await sbx.tools.openai(chat))["content"].startswith("Error: arguments: ")
    actions: List[Tuple[Dict[str, Any], str]] = [
        ({"timeout_ms": "1000"}, "timeout_ms: give an integer"), ({"timeout_ms": {}}, "timeout_ms: give an integer"),
        ({"timeout_ms": 10**30}, "timeout_ms: give an integer"), ({"timeout_ms": 0}, "timeout_ms: give an integer"),
        ({"timeout_ms": True}, "timeout_ms: give an integer"), ({"timeout_ms": 10**15}, "timeout"),
        ({"max_output_length": "3"}, "max_output_length: give"), ({"max_output_length": -3}, "max_output_length: give"),
    ]  # fmt: skip
    for action, reason in actions:
        done = await sbx.tools.openai({"type": "shell_call", "call_id": "c", "action": {"commands": ["touch q"] * 2, **action}})
        fits(ShellCallOutput, done)
        assert "max_output_length" not in done
        assert [reason in one["stderr"] and one["outcome"]["exit_code"] for one in done["output"]] == [1, 1], done
    done = await sbx.tools.openai({"type": "shell_call", "call_id": "c", "action": {"commands": [HALF, 5, "echo a"]}})
    assert [one["stderr"][:15] for one in done["output"]] == ["Error: command:", "Error: command:", ""]
    assert done["output"][2]["stdout"] == "a\n"
    operations: List[Dict[str, Any]] = [
        {"type": deep(5000)}, {"type": "move_file"}, {"path": HALF}, {"path": 5}, {"path": "a\nb"}, {"path": "a\r"},
        {"path": "q\0"}, {"diff": HALF}, {"diff": ["+a"]}, {"diff": 0},
    ]  # fmt: skip
    for operation in operations:
        whole = {"type": "create_file", "path": "q", "diff": "+a\n", **operation}
        done = await sbx.tools.openai({"type": "apply_patch_call", "call_id": "c", "operation": whole})
        fits(ApplyPatchCallOutput, done)
        assert done["status"] == "failed" and done["output"], operation
    assert [entry.path for entry in await sbx.files.list()] == before


@pytest.mark.asyncio
async def test_results_are_bounded(sbx: Any) -> None:
    much = "head -c 3000000 /dev/zero | tr '\\0' a"
    done = await sbx.tools.openai({"type": "shell_call", "call_id": "c", "action": {"commands": [much, f"{much} >&2"]}})
    for one, name in zip(done["output"], ("stdout", "stderr")):
        assert one[name].endswith("\n[1951424 characters left out]") and len(one[name]) < (1 << 20) + 100
    action = {"commands": [much], "max_output_length": 2_000_000}
    done = await sbx.tools.openai({"type": "shell_call", "call_id": "c", "action": action})
    assert (len(done["output"][0]["stdout"]), done["max_output_length"]) == (1 << 20, 2_000_000)
    done = await sbx.tools.anthropic_code_execution(tool_use("code_execution", code="'x' * 3_000_000"))
    assert len(done["content"]["stdout"]) < (1 << 20) + 100
    block = await sbx.tools.anthropic(tool_use("bash", command=much))
    assert len(text(block)) < (1 << 20) + 100


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
    for command, code in [
        ("echo a; exit 4", 4),
        ("echo a; exit", 0),
        ("set -e; echo a; false", 1),
        ("echo a; python3 -c 'import sys; sys.exit(3)'", 3),
        ("echo a; kill -9 $$", 137),
    ]:
        done = await run(tool_use("bash_code_execution", command=command))
        content = BetaBashCodeExecutionToolResultBlock.model_validate(done).content
        assert (content.stdout, content.return_code) == ("a\n", code), command
        assert content.type == "bash_code_execution_result"
    done = await run(tool_use("code_execution", code="print('a')\nexit(5)"))
    content = BetaCodeExecutionToolResultBlock.model_validate(done).content
    assert (content.stdout, content.return_code) == ("a\n", 5)
    picture = (
        "from IPython.display import SVG, display\nfor _ in range(2): display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))"
    )
    done = await run(tool_use("code_execution", code=picture))
    assert done["content"]["stdout"] == "[pictures left out: 2; code can save them to files]\n"
    block = await sbx.tools.anthropic(tool_use("code_execution", code="1"))
    assert block["is_error"] and text(block) == "Error: code_execution is run by anthropic_code_execution"
    block = await sbx.tools.anthropic(tool_use("web_search", query="1"))
    assert block["is_error"] and text(block).startswith("Error: unknown tool 'web_search'; use one of run_code, ")
    with pytest.raises(belljar.InvalidArgumentException, match="give one block of a message's content at a time"):
        await sbx.tools.anthropic({"role": "assistant", "content": []})
    with pytest.raises(belljar.InvalidArgumentException, match="list is no tool call; give one call at a time"):
        await sbx.tools.openai([])
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
    chat = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": call["arguments"]}}
    assert (await sbx.tools.openai(chat))["content"].endswith("[pictures left out: 1; code can save them to files]")
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
    assert (await tool.ainvoke({"code": "\0" * (5 << 20)})).startswith("Error: ")


@pytest.mark.asyncio
async def test_provider_has_one_sandbox(api: Any) -> None:
    provider = api.SandboxProvider(timeout=120)
    done = await provider.execute("x = 1; print('a'); x")
    assert (done.success, done.stdout, done.value, done.exit_code) == (True, "a\n", "1", 0)
    assert (await provider.execute("x + 1")).value == "2"
    failed = await provider.execute("1 / 0")
    assert (failed.success, failed.exit_code) == (False, 1) and "ZeroDivisionError" in failed.stderr
    slow = await provider.execute("import time; time.sleep(60)", timeout=1)
    assert (slow.success, slow.exit_code) == (False, 124) and slow.stderr.endswith(
        "TimeoutError: the code took longer than it may\n"
    )
    left = await provider.execute("echo a; exit", language="bash")
    assert (left.success, left.exit_code) == (True, 0)
    first = (await provider.create_sandbox()).sandbox_id
    second = await provider.create_sandbox(None, timeout=60)
    assert second.sandbox_id != first
    await provider.cleanup()
    await provider.cleanup()
    assert not await second.is_running()
