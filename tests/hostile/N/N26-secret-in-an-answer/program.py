import base64
import os
import socket
import ssl
import sys
import urllib.parse

import probe

NAME, SECRET = sys.argv[1:]
head = f"GET / HTTP/1.1\r\nHost: {NAME}\r\nAuthorization: Bearer {os.environ['KEY']}\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n"
with ssl.create_default_context().wrap_socket(socket.create_connection((NAME, 443), 10), server_hostname=NAME) as stream:
    stream.sendall(head.encode())
    got = b""
    while some := stream.recv(65536):
        got += some
head, _, rest = got.decode().partition("\r\n\r\n")
status, *headers = head.split("\r\n")
_, _, trailers = rest.partition("\r\n0\r\n")


def say(name, form, text):
    probe.say(name, "shown" if form in text else "hidden")


forms = {
    "": SECRET,
    ", Basic": base64.b64encode(f"me:{SECRET}".encode()).decode(),
    ", percent-encoded": urllib.parse.quote(SECRET, safe=""),
}
say("reason", SECRET, status)
say("name", SECRET, "\n".join(line.partition(":")[0] for line in headers))
for more, form in forms.items():
    say("header" + more, form, "\n".join(line.partition(":")[2] for line in headers))
    say("trailer" + more, form, trailers)
probe.say("trailers", str(trailers.lower().count("x-trailer: ")))
