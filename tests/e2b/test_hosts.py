"""Host names with TLS, the other way to reach a server. The program is a separate process, which trusts the given certificates."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import WAIT_TIMEOUT


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
