import socket
import ssl
import sys

import probe

(ADDRESS,) = sys.argv[1:]
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE


def ask(name):
    try:
        with context.wrap_socket(socket.create_connection((ADDRESS, 443), 10), server_hostname=name) as stream:
            stream.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return stream.recv(65536).split(b" ")[1].decode()
    except ssl.SSLError as error:
        return error.reason


for what, name in {"denied server name": "a.evil.example", "other server name": "good.example", "no server name": None}.items():
    probe.say(what, ask(name))
