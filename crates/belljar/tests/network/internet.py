"""A simulated internet beyond a gateway: a resolver, web servers and others, at every address of the network namespace that it runs in.

Says `ready` when it listens, then one line of JSON for each query and each connection, and what it reads as `echo`.
"""

import base64
import io
import json
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import zipfile

RESOLVER = "9.9.9.9"
# The operator's own, where no sandbox could go.
PROXY = "10.9.9.9"
PROXY_USER = "me:hu@sh"
NAMES = {
    "good.example": ["93.184.216.34"],
    "example.org": ["93.184.216.34"],
    "other.example": ["93.184.216.35"],
    "sub.good.example": ["93.184.216.36"],
    "private.example": ["10.1.2.3"],
    "metadata.example": ["169.254.169.254"],
    "machine.example": ["93.184.200.1"],
    "mixed.example": ["10.1.2.3", "93.184.216.34"],
    "loopback.example": ["127.0.0.1"],
    "nobody.example": ["93.184.216.99"],
    "long.example": ["93.184.216.34"] * 60,
    "proxy.corp": ["10.9.9.9"],
    "pypi.org": ["93.184.216.40"],
    "files.pythonhosted.org": ["93.184.216.41"],
}
IMPOSTOR = "93.184.216.50"
NAMES["impostor.example"] = [IMPOSTOR]
# Another name for that of other.example, by two steps.
ALIASES = {"alias.example": ["middle.example", "a_b.below.example"]}
NAMES["alias.example"] = NAMES["other.example"]
# Speaks first, on every port.
TALKER = "93.184.216.80"
# Speaks as the talker does, but never first.
ECHO = "93.184.216.81"
# Sends without end, on port 5432. Says how many of its connections accept nothing more.
FLOOD = "93.184.216.90"
STUCK_SECONDS = 2
stuck = []
HTTP_2 = "93.184.216.60"
NAMES["http2.example"] = [HTTP_2]
# Its server on port 443 is one of servers.py.
GIT = "93.184.216.70"
NAMES["git.example"] = [GIT]
started = []
SILENT = "silent.example"
LIAR = "liar.example"
lock = threading.Lock()


def wheel():
    """A package for pip: a module `tiny`."""
    info = "tiny-1.0.dist-info"
    files = {
        "tiny.py": "WORD = 'tiny'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: world\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


# What there is to be had over TLS, by path: a type and a body. A package index, and a repository of git's simpler protocol.
INDEX = {
    "/tiny.git/info/refs": ("text/plain", b"1" * 40 + b"\trefs/heads/main\n"),
    "/tiny.git/HEAD": ("text/plain", b"ref: refs/heads/main\n"),
    "/simple/tiny/": ("text/html", b'<a href="https://files.pythonhosted.org/packages/tiny-1.0-py3-none-any.whl">tiny</a>'),
    "/packages/tiny-1.0-py3-none-any.whl": ("application/octet-stream", wheel()),
}


def say(**what):
    with lock:
        print(json.dumps(what), flush=True)


def read_name(query, at):
    labels = []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
        at += 1 + query[at]
    return ".".join(labels).lower(), at + 1


def answer(query, is_stream):
    name, end = read_name(query, 12)
    (kind,) = struct.unpack_from(">H", query, end)
    say(query=name, kind=kind)
    if name == SILENT:
        return None
    question = query[12 : end + 4]
    addresses = NAMES.get(name, []) if kind == 1 else []
    flags = 0x8180 if name in NAMES else 0x8183
    if len(addresses) > 20 and not is_stream:
        return query[:2] + struct.pack(">HHHHH", flags | 0x0200, 1, 0, 0, 0) + question
    records = b"".join(b"\xc0\x0c\0\1\0\1\0\0\0\5\0\4" + socket.inet_aton(address) for address in addresses)
    if name == LIAR:
        # For another name, with another number, and with one that says it is longer than it is.
        wrong = bytes([query[0] ^ 1]) + query[1:2] + struct.pack(">HHHHH", 0x8180, 1, 1, 0, 0) + question
        return [wrong + b"\xc0\x0c\0\1\0\1\0\0\0\5\0\4" + socket.inet_aton("93.184.216.34"), b"\0", query[:2] + b"\x81\x80\0\1\xff\xff\0\0\0\0" + question]
    aliases = ALIASES.get(name, []) if kind == 1 else []
    count, owner = len(addresses) + len(aliases), b"\xc0\x0c"
    chain = b""
    for alias in aliases:
        wire = b"".join(bytes([len(label)]) + label.encode() for label in alias.split(".")) + b"\0"
        chain += owner + b"\0\5\0\1\0\0\0\5" + struct.pack(">H", len(wire)) + wire
        owner = wire
    records = chain + records.replace(b"\xc0\x0c", owner) if chain else records
    return query[:2] + struct.pack(">HHHHH", flags, 1, count, 0, 0) + question + records


def resolver(datagrams):
    while True:
        query, peer = datagrams.recvfrom(4096)
        answers = answer(query, False) or []
        for one in answers if isinstance(answers, list) else [answers]:
            datagrams.sendto(one, peer)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request, client_address):
        pass


