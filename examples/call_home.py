"""Tries to reach the network, and prints the result of each attempt. Exits with 1 if one succeeded."""

import http.client
import socket
import sys

SECONDS = 3


def look_up(name):
    return socket.getaddrinfo(name, 80)[0][4][0]


def get(host):
    connection = http.client.HTTPConnection(host, timeout=SECONDS)
    try:
        connection.request("GET", "/")
        return f"HTTP {connection.getresponse().status}"
    finally:
        connection.close()


def ask_name_server(address):
    # The encoded DNS query for the address of example.org.
    question = b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x01\x00\x01"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(SECONDS)
        udp.sendto(question, (address, 53))
        return f"{len(udp.recv(512))} bytes"


ATTEMPTS = [
    ("look up example.org", look_up, "example.org"),
    ("GET http://example.org/", get, "example.org"),
    ("GET http://169.254.169.254/", get, "169.254.169.254"),
    ("ask the name server 8.8.8.8", ask_name_server, "8.8.8.8"),
]

reached = 0
for what, attempt, target in ATTEMPTS:
    try:
        answer = f"REACHED: {attempt(target)}"
        reached += 1
    except (OSError, http.client.HTTPException) as error:
        answer = f"{type(error).__name__}: {error}"
    print(f"{what:<28} {answer}")

print(f"{reached} got through")
sys.exit(1 if reached else 0)
