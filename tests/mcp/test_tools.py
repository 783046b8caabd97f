"""Belljar's own tools, as the protocol's Python SDK drives them. The SDK validates structured answers against the tools' schemas."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from conftest import Connection

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mcp.md"

TOOLS = [
    "run_code",
    "run_command",
    "read_file",
    "write_file",
    "list_directory",
    "create_sandbox",
    "list_sandboxes",
    "kill_sandbox",
    "publish_port",
]

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


async def call(client: Client, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Calls a tool that succeeds, and returns its structured answer."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result
    assert result.structured_content is not None, result
    return result.structured_content


def texts(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


def test_tools_are_listed(connection: Connection) -> None:
    async def case(client: Client) -> None:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == TOOLS
        expected = "2025-11-25" if connection.mode == "legacy" else "2026-07-28"
        assert (client.server_info.name, client.protocol_version) == ("belljar", expected)
        for tool in listed:
            assert tool.output_schema and tool.annotations, tool

    connection.run(case)


def test_every_tool_works(connection: Connection) -> None:
    async def case(client: Client) -> None:
        name = f"box-{connection.label}"
        made = await call(client, "create_sandbox", name=name, timeout=600, env={"A": "b"})
        sandbox = made["sandbox"]
        ran = await call(client, "run_command", sandbox=name, command="echo $A; cat", stdin="in")
        assert (ran["stdout"], ran["exit_code"]) == ("b\nin", 0)
        ran = await call(client, "run_code", sandbox=sandbox, language="bash", code="echo $((6 * 7))")
        assert (ran["stdout"], ran["status"]) == ("42\n", "ok")
        content = base64.b64encode(PNG).decode()
        wrote = await call(client, "write_file", sandbox=sandbox, path="a/p.png", content=content, encoding="base64")
        assert wrote["size"] == len(PNG)
        picture = await client.call_tool("read_file", {"sandbox": sandbox, "path": "a/p.png"})
        assert (picture.content[0].type, picture.content[0].mime_type) == ("image", "image/png")
        assert base64.b64decode(picture.content[0].data) == PNG
        listed = await call(client, "list_directory", sandbox=sandbox, path="a")
        assert listed["entries"] == [{"path": "p.png", "kind": "file", "size": len(PNG)}]
        port = await call(client, "publish_port", sandbox=sandbox, port=8000)
        # Over the socket, the address of the server's listener is used.
        assert f"8000-{sandbox}.localhost" in port["url"] and connection.server.address.split(":")[1] in port["url"]
        listed = await call(client, "list_sandboxes")
        assert sandbox in [one["sandbox"] for one in listed["sandboxes"]]
        assert (await call(client, "kill_sandbox", sandbox=sandbox))["killed"]
        gone = await client.call_tool("read_file", {"sandbox": sandbox, "path": "a"})
        assert gone.is_error and "sandbox_gone" in texts(gone)

    connection.run(case)


def test_state_is_kept_in_the_default_sandbox(connection: Connection) -> None:
    async def case(client: Client) -> str:
        await call(client, "run_code", language="bash", code="x=5")
        again = await client.call_tool("run_code", {"language": "bash", "code": "echo $x"})
        assert texts(again).startswith("5\n[sandbox ")
        return again.structured_content["sandbox"]

    # It is the same one for the next connection.
    assert connection.run(case) == connection.run(case)


def test_output_is_reported_as_progress(connection: Connection) -> None:
    async def case(client: Client) -> None:
        reported: list[str] = []
        first = asyncio.Event()

        async def progress(_progress: float, _total: float | None, message: str | None) -> None:
            reported.append(message or "")
            first.set()

        line = "rm -f go; echo one; until [ -e go ]; do sleep 0.05; done; echo two"
        running = asyncio.create_task(
            client.call_tool("run_command", {"command": line}, progress_callback=progress)
        )
        await first.wait()
        # The program waits for this, so output is reported while it runs.
        await call(client, "write_file", path="go", content="")
        done = await running
        assert done.structured_content["stdout"] == "one\ntwo\n"
        assert "".join(reported) == "one\ntwo\n"

    connection.run(case)


def test_calls_are_cancelled(connection: Connection) -> None:
    async def case(client: Client) -> None:
        sandbox = (await call(client, "run_command", command="true"))["sandbox"]

        async def is_running() -> bool:
            found = await client.call_tool("run_command", {"sandbox": sandbox, "command": "pgrep -f 'sleep 987[6]'"})
            return found.structured_content["exit_code"] == 0

        running = asyncio.create_task(client.call_tool("run_command", {"command": "sleep 9876; true"}))
        while not await is_running():
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while await is_running():
            await asyncio.sleep(0.02)

    # The older revision cancels over HTTP by a message of its own, which needs a session to be matched with its request.
    if (connection.transport, connection.mode) == ("http", "legacy"):
        pytest.skip("no sessions over HTTP in the older revision")
    connection.run(case)


def test_refusals_are_answers(connection: Connection) -> None:
    async def case(client: Client) -> None:
        for name, arguments, expected in [
            ("run_code", {"code": 1}, "invalid_field: code: "),
            ("run_code", {"code": "", "sandbox": "nosuch"}, "sandbox_not_found: "),
            ("read_file", {"path": "nosuch"}, "path_not_found: "),
            ("run_command", {"command": "exit 3"}, "[exit code 3]"),
        ]:
            result = await client.call_tool(name, arguments)
            assert result.is_error and texts(result).startswith(expected), result
        with pytest.raises(MCPError, match="unknown tool"):
            await client.call_tool("nosuch", {})

    connection.run(case)


def test_large_code_is_refused(connection: Connection) -> None:
    async def case(client: Client) -> None:
        # Over HTTP the SDK shows no text of a refusal that came before the message was read.
        with pytest.raises(MCPError, match="larger than" if connection.transport == "stdio" else None):
            await client.call_tool("run_code", {"code": "x" * 10_000_000})
        # The connection goes on.
        assert (await call(client, "run_command", command="echo on"))["stdout"] == "on\n"

    connection.run(case)


def test_page_on_functions(connection: Connection) -> None:
    """The messages of docs/mcp.md."""
    if subprocess.run(["python3", "-c", "import IPython"], capture_output=True, env={"PATH": "/usr/bin:/bin"}).returncode != 0:
        pytest.skip("python3-ipython is not installed here")
    blocks = re.findall(r"^```json\n(\{\"name\": \"run_code\".*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    begin, go_on = (json.loads(block)["arguments"] for block in blocks)

    async def case(client: Client) -> None:
        step = await call(client, "run_code", **begin)
        (called,) = step["tool_calls"]
        assert (step["status"], called["name"], called["arguments"]) == ("tool_calls", "lookup", {"city": "Paris"})
        (answer,) = go_on["tool_results"]
        done = await call(client, "run_code", tool_results=[{**answer, "call_id": called["id"]}])
        assert (done["status"], done["results"][0]["text"]) == ("ok", "2.1")

    connection.run(case)
