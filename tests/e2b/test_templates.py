"""Templates built with the clients: steps, files, logs, tags, and refused features."""

import os
import socket
import traceback
import uuid
from pathlib import Path

import httpx
import pytest
from conftest import WAIT_TIMEOUT, until
from e2b import (
    AsyncTemplate,
    BuildException,
    FileUploadException,
    Sandbox,
    Template,
    TemplateException,
    wait_for_file,
)
from e2b.api.client.models import TemplateBuildFileUpload
from service import Service
from test_wire import new_key

HASH = "0123456789abcdef" * 4


def fresh(name):
    return f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def api(server):
    with httpx.Client(base_url=server.url, headers={"X-API-KEY": os.environ["E2B_API_KEY"]}) as client:
        yield client


@pytest.fixture
def context(tmp_path):
    """A directory like that of a user's program."""
    (tmp_path / "src/deep").mkdir(parents=True)
    (tmp_path / "src/main.py").write_text("print('main')\n")
    (tmp_path / "src/deep/data.txt").write_text("deep\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "notes.md").write_text("notes\n")
    (tmp_path / "secret.env").write_text("no\n")
    (tmp_path / ".dockerignore").write_text("*.env\n")
    os.symlink("main.py", tmp_path / "src/link.py")
    return tmp_path


def output_of(template, line):
    """Returns the output of a command in a sandbox of a template."""
    with Sandbox.create(template) as sandbox:
        return sandbox.commands.run(line).stdout


def start_of(context):
    return Template(file_context_path=str(context)).from_base_image()


def files_of(server, pattern):
    return sorted(Path(server.home).rglob(pattern))


def test_build_with_all_steps(server, context):
    name, logs = fresh("app"), []
    template = (
        start_of(context)
        .set_workdir("app")
        .set_envs({"GREETING": "hello", "WHERE": "$HOME/app"})
        .copy("src", "code")
        .copy("run.sh", "bin/", mode=0o700)
        .copy("*.md", ".")
        .run_cmd(["echo $GREETING from $WHERE > made.txt", "echo warned >&2"])
        .set_user("user")
        .run_cmd("bin/run.sh >> made.txt", user="user")
        .make_symlink("made.txt", "made.link")
        .set_start_cmd("echo $GREETING > started; exec sleep 600", wait_for_file("started"))
    )
    info = Template.build(template, name, cpu_count=1, memory_mb=256, on_build_logs=logs.append)
    assert (info.name, info.template_id, info.tags) == (name, name, ["default"])
    messages = [(entry.level, entry.message) for entry in logs]
    assert ("warn", "warned") in messages
    assert ("info", "[6/9] RUN echo $GREETING from $WHERE > made.txt && echo warned >&2") in messages
    assert ("info", "[finalize] the template is ready") in messages
    assert Template.exists(name)
    with Sandbox.create(name) as sandbox:
        run = lambda line: sandbox.commands.run(line).stdout
        assert run("pwd; cat made.txt; cat started") == "/home/user/app\nhello from /home/user/app\nran\nhello\n"
        assert run("echo $GREETING $WHERE") == "hello /home/user/app\n"
        assert run("ls -A . code code/deep bin").split() == (
            ".: bin code made.link made.txt notes.md started bin: run.sh code: deep link.py main.py code/deep: data.txt"
        ).split()
        assert run("stat -c %a bin/run.sh; readlink code/link.py made.link") == "700\nmain.py\nmade.txt\n"
        assert run("pgrep -x sleep | wc -l") == "1\n"
        assert (sandbox.get_info().memory_mb, sandbox.get_info().template_id) == (256, name)
    assert Template.exists(fresh("none")) is False


def test_templates_start_from_others(server, context):
    first, second = fresh("first"), fresh("second")
    Template.build(start_of(context).set_workdir("work").set_envs({"A": "1", "B": "1"}).run_cmd("echo 1 > one"), first)
    template = Template().from_template(first).set_envs({"B": "2$A"}).run_cmd("pwd > two; cat one >> two; echo $B >> two")
    Template.build(template, second)
    assert output_of(second, "cat two; echo $A$B") == "/home/user/work\n1\n21\n121\n"
    # Copies of a sandbox have the content of its template.
    with Sandbox.create(first) as sandbox:
        snapshot = sandbox.create_snapshot()
    assert output_of(snapshot.snapshot_id, "pwd; cat one") == "/home/user/work\n1\n"
    assert first not in [one.snapshot_id for one in Sandbox.list_snapshots().next_items()]


def test_uploads_are_cached(context):
    def messages(template):
        logs = []
        Template.build(template, fresh("cached"), on_build_logs=logs.append)
        return [entry.message for entry in logs if "pload" in entry.message]

    template = start_of(context).copy("notes.md", "notes.md")
    assert messages(template) == ["Uploaded 'notes.md'", "All file uploads completed"]
    assert messages(template) == ["Skipping upload of 'notes.md', already cached", "All file uploads completed"]
    forced = start_of(context).copy("notes.md", "notes.md", force_upload=True, gzip=False)
    assert messages(forced)[0] == "Uploaded 'notes.md'"


def test_build_in_background_and_its_log():
    gate = "until [ -e go ]; do sleep 0.05; done"
    template = Template().from_template("base").run_cmd("for n in $(seq 250); do echo line $n; done").run_cmd(gate)
    info = Template.build_in_background(template, fresh("slow"))
    until(lambda: len(Template.get_build_status(info, logs_offset=200).log_entries) >= 50, "the first step's output")
    status = Template.get_build_status(info)
    assert (status.status.value, len(status.log_entries), status.reason) == ("building", 100, None)
    assert status.log_entries[2].message == "line 1"
    # A build runs in a hidden sandbox of the caller, who may end it.
    assert all(one.template_id != info.name for one in Sandbox.list().next_items())
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    running = httpx.get(f"{os.environ['E2B_API_URL']}/v1/sandboxes", headers=headers).json()["sandboxes"]
    shown = {one.sandbox_id for one in Sandbox.list().next_items()}
    (hidden,) = [one["id"] for one in running if one["id"] not in shown]
    assert Sandbox.kill(hidden)
    until(lambda: Template.get_build_status(info).status.value == "error", "the end of the build")
    reason = Template.get_build_status(info).reason
    assert (reason.step, "gone" in reason.message) == ("2", True)
    assert Template.exists(info.name) is False


def line_of(error):
    return traceback.extract_tb(error.__traceback__)[-1].line


def test_failing_step_is_reported_with_its_line():
    template = (
        Template()
        .from_template("base")
        .run_cmd("true")
        .run_cmd("echo before; echo broken >&2; exit 3")
    )
    name = fresh("broken")
    with pytest.raises(BuildException, match=r"step 2 of 2 \(RUN\).*exit code 3") as raised:
        Template.build(template, name)
    # They come through two pipes, which have no order between them.
    assert {"before", "broken"} <= {line.strip() for line in str(raised.value).splitlines()}
    assert "broken" in line_of(raised.value)
    assert Template.exists(name) is False


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda t: t.from_template("base").run_cmd("id", user="root"), r"RUN: user \"root\" is not offered"),
        (lambda t: t.from_template("base").set_user("worker"), r"USER: user \"worker\" is not offered"),
        (lambda t: t.from_template("base").pip_install("requests"), "unless g is false"),
        (lambda t: t.from_template("base").copy("notes.md", "x", user="root"), "COPY: user"),
        (lambda t: t.from_template("base").set_envs({"A=B": "1"}), "ENV: "),
        (lambda t: t.from_image("python:3.13"), "not on this server; its operator can pull it with belljar image pull python:3.13"),
        (lambda t: t.from_image("private/x", username="u", password="p"), "credentials of registries"),
        (lambda t: t.from_template("no-such-template"), "template \"no-such-template\" not found"),
    ],
)
def test_invalid_builds_are_refused_before_they_start(context, api, make, message):
    template, logs = make(Template(file_context_path=str(context))), []
    with pytest.raises(BuildException, match=message) as raised:
        Template.build(template, fresh("refused"), on_build_logs=logs.append)
    assert "make" in line_of(raised.value) or "from_" in line_of(raised.value)
    assert not [entry for entry in logs if entry.message.startswith("[base]")]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda t: t.set_workdir("/nowhere/x"), r"step 1 of 1 \(WORKDIR\)(?s:.*)(denied|Read-only)"),
        (lambda t: t.remove("missing"), "No such file"),
        (lambda t: t.rename("missing", "other"), "cannot stat"),
        (lambda t: t.copy("notes.md", "/etc/notes"), r"\(COPY\)"),
        (lambda t: t.set_start_cmd("./no-such-program", "sleep 0.3"), r"\(start\)(?s:.*)127"),
    ],
)
def test_steps_that_fail(context, make, message):
    with pytest.raises(BuildException, match=message):
        Template.build(make(start_of(context)), fresh("fails"))


