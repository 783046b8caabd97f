import socket
import ssl
import sys

import probe

(NAME,) = sys.argv[1:]
context = ssl.create_default_context()
# Without the gateway's certificate the host's would not be trusted here.
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE


def ask(target, asked):
    with context.wrap_socket(socket.create_connection((NAME, 443), 10), server_hostname=NAME) as stream:
        stream.sendall(f"GET {target} HTTP/1.1\r\nHost: {asked}\r\nConnection: close\r\n\r\n".encode())
        return stream.recv(65536).split(b" ")[1].decode()


probe.say("its own", ask("/", NAME))
probe.say("another host", ask("/", "evil.example"))
probe.say("another host, absolute", ask("http://evil.example/", "evil.example"))
