"""Wrong arguments: errors that name what is right."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Callable, List, Tuple

import pytest

import belljar
from belljar import ArgumentTypeException, InvalidArgumentException
from belljar._arguments import _HINTS


def loosely(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function without a type checker's view of it."""
    return function(*args, **kwargs)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("memory", 'limits={"memory": …}'),
        ("cpu_count", "limits="),
        ("timeout_ms", "timeout, in seconds"),
        ("env", "envs"),
        ("enves", "envs"),
        ("onTimeout", "on_timeout"),
        ("allow_internet_access", 'network="open"'),
        ("api_kee", "api_key"),
        ("zzz", "its arguments are api_key, api_url"),
    ],
)
async def test_unknown_names(api: Any, name: str, suggested: str) -> None:
    with pytest.raises(ArgumentTypeException) as refused:
        await api.Sandbox.create(**{name: "1g"})
    assert f"create() has no argument {name!r}; " in str(refused.value) and suggested in str(refused.value)
    assert refused.value.field == name
    # As Python's own.
    assert isinstance(refused.value, TypeError) and isinstance(refused.value, InvalidArgumentException)


@pytest.mark.asyncio
async def test_unknown_names_of_every_kind_of_call(sbx: Any, api: Any, client: Any) -> None:
    attempts: List[Tuple[Callable[[], Any], str]] = [
        (lambda: sbx.run_code("1", lang="python"), "language"),
        (lambda: sbx.run_code("1", environment={}), "envs"),
        (lambda: sbx.commands.run("true", workdir="/"), "cwd"),
        (lambda: sbx.commands.run("true", request_timout=1), "request_timeout"),
        (lambda: sbx.files.write("a", "b", mod=1), "mode"),
        (lambda: sbx.files.read("a", formt="text"), "format"),
        (lambda: sbx.git.clone("https://example.org", pasword="x"), "password"),
        (lambda: sbx.git.status("r", timout=1), "timeout"),
        (lambda: sbx.pty.create(sise=1), "size"),
        (lambda: sbx.set_limits(memry="1g"), "memory"),
        (lambda: sbx.set_timeout(time_out=1), "timeout"),
        (lambda: api.Sandbox.kill("x", api_kye="k"), "api_key"),
        (lambda: client.sandboxes.create(memory="1g"), "limits="),
        (lambda: client.keys.create("n", rol="user"), "role"),
        (lambda: client.keys.list(limt=1), "limit"),
        (lambda: client.secrets.create("n", "v", host="h"), "hosts"),
        (lambda: client.secrets.list(next_tokn="x"), "next_token"),
        (lambda: api.Belljar(api_kee="k"), "api_key"),
        (lambda: loosely(belljar.Template, "t", bas="debian"), "base"),
    ]
    for call, suggested in attempts:
        with pytest.raises(ArgumentTypeException, match="did you mean") as refused:
            done = call()
            if inspect.isawaitable(done):
                await done
        assert suggested in str(refused.value), refused.value


def test_every_public_call_is_checked() -> None:
    for name in belljar.__all__:
        kind = getattr(belljar, name)
        if not isinstance(kind, type) or not kind.__module__.startswith(("belljar._async", "belljar._sync", "belljar.template")):
            continue
        for attribute, member in inspect.getmembers(kind, inspect.isfunction):
            if not attribute.startswith("_"):
                assert hasattr(member, "__wrapped__"), f"{name}.{attribute}"


def test_suggestions_exist() -> None:
    names = set(belljar._async.sandbox.SandboxOptions.__annotations__)
    names |= set(belljar._config.ConnectionOptions.__annotations__) | {"template", "timeout", "cwd", "language"}
    assert {needed for needed, _ in _HINTS.values()} <= names


