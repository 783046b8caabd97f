import os
import socket
import sys

import probe

port = int(sys.argv[1])


def connect(kind, address, family=socket.AF_INET):
    made = socket.socket(family, kind)
    made.settimeout(3)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    made.connect(address)
    made.send(b"hello")
    if kind == socket.SOCK_DGRAM:
        # A refusal is reported by the next call.
        made.send(b"hello")
    return made


names = [name for _, name in socket.if_nameindex()]
probe.say("devices", " ".join(names))
stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
probe.errno("neighbour's TCP port", lambda: connect(stream, ("127.0.0.1", port)))
probe.errno("neighbour's TCP port by ::1", lambda: connect(stream, ("::1", port), socket.AF_INET6))
probe.errno("neighbour's TCP port by 127.0.0.2", lambda: connect(stream, ("127.0.0.2", port)))
probe.errno("neighbour's UDP port", lambda: connect(datagram, ("127.0.0.1", port)))


def bind():
    made = socket.socket()
    made.bind(("0.0.0.0", port))
    made.listen()
    made.close()


try:
    bind()
    probe.say("same port", "free")
except OSError as error:
    probe.say("same port", probe.name_of(error.errno))
probe.errno("another address", lambda: connect(stream, ("192.0.2.1", port)))
probe.errno("link-local", lambda: connect(datagram, ("ff02::1", port, 0, 1), socket.AF_INET6))
probe.errno("broadcast", lambda: connect(datagram, ("255.255.255.255", port)))
probe.errno("multicast", lambda: connect(datagram, ("224.0.0.251", 5353)))
probe.errno("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
probe.errno("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))


def lines(name):
    try:
        with open(f"/proc/net/{name}") as file:
            return file.read().splitlines()[1:]
    except OSError:
        return []


probe.say("neighbours by ARP", " ".join(lines("arp")) or "none")
strange = [line for name in ("tcp", "tcp6", "udp", "udp6") for line in lines(name) if f":{port:04X} " in line]
probe.say("connections in /proc/net", " ".join(strange) or "its own")
