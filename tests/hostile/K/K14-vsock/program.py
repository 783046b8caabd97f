import socket

import probe

VSOCK, PORT = 40, 1024

for kind, name in [(1, "stream"), (2, "datagram"), (5, "seqpacket")]:
    probe.syscall(name, "socket", VSOCK, kind, 0)
probe.syscall("stream, high bits", "socket", VSOCK | 1 << 32, 1, 0)
probe.syscall("no such kind", "socket", VSOCK, 15, 0)
probe.syscall("pair", "socketpair", VSOCK, 1, 0, 0)


def connect(cid):
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as connection:
        connection.settimeout(2)
        connection.connect((cid, PORT))


for cid, name in [(0, "hypervisor"), (1, "loopback"), (2, "host")]:
    if probe.is_filtered():
        probe.errno(f"connect to the {name}", lambda cid=cid: connect(cid))
    else:
        # Without the filter this would reach a real listener.
        probe.say(f"connect to the {name}", "not tried")
probe.errno("the device", lambda: open("/dev/vsock", "rb"))
# A family that every kernel has shows whether the filter answers.
probe.syscall("raw IPv6", "socket", 10, 3, 58)
