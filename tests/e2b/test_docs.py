"""Checks both setups of docs/e2b.md: commands, listed variables, and program."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import WAIT_TIMEOUT
from proxy import Proxy

PAGE = (Path(__file__).resolve().parents[2] / "docs/e2b.md").read_text()


def blocks(heading, kind):
    """Returns the code blocks of a section."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [text for named, text in fenced if named == kind]


def test_the_program_that_builds(server):
    (program,) = blocks("Building templates", "python")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_TIMEOUT)
    assert done.stdout == "/home/user/app\nhello\n\n", done.stderr


@pytest.mark.parametrize("heading", ["Single address", "Host names with TLS"])
def test_commands_and_program(heading, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    binary = Path(os.environ["BELLJAR_BIN"])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("BELLJAR_", "E2B_"))}
    environment = {**inherited, "BELLJAR_HOME": str(tmp_path / "home"), "PATH": f"{binary.parent}:{os.environ['PATH']}"}
    (commands,) = blocks(heading, "sh")
    # The last line starts the server; here on the test's own port, and in place of the shell.
    first, last = re.fullmatch(r"(.*?)(belljar serve .*)\n", commands, re.DOTALL).groups()
    script = f"set -e\n{first}exec {last} --listen 127.0.0.1:{port} --on-exit end"
    log = tmp_path / "log"
    with open(log, "wb") as output:
        server = subprocess.Popen(["bash", "-c", script], env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + WAIT_TIMEOUT
        while not (exported := dict(re.findall(r"^export (\w+)=(\S+)", log.read_text(), re.MULTILINE))).get("E2B_API_KEY"):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        exported.pop("BELLJAR_API_KEY")
        assert list(exported) == re.findall(r"^export (\w+)", blocks(heading, "")[0], re.MULTILINE)
        (program,) = blocks("Single address", "python")
        if "E2B_DOMAIN" in exported:
            proxy = Proxy(f"127.0.0.1:{port}")
            program = program.replace("Sandbox.create()", f"Sandbox.create(proxy={proxy.url!r})")
        run = [sys.executable, "-c", program]
        done = subprocess.run(run, env={**inherited, **exported}, capture_output=True, text=True, timeout=WAIT_TIMEOUT)
        assert done.stdout == "18446744073709551616\nLinux\n\n", done.stderr
    finally:
        server.terminate()
        server.wait(WAIT_TIMEOUT)
