"""Invalid data over the wire: the client raises its own exception with the reason, and nothing is left behind."""

import contextlib
import io
import os
import re
import socket
import struct
import threading
import time
from urllib.parse import quote, unquote

import httpx
import pytest
from conftest import until
from e2b import (
    AuthenticationException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
)
from service import Service

START = re.compile(rb"\x00(?P<length>.{4})\{\"process\"", re.DOTALL)


class TamperingProxy:
    """Proxy between a client and the server that modifies requests."""

    def __init__(self, address, tamper):
        host, _, port = address.partition(":")
        self._to, self._tamper = (host, int(port)), tamper
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._to)
            threading.Thread(target=self._copy, args=(client, server, self._tamper), daemon=True).start()
            threading.Thread(target=self._copy, args=(server, client, None), daemon=True).start()

    @staticmethod
    def _copy(source, sink, tamper):
        held = b""
        try:
            while piece := source.recv(65536):
                held += piece
                # A call is modified when it is complete.
                if tamper and held.startswith(b"POST /process.Process/Start") and not START.search(held):
                    continue
                sink.sendall(tamper(held) if tamper else held)
                held = b""
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def head(flags, length):
    """Returns a function that changes the flags or the length of the frame that starts a process."""

    def tamper(sent):
        found = START.search(sent)
        if found is None:
            return sent
        at = found.start()
        size = struct.unpack(">I", found["length"])[0] if length is None else length
        return sent[:at] + struct.pack(">BI", flags, size) + sent[at + 5 :]

    return tamper


@pytest.mark.parametrize(
    "tamper, raised, says",
    [
        (head(0, 2**32 - 1), InvalidArgumentException, "4294967295 bytes is too large; at most 8388608"),
        (head(1, None), InvalidArgumentException, "compressed"),
        (head(0, 1), InvalidArgumentException, "not JSON"),
        (lambda sent: sent.replace(b'{"process"', b'{"progress'), InvalidArgumentException, "not JSON"),
        (lambda sent: sent.replace(b'"/bin/bash"', b'["/bin/ba"]'), InvalidArgumentException, "process.cmd: a list is not allowed; give a text"),
        (lambda sent: sent.replace(b"Process/Start ", b"Process/Strat "), SandboxException, "unknown procedure \"Strat\""),
    ],
)
def test_tampered_frames(server, own, tamper, raised, says):
    with TamperingProxy(server.address, tamper) as proxy:
        tampered = Sandbox.connect(own.sandbox_id, sandbox_url=proxy.url)
        with pytest.raises(raised, match=re.escape(says)):
            tampered.commands.run("touch started")
    assert own.files.exists("started") is False
    assert own.commands.list() == []


