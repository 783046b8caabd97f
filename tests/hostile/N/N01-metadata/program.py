import socket
import sys

import probe

port, *addresses = sys.argv[1:]
REQUEST = b"GET /latest/meta-data/ HTTP/1.1\r\nHost: metadata\r\n\r\n"


def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(3)
        connection.connect((address, int(port)))
        connection.sendall(REQUEST)


def send(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        datagram.sendto(REQUEST, (address, int(port)))


for address in addresses:
    probe.errno(address, lambda: connect(socket.AF_INET, address))
    probe.errno(f"{address}, datagram", lambda: send(address))
for spelling in ("0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "169.254.43518"):
    probe.errno(f"169.254.169.254 as {spelling}", lambda: connect(socket.AF_INET, spelling))
probe.errno("fd00:ec2::254", lambda: connect(socket.AF_INET6, "fd00:ec2::254"))
probe.errno("::ffff:169.254.169.254", lambda: connect(socket.AF_INET6, "::ffff:169.254.169.254"))
for name in ("metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"):
    try:
        socket.getaddrinfo(name, 80)
        probe.say(name, "found")
    except socket.gaierror:
        probe.say(name, "not found")
