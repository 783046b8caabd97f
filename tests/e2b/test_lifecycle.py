"""Sandboxes from creation to end."""

import datetime
import uuid

import pytest
from conftest import until
from e2b import (
    AuthenticationException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
)

LISTED = {"suite": "lists"}


def test_create_run_kill():
    sandbox = Sandbox.create()
    assert sandbox.is_running()
    assert sandbox.commands.run("echo hello").stdout == "hello\n"
    assert sandbox.kill() is True
    assert sandbox.is_running() is False
    assert sandbox.kill() is False


def test_context_manager_kills():
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()
    assert sandbox.is_running() is False


def test_info_has_the_requested_values():
    metadata = {"user": "ada", "odd key = 1": "tab\there", "": "no key", "long": "ü" * 700}
    with Sandbox.create(timeout=90, metadata=metadata) as sandbox:
        info = sandbox.get_info()
        assert info.sandbox_id == sandbox.sandbox_id
        assert info.metadata == metadata
        assert info.state == SandboxState.RUNNING
        assert (info.template_id, info.name) == ("base", "base")
        assert info.cpu_count >= 1 and info.memory_mb > 0
        assert info.envd_version == "0.6.13"
        left = info.end_at - datetime.datetime.now(datetime.UTC)
        assert 30 < left.total_seconds() <= 90


def test_class_methods_take_an_id(own):
    assert Sandbox.get_info(own.sandbox_id).sandbox_id == own.sandbox_id
    Sandbox.set_timeout(own.sandbox_id, 300)
    assert Sandbox.connect(own.sandbox_id).commands.run("true").exit_code == 0


@pytest.mark.parametrize("template", ["base", "base:default", "code-interpreter-v1", "default"])
def test_templates_that_clients_expect(template):
    with Sandbox.create(template) as sandbox:
        assert sandbox.is_running()


def test_unknown_template():
    with pytest.raises(SandboxException, match="404.*no-such-template"):
        Sandbox.create("no-such-template")


def test_wrong_key():
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 64)


def test_too_long_timeout():
    with pytest.raises(SandboxException, match="400"):
        Sandbox.create(timeout=100 * 3600)


def test_envs_are_in_every_command():
    with Sandbox.create(envs={"FOO": "bar"}) as sandbox:
        assert sandbox.commands.run("echo $FOO").stdout == "bar\n"
        assert sandbox.commands.run("echo $FOO", envs={"FOO": "other"}).stdout == "other\n"


def test_sandbox_has_its_id_in_its_environment(own):
    assert own.commands.run("echo $E2B_SANDBOX $E2B_SANDBOX_ID").stdout == f"true {own.sandbox_id}\n"


def test_set_timeout_ends_it(own):
    own.set_timeout(0)
    until(lambda: not own.is_running(), "the end")
    with pytest.raises(NotFoundException):
        own.get_info()


def test_missing_sandbox():
    with pytest.raises(NotFoundException):
        Sandbox.connect("a0000000000000000000")
    with pytest.raises(NotFoundException):
        Sandbox.get_info("a0000000000000000000")
    with pytest.raises(NotFoundException):
        Sandbox.set_timeout("a0000000000000000000", 10)
    assert Sandbox.kill("a0000000000000000000") is False


def test_commands_in_an_ended_sandbox():
    sandbox = Sandbox.create()
    sandbox.kill()
    with pytest.raises(Exception, match="sandbox"):
        sandbox.commands.run("true")
    with pytest.raises(Exception, match="sandbox"):
        sandbox.files.read("a.txt")


def test_pause_and_connect(own):
    own.files.write("kept.txt", "kept")
    running = own.commands.run("sleep 1000", background=True)
    assert own.pause() is True
    assert own.pause() is False
    assert own.is_running() is False
    assert own.get_info().state == SandboxState.PAUSED
    again = Sandbox.connect(own.sandbox_id)
    assert again.files.read("kept.txt") == "kept"
    assert again.get_info().state == SandboxState.RUNNING
    assert running.pid in [process.pid for process in again.commands.list()]


def test_connect_never_shortens_the_timeout(own):
    before = own.get_info().end_at
    Sandbox.connect(own.sandbox_id, timeout=10)
    assert own.get_info().end_at == before
    Sandbox.connect(own.sandbox_id, timeout=3600)
    assert own.get_info().end_at > before


def test_pause_on_timeout():
    sandbox = Sandbox.create(lifecycle={"on_timeout": "pause"})
    try:
        sandbox.set_timeout(0)
        until(lambda: sandbox.get_info().state == SandboxState.PAUSED, "the pause")
        assert sandbox.get_info().lifecycle["on_timeout"] == "pause"
    finally:
        sandbox.kill()


