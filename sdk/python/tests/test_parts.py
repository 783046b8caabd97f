"""The parts without I/O, the configuration, and the common parts of the two clients."""

from __future__ import annotations

import inspect
import io
import json
import os
import random
import re
import socket
import sys
import tarfile
import threading
from dataclasses import replace
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any, Dict, Iterator, List, Tuple

import pytest

import belljar
from belljar import _archive
from belljar._config import ConnectionConfig
from belljar._dual import dual
from belljar._frames import OutputFrame, parse_frame
from belljar._json import parse_time
from belljar._output import OutputCollector
from belljar._retry import RetryPolicy, parse_retry_after
from belljar._sse import EventReader

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import make_sync

SDK = Path(__file__).resolve().parent.parent

STREAM = (
    b": alive\n\n"
    b'event: stdout\ndata: {"a": "\xc3\xa4"}\n\n'
    b'event: two\r\ndata: {"b":\r\ndata: 2}\r\n\r\n'
    b"event:three\rdata:{}\r\r"
    b"id: 7\nretry: 5\n\n"
    b"event: empty\n\n"
    b'data: {"d": "no name"}\n\n'
    b"event: lost\ndata: {"
)
EVENTS = [("stdout", {"a": "ä"}), ("two", {"b": 2}), ("three", {}), ("empty", {}), ("message", {"d": "no name"})]


def read_events(pieces: Iterator[bytes]) -> List[Tuple[str, Any]]:
    reader = EventReader()
    return [(event.name, event.data) for piece in pieces for event in reader.feed(piece)]


@pytest.mark.parametrize("size", range(1, 40))
def test_events_in_pieces(size: int) -> None:
    assert read_events(STREAM[at : at + size] for at in range(0, len(STREAM), size)) == EVENTS


def test_events_split_anywhere() -> None:
    chance = random.Random(7)
    for _ in range(500):
        cuts = sorted(chance.sample(range(len(STREAM) + 1), chance.randint(0, 12)))
        pieces = [STREAM[start:end] for start, end in zip([0, *cuts], [*cuts, len(STREAM)])]
        assert read_events(iter(pieces)) == EVENTS


@pytest.mark.parametrize("body", [b"data: not json\n\n", b"data: [1]\n\n", b"data: \xff\n\n"])
def test_events_that_are_not_as_agreed(body: bytes) -> None:
    with pytest.raises(belljar.ServerException):
        read_events(iter([body]))


@pytest.mark.parametrize("body", [b"x" * 101, b"data: " + b"x" * 60 + b"\ndata: " + b"x" * 60 + b"\n"])
def test_events_are_bounded(body: bytes) -> None:
    with pytest.raises(belljar.ServerException, match="100 bytes"):
        list(EventReader(100).feed(body))


def test_frames() -> None:
    assert parse_frame(b"\x03" + (258).to_bytes(8, "big") + b"data") == OutputFrame(3, 258, b"data")
    assert parse_frame('{"event":"exited"}') == {"event": "exited"}
    for bad in (b"", b"\x01\x00", b"\x09" + bytes(8), "no json", "[]"):
        with pytest.raises(belljar.ServerException):
            parse_frame(bad)


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 100, 10_000])
def test_collector_keeps_head_and_tail(limit: int) -> None:
    data = bytes(random.Random(limit).randrange(256) for _ in range(1000))
    for step in (1, 7, 1000):
        collector = OutputCollector(limit)
        assert b"".join(collector.feed(at, data[at : at + step]) for at in range(0, 1000, step)) == data
        kept = collector.result()
        head = limit - limit // 2
        expected = data if limit >= 1000 else data[:head] + data[1000 - limit // 2 :]
        assert (kept.data, kept.total_bytes, kept.truncated) == (expected, 1000, limit < 1000)
        assert kept.omitted_bytes == 1000 - len(kept.data)


def test_collector_passes_over_what_it_has_seen() -> None:
    collector = OutputCollector()
    assert (collector.feed(0, b"abc"), collector.feed(1, b"bcd"), collector.feed(0, b"ab"), collector.feed(9, b"x")) == (
        b"abc",
        b"d",
        b"",
        b"x",
    )
    assert (collector.result().data, collector.result().omitted_bytes) == (b"abcdx", 5)


def test_collector_text() -> None:
    collector = OutputCollector()
    text = "".join(collector.text(bytes([byte])) for byte in "aä😀".encode() + b"\xf0")
    assert text + collector.text(b"", final=True) == "aä😀\ufffd"


def test_delays_grow_and_are_bounded() -> None:
    policy = RetryPolicy(99)
    for attempt in range(20):
        bound = min(5.0, 0.2 * 2**attempt)
        delays = [policy.delay(attempt) for _ in range(50)]
        assert all(bound / 2 <= delay <= bound for delay in delays) and len(set(delays)) > 10
        assert all(policy.delay(attempt, 3.0) >= 3.0 for _ in range(50))


def test_retries_outlast_a_restart() -> None:
    policy = RetryPolicy(config().max_retries)
    delays = [policy.after_break(attempt, safe=True, opened=False) for attempt in range(policy.max_retries)]
    assert sum(delay or 0 for delay in delays) >= 3 and policy.after_break(policy.max_retries, safe=True, opened=False) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2),
        ("1.5", 1.5),
        ("0", 0),
        *((text, None) for text in ("-1", "nan", "inf", "soon", "", None)),
        ("Sat, 21 Nov 2026 15:00:10 GMT", 10),
        ("Sat, 21 Nov 2026 14:00:00 GMT", 0),
    ],
)
def test_retry_after(value: Any, seconds: Any) -> None:
    assert parse_retry_after(value, datetime(2026, 11, 21, 15, 0, 0, tzinfo=timezone.utc)) == seconds