def test_tags(server, api):
    name = fresh("tagged")
    archives = len(files_of(server, "tpl_*.tar"))
    build = lambda text, *given, **named: Template.build(Template().from_template("base").run_cmd(f"echo {text} > v"), *given, **named)
    content = lambda of: output_of(of, "cat v").strip()
    first = build("one", f"{name}:v1", tags=["old", "v1"])
    assert first.tags == ["v1", "old"]
    assert Template.exists(name) and Template.exists(f"{name}:v1") and not Template.exists(f"{name}:v2")
    second = build("two", name)
    assert (content(name), content(f"{name}:default"), content(f"{name}:v1"), content(f"{name}:old")) == ("two", "two", "one", "one")
    assigned = Template.assign_tags(f"{name}:default", ["v2", "old"])
    assert (assigned.build_id, assigned.tags) == (second.build_id, ["v2", "old"])
    assert content(f"{name}:old") == "two"
    tags = {one.tag: one.build_id for one in Template.get_tags(name)}
    assert tags == {"default": second.build_id, "old": second.build_id, "v1": first.build_id, "v2": second.build_id}
    Template.remove_tags(name, ["v2", "old"])
    assert [one.tag for one in Template.get_tags(name)] == ["default", "v1"]
    for wrong in (lambda: Template.remove_tags(name, "v2"), lambda: Template.assign_tags(f"{name}:none", "x")):
        with pytest.raises(TemplateException, match="404"):
            wrong()
    for wrong in (lambda: Template.remove_tags(name, "default"), lambda: Template.assign_tags(name, "not a tag")):
        with pytest.raises(TemplateException, match="400"):
            wrong()
    assert {name, f"{name}:v1"} <= {one["names"][0] for one in api.get("/templates").json() if one["names"]}
    assert api.delete(f"/templates/{name}").status_code == 204
    assert not Template.exists(name) and not Template.exists(f"{name}:v1")
    with pytest.raises(TemplateException, match="404"):
        Template.get_tags(name)
    assert api.delete(f"/templates/{name}").status_code == 404
    assert len(files_of(server, "tpl_*.tar")) == archives