CALLS = {
    "commands": lambda sandbox: sandbox.commands.run("true"),
    "read": lambda sandbox: sandbox.files.read("secret"),
    "write": lambda sandbox: sandbox.files.write("secret", "other"),
    "list": lambda sandbox: sandbox.files.list("."),
    "watch": lambda sandbox: sandbox.files.watch_dir("."),
    "pty": lambda sandbox: sandbox.pty.create(PtySize(rows=24, cols=80)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("token", ["another's", "forged", "key"])
def test_tokens_that_open_nothing(server, sbx, own, name, token):
    own.files.write("secret", "secret")
    mine = own.connection_config.sandbox_headers["X-Access-Token"].encode()
    others = {
        "another's": sbx.connection_config.sandbox_headers["X-Access-Token"].encode(),
        "forged": mine[:-1] + (b"0" if mine[-1:] != b"0" else b"1"),
        "key": os.environ["E2B_API_KEY"].encode(),
    }
    with TamperingProxy(server.address, lambda sent: sent.replace(mine, others[token])) as proxy:
        tampered = Sandbox.connect(own.sandbox_id, sandbox_url=proxy.url)
        with pytest.raises(AuthenticationException, match="access token"):
            CALLS[name](tampered)
    assert own.files.read("secret") == "secret"


def test_ids_of_another_tenant(server, sbx):
    """A key and the token of an own sandbox give no access to a foreign sandbox by its id."""
    made = httpx.post(
        f"{server.url}/v1/keys",
        json={"name": "bad-input", "role": "user", "tenant": "bad-input"},
        headers={"Authorization": f"Bearer {server.key}"},
    )
    key = {"api_key": made.json()["key"]}
    with Sandbox.create(**key) as mine:
        for call in (
            lambda: Sandbox.connect(sbx.sandbox_id, **key),
            lambda: Sandbox.set_timeout(sbx.sandbox_id, 1, **key),
            lambda: Sandbox.get_info(sbx.sandbox_id, **key),
            lambda: Sandbox.get_metrics(sbx.sandbox_id, **key),
            lambda: Sandbox.pause(sbx.sandbox_id, **key),
            lambda: Sandbox.create_snapshot(sbx.sandbox_id, **key),
        ):
            with pytest.raises(NotFoundException, match=sbx.sandbox_id):
                call()
        assert Sandbox.kill(sbx.sandbox_id, **key) is False
        token = mine.connection_config.sandbox_headers["X-Access-Token"].encode()
        theirs = sbx.connection_config.sandbox_headers["X-Access-Token"].encode()
        with TamperingProxy(server.address, lambda sent: sent.replace(theirs, token)) as proxy:
            tampered = Sandbox.connect(sbx.sandbox_id, sandbox_url=proxy.url)
            with pytest.raises(AuthenticationException):
                tampered.commands.run("true")
    assert sbx.is_running()


def test_signatures_that_open_nothing(own):
    own.files.write("a.txt", "secret")
    good = own.download_url("a.txt", use_signature_expiration=600)
    assert httpx.get(good).text == "secret"
    signature = re.search(r"signature=(v1_[^&]+)", good)[1]
    # Reversed without its encoding: `%2F` reversed would begin an escape that need not be UTF-8.
    forged = "v1_" + quote(unquote(signature)[:2:-1], safe="")
    expired = own.download_url("a.txt", use_signature_expiration=-60)
    refused = {
        "invalid signature": [
            good.replace("a.txt", "b.txt"),
            re.sub(r"signature_expiration=\d+", f"signature_expiration={int(time.time()) + 9999}", good),
            re.sub(r"&?signature_expiration=\d+", "", good),
            good.replace(signature, forged),
            good.replace(signature, ""),
            good.replace(signature, "v1_" + "A" * 10_000),
            re.sub(r"signature_expiration=\d+", f"signature_expiration={int(time.time()) + 9999}", expired),
        ],
        "signature is already expired": [expired],
    }
    for message, addresses in refused.items():
        for address in addresses:
            answer = httpx.get(address)
            assert (answer.status_code, answer.json()) == (401, {"code": 401, "message": message}), address
    # Readable paths are not writable, and vice versa.
    form = {"file": ("a.txt", b"other")}
    assert httpx.post(good, files=form).json()["message"] == "invalid signature"
    assert httpx.get(own.upload_url("a.txt")).json()["message"] == "invalid signature"
    assert own.files.read("a.txt") == "secret"


class Broken(io.RawIOBase):
    """A file that fails after half of it was read."""

    def __init__(self):
        self._given = 0

    def readable(self):
        return True

    def readinto(self, buffer):
        if self._given >= 1 << 20:
            raise OSError("the disk is broken")
        self._given += len(buffer)
        return len(buffer)


def test_an_upload_whose_file_fails(own):
    with pytest.raises(httpx.WriteError, match="the disk is broken"):
        own.files.write("half.bin", Broken())
    check_nothing_is_left(own)


@pytest.mark.parametrize("kind", ["octets", "form", "head"])
def test_an_upload_that_stops_half_way(server, own, kind):
    """The client announces a length, sends half of it, and disconnects."""
    content = b"x" * (1 << 20)
    body = {
        "octets": content,
        "form": b'--b\r\nContent-Disposition: form-data; name="file"; filename="half.bin"\r\n\r\n' + content,
        "head": b'--b\r\nContent-Disposition: form-data; name="fi',
    }[kind]
    token = own.connection_config.sandbox_headers["X-Access-Token"]
    host, _, port = server.address.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        lines = [
            "POST /files?path=half.bin HTTP/1.1",
            f"Host: {server.address}",
            f"E2b-Sandbox-Id: {own.sandbox_id}",
            f"X-Access-Token: {token}",
            f"Content-Type: {'application/octet-stream' if kind == 'octets' else 'multipart/form-data; boundary=b'}",
            f"Content-Length: {2 * len(content)}",
            "",
            "",
        ]
        connection.sendall("\r\n".join(lines).encode() + body)
    check_nothing_is_left(own)


def test_bodies_that_do_not_end(server, own):
    """The bodies that are kept of one sandbox's requests have a limit together."""
    token = own.connection_config.sandbox_headers["X-Access-Token"]
    host, _, port = server.address.partition(":")
    # Below the limit of one of them.
    length = 17 << 19
    lines = [
        "POST /execute HTTP/1.1",
        f"Host: {server.address}",
        f"E2b-Sandbox-Id: {own.sandbox_id}",
        "E2b-Sandbox-Port: 49999",
        f"X-Access-Token: {token}",
        f"Content-Length: {length}",
        "",
        "",
    ]
    head = "\r\n".join(lines).encode()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(8)]
        answers = []

        def send(connection):
            with contextlib.suppress(ConnectionError):
                connection.sendall(head + b" " * (length - 1))
            with contextlib.suppress(OSError):
                answers.append(connection.recv(4096))

        for connection in connections:
            threading.Thread(target=send, args=[connection], daemon=True).start()
        until(lambda: answers, "an answer to one of them")
        assert answers[0].startswith(b"HTTP/1.1 429 ") and b"bytes of this key are in memory" in answers[0]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def check_nothing_is_left(sandbox):
    """Checks that neither the file nor its temporary file exists."""
    listing = lambda: [entry.name for entry in sandbox.files.list(".") if entry.name not in (".bash_history", ".profile")]
    until(lambda: not [name for name in listing() if "half" in name or name.startswith(".")], f"the removal of {listing()}")


def endless_head(server):
    """A form with a part header of 1 MiB, which the server would have to buffer."""
    given = {"api_url": server.url, "sandbox_url": server.url, "api_key": server.key}
    with Sandbox.create(**given) as sandbox:
        token = sandbox.connection_config.sandbox_headers["X-Access-Token"]
        headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": token}
        headers["Content-Type"] = "multipart/form-data; boundary=b"
        return httpx.post(f"{server.url}/files", headers=headers, content=b"--b\r\nA: " + b"a" * (1 << 20))


def test_a_head_without_end(server):
    answer = endless_head(server)
    assert (answer.status_code, answer.json()["message"]) == (413, "the head of a part is longer than 65536 bytes")
    lacking = Service(os.environ["BELLJAR_BIN"], arguments=["--e2b"], without="service:body-bounds")
    try:
        # All of it was read.
        assert "incomplete" in endless_head(lacking).json()["message"]
    finally:
        lacking.close()
