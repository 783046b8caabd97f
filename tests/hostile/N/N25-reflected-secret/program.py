import os
import socket
import ssl
import sys

import probe

NAME, SECRET = sys.argv[1:]


def ask(method, more=""):
    head = f"{method} /x HTTP/1.1\r\nHost: {NAME}\r\nAuthorization: Bearer {os.environ['KEY']}\r\nConnection: close\r\n{more}\r\n"
    with ssl.create_default_context().wrap_socket(socket.create_connection((NAME, 443), 10), server_hostname=NAME) as stream:
        stream.sendall(head.encode())
        got = b""
        while some := stream.recv(65536):
            got += some
    return got.decode()


answers = {
    "TRACE": ask("TRACE"),
    "TRACK": ask("TRACK"),
    "trace": ask("trace"),
    "OPTIONS, answered by another server": ask("OPTIONS", "Max-Forwards: 0\r\n"),
    "GET": ask("GET"),
}
for name, answer in answers.items():
    probe.say(name, answer.split(" ")[1])
probe.say("secret in an answer", "yes" if any(SECRET in answer for answer in answers.values()) else "no")
