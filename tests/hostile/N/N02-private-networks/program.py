import os
import socket
import struct
import sys

import probe

port, *addresses = sys.argv[1:]


def connect(address, prepare=lambda connection: None):
    with socket.socket() as connection:
        connection.settimeout(3)
        prepare(connection)
        connection.connect((address, int(port)))


def send(address, prepare=lambda datagram: None):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        prepare(datagram)
        datagram.sendto(b"hello", (address, int(port)))


for address in addresses:
    probe.errno(address, lambda: connect(address))
    probe.errno(f"{address}, datagram", lambda: send(address))
# Ways around a missing route: without the routing table, from another address, by another device, through a gateway.
DONTROUTE, FREEBIND, TRANSPARENT, BINDTODEVICE, LOOSE_ROUTE = 5, 15, 19, 25, 4
first = addresses[0]
probe.errno("past the routes", lambda: send(first, lambda it: it.setsockopt(socket.SOL_SOCKET, DONTROUTE, 1)))
probe.errno("bound to the loopback", lambda: connect(first, lambda it: it.bind(("127.0.0.1", 0))))
probe.errno("bound to the loopback device", lambda: send(first, lambda it: it.setsockopt(socket.SOL_SOCKET, BINDTODEVICE, b"lo")))


def from_another(connection):
    connection.setsockopt(socket.IPPROTO_IP, FREEBIND, 1)
    connection.bind(("203.0.113.9", 0))


probe.errno("from an address that is not ours", lambda: connect(first, from_another))
probe.errno("transparent", lambda: connect(first, lambda it: it.setsockopt(socket.IPPROTO_IP, TRANSPARENT, 1)))
by_gateway = struct.pack("=BBB4sB", 131, 7, 4, socket.inet_aton("127.0.0.1"), 0)
probe.errno("by a route of its own", lambda: connect(first, lambda it: it.setsockopt(socket.IPPROTO_IP, LOOSE_ROUTE, by_gateway)))
probe.errno("broadcast", lambda: send("255.255.255.255", lambda it: it.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)))
probe.errno("multicast", lambda: send("224.0.0.1"))
# All addresses of the loopback network are the sandbox's own.
probe.errno("127.8.8.8", lambda: connect("127.8.8.8"))
with open("/proc/net/route", encoding="ascii") as lines:
    probe.say("routes", str(len(lines.readlines()) - 1))
probe.errno("a device of its own", lambda: os.open("/dev/net/tun", os.O_RDWR))
