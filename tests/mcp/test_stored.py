"""Stored tools and profiles, as the protocol's Python SDK drives them, and their schemas as the vendors' own types."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest
from anthropic.types import ToolParam
from mcp import Client
from openai.types.responses import FunctionToolParam
from pydantic import TypeAdapter

from conftest import Connection
from service import Service
from test_tools import call, texts


def belljar(server: Service, *words: str) -> str:
    """Runs a command with the server."""
    command = [os.environ["BELLJAR_BIN"], *words, "--home", server.home]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module", autouse=True)
def tool(server: Service) -> Iterator[None]:
    """A stored tool."""
    belljar(server, "tool", "add", "count", "--language", "bash", "--timeout", "20s", "--description", "Counts.")
    yield
    belljar(server, "tool", "rm", "count")


def test_stored_tools_are_called_by_name(connection: Connection) -> None:
    async def case(client: Client) -> None:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed][-1] == "count"
        done = await call(client, "count", code="wc -c < in.txt | tee out.txt", files={"in.txt": "hello"})
        assert (done["stdout"], done["version"], done["success"]) == ("5\n", 1, True)
        assert done["files"] == [{"path": "out.txt", "size": 2, "encoding": "utf-8", "content": "5\n"}]
        refused = await client.call_tool("count", {"code": "", "timeout": 60})
        assert refused.is_error and "at most 20s" in texts(refused)

    async def alone(client: Client) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["count"]
        assert (await call(client, "count", code="echo 1"))["version"] == 1

    connection.run(case)
    connection.run(alone, tools="none", stored=("count@1",))


def test_profiles_work(connection: Connection) -> None:
    async def claude(client: Client) -> None:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["bash", "read", "write", "edit", "glob", "grep", "count"]
        await call(client, "write", file_path="a.txt", content="one\ntwo\n")
        await call(client, "edit", file_path="a.txt", old_string="two", new_string="2")
        assert texts(await client.call_tool("read", {"file_path": "a.txt"})).startswith("one\n2\n")
        assert "a.txt:2:2" in texts(await client.call_tool("grep", {"pattern": "^[0-9]"}))
        assert texts(await client.call_tool("glob", {"pattern": "a.*"})).startswith("a.txt")
        assert texts(await client.call_tool("bash", {"command": "cat a.txt"})).startswith("one\n2")

    async def codex(client: Client) -> None:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["exec_command", "write_stdin", "apply_patch", "view_image", "count"]
        await call(client, "apply_patch", input="*** Begin Patch\n*** Add File: b.txt\n+b\n*** End Patch")
        running = await call(client, "exec_command", cmd="cat b.txt -", yield_time_ms=300)
        assert running["output"] == "b\n"
        answer = await call(client, "write_stdin", session_id=running["session_id"], chars="c\n", yield_time_ms=300)
        assert answer["output"] == "c\n"

    connection.run(claude, tools="claude")
    connection.run(codex, tools="codex")


def test_schemas_fit_the_types_of_vendors(server: Service) -> None:
    for whom, kind in (("openai", FunctionToolParam), ("anthropic", ToolParam)):
        schema = json.loads(belljar(server, "tool", "schema", "count", "--for", whom))
        TypeAdapter(kind).validate_python(schema)
        assert schema["name"] == "count"
