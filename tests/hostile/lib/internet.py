"""A host on a simulated internet that code in a sandbox may reach over TLS, with a secret and a header that the gateway adds."""

import os
import shutil
import socket
import socketserver
import ssl
import struct
import subprocess
import threading

import host

NAME, ADDRESS, RESOLVER = "good.example", "93.184.216.34", "9.9.9.9"
SECRET = "s3cret+value"
SPEC = f"""[network]
allow = ["{NAME}"]
[network.secrets]
KEY = {{ host = "{NAME}", header = "authorization", value = "{SECRET}" }}
[[network.headers]]
host = "{NAME}"
header = "x-team"
value = "agents"
"""


class Host:
    """The host, under the policy of `spec`. `answer` returns the bytes of the answer to a request, whose lines are those of its head."""

    def __init__(self, answer, spec=SPEC):
        if not shutil.which("openssl"):
            host.skip("openssl is not installed")
        self.requests, self.answer = [], answer
        # The operator excepts the address, because it is the machine's own here.
        host.own_network(RESOLVER, ADDRESS)
        directory = host.scratch()
        new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        names = ["-addext", f"subjectAltName=DNS:{NAME}", "-addext", "basicConstraints=critical,CA:FALSE"]
        for more in (
            ["-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=world"],
            ["-keyout", "key.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-out", "cert.pem", "-subj", "/CN=host", *names],
        ):
            subprocess.run(new + more, cwd=directory, check=True, capture_output=True)
        policy = f'[network]\nresolvers = ["{RESOLVER}:53"]\nca_file = "{directory}/ca.pem"\nexceptions = ["{ADDRESS}/32"]\n'
        self.flags = ["--policy", host.write(directory, "policy.toml", content=policy)]
        self.flags += ["--spec", host.write(directory, "spec.toml", content=spec)]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(os.path.join(directory, "cert.pem"), os.path.join(directory, "key.pem"))
        server = socketserver.ThreadingTCPServer((ADDRESS, 443), lambda connection, *_: self.serve(connection))
        server.daemon_threads = True
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind((RESOLVER, 53))
        for target in (server.serve_forever, lambda: resolve(names)):
            threading.Thread(target=target, daemon=True).start()

    def serve(self, connection):
        with self.context.wrap_socket(connection, server_side=True) as stream:
            said = b""
            while b"\r\n\r\n" not in said and (some := stream.recv(65536)):
                said += some
            if said:
                lines = said.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
                self.requests.append(lines)
                stream.sendall(self.answer(lines))


def resolve(names):
    while True:
        query, peer = names.recvfrom(4096)
        record = b"\xc0\x0c\0\1\0\1\0\0\0\5\0\4" + socket.inet_aton(ADDRESS)
        names.sendto(query[:2] + struct.pack(">HHHHH", 0x8180, 1, 1, 0, 0) + query[12:] + record, peer)
