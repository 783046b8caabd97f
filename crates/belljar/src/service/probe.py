"""Run inside a sandbox: connects to each HOST:PORT of the command line, and says in one line of JSON what came of it.

On port 443 it begins TLS and on port 80 a request, as the gateway expects them there."""

import json
import socket
import ssl
import sys


def connect(host, port):
    with socket.create_connection((host, port), 4) as connection:
        if port == 443:
            unchecked = ssl._create_unverified_context()
            unchecked.wrap_socket(connection, server_hostname=host).close()
        elif port == 80:
            connection.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            connection.recv(64)
        else:
            # A gateway that denies resets the connection.
            connection.settimeout(1)
            try:
                connection.recv(1)
            except TimeoutError:
                pass


for destination in sys.argv[1:]:
    host, _, port = destination.rpartition(":")
    said = {"host": destination, "resolved": None, "error": None}
    try:
        said["resolved"] = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        connect(host, int(port))
    except OSError as error:
        said["error"] = f"{type(error).__name__}: {error.strerror or error}"
    print(json.dumps(said), flush=True)
