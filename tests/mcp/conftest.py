"""A server, and clients of the protocol's Python SDK over both transports and both revisions. BELLJAR_BIN is the belljar binary."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests"))

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from service import Service

# In seconds, far above the duration of any test.
WAIT_TIMEOUT = 120.0

# How the client connects: the transport, and the revision. `auto` asks for the newest one, `legacy` begins with a handshake.
CONNECTIONS = [(transport, mode) for transport in ("http", "stdio") for mode in ("auto", "legacy")]


@pytest.fixture(scope="session")
def server() -> Iterator[Service]:
    """A server."""
    service = Service(os.environ["BELLJAR_BIN"])
    try:
        yield service
    finally:
        service.close()


class Connection:
    """How to connect to a server."""

    def __init__(self, server: Service, transport: str, mode: str) -> None:
        self.server = server
        self.transport = transport
        self.mode = mode
        # The label keeps the default sandboxes of the cases apart.
        self.label = f"{transport}-{mode}"

    @contextlib.asynccontextmanager
    async def open(self, tools: str = "default", stored: tuple[str, ...] = (), **options: Any) -> AsyncIterator[Client]:
        """Connects. `options` are those of the client."""
        if self.transport == "http":
            query = "&".join([f"tools={tools}", f"sandbox={self.label}", *(f"tool={name}" for name in stored)])
            headers = {"authorization": f"Bearer {self.server.key}"}
            async with create_mcp_http_client(headers) as http:
                transport = streamable_http_client(f"{self.server.url}/mcp?{query}", http_client=http)
                async with Client(transport, mode=self.mode, **options) as client:
                    yield client
            return
        # Without a key or an address: the server of this home is reached by its socket.
        arguments = ["mcp", "--home", self.server.home, "--tools", tools, "--sandbox", self.label]
        for name in stored:
            arguments += ["--tool", name]
        program = StdioServerParameters(command=os.environ["BELLJAR_BIN"], args=arguments)
        async with Client(program, mode=self.mode, **options) as client:
            yield client

    def run(
        self, case: Callable[[Client], Awaitable[Any]], tools: str = "default", stored: tuple[str, ...] = (), **options: Any
    ) -> Any:
        """Runs a case with a connected client."""

        async def go() -> Any:
            async with self.open(tools, stored, **options) as client:
                return await case(client)

        return asyncio.run(asyncio.wait_for(go(), WAIT_TIMEOUT))


@pytest.fixture(params=CONNECTIONS, ids=lambda connection: "-".join(connection))
def connection(request: pytest.FixtureRequest, server: Service) -> Connection:
    """Each way to connect."""
    return Connection(server, *request.param)