@pytest.mark.asyncio
async def test_values_of_a_wrong_type(sbx: Any, api: Any, client: Any) -> None:
    attempts: List[Tuple[Callable[[], Any], str, str]] = [
        (lambda: sbx.run_code(5), "code", "code must be a string, not 5 (int)"),
        (lambda: sbx.run_code(None), "code", "not None"),
        (lambda: sbx.run_code("1", envs=["A=1"]), "envs", "a mapping of strings"),
        (lambda: sbx.run_code("1", timeout=[1]), "timeout", 'a string such as "10m"'),
        (lambda: sbx.files.write("a", None), "data", "data must be a string, bytes, an open file"),
        (lambda: sbx.files.write("a", {"b": 1}), "data", "not {'b': 1} (dict)"),
        (lambda: sbx.files.write("a", ["text"]), "a piece of data", "must be bytes"),
        (lambda: sbx.files.write(None, "b"), "path", "path must be a path"),
        (lambda: sbx.files.write_files([{"path": "a", "data": None}]), "data", "not None"),
        (lambda: sbx.files.read(5), "path", "not 5 (int)"),
        (lambda: sbx.files.put_archive("a", None), "data", "not None"),
        (lambda: sbx.commands.run(5), "cmd", 'such as ["ls", "-l"]'),
        (lambda: sbx.commands.run(b"true"), "cmd", "(bytes)"),
        (lambda: sbx.commands.run(["echo", None]), "cmd[1]", "cmd[1] must be a string, not None"),
        (lambda: sbx.commands.run("true", envs={"A": 1}), "envs['A']", "envs['A'] must be a string, not 1 (int)"),
        (lambda: sbx.commands.run("true", stdin=5), "stdin", "a string or bytes"),
        (lambda: sbx.commands.run("true", timeout=True), "timeout", "not True (bool)"),
        (lambda: sbx.set_timeout((None and 1) or {}), "timeout", "timedelta"),
        (lambda: sbx.update(labels={"a": 1}), "labels['a']", "must be a string"),
        (lambda: api.Sandbox.connect(None), "sandbox_id", "not None"),
        (lambda: api.Sandbox.create(envs={1: "x"}), "a key of envs", "must be a string"),
        (lambda: api.Sandbox.create(files={"a": None}), "files['a']", "a string or bytes"),
        (lambda: api.Sandbox.create(labels="a=b"), "labels", "a mapping"),
        (lambda: api.Sandbox.create(limits="1g"), "limits", """such as {"memory": "1g"}"""),
        (lambda: api.Sandbox.create(network=True), "network", "not True (bool)"),
        (lambda: api.Sandbox.create(files=["a"]), "files", "a mapping"),
        (lambda: api.Sandbox.create(mounts="/a:/b"), "mounts", "a list of strings"),
        (lambda: api.Sandbox.create(mounts=[1]), "mounts[0]", "must be a string"),
        (lambda: api.Sandbox.create(volumes={"name": "v", "path": "/v"}), "volumes", "a list such as"),
        (lambda: client.keys.create("n", quotas=5), "quotas", "not 5 (int)"),
        (lambda: client.secrets.create("n", "v", hosts="api.example.com"), "hosts", """such as ["api.example.com"]"""),
        (lambda: client.secrets.update("n", "v", hosts=[None]), "hosts[0]", "not None"),
        (lambda: client.secrets.create("n", "v", metadata={"a": 1}), "metadata['a']", "not 1 (int)"),
    ]
    for call, field, said in attempts:
        with pytest.raises(InvalidArgumentException) as refused:
            await call()
        assert refused.value.field == field and said in str(refused.value), refused.value


@pytest.mark.asyncio
async def test_a_file_opened_as_text(sbx: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with open(tmp_path / "f") as file, pytest.raises(ArgumentTypeException, match='opened with the mode "rb"'):
        await sbx.files.write("a", file)


@pytest.mark.asyncio
async def test_limits_and_policies_that_are_misspelled(api: Any, real: None) -> None:
    for options, field in (({"limits": {"memroy": "1g"}}, "limits.memroy"), ({"network": {"alow": []}}, "network")):
        with pytest.raises(InvalidArgumentException) as refused:
            await api.Sandbox.create(**options)
        assert str(refused.value.field).startswith(field), refused.value