class Resolver(socketserver.StreamRequestHandler):
    def handle(self):
        (length,) = struct.unpack(">H", self.rfile.read(2))
        told = answer(self.rfile.read(length), True)
        self.wfile.write(struct.pack(">H", len(told)) + told)


class Web(socketserver.StreamRequestHandler):
    def handle(self):
        address, port = self.connection.getsockname()
        if address in (TALKER, ECHO):
            return Talk(self.connection, self.client_address, self.server)
        say(connected=address, port=port)
        while True:
            line = self.rfile.readline().decode("latin-1")
            if not line.strip():
                return
            method, path, _ = line.split()
            headers = {}
            while (header := self.rfile.readline().decode("latin-1").strip()):
                name, _, value = header.partition(":")
                headers[name.lower()] = value.strip()
            say(request=path, host=headers.get("host"), address=address)
            if headers.get("upgrade"):
                self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
                # What came with the request has been read already.
                while (some := self.rfile.read1(65536)):
                    self.connection.sendall(some)
                return
            body = self.rfile.read(int(headers.get("content-length", 0)))
            text = f"hello from {address} to {headers.get('host')} for {path} with {len(body)} bytes\n".encode()
            if path == "/cut":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + text)
                return
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Case-Kept: yes\r\nContent-Length: %d\r\n\r\n" % len(text) + text)


def forms(secret):
    """A value as hosts may send it back: plain, percent-encoded in two ways, and within Base64 at each of its three alignments."""
    encoded = [base64.b64encode((before + secret).encode()).decode() for before in ("", "m", "me")]
    percent = "".join(f"%{byte:02x}" for byte in secret.encode())
    return [secret, urllib.parse.quote(secret, safe=""), percent, *(f"Basic {one}" for one in encoded)]


def parts(secret):
    """An answer that has a value in each part, in each form."""
    head = [f"HTTP/1.1 200 {secret}", "Connection: close", "Transfer-Encoding: chunked", "Trailer: X-Trailer", f"{secret}: in a name"]
    head += [f"X-Form: {form}" for form in forms(secret)]
    trailers = [f"X-Trailer: {form}" for form in forms(secret)]
    return "\r\n".join([*head, "", "2", "ok", "0", *trailers, "", ""]).encode()


HTTP_2_SERVER = """
const [cert, key] = process.argv.slice(1).map(name => require('fs').readFileSync(name));
const server = require('http2').createSecureServer({cert, key});
let big = 0, last = 0, said = 0;
setInterval(() => {
    if (big === said || Date.now() - last < 2000) return;
    console.log(JSON.stringify({blocked: said = big}));
}, 100);
server.on('stream', (stream, headers) => {
    const {':method': method, ':authority': asked, ':path': path, authorization} = headers;
    console.log(JSON.stringify({asked, path, method, headers: {authorization}, version: 2}));
    if (path === '/big') {
        const send = () => { last = Date.now(); while (stream.write(Buffer.alloc(1 << 16))); };
        big += 1;
        stream.on('drain', send).on('error', () => {}).on('close', () => big -= 1);
        stream.respond({':status': 200});
        send();
        return;
    }
    if (path === '/parts') {
        const secret = authorization.replace('Bearer ', '');
        const forms = [secret, encodeURIComponent(secret)];
        for (const before of ['', 'm', 'me']) forms.push('Basic ' + Buffer.from(before + secret).toString('base64'));
        stream.respond({':status': 200, 'x-form': forms, [secret]: 'in a name'}, {waitForTrailers: true});
        stream.on('wantTrailers', () => stream.sendTrailers({'x-trailer': forms}));
        stream.end('ok\\n');
        return;
    }
    stream.respond({':status': 200, 'x-echo': authorization ?? ''});
    stream.end('hello over 2\\n');
});
server.listen(8443, '127.0.0.1');
"""