async def test_async_build(context):
    name, logs = fresh("async"), []
    template = AsyncTemplate(file_context_path=str(context)).from_base_image().copy("src/main.py", "main.py")
    info = await AsyncTemplate.build(template.run_cmd("python3 main.py"), name, on_build_logs=logs.append)
    assert "main" in [entry.message for entry in logs]
    assert await AsyncTemplate.exists(name)
    assert (await AsyncTemplate.get_build_status(info)).status.value == "ready"
    assert [one.build_id for one in await AsyncTemplate.get_tags(name)] == [info.build_id]
    failing = AsyncTemplate().from_template("base").run_cmd("exit 4")
    with pytest.raises(BuildException, match="exit code 4"):
        await AsyncTemplate.build(failing, name)
    # Existing files are kept.
    assert await AsyncTemplate.exists(name)


def request(api, name, **more):
    made = api.post("/v3/templates", json={"name": name, **more})
    assert made.status_code == 202, made.text
    return made.json()


def finished(api, build):
    path = f"/templates/{build['templateID']}/builds/{build['buildID']}/status"
    return until(lambda: (got := api.get(path).json())["status"] in ("ready", "error") and got, "the end of a build")


def test_wire_of_a_build(api):
    name = fresh("wire")
    made = api.post("/v2/templates", json={"alias": name, "tags": ["a"]})
    build = made.json()
    assert made.status_code == 202
    assert (build["templateID"], build["names"], build["tags"], build["public"]) == (name, [name], ["a"], False)
    status = f"/templates/{name}/builds/{build['buildID']}/status"
    waiting = api.get(status).json()
    assert (waiting["status"], waiting["logEntries"], waiting["logs"]) == ("waiting", [], [])
    plan = {"fromImage": "e2bdev/base:latest", "steps": [{"type": "RUN", "args": ["echo one; echo two >&2"]}], "force": True}
    start = f"/v2/templates/{name}/builds/{build['buildID']}"
    assert api.post(start, json=plan).status_code == 202
    assert api.post(start, json=plan).status_code == 400
    assert finished(api, build)["status"] == "ready"
    entries = api.get(status).json()["logEntries"]
    assert [(one["level"], one["message"], one["step"]) for one in entries if one["message"] in ("one", "two")] == [
        ("info", "one", "1"),
        ("warn", "two", "1"),
    ]
    page = api.get(status, params={"logsOffset": 1, "limit": 2}).json()["logEntries"]
    assert page == entries[1:3]
    assert [one["message"] for one in api.get(status, params={"level": "warn"}).json()["logEntries"]] == ["two"]
    assert api.get(status, params={"logsOffset": len(entries)}).json()["logEntries"] == []
    for wrong in ({"limit": 101}, {"level": "loud"}, {"logsOffset": -1}):
        assert api.get(status, params=wrong).status_code == 400
    assert api.get(f"/templates/other/builds/{build['buildID']}/status").status_code == 404


