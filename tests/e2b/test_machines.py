"""Templates with root, built with the clients on a server that allows them."""

import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import uuid
from pathlib import Path

import pytest
from e2b import BuildException, Sandbox, Template
from service import Service
from test_wire import new_key

PROGRAMS = ["bash", "sh", "cat", "ls", "id", "mkdir", "rm", "cp", "mv", "chown", "chmod", "dirname", "stat", "head", "env", "ln", "grep", "touch"]
PEOPLE = {
    "etc/passwd": b"root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\nwww-data:x:33:33::/srv:/bin/sh\n",
    "etc/group": b"root:x:0:\nuser:x:1000:\nwww-data:x:33:\n",
}


def write_image(directory: Path) -> None:
    """Writes an image of programs of this machine, as a layout directory of the image specification."""
    files = {name: (0o644, content) for name, content in PEOPLE.items()}
    for program in PROGRAMS:
        path = shutil.which(program)
        files[f"bin/{program}"] = (0o755, Path(path).read_bytes())
        for word in subprocess.run(["ldd", path], capture_output=True, text=True).stdout.split():
            if word.startswith("/"):
                files[word[1:]] = (0o755, Path(word).read_bytes())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, (mode, content) in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.mode, member.size = mode, len(content)
            tar.addfile(member, io.BytesIO(content))
    plain = packed.getvalue()
    blobs = directory / "blobs/sha256"
    blobs.mkdir(parents=True)

    def add(kind: str, content: bytes) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    layer = add("layer.v1.tar+gzip", gzip.compress(plain, mtime=0))
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    diff = "sha256:" + hashlib.sha256(plain).hexdigest()
    config = {"architecture": machine, "os": "linux", "config": {"Env": ["PATH=/usr/bin:/bin"]}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
    settings = add("config.v1+json", json.dumps(config).encode())
    manifest = add("manifest.v1+json", json.dumps({"schemaVersion": 2, "config": settings, "layers": [layer]}).encode())
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


@pytest.fixture(scope="module")
def machines(tmp_path_factory, server):
    """A server that allows machines, with a template of that image."""
    if os.geteuid() != 0:
        pytest.skip("machines need a server that runs as root")
    directory = tmp_path_factory.mktemp("image")
    write_image(directory / "image")
    (directory / "small.toml").write_text('name = "small"\nbase = "oci"\nimage = "image"\n')
    service = Service(os.environ["BELLJAR_BIN"], arguments=["--e2b", "--set", "sandboxes.machines=true"])
    known = {name: os.environ[name] for name in os.environ if name.startswith("E2B_")}
    try:
        for line in service.said().splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            if name.startswith("E2B_"):
                os.environ[name] = value
        environment = {**os.environ, "BELLJAR_HOME": service.home}
        program = [os.environ["BELLJAR_BIN"], "template", "build", str(directory / "small.toml")]
        subprocess.run(program, env=environment, check=True, capture_output=True)
        yield service
    finally:
        for name in [name for name in os.environ if name.startswith("E2B_")]:
            del os.environ[name]
        os.environ.update(known)
        service.close()


def fresh(name):
    return f"{name}-{uuid.uuid4().hex[:8]}"


def test_steps_run_as_their_users(machines, tmp_path):
    (tmp_path / "app.txt").write_text("app\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/own.txt").write_text("own\n")
    name = fresh("rooted")
    template = (
        Template(file_context_path=str(tmp_path))
        .from_template("small")
        .run_cmd("id -u > first")
        .set_user("root")
        .run_cmd("mkdir -p /srv /opt/tool && echo tool > /opt/tool/run && id -u > /opt/who && chown 33:33 /srv")
        .run_cmd("touch /srv/made && id -u > /srv/who", user="www-data")
        .copy("app.txt", "/etc/app/app.txt")
        .copy("mine", "/srv/mine", user="www-data")
        .set_workdir("/app")
        .run_cmd("echo $PWD > where")
        .set_user("user")
        .set_workdir("work")
        .copy("app.txt", "copied.txt")
        .run_cmd("id -u > mine; (echo no > /etc/app/app.txt) 2>/dev/null || echo refused > kept")
    )
    # The key has the role user alone.
    key = new_key(machines)["key"].replace("bj_", "e2b_")
    info = Template.build(template, name, api_key=key)
    assert info.name == name
    with Sandbox.create(name, api_key=key) as sandbox:
        run = lambda line, **more: sandbox.commands.run(line, **more).stdout
        assert run("pwd; id -u; cat ~/first /opt/who /srv/who").split() == "/app/work 1000 1000 0 33".split()
        assert run("cat /app/where mine kept").split() == "/app 1000 refused".split()
        owners = "stat -c '%n %U:%G' /opt/tool/run /srv/made /srv/mine /srv/mine/own.txt /etc/app/app.txt /app copied.txt"
        assert [line.split()[1] for line in run(owners).splitlines()] == (
            "root:root www-data:www-data www-data:www-data www-data:www-data root:root root:root user:user".split()
        )
        assert run("id -u", user="root") == "0\n"


def test_bad_users_are_refused(machines):
    with pytest.raises(BuildException, match="nobody-here"):
        Template.build(Template().from_template("small").run_cmd("id", user="nobody-here"), fresh("bad"))
    with pytest.raises(BuildException, match="is not allowed"):
        Template.build(Template().from_template("small").run_cmd("id", user="a b"), fresh("bad"))
    # The machine's own tree cannot be one.
    with pytest.raises(BuildException, match="is not offered"):
        Template.build(Template().from_base_image().run_cmd("id", user="root"), fresh("bad"))
