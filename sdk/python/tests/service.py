"""Starts a Belljar server for the tests."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import List, Optional, Sequence

import httpx

START_SECONDS = 30.0


class Service:
    """A server with its own home, on a free port, until it is closed. With `on_exit="keep"` sandboxes survive a stop.

    With `certificates`, which is what `belljar cert` has made for the domain, it speaks TLS.
    """

    def __init__(
        self,
        program: str,
        on_exit: str = "end",
        arguments: Sequence[str] = (),
        without: str = "",
        domain: str = "localhost",
        certificates: str = "",
    ) -> None:
        self.home = tempfile.mkdtemp(prefix="belljar-sdk-")
        self.address = f"127.0.0.1:{_free_port()}"
        self.url = f"{'https' if certificates else 'http'}://{self.address}"
        self._domain = domain
        self._certificates = certificates
        self._log = open(os.path.join(self.home, "server.log"), "w+b")
        self._program = program
        self._arguments = arguments
        self._without = without
        self.start(on_exit)

    def start(self, on_exit: str) -> None:
        """Starts the server, and waits until it accepts requests."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
        environment["BELLJAR_HOME"] = self.home
        # Removes a wall, to show that it matters.
        environment["BELLJAR_TEST_WITHOUT"] = self._without
        # Several tenants on the machine's own tree: the tests do not attack each other.
        command = [self._program, "serve", "--listen", self.address, "--on-exit", on_exit]
        command += ["--domain", self._domain] if self._domain else []
        command += ["--set", "sandboxes.share_host_tree=true", *self._arguments]
        if self._certificates:
            for key, file in (("tls_certificate", "certificate.pem"), ("tls_key", "key.pem")):
                command += ["--set", f"server.{key}={os.path.join(self._certificates, file)}"]
        self._process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=subprocess.STDOUT)
        try:
            self.key = self._wait()
        except BaseException:
            self.close()
            raise

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stops the server, which can be started again."""
        self._process.send_signal(number)
        try:
            self._process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Stops the server with its sandboxes, and removes its home. Nothing may be left."""
        self.stop()
        self._log.close()
        deadline = time.monotonic() + START_SECONDS
        while self._launchers():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the launcher has outlived its server: {self._launchers()}")
            time.sleep(0.05)
        shutil.rmtree(self.home, ignore_errors=True)

    def _launchers(self) -> List[str]:
        """Returns the launcher processes of this home."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if b"launcher" in words and any(word.startswith(os.fsencode(self.home)) for word in words):
                found.append(pid)
        return found

    def _wait(self) -> str:
        """Waits until the server accepts requests, and reads the key that it prints once."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            key = self._printed_key()
            if key is not None and self._ready():
                return key
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start:\n{self.said()}")

    def _printed_key(self) -> Optional[str]:
        found = re.search(r"\bbj_[0-9a-f]{64}\b", self.said())
        return found[0] if found else None

    def said(self) -> str:
        """Returns its output."""
        with open(self._log.name, "rb") as log:
            return log.read().decode("utf-8", "replace")

    def _ready(self) -> bool:
        try:
            # By its address, which no certificate covers.
            return httpx.get(f"{self.url}/ready", trust_env=False, verify=False).status_code == 200
        except httpx.HTTPError:
            return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert isinstance(port, int)
        return port