@pytest.mark.parametrize(
    "body, field",
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "Upper"}, "name"),
        ({"name": "a/b/c"}, "name"),
        ({"name": "default"}, "name"),
        ({"name": "x:"}, "tags"),
        ({"name": "x", "tags": ["a b"]}, "tags"),
        ({"name": "x", "tags": [f"t{n}" for n in range(17)]}, "tags"),
        ({"name": "x", "memoryMB": 0}, "memory"),
        ({"name": "x", "cpuCount": -1}, "cpuCount"),
    ],
)
def test_invalid_requests_are_refused(api, body, field):
    answer = api.post("/v3/templates", json=body)
    assert answer.status_code == 400 and field in answer.json()["message"], answer.text


def test_names_of_other_things_are_kept(api):
    with Sandbox.create() as sandbox:
        name = fresh("snap")
        sandbox.create_snapshot(name=name)
    assert api.post("/v3/templates", json={"name": name}).status_code == 400
    assert api.post("/templates/tags", json={"target": name, "tags": ["x"]}).status_code == 400
    assert Template.exists(name)


def cut_off(url, length, content):
    """A connection that sends less than its request announces."""
    at = httpx.URL(url)
    connection = socket.create_connection((at.host, at.port))
    head = f"PUT {at.path} HTTP/1.1\r\nHost: {at.host}:{at.port}\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall(head.encode() + content)
    connection.settimeout(WAIT_TIMEOUT)
    return connection


