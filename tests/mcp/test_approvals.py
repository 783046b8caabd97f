"""Calls that wait for approval, as the protocol's Python SDK drives them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult

from conftest import Connection
from service import Service
from test_stored import belljar
from test_tools import texts


@pytest.fixture(scope="module")
def approver(server: Service) -> Iterator[str]:
    """A tool whose calls wait, and the key of somebody else, who decides."""
    belljar(server, "tool", "add", "deploy", "--language", "bash", "--approval", "always")
    yield belljar(server, "key", "create", "--name", "ann", "--owner", "ann", "--role", "approver").split()[-1]
    belljar(server, "tool", "rm", "deploy")


def decide(server: Service, key: str, decision: str, approval: str) -> None:
    environment = {**os.environ, "BELLJAR_API_KEY": key, "BELLJAR_API_URL": server.url}
    subprocess.run([os.environ["BELLJAR_BIN"], "approval", decision, approval], check=True, env=environment, capture_output=True)


def test_users_are_asked_whether_to_wait(connection: Connection, server: Service, approver: str) -> None:
    asked: list[str] = []
    answers = iter(["accept", "accept", "decline"])
    decisions = iter(["approve", "deny"])

    async def answer(_: Any, params: Any) -> ElicitResult:
        found = re.search("apr_[0-9a-f]+", params.message)
        assert found and "until another person approves" in params.message
        asked.append(found[0])
        action = next(answers)
        if action == "accept":
            await asyncio.to_thread(decide, server, approver, next(decisions), found[0])
        return ElicitResult(action=action, content={})

    async def decide_from_aside(decision: str) -> None:
        # The older revision cannot ask: the call waits in its request.
        waiting = ""
        while not waiting:
            waiting = (await asyncio.to_thread(belljar, server, "approval", "ls", "-q")).strip()
        await asyncio.to_thread(decide, server, approver, decision, waiting)

    async def case(client: Client) -> None:
        async def call(decision: str) -> Any:
            if connection.mode == "auto":
                return await client.call_tool("deploy", {"code": "echo released"})
            done, _ = await asyncio.gather(client.call_tool("deploy", {"code": "echo released"}), decide_from_aside(decision))
            return done

        assert texts(await call("approve")).startswith("released")
        denied = await call("deny")
        assert denied.is_error and "not_approved" in texts(denied)
        if connection.mode == "auto":
            declined = await client.call_tool("deploy", {"code": "echo released"})
            assert declined.is_error and "does not want to wait" in texts(declined)
            assert len(set(asked)) == 3
            assert belljar(server, "approval", "ls", "-q") == ""

    connection.run(case, elicitation_callback=answer)
