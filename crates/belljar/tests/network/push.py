"""Makes a small image of programs of this machine, and pushes it to a registry without TLS: HOST REPOSITORY TAG [NAME CONTENT].

With docker:FILE for HOST it writes the tar that docker save writes, with oci:DIR an image layout.
"""

import gzip
import hashlib
import io
import json
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import urllib.request

host, repository, tag = sys.argv[1:4]
more = dict([sys.argv[4:6]]) if len(sys.argv) > 4 else {}


def request(method, url, body=None, kind="application/octet-stream"):
    asked = urllib.request.Request(url, body, {"Content-Type": kind}, method=method)
    return urllib.request.urlopen(asked)


blobs = {}
kind, _, place = host.partition(":")
is_saved = kind in ("docker", "oci")


def push(content):
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    if is_saved:
        blobs[digest] = content
        return {"digest": digest, "size": len(content)}
    place = request("POST", f"http://{host}/v2/{repository}/blobs/uploads/", b"").headers["Location"]
    request("PUT", place + ("&" if "?" in place else "?") + "digest=" + digest, content)
    return {"digest": digest, "size": len(content)}


def layer(files):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="w", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for name, (mode, content, *owner) in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.mode, member.size = mode, len(content)
            member.uid = member.gid = owner[0] if owner else 0
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def read(path):
    with open(path, "rb") as file:
        return file.read()


programs = {}
# Those that the steps of builds need, too.
for name in ["sh", "cat", "ls", "id", "mkdir", "rm", "ln", "bash", "grep", "test", "head", "stat"]:
    path = shutil.which(name)
    programs["bin/" + name] = (0o755, read(path))
    for word in subprocess.run(["ldd", path], capture_output=True, text=True).stdout.split():
        if word.startswith("/"):
            programs[word[1:]] = (0o755, read(word))
# Images without it are tested too.
programs["bin/bash-for-later"] = programs.pop("bin/bash")
people = {
    "etc/passwd": (0o644, b"root:x:0:0::/root:/bin/sh\nwww:x:33:33::/srv:/bin/sh\n"),
    "etc/group": (0o644, b"root:x:0:\nwww:x:33:\nshared:x:50:www\n"),
    "srv/theirs": (0o640, b"theirs\n", 33),
    "bin/id-as-root": (0o4755, programs["bin/id"][1]),
}
layers = [layer(programs), layer(people), layer({"app/kept": (0o644, b"kept\n")})]
layers += [layer({name: (0o644, content.encode())}) for name, content in more.items()]
machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
diff_ids = ["sha256:" + hashlib.sha256(gzip.decompress(one)).hexdigest() for one in layers]
config = {
    "architecture": machine,
    "os": "linux",
    "config": {
        "Env": ["PATH=/bin", "FROM_IMAGE=yes"],
        "WorkingDir": "/app",
        "User": "www",
        "Entrypoint": ["/bin/entry"],
        "Cmd": ["/bin/sh"],
        "Volumes": {"/data": {}},
        "StopSignal": "SIGINT",
    },
    "rootfs": {"type": "layers", "diff_ids": diff_ids},
}
image = "application/vnd.oci.image"
manifest = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": f"{image}.manifest.v1+json",
        "config": {"mediaType": f"{image}.config.v1+json", **push(json.dumps(config).encode())},
        "layers": [{"mediaType": f"{image}.layer.v1.tar+gzip", **push(one)} for one in layers],
    }
).encode()
digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
if kind == "docker":
    text = json.dumps(config).encode()
    name = hashlib.sha256(text).hexdigest() + ".json"
    files = {name: text}
    for number, one in enumerate(layers):
        files[f"{number}/layer.tar"] = gzip.decompress(one)
    saved = [{"Config": name, "RepoTags": [f"{repository}:{tag}"], "Layers": [f"{n}/layer.tar" for n in range(len(layers))]}]
    files["manifest.json"] = json.dumps(saved).encode()
    with tarfile.open(place, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    sys.exit()
if kind == "oci":
    push(manifest)
    saved = pathlib.Path(place)
    (saved / "blobs/sha256").mkdir(parents=True)
    for digest, content in blobs.items():
        (saved / "blobs/sha256" / digest.removeprefix("sha256:")).write_bytes(content)
    (saved / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    entry = {"mediaType": f"{image}.manifest.v1+json", "digest": "sha256:" + hashlib.sha256(manifest).hexdigest()}
    entry |= {"size": len(manifest), "annotations": {"org.opencontainers.image.ref.name": tag}}
    (saved / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    sys.exit()
url = f"http://{host}/v2/{repository}/manifests/"
request("PUT", url + digest, manifest, f"{image}.manifest.v1+json")
index = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": f"{image}.index.v1+json",
        "manifests": [
            {
                "mediaType": f"{image}.manifest.v1+json",
                "digest": digest,
                "size": len(manifest),
                "platform": {"os": "linux", "architecture": machine},
            }
        ],
    }
).encode()
request("PUT", url + tag, index, f"{image}.index.v1+json")
print(digest)
