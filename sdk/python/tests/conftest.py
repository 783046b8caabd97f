"""Fixtures: the server and the client of a test.

`BELLJAR_API_URL` and `BELLJAR_API_KEY`: that server. `BELLJAR_BIN`: one that is started for the tests, and stopped. Otherwise a
test double, with which some tests are skipped.
"""

from __future__ import annotations

import os
from typing import Any, AsyncIterator, Dict, Iterator, Tuple

import pytest
import pytest_asyncio
from double import Double
from lifted import Api
from service import Service

import belljar

WITHOUT_WALLS = "the stand-in has no {}; set BELLJAR_BIN"


@pytest.fixture(scope="session")
def server() -> Iterator[Tuple[str, str, bool]]:
    """Returns URL, key, and whether it is a real server."""
    url, key, program = (os.environ.get(name) for name in ("BELLJAR_API_URL", "BELLJAR_API_KEY", "BELLJAR_BIN"))
    if url and key:
        yield url, key, True
        return
    service = Service(program) if program else Double()
    try:
        yield service.url, service.key, bool(program)
    finally:
        service.close()


@pytest.fixture
def real(server: Tuple[str, str, bool], request: pytest.FixtureRequest) -> None:
    """Skips a test that the test double does not support."""
    if not server[2]:
        pytest.skip(WITHOUT_WALLS.format("such thing"))


@pytest.fixture
def environment(server: Tuple[str, str, bool], monkeypatch: pytest.MonkeyPatch) -> Dict[str, str]:
    """The environment of a user."""
    given = {"BELLJAR_API_URL": server[0], "BELLJAR_API_KEY": server[1]}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("BELLJAR_DOMAIN", raising=False)
    return given


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest, environment: Dict[str, str]) -> Api:
    """The synchronous and the asynchronous client."""
    return Api(request.param)


@pytest_asyncio.fixture(autouse=True)
async def _close_shared_connections() -> AsyncIterator[None]:
    """Closes sandboxes that tests connect to without releasing them."""
    yield
    from belljar._async.client import _shared_clients

    for _, shared in _shared_clients._clients.values():
        await shared.close()


@pytest_asyncio.fixture
async def sbx(api: Api) -> AsyncIterator[Any]:
    """A sandbox for one test."""
    async with await api.Sandbox.create(timeout=120) as sandbox:
        yield sandbox


@pytest_asyncio.fixture
async def client(api: Api) -> AsyncIterator[Any]:
    """A client of the server."""
    async with api.Belljar() as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _close_shared() -> Iterator[None]:
    """Closes resources that programs normally close at exit."""
    yield
    from belljar._sync.client import _shared_clients

    for shared in _shared_clients._clients.values():
        assert isinstance(shared, belljar.Belljar)
        shared.close()