@pytest.mark.parametrize(
    "text", ["2026-11-21T15:04:05Z", "2026-11-21T15:04:05.1Z", "2026-11-21T15:04:05.123456789Z", "2026-11-21T16:04:05+01:00"]
)
def test_times(text: str) -> None:
    found = parse_time(text)
    assert found.replace(microsecond=0) == datetime(2026, 11, 21, 15, 4, 5, tzinfo=timezone.utc)


def config(environ: Any = None, **options: Any) -> ConnectionConfig:
    return ConnectionConfig.resolve(environ=environ or {}, **options)


def test_configuration() -> None:
    environ = {"BELLJAR_API_KEY": " k1\n", "BELLJAR_API_URL": "https://a.example/x/", "BELLJAR_DOMAIN": "d"}
    found = config(environ)
    assert (found.api_key, found.api_url, found.domain, found.websocket_url) == (
        "k1",
        "https://a.example/x",
        "d",
        "wss://a.example/x",
    )
    found = config(environ, api_key="k2", api_url="http://b:1", domain="e", request_timeout=5)
    assert (found.api_key, found.api_url, found.domain, found.request_timeout) == ("k2", "http://b:1", "e", 5)
    with_key = config(api_key="k")
    assert with_key.api_url == "http://127.0.0.1:8787" and not with_key.own_server
    # Without a server and a key, that of this user's home is used, which needs none.
    assert config().own_server and config().api_key is None
    config().require_key()
    assert "k2" not in repr(found)
    unix = config(api_url="unix:///run/bell%20jar.sock")
    assert (unix.socket_path, unix.base_url) == ("/run/bell jar.sock", "http://localhost")
    with pytest.raises(belljar.SandboxException, match="no address but its socket"):
        unix.public_url("http://localhost/v1/x?y")
    assert replace(unix, address="https://a:1/").public_url("http://localhost/v1/x?y") == "https://a:1/v1/x?y"
    assert replace(unix, address="http://a:1/").base_url == "http://a:1"
    assert unix.public_url("http://80-sbx.example/") == "http://80-sbx.example/"
    unix.require_key()
    with pytest.raises(belljar.AuthenticationException):
        config(api_url="http://b:1").require_key()


@pytest.mark.parametrize(
    "options",
    [{"api_url": url} for url in ("ftp://a", "a.example", "http://", "http://u:p@a", "http://a?b", "unix://x/y", "http://a:b")]
    + [{"request_timeout": -1}, {"max_retries": -1}, {"api_key": "a b"}, {"api_key": "a\nX-Other: b"}, {"api_key": "ü"}],
)
def test_configuration_that_is_refused(options: Any) -> None:
    with pytest.raises(belljar.InvalidArgumentException) as caught:
        config(**options)
    assert caught.value.field == next(iter(options)) and "u:p" not in str(caught.value)


def test_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "inside.example")
    urls = ["http://127.0.0.1:8787", "http://localhost:1", "http://[::1]:2", "http://inside.example", "unix:///x"]
    assert [config(api_url=url).proxy for url in urls] == [None] * 5
    assert config(api_url="http://outside.example").proxy == "http://proxy:1"