def test_upload_links(server, api):
    name = fresh("links")
    files = f"/templates/{name}/files"
    assert api.get(f"{files}/{HASH}").status_code == 404, "no build waits"
    request(api, name)
    for wrong in ("short", HASH.upper(), HASH + "0", "..%2F..%2Fetc%2Fpasswd"):
        assert api.get(f"{files}/{wrong}").status_code in (400, 404)
    answer = api.get(f"{files}/{HASH}")
    link = answer.json()
    assert (answer.status_code, link["present"]) == (201, False)
    # The link alone is sufficient, and valid for these files only.
    for forged in (link["url"][:-1], link["url"] + "0", f"{server.url}/uploads/{HASH}", f"{server.url}/uploads/x"):
        refused = httpx.put(forged, content=b"x")
        assert (refused.status_code, refused.json()["code"]) == (401, 401)
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    assert httpx.put(f"{server.url}/uploads/{HASH}", content=b"x", headers=headers).status_code == 401
    assert httpx.get(link["url"]).status_code == 405
    # Too large uploads are refused before they are sent, and interrupted ones leave nothing behind.
    with cut_off(link["url"], (512 << 20) + 1, b"x") as connection:
        assert b" 400 " in connection.recv(64)
    with cut_off(link["url"], 100, b"x" * 10):
        until(lambda: files_of(server, "part-*"), "the begin of an upload")
    until(lambda: not files_of(server, "part-*"), "the end of an upload")
    assert not files_of(server, f"*{HASH}")
    assert httpx.put(link["url"], content=b"not an archive").status_code == 200
    assert api.get(f"{files}/{HASH}").json()["present"] is True
    (kept,) = files_of(server, f"*-{HASH}")
    assert kept.stat().st_mode & 0o777 == 0o600
    # The server cannot tell whether archives are what their hash says, so another key of the tenant is not offered them.
    with httpx.Client(base_url=server.url, headers={"X-API-KEY": new_key(server)["key"]}) as colleague:
        assert colleague.get(f"{files}/{HASH}").json()["present"] is False
    # Another tenant has its own files, even with the same hash.
    other = new_key(server, tenant="uploads")
    with httpx.Client(base_url=server.url, headers={"X-API-KEY": other["key"]}) as foreign:
        assert foreign.get(f"{files}/{HASH}").status_code == 404
        request(foreign, name)
        assert foreign.get(f"{files}/{HASH}").json()["present"] is False


def copying(args, files_hash=HASH):
    return {"fromTemplate": "base", "steps": [{"type": "COPY", "args": args, "filesHash": files_hash}]}


def test_copies_of_missing_files(api):
    def failure(plan, content=None):
        build = request(api, fresh("copies"))
        if content is not None:
            url = api.get(f"/templates/{build['templateID']}/files/{plan['steps'][0]['filesHash']}").json()["url"]
            httpx.put(url, content=content)
        api.post(f"/v2/templates/{build['templateID']}/builds/{build['buildID']}", json=plan)
        ended = finished(api, build)
        assert ended["status"] == "error" and ended["reason"]["step"] == "1"
        assert ended["logEntries"][-1]["level"] == "error"
        return ended["reason"]["message"]

    assert "did not come" in failure(copying(["a", "b", "", ""], "f" * 64))
    assert "archive" in failure(copying(["a", "b", "", ""], "e" * 64), b"not an archive")
    assert "no missing" in failure(copying(["missing", "b", "", ""], "d" * 64), b"\0" * 1024)
    for args in (["../a", "b"], ["/etc/passwd", "b"], ["a"], ["a", "b", "", "4755"]):
        assert "COPY" in failure(copying(args))
    assert "filesHash" in failure(copying(["a", "b"], "short"))


def test_builds_of_other_tenants_are_invisible(server, api):
    def attack(at, key):
        """Returns the responses to another tenant for a build, by its ids."""
        with httpx.Client(base_url=at.url, headers={"X-API-KEY": key}) as owner:
            build = request(owner, fresh("foreign"))
        other = new_key(at, tenant="other-tenant")
        with httpx.Client(base_url=at.url, headers={"X-API-KEY": other["key"]}) as foreign:
            path = f"templates/{build['templateID']}"
            status = foreign.get(f"/{path}/builds/{build['buildID']}/status").status_code
            link = foreign.get(f"/{path}/files/{HASH}").status_code
            start = foreign.post(f"/v2/{path}/builds/{build['buildID']}", json={"fromTemplate": "base"}).status_code
        return [status, link, start]

    assert attack(server, os.environ["E2B_API_KEY"]) == [404, 404, 404]
    lacking = Service(os.environ["BELLJAR_BIN"], arguments=["--e2b"], without="service:tenants")
    try:
        assert attack(lacking, lacking.key) == [200, 201, 202]
    finally:
        lacking.close()