def http_2():
    """A connection to a server of HTTP/2, which is started when it is needed."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", 8443))
        except ConnectionRefusedError:
            with lock:
                if not started:
                    started.append(subprocess.Popen(["node", "-e", HTTP_2_SERVER, *sys.argv[1:]]))
            time.sleep(0.02)


class Tls(socketserver.BaseRequestHandler):
    def handle(self):
        address, port = self.request.getsockname()
        say(connected=address, port=port)
        if address in (TALKER, ECHO):
            return Talk(self.request, self.client_address, self.server)
        if address == HTTP_2:
            with http_2() as server:
                return carry(self.request, server)
        if address == GIT:
            with socket.create_connection(("127.0.0.1", 9443)) as server:
                return carry(self.request, server)
        asked = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # An impostor has a certificate of nobody's.
        context.load_cert_chain("impostor.pem" if address == IMPOSTOR else sys.argv[1], sys.argv[2])
        context.sni_callback = lambda connection, name, context: asked.append(name)
        with context.wrap_socket(self.request, server_side=True) as connection:
            said = b""
            while b"\r\n\r\n" not in said and (some := connection.recv(65536)):
                said += some
            head, _, more = said.partition(b"\r\n\r\n")
            line, *fields = head.decode("latin-1").split("\r\n")
            method, path, _ = line.split(" ")
            headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
            # What is left unread at the end of a connection resets it, and with it the answer.
            while len(more) < int(headers.get("content-length", 0)) and (some := connection.recv(65536)):
                more += some
            while headers.get("transfer-encoding") and not more.endswith(b"\r\n\r\n") and (some := connection.recv(65536)):
                more += some
            say(asked=asked[0], method=method, path=path, headers=headers, lines=fields, more=more.decode("latin-1"))
            if path.endswith("/endless"):
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n")
                connection.recv(1)
                return
            if path == "/parts":
                connection.sendall(parts(headers["authorization"].removeprefix("Bearer ")))
                return
            kind, body = INDEX.get(path.partition("?")[0], ("text/plain", f"hello from {address} as {asked[0]}\n".encode()))
            if headers.get("upgrade") or path == "/switch":
                connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
                while (some := connection.recv(65536)):
                    connection.sendall(some)
                return
            echo = headers.get("authorization", "")
            head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}\r\nX-Echo: {echo}\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)


class Talk(socketserver.BaseRequestHandler):
    """Says again whatever it hears, and the end after the end; the talker speaks first."""

    def handle(self):
        address, port = self.request.getsockname()
        say(connected=address, port=port)
        if address == FLOOD:
            return flood(self.request)
        if address != ECHO:
            self.request.sendall(b"banner\n")
        while (some := self.request.recv(65536)):
            self.request.sendall(some)
        self.request.sendall(b"the end\n")


def flood(connection):
    # So that what this side keeps is small.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
    connection.settimeout(STUCK_SECONDS)
    try:
        while True:
            connection.sendall(bytes(1 << 16))
    except TimeoutError:
        with lock:
            stuck.append(connection)
            count = len(stuck)
        say(stuck=count)
        connection.settimeout(None)
        connection.recv(1)


def carry(one, other):
    """Both directions, until both have ended."""

    def way(source, target):
        try:
            while (some := source.recv(65536)):
                target.sendall(some)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    back = threading.Thread(target=way, args=(other, one), daemon=True)
    back.start()
    way(one, other)
    back.join()


def reach(host, port, of, user):
    """What a proxy does: a name is its own to look up."""
    say(proxied=f"{host}:{port}", of=of, user=user)
    return socket.create_connection((NAMES.get(host, [host])[0], port), timeout=20)


class HttpProxy(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline().decode()
        headers = {}
        while (header := self.rfile.readline().decode().strip()):
            name, _, value = header.partition(": ")
            headers[name.lower()] = value
        user = base64.b64decode(headers.get("proxy-authorization", "").removeprefix("Basic ")).decode()
        if user != PROXY_USER:
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        host, _, port = line.split()[1].partition(":")
        with reach(host, int(port), "http", user) as upstream:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Proxy: world\r\n\r\n")
            carry(self.connection, upstream)


class SocksProxy(socketserver.StreamRequestHandler):
    def handle(self):
        read = self.rfile.read
        read(read(2)[1])
        self.wfile.write(b"\5\2")
        user = read(read(2)[1]).decode() + ":" + read(read(1)[0]).decode()
        self.wfile.write(b"\1\0" if user == PROXY_USER else b"\1\1")
        if user != PROXY_USER:
            return
        kind = read(4)[3]
        host = socket.inet_ntoa(read(4)) if kind == 1 else read(read(1)[0]).decode()
        (port,) = struct.unpack(">H", read(2))
        with reach(host, port, "socks", user) as upstream:
            self.wfile.write(b"\5\0\0\1\0\0\0\0\0\0")
            carry(self.connection, upstream)


def main():
    servers = [Server(("0.0.0.0", 80), Web), Server(("0.0.0.0", 5432), Talk)]
    servers += [Server((RESOLVER, 53), Resolver), Server((PROXY, 3128), HttpProxy), Server((PROXY, 1080), SocksProxy)]
    if len(sys.argv) > 2:
        servers.append(Server(("0.0.0.0", 443), Tls))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((RESOLVER, 53))
    for serve in [lambda: resolver(datagrams), *(server.serve_forever for server in servers)]:
        threading.Thread(target=serve, daemon=True).start()
    say(ready=True)
    for line in sys.stdin:
        say(echo=line.strip())
    for process in started:
        process.kill()


main()