def test_unix_socket(tmp_path: Path) -> None:
    seen: List[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("Authorization")))
            body = json.dumps({"key": "k", "tenant": "t", "role": "admin"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: Any) -> None:
            pass

    path = tmp_path / "s"
    with ThreadingUnixStreamServer(str(path), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with belljar.Belljar("", f"unix://{path}") as client:
            assert client.me().role == "admin"
        server.shutdown()
    assert seen == [("/v1/me", None)]


def public(kind: type) -> Dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_") or name in ("__init__",)}


def signature(member: Any) -> Any:
    if isinstance(member, (classmethod, staticmethod)):
        return type(member).__name__, signature(member.__func__)
    if isinstance(member, dual):
        return signature(member.on_object), signature(member.on_class)
    if isinstance(member, property):
        return "property", signature(member.fget)
    if not callable(member):
        return repr(type(member))
    found = inspect.signature(member)
    parameters = [(p.name, p.kind, plain(p.default), plain(p.annotation)) for p in found.parameters.values()]
    return parameters, plain(found.return_annotation), plain(inspect.getdoc(member))


def plain(text: Any) -> str:
    """Removes the differences between the two clients."""
    return re.sub(r"\bAsync(?=[A-Z])", "", str(text))


PAIRS = [(name, name[len("Async") :]) for name in belljar.__all__ if name.startswith("Async")]


def test_there_are_pairs() -> None:
    assert len(PAIRS) >= 15 and {"Sandbox", "Belljar", "CommandHandle", "PtyHandle"} <= {sync for _, sync in PAIRS}


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_both_clients_have_one_surface(asynchronous: str, synchronous: str) -> None:
    left, right = public(getattr(belljar, asynchronous)), public(getattr(belljar, synchronous))
    assert sorted(left) == sorted(right)
    for name in left:
        assert signature(left[name]) == signature(right[name]), name


def test_synchronous_client_is_what_the_script_makes() -> None:
    assert make_sync.stale() == {}, "run scripts/make_sync.py"


def test_synchronous_client_has_nothing_asynchronous() -> None:
    for path, text in make_sync.made():
        code = text.split("\n", 1)[1]
        assert not re.search(r"\b(async|await|Async[A-Z]\w*|asyncio)\b", code), path


def test_hand_written_parts_have_one_surface() -> None:
    import belljar._async._io as left
    import belljar._sync._io as right

    assert sorted(left.__all__) == sorted(right.__all__)


def test_everything_public_is_documented() -> None:
    for name in belljar.__all__:
        found = getattr(belljar, name)
        if inspect.isclass(found):
            assert inspect.getdoc(found), name
            for attribute, member in public(found).items():
                if callable(member) and attribute != "__init__":
                    assert inspect.getdoc(member), f"{name}.{attribute}"


def test_linters_download_nothing() -> None:
    # The package `pyright` fetches Node and itself when it first runs.
    pinned = {line.partition("==")[0] for line in (SDK / "constraints.txt").read_text("utf-8").splitlines()}
    assert "basedpyright" in pinned and not {"pyright", "nodeenv"} & pinned


def archive(*members: Tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    packed.seek(0)
    return packed


def member(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", data: bytes = b"", mode: int = 0o644
) -> Tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info, data


HOSTILE = [
    ("absolute", [member("/tmp/belljar-escape", data=b"x")]),
    ("parent", [member("../escape", data=b"x")]),
    ("inner parent", [member("a/../../escape", data=b"x")]),
    ("absolute link", [member("l", tarfile.SYMTYPE, "/etc/passwd")]),
    ("parent link", [member("d/l", tarfile.SYMTYPE, "../../escape")]),
    ("link behind a name", [member("s", tarfile.SYMTYPE, "."), member("l", tarfile.SYMTYPE, "s/../escape")]),
    ("device", [member("null", tarfile.CHRTYPE)]),
    ("pipe", [member("pipe", tarfile.FIFOTYPE)]),
]


@pytest.mark.parametrize(("name", "members"), HOSTILE)
def test_archives_stay_where_they_belong(tmp_path: Path, name: str, members: Any) -> None:
    result = _archive.unpack(archive(*members), tmp_path / "in" / "target", None)
    assert result.skipped
    assert [path for path in tmp_path.rglob("*") if path.name == "escape"] == []
    assert not Path("/tmp/belljar-escape").exists()
    for path in (tmp_path / "in" / "target").rglob("*"):
        assert str(path.resolve()).startswith(str(tmp_path / "in" / "target"))


def test_archives_do_not_write_through_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "there").symlink_to(outside)
    (target / "file").symlink_to(outside / "victim")
    with pytest.raises(belljar.SandboxException):
        _archive.unpack(archive(member("there/f", data=b"x")), target, None)
    _archive.unpack(archive(member("file", data=b"x")), target, None)
    assert list(outside.iterdir()) == [] and (target / "file").read_bytes() == b"x"
    _archive.unpack(archive(member("d", tarfile.SYMTYPE, "e"), member("e/f", data=b"y")), target, None)
    assert (target / "d" / "f").read_bytes() == b"y"


def test_archives_bring_no_rights_and_are_bounded(tmp_path: Path) -> None:
    _archive.unpack(archive(member("f", data=b"x", mode=0o6755)), tmp_path, None)
    assert os.stat(tmp_path / "f").st_mode & 0o7000 == 0
    with pytest.raises(belljar.NotEnoughSpaceException):
        _archive.unpack(archive(member("g", data=b"x" * 100)), tmp_path, 99)
    with pytest.raises(belljar.SandboxException):
        _archive.unpack(io.BytesIO(b"no archive"), tmp_path, None)


def test_archives_there_and_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "f").write_bytes(b"f")
    os.link(source / "a" / "f", source / "a" / "hard")
    (source / "l").symlink_to("a/f")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "s"))
        packed = io.BytesIO()
        assert _archive.pack(source, packed) == len(packed.getvalue())
    _archive.unpack(packed, tmp_path / "target", None)
    found = sorted(str(path.relative_to(tmp_path / "target")) for path in (tmp_path / "target").rglob("*"))
    assert found == ["a", "a/b", "a/f", "a/hard", "l"] and (tmp_path / "target" / "a" / "hard").read_bytes() == b"f"
    with pytest.raises(belljar.InvalidArgumentException):
        _archive.pack(tmp_path / "missing", io.BytesIO())