def test_quotas_and_roles_hold_for_builds(server, api):
    headers = {"Authorization": f"Bearer {server.key}"}

    def key(**more):
        made = httpx.post(f"{server.url}/v1/keys", json={"name": "limited", **more}, headers=headers)
        assert made.status_code == 201, made.text
        return made.json()["key"]

    none = key(role="user", quotas={"sandboxes": 0, "disk_bytes": 1000})
    with pytest.raises(BuildException, match="sandboxes: 0 of 0"):
        Template.build(Template().from_template("base").run_cmd("true"), fresh("none"), api_key=none)
    with httpx.Client(base_url=server.url, headers={"X-API-KEY": none}) as limited:
        build = request(limited, fresh("none"))
        url = limited.get(f"/templates/{build['templateID']}/files/{'c' * 64}").json()["url"]
    refused = httpx.put(url, content=b"x" * 1001)
    assert refused.status_code == 429 and "upload_bytes" in refused.json()["message"]
    reader = key(role="read")
    for path, body in (("/v3/templates", {"name": "x"}), ("/templates/tags", {"target": "x", "tags": ["y"]})):
        assert httpx.post(server.url + path, json=body, headers={"X-API-KEY": reader}).status_code == 403
    # A link expires with its key.
    short = new_key(server)
    with httpx.Client(base_url=server.url, headers={"X-API-KEY": short["key"]}) as client:
        build = request(client, fresh("short"))
        url = client.get(f"/templates/{build['templateID']}/files/{'b' * 64}").json()["url"]
    assert httpx.delete(f"{server.url}/v1/keys/{short['id']}", headers=headers).status_code == 204
    assert httpx.put(url, content=b"x").status_code == 401


def test_builds_are_in_the_audit(server, context):
    # A separate key: many refusals of one key are only counted.
    key = new_key(server)
    name, given = fresh("audited"), {"api_key": key["key"]}
    info = Template.build(start_of(context).copy("notes.md", "audited.md"), name, **given)
    with pytest.raises(BuildException):
        Template.build(Template().from_image("python:3"), name, **given)
    headers = {"Authorization": f"Bearer {server.key}"}
    records = httpx.get(f"{server.url}/v1/audit?limit=1000&key={key['id']}", headers=headers).json()["records"]
    builds = [one for one in records if one["action"] == "template.build"]
    assert [one["outcome"] for one in builds] == ["ok", "invalid_field"]
    assert (builds[0]["details"]["build"], builds[0]["details"]["base"]) == (info.build_id, "default")
    (upload,) = [one for one in records if one["action"] == "template.upload"]
    assert int(upload["details"]["bytes"]) > 0
    # Actions of the steps are recorded as in any sandbox.
    assert {"sandbox.create", "file.unpack", "exec.start", "sandbox.kill"} <= {one["action"] for one in records}


def test_a_refused_upload_is_the_clients_own_error(server, context, monkeypatch):
    forged = TemplateBuildFileUpload(present=False, url=f"{server.url}/uploads/forged")
    monkeypatch.setattr("e2b.template_sync.main.get_file_upload_link", lambda *given: forged)
    with pytest.raises(FileUploadException, match="401"):
        Template.build(start_of(context).copy("notes.md", "x"), fresh("upload"))


def test_a_build_ends_with_its_server(context):
    at = Service(os.environ["BELLJAR_BIN"], on_exit="keep", arguments=["--e2b"])
    try:
        given = {"api_url": at.url, "sandbox_url": at.url, "api_key": at.key}
        template = Template().from_template("base").run_cmd("echo begun; sleep 600")
        info = Template.build_in_background(template, fresh("cut"), **given)
        begun = lambda: "begun" in [one.message for one in Template.get_build_status(info, **given).log_entries]
        until(begun, "the first step")
        headers = {"X-API-KEY": at.key}
        count = lambda: len(httpx.get(f"{at.url}/v1/sandboxes", headers=headers).json()["sandboxes"])
        assert count() == 1
        at.stop()
        at.start("end")
        assert httpx.get(f"{at.url}/v1/sandboxes", headers={"X-API-KEY": given["api_key"]}).json()["sandboxes"] == []
        with pytest.raises(BuildException, match="404"):
            Template.get_build_status(info, **given)
    finally:
        at.close()
