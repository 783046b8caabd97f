"""Each wall of the data plane, removed alone: the attack succeeds only without it."""

import os

import httpx
import pytest
from e2b import Sandbox
from service import Service


def forged(server, own, other):
    """A forged signature."""
    headers = {"E2b-Sandbox-Id": own.sandbox_id}
    return httpx.get(f"{server.url}/files", params={"path": "secret", "signature": "v1_x"}, headers=headers)


def expired(server, own, other):
    """An expired signature."""
    return httpx.get(own.download_url("/home/user/secret", use_signature_expiration=-60))


def foreign(server, own, other):
    """The token of another sandbox."""
    token = other.connection_config.sandbox_headers["X-Access-Token"]
    headers = {"E2b-Sandbox-Id": own.sandbox_id, "X-Access-Token": token}
    return httpx.get(f"{server.url}/files", params={"path": "secret"}, headers=headers)


@pytest.mark.parametrize("wall, attack", [("e2b-signature", forged), ("e2b-expiry", expired), ("token-scope", foreign)])
def test_wall(server, wall, attack):
    def attacked(at):
        given = {"api_url": at.url, "sandbox_url": at.url, "api_key": at.key}
        with Sandbox.create(**given) as own, Sandbox.create(**given) as other:
            own.files.write("secret", "secret")
            return attack(at, own, other)

    assert attacked(server).status_code == 401
    lacking = Service(os.environ["BELLJAR_BIN"], arguments=["--e2b"], without=f"service:{wall}")
    try:
        assert attacked(lacking).text == "secret"
    finally:
        lacking.close()


def test_api_is_absent_without_the_flag(server):
    plain = Service(os.environ["BELLJAR_BIN"])
    try:
        headers = {"X-API-KEY": plain.key, "E2b-Sandbox-Id": "a0000000000000000000"}
        for path in ("/v2/sandboxes", "/sandboxes", "/files", "/templates"):
            answer = httpx.get(plain.url + path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert "E2B_" not in plain.said()
    finally:
        plain.close()
