"""Host names with TLS, the other way to reach a server. The program is a separate process, which trusts the given certificates."""

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import WAIT_TIMEOUT
from service import Service

DOMAIN = "sandboxes.localhost"


class Proxy:
    """Maps every name to one address (HTTP CONNECT): not every machine resolves names below localhost."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            piece = client.recv(4096)
            if not piece:
                return
            request += piece
        assert request.startswith(b"CONNECT "), request
        server = socket.create_connection(self._to)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
        self._copy(client, server)

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(65536):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    place = tmp_path_factory.mktemp("tls")
    subprocess.run([os.environ["BELLJAR_BIN"], "cert", DOMAIN, "--dir", place], check=True)
    return place


@pytest.fixture(scope="module")
def variables(certificates):
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


def run(variables, program="hosts.py", python=sys.executable):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    command = [python, str(Path(__file__).parent / "programs" / program)]
    return subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, timeout=WAIT_TIMEOUT)


def test_by_host_names(variables):
    done = run(variables)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("generation", [1, 2])
def test_the_oldest_clients(variables, generation):
    python = f"{os.environ['E2B_VENVS']}/e2b-python-{generation}/bin/python"
    done = run(variables, "oldest.py", python)
    assert done.stdout == "done\n", done.stderr


def test_other_certificates_are_not_trusted(variables):
    done = run({name: value for name, value in variables.items() if name != "SSL_CERT_FILE"})
    assert done.returncode != 0 and "certificate" in done.stderr.lower()


def test_files_are_private(certificates):
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in certificates.iterdir()} == dict.fromkeys(
        ["ca.pem", "ca-bundle.pem", "certificate.pem", "key.pem"], "0o600"
    )
    assert "PRIVATE" not in (certificates / "ca-bundle.pem").read_text()


@pytest.mark.parametrize("domain", ["localhost", "127.0.0.1", "a b.test", "-a.test", ""])
def test_invalid_domains_are_refused(domain, tmp_path):
    done = subprocess.run(
        [os.environ["BELLJAR_BIN"], "cert", "--dir", tmp_path / "new", "--", domain], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.startswith("belljar: domain: ")
    assert not (tmp_path / "new").exists()
