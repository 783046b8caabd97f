"""Makes a small image of programs of this machine, and pushes it to a registry without TLS: HOST REPOSITORY TAG [NAME CONTENT]."""

import gzip
import hashlib
import io
import json
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


def push(content):
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
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
for name in ["sh", "cat", "ls", "id", "mkdir", "rm", "ln", "grep", "test", "head", "stat"]:
    path = shutil.which(name)
    programs["bin/" + name] = (0o755, read(path))
    for word in subprocess.run(["ldd", path], capture_output=True, text=True).stdout.split():
        if word.startswith("/"):
            programs[word[1:]] = (0o755, read(word))
people = {
    "etc/passwd": (0o644, b"root:x:0:0::/root:/bin/sh\nwww:x:33:33::/srv:/bin/sh\n"),
    "etc/group": (0o644, b"root:x:0:\nwww:x:33:\nshared:x:50:www\n"),
    "srv/theirs": (0o640, b"theirs\n", 33),
    "bin/id-as-root": (0o4755, programs["bin/id"][1]),
}
layers = [layer(programs), layer(people), layer({"app/kept": (0o644, b"kept\n")})]
layers += [layer({name: (0o644, content.encode())}) for name, content in more.items()]
config = {"config": {"Env": ["PATH=/bin", "FROM_IMAGE=yes"], "WorkingDir": "/app", "Cmd": ["/bin/sh"]}}
image = "application/vnd.oci.image"
manifest = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": f"{image}.manifest.v1+json",
        "config": {"mediaType": f"{image}.config.v1+json", **push(json.dumps(config).encode())},
        "layers": [{"mediaType": f"{image}.layer.v1.tar+gzip", **push(one)} for one in layers],
    }
).encode()
url = f"http://{host}/v2/{repository}/manifests/"
digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
request("PUT", url + digest, manifest, f"{image}.manifest.v1+json")
machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
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
