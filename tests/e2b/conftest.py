"""A server for E2B's published clients, and sandboxes created by them. BELLJAR_BIN is the path of the belljar binary."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests"))

from e2b import Sandbox as Plain
from e2b_code_interpreter import Sandbox
from proxy import Proxy
from service import Service

DOMAIN = "sandboxes.localhost"

# Volumes allocate their size on disk immediately.
SMALL_VOLUMES = ["--set", "sandboxes.volumes.size=64m"]

# In seconds, far above the duration of any test.
WAIT_TIMEOUT = 60.0


def until(condition: Callable[[], object], what: str) -> object:
    """Waits for a condition."""
    deadline = time.monotonic() + WAIT_TIMEOUT
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"timed out waiting for {what}")


@pytest.fixture(scope="session")
def server() -> Iterator[Service]:
    """A server, configured by the variables that `belljar serve --e2b` prints."""
    # These tests send more wrong tokens per minute than a client may, and clients obey Retry-After.
    arguments = ["--e2b", "--set", "server.max_failed_attempts=1000", *SMALL_VOLUMES]
    service = Service(os.environ["BELLJAR_BIN"], arguments=arguments)
    try:
        for line in service.said().splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            if name.startswith("E2B_"):
                os.environ[name] = value
        yield service
    finally:
        service.close()


@pytest.fixture(scope="session", autouse=True)
def _server(server: Service) -> None:
    """Applies to every test."""


@pytest.fixture(scope="module")
def sbx() -> Iterator[Sandbox]:
    """A sandbox shared by the tests of a module, which do not affect each other."""
    sandbox = Sandbox.create(timeout=600)
    yield sandbox
    sandbox.kill()


@pytest.fixture
def own() -> Iterator[Plain]:
    """A sandbox for one test."""
    sandbox = Plain.create(timeout=600)
    yield sandbox
    sandbox.kill()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of `belljar cert`."""
    place = tmp_path_factory.mktemp("tls")
    subprocess.run([os.environ["BELLJAR_BIN"], "cert", DOMAIN, "--dir", place], check=True)
    return place


@pytest.fixture(scope="module")
def variables(certificates: Path) -> Iterator[dict[str, str]]:
    """The variables that a server with host names and TLS prints, and PROXY, which resolves the names."""
    service = Service(os.environ["BELLJAR_BIN"], arguments=["--e2b"], domain=DOMAIN, certificates=str(certificates))
    proxy = Proxy(service.address)
    try:
        exported = dict(re.findall(r"^export (\w+)=(\S+)", service.said(), re.MULTILINE))
        exported.pop("BELLJAR_API_KEY")
        assert exported["E2B_DOMAIN"] == f"{DOMAIN}:{service.address.split(':')[1]}"
        yield {**exported, "PROXY": proxy.url}
    finally:
        proxy.close()
        service.close()