def test_auto_resume():
    sandbox = Sandbox.create(lifecycle={"on_timeout": "pause", "auto_resume": True})
    try:
        sandbox.pause()
        assert sandbox.commands.run("echo awake").stdout == "awake\n"
    finally:
        sandbox.kill()


@pytest.fixture(scope="module")
def three():
    made = [Sandbox.create(metadata={**LISTED, "a b": f"c&{number}"}) for number in range(3)]
    yield [sandbox.sandbox_id for sandbox in made]
    for sandbox in made:
        sandbox.kill()


def listed(limit=None, order=None, **query):
    pages = Sandbox.list(query=SandboxQuery(**query), limit=limit, order=order)
    found = []
    while pages.has_next:
        page = pages.next_items()
        assert limit is None or len(page) <= limit
        found += [info.sandbox_id for info in page]
    return found


def test_list_filters_by_metadata(three):
    assert sorted(listed(metadata=LISTED)) == sorted(three)
    assert listed(metadata={"a b": "c&1"}) == [three[1]]
    assert listed(metadata={"a b": "c"}) == []


def test_list_pages(three):
    assert listed(limit=1, metadata=LISTED) == three[::-1]
    assert listed(limit=2, metadata=LISTED, order="asc") == three


def test_list_filters_by_state(three):
    Sandbox.pause(three[0])
    assert listed(metadata=LISTED, state=[SandboxState.PAUSED]) == [three[0]]
    assert sorted(listed(metadata=LISTED, state=[SandboxState.RUNNING])) == sorted(three[1:])
    assert len(listed(metadata=LISTED, state=[SandboxState.RUNNING, SandboxState.PAUSED])) == 3
    Sandbox.connect(three[0])


def test_list_filters_by_metadata_invalid_as_labels():
    odd = {"k=v": "line\nbreak", "long": "x" * 300}
    with Sandbox.create(metadata=odd) as sandbox:
        assert listed(metadata=odd) == [sandbox.sandbox_id]


def test_metrics(own):
    metrics = own.get_metrics()
    assert len(metrics) == 1
    assert metrics[0].cpu_count >= 1 and metrics[0].mem_total > metrics[0].mem_used > 0
    assert metrics[0].disk_total > 0


def test_fork_has_the_files(own):
    own.files.write("data.txt", "forked")
    forks = own.fork(count=2)
    try:
        assert [fork.files.read("data.txt") for fork in forks] == ["forked", "forked"]
        forks[0].files.write("data.txt", "changed")
        assert own.files.read("data.txt") == "forked"
    finally:
        for fork in forks:
            fork.kill()


def test_snapshots(own):
    own.files.write("data.txt", "snapped")
    snapshot = own.create_snapshot()
    with Sandbox.create(snapshot.snapshot_id) as sandbox:
        assert sandbox.files.read("data.txt") == "snapped"
    pages = own.list_snapshots()
    assert snapshot.snapshot_id in [info.snapshot_id for info in pages.next_items()]
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False


@pytest.mark.parametrize("name", ["My_snapshot.v1-{}", "Team/My_snapshot-{}:v1.0", "x" * 60 + "-{}"])
def test_snapshots_have_the_names_that_clients_make(own, name):
    name = name.format(uuid.uuid4())
    own.files.write("data.txt", "named")
    snapshot = own.create_snapshot(name=name)
    assert snapshot.names == [name]
    for reference in (name, snapshot.snapshot_id):
        with Sandbox.create(reference) as sandbox:
            assert sandbox.files.read("data.txt") == "named"
    assert Sandbox.delete_snapshot(name) is True
    with pytest.raises(SandboxException, match="name"):
        own.create_snapshot(name="no spaces")


def test_network_of_a_running_sandbox(own):
    assert own.get_info().allow_internet_access is True
    own.update_network({"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]})
    own.update_network({})
    with pytest.raises(SandboxException, match="ALL_TRAFFIC"):
        own.update_network({"allow_out": ["example.com"]})


def test_no_internet_access():
    with Sandbox.create(allow_internet_access=False) as sandbox:
        assert sandbox.commands.run("ls /sys/class/net 2>/dev/null || true").exit_code == 0
        assert sandbox.get_info().allow_internet_access is False


@pytest.mark.parametrize(
    "given, what",
    [
        ({"network": {"allow_out": ["example.com"]}}, "ALL_TRAFFIC"),
        ({"network": {"mask_request_host": "local host"}}, "maskRequestHost"),
        ({"template": "base", "mcp": {"browserbase": {"apiKey": "k", "projectId": "p", "geminiApiKey": "g"}}}, "does not offer"),
    ],
)
def test_unsupported_options_are_refused(given, what):
    with pytest.raises(SandboxException, match=what):
        Sandbox.create(**given)


def test_pause_without_memory_is_refused(own):
    with pytest.raises(SandboxException, match="does not offer"):
        own.pause(keep_memory=False)
