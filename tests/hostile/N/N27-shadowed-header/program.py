import socket
import ssl
import sys

import probe

(NAME,) = sys.argv[1:]
head = f"GET / HTTP/1.1\r\nHost: {NAME}\r\nX_Team: admins\r\nX-TEAM: admins\r\nConnection: close, X-Team\r\n\r\n"
with ssl.create_default_context().wrap_socket(socket.create_connection((NAME, 443), 10), server_hostname=NAME) as stream:
    stream.sendall(head.encode())
    probe.say("status", stream.recv(65536).split(b" ")[1].decode())
