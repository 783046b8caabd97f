import os
import socket
import struct
import sys

import probe

port, outside = int(sys.argv[1]), sys.argv[2]
# The beginning of a first QUIC packet, version 1, padded to the required size.
QUIC = (b"\xc3\x00\x00\x00\x01\x08" + bytes(8) + b"\x00\x00\x44\x9e").ljust(1200, b"\0")
ECHO = struct.pack("!BBHHH", 8, 0, 0xF7FD, 1, 1)


def send(payload, address, *options):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        for option in options:
            datagram.setsockopt(*option)
        datagram.sendto(payload, address)


def ping(kind, protocol):
    with socket.socket(socket.AF_INET, kind, protocol) as echo:
        echo.sendto(ECHO, (outside, 0))


probe.errno("QUIC", lambda: send(QUIC, (outside, port)))
probe.errno("QUIC at 443", lambda: send(QUIC, (outside, 443)))
probe.errno("datagram", lambda: send(b"data", (outside, port)))
probe.errno("name server", lambda: send(bytes(32), (outside, 53)))
probe.errno("time server", lambda: send(b"\x1b" + bytes(47), (outside, 123)))
probe.errno("WireGuard", lambda: send(b"\x01" + bytes(147), (outside, 51820)))
probe.errno("from port 53 on", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("0.0.0.0", 53)))
# Segments a datagram in the kernel, as a tunnel may do.
UDP, SEGMENT = 17, 103
probe.errno("datagrams in segments", lambda: send(bytes(2400), (outside, port), (UDP, SEGMENT, 1200)))
probe.errno("fast open", lambda: socket.socket().sendto(b"data", 0x20000000, (outside, port)))
probe.errno("ping", lambda: ping(socket.SOCK_DGRAM, 1))
probe.errno("raw ICMP", lambda: ping(socket.SOCK_RAW, 1))
probe.errno("raw GRE", lambda: ping(socket.SOCK_RAW, 47))
probe.errno("IP in IP", lambda: ping(socket.SOCK_RAW, 4))
probe.errno("ESP", lambda: ping(socket.SOCK_RAW, 50))
probe.errno("SCTP", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132))
probe.errno("L2TP", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 115))
probe.errno("PPP", lambda: os.open("/dev/ppp", os.O_RDWR))
probe.errno("tun", lambda: os.open("/dev/net/tun", os.O_RDWR))
probe.errno("fall back to TCP", lambda: socket.create_connection((outside, port), timeout=3))
