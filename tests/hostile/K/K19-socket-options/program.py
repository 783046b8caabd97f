import ctypes
import socket
import struct

import probe

TCP, IP, IPV6, SOCKET = 6, 0, 41, 1
stream, datagram = socket.socket(socket.AF_INET), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def option(name, on, level, number, value):
    probe.syscall(name, "setsockopt", on.fileno(), level, number, ctypes.create_string_buffer(value, len(value)), len(value))


# TLS requires a connection.
listener = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(listener.getsockname())
for name in ("tls", "espintcp", "smc", "mptcp", "no-such-protocol"):
    option(f"upper layer {name}", connection, TCP, 31, name.encode())
option("upper layer tls, high bits in the option", connection, TCP, 31 | 1 << 32, b"tls")
option("upper layer tls, high bits in the level", connection, TCP | 1 << 32, 31 | -1 << 32, b"tls")
probe.say("upper layer afterwards", "none" if not connection.getsockopt(TCP, 31, 16).strip(b"\0") else "some")
option("TCP_NODELAY", connection, TCP, 1, struct.pack("=i", 1))
probe.say("TCP_NODELAY afterwards", str(connection.getsockopt(TCP, 1)))
option("SO_KEEPALIVE", connection, SOCKET, 9, struct.pack("=i", 1))

# A program of one instruction that accepts everything.
code = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0xFFFFFFFF))
filter_program = struct.pack("=HxxxxxxQ", 1, ctypes.addressof(code))
for name, number in [("SO_ATTACH_FILTER", 26), ("SO_ATTACH_REUSEPORT_CBPF", 51)]:
    option(name, datagram, SOCKET, number, filter_program)
for name, number in [("SO_ATTACH_BPF", 50), ("SO_ATTACH_REUSEPORT_EBPF", 52)]:
    option(name, datagram, SOCKET, number, struct.pack("=i", -1))
option("SO_ATTACH_FILTER, high bits", datagram, SOCKET, 26 | 1 << 32, filter_program)
group = socket.inet_aton("239.1.2.3")
local = socket.inet_aton("127.0.0.1")
option("IP_ADD_MEMBERSHIP", datagram, IP, 35, group + local)
with open("/proc/net/igmp", encoding="ascii") as lines:
    probe.say("groups afterwards", "none" if "030201EF" not in lines.read() else "joined")
option("IP_ADD_MEMBERSHIP, by index", datagram, IP, 35, group + local + struct.pack("=i", 1))
option("IP_ADD_SOURCE_MEMBERSHIP", datagram, IP, 39, group + local + local)
option("IP_MSFILTER", datagram, IP, 41, group + local + struct.pack("=II", 1, 0))
address = struct.pack("=HH", 2, 0) + group + bytes(120)
option("MCAST_JOIN_GROUP", datagram, IP, 42, struct.pack("=Ixxxx", 1) + address)
option("MCAST_JOIN_SOURCE_GROUP", datagram, IP, 46, struct.pack("=Ixxxx", 1) + address + address)
option("MCAST_MSFILTER", datagram, IP, 48, struct.pack("=Ixxxx", 1) + address + struct.pack("=II", 1, 0))
for name, number in [("IPT_SO_SET_REPLACE", 64), ("IPT_SO_SET_ADD_COUNTERS", 65), ("ARPT_SO_SET_REPLACE", 96), ("EBT_SO_SET_ENTRIES", 128)]:
    option(name, datagram, IP, number, bytes(128))
    option(f"{name} of IPv6", datagram, IPV6, number, bytes(128))
for name, number in [("IPV6_RTHDR", 57), ("IPV6_HOPOPTS", 54), ("IPV6_DSTOPTS", 59), ("IPV6_RTHDRDSTOPTS", 55), ("IPV6_2292RTHDR", 5), ("IPV6_JOIN_GROUP", 20)]:
    option(name, datagram, IPV6, number, bytes(24))
# Incoming packets are passed to IPsec, and outgoing ones are segmented by the kernel.
option("UDP_ENCAP", datagram, 17, 100, struct.pack("=i", 2))
option("UDP_SEGMENT", datagram, 17, 103, struct.pack("=i", 1000))
option("SO_ZEROCOPY", connection, SOCKET, 60, struct.pack("=i", 1))
option("a level that nobody has", datagram, 300, 1, struct.pack("=i", 1))
option("UDP_CORK", datagram, 17, 1, struct.pack("=i", 0))
