"""Servers for the programs that people use: git and WebSockets over HTTPS, git over SSH, PostgreSQL, Redis.

Its arguments name those that a test needs; it runs in the test's directory, which has `cert.pem` and `key.pem`. For each it says
one line of JSON: `serving` when it listens, `lacks` with the reason when this machine cannot. It ends with all that it has started
when its standard input does.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import pwd
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path.cwd()
# Where the world leads connections to git.example on port 443.
WEB = ("127.0.0.1", 9443)
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": sys.stderr}
GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"} | {
    f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "world"), ("EMAIL", "world@git.example"))
}
processes, directories = [], []


class LacksError(Exception):
    """This machine has not what a server needs."""


def program(name):
    found = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if not found:
        raise LacksError(f"{name} is not installed")
    return found


def run(*words, **options):
    return subprocess.run([str(word) for word in words], check=True, **{**QUIET, **options})


def start(*words, **options):
    processes.append(subprocess.Popen([str(word) for word in words], **{**QUIET, **options}))


def wait_for(port, host="127.0.0.1"):
    for _ in range(3000):
        if processes and processes[-1].poll() is not None:
            sys.exit(f"{processes[-1].args[0]} ended with {processes[-1].returncode}")
        try:
            return socket.create_connection((host, port)).close()
        except OSError:
            time.sleep(0.01)
    sys.exit(f"nobody listens on port {port}")


def repository():
    """A repository with one file."""
    if not (HERE / "repo.git").exists():
        git = [program("git"), "-c", "init.defaultBranch=main"]
        env = os.environ | GIT
        run(*git, "init", "-q", "work", env=env)
        (HERE / "work/README").write_text("hello from git\n")
        run(*git, "-C", "work", "add", "README", env=env)
        run(*git, "-C", "work", "commit", "-q", "-m", "one file", env=env)
        run(*git, "clone", "-q", "--bare", "work", "repo.git", env=env)
    return HERE / "repo.git"


class Web(http.server.BaseHTTPRequestHandler):
    """git's own program for HTTP (git-http-backend(1)), and at `/ws` a WebSocket that greets and then says again what it hears."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.startswith("/ws"):
            self.websocket()
        else:
            self.git(b"")

    def do_POST(self):
        self.git(self.rfile.read(int(self.headers["Content-Length"])))

    def git(self, body):
        path, _, query = self.path.partition("?")
        env = os.environ | GIT | {
            "GIT_PROJECT_ROOT": str(HERE),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        done = subprocess.run([program("git"), "http-backend"], input=body, capture_output=True, env=env)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().splitlines()]
        status = next((int(value.split()[0]) for name, value in fields if name == "Status"), 200)
        self.send_response(status)
        for name, value in fields:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def websocket(self):
        # RFC 6455, 4.2.2 and 5.2.
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        self.frame(1, b"hello over a WebSocket\n")
        while self.path != "/ws?greeting" and (head := self.rfile.read(2)):
            kind, length = head[0] & 15, head[1] & 127
            mask = self.rfile.read(4)
            self.frame(kind, bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(length))))
            if kind == 8:
                return

    def finish(self):
        super().finish()
        with contextlib.suppress(OSError):
            self.connection.unwrap()

    def frame(self, kind, data):
        self.wfile.write(bytes([0x80 | kind, len(data)]) + data)


def web():
    repository()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("cert.pem", "key.pem")
    server = http.server.ThreadingHTTPServer(WEB, Web)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def sshd():
    """Lets whoever has the key `id` get the repository. Dropbear has no service that its installation would start."""
    if os.geteuid() != 0:
        raise LacksError("an SSH server needs root here")
    server, make_key, unshare = program("dropbear"), program("dropbearkey"), program("unshare")
    program("ssh")
    run(make_key, "-t", "ed25519", "-f", "host.key")
    shown = run(make_key, "-y", "-f", "host.key", stdout=subprocess.PIPE, text=True).stdout
    (public,) = (line for line in shown.splitlines() if line.startswith("ssh-ed25519 "))
    (HERE / "known_hosts").write_text(f"git.example {public}\n")
    run(program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", "id")
    home = HERE / "home-of-root/.ssh"
    home.mkdir(mode=0o700, parents=True)
    command = f'command="{program("git")} upload-pack {repository()}" '
    (home / "authorized_keys").write_text(command + (HERE / "id.pub").read_text())
    (home / "authorized_keys").chmod(0o600)
    # In mounts of its own, where root has another home.
    mounted = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', home.parent, pwd.getpwuid(0).pw_dir]
    flags = ["-F", "-E", "-s", "-p", "22", "-r", HERE / "host.key", "-P", HERE / "dropbear.pid"]
    start(unshare, "--mount", *mounted, server, *flags, stderr=subprocess.DEVNULL)
    wait_for(22)


def postgres():
    """PostgreSQL on port 5433, over TLS alone."""
    versions = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    bin = versions[-1].parent if versions else pathlib.Path(program("initdb")).resolve().parent
    program("psql")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="belljar-net-", dir="/tmp"))
    directories.append(directory)
    for name in ("cert.pem", "key.pem"):
        shutil.copy(name, directory)
        (directory / name).chmod(0o600)
    options = {"cwd": directory}
    if os.geteuid() == 0:
        # It does not run as root.
        names = {one.pw_name for one in pwd.getpwall()}
        options["user"] = "postgres" if "postgres" in names else "nobody"
        for path in (directory, *directory.iterdir()):
            shutil.chown(path, options["user"])
    run(bin / "initdb", "--pgdata=data", "--no-sync", "--auth=trust", "--username=postgres", "--locale=C", **options)
    (directory / "data/pg_hba.conf").write_text("hostssl all all 0.0.0.0/0 trust\n")
    settings = {
        "listen_addresses": "*",
        "port": "5433",
        "unix_socket_directories": directory,
        "ssl": "on",
        "ssl_cert_file": directory / "cert.pem",
        "ssl_key_file": directory / "key.pem",
        "fsync": "off",
        "shared_buffers": "16MB",
    }
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    start(bin / "postgres", "-D", "data", *words, stderr=subprocess.DEVNULL, **options)
    wait_for(5433)


def redis():
    program("redis-cli")
    # One program, which is the server by that name; Debian has its file in redis-tools.
    file = shutil.which("redis-server") or program("redis-check-rdb")
    start("redis-server", "--port", "6379", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", executable=file)
    wait_for(6379)


def say(**what):
    print(json.dumps(what), flush=True)


def main():
    try:
        for name in sys.argv[1:]:
            try:
                globals()[name]()
                say(serving=name)
            except LacksError as lack:
                say(lacks=str(lack))
        sys.stdin.read()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)


main()
