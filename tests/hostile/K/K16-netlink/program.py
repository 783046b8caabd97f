import os
import socket
import struct

import probe

RAW, DGRAM = 3, 2
NAMES = {
    1: "unused", 2: "usersock", 3: "firewall", 4: "sock_diag", 5: "nflog", 6: "xfrm", 7: "selinux", 8: "iscsi", 9: "audit",
    10: "fib_lookup", 11: "connector", 12: "netfilter", 13: "ip6_fw", 14: "dnrtmsg", 15: "kobject_uevent", 16: "generic",
    18: "scsitransport", 19: "ecryptfs", 20: "rdma", 21: "crypto", 22: "smc",
}

ALWAYS_THERE = (2, 15, 16)
for number, name in NAMES.items():
    if number not in ALWAYS_THERE and not probe.is_filtered():
        probe.say(name, "not tried")
        continue
    answers = {kind: probe.outcome("socket", socket.AF_NETLINK, kind, number) for kind in (RAW, DGRAM)}
    probe.say(name, probe.together(answers))
probe.syscall("generic, high bits", "socket", socket.AF_NETLINK | 1 << 32, RAW, 16 | 1 << 32)


def dump(kind):
    """Returns the answers to a request for everything of a kind (RTM_GET...)."""
    with socket.socket(socket.AF_NETLINK, RAW, 0) as route:
        # NLM_F_REQUEST and NLM_F_DUMP; a body that is long enough for every kind.
        route.send(struct.pack("=IHHII", 16 + 20, kind, 0x301, 1, 0) + bytes(20))
        messages = []
        while True:
            data = route.recv(1 << 16)
            while data:
                length, what, _, _, _ = struct.unpack("=IHHII", data[:16])
                if what == 2:
                    raise OSError(-struct.unpack("=i", data[16:20])[0], "refused")
                if what == 3:
                    return messages
                messages.append(data[16:length])
                data = data[(length + 3) & ~3:]


def attributes(message, head):
    data = message[head:]
    while len(data) >= 4:
        length, kind = struct.unpack("=HH", data[:4])
        yield kind, data[4:length]
        data = data[(length + 3) & ~3:]


links = [value.rstrip(b"\0").decode() for message in dump(18) for kind, value in attributes(message, 16) if kind == 3]
probe.say("links", " ".join(links))
addresses = {socket.inet_ntoa(value) for message in dump(22) for kind, value in attributes(message, 8) if kind == 1 and len(value) == 4}
probe.say("addresses", " ".join(sorted(addresses)))
gateways = [value for message in dump(26) for kind, value in attributes(message, 12) if kind == 5]
probe.say("gateways", "none" if not gateways else "some")


def change(kind, body):
    with socket.socket(socket.AF_NETLINK, RAW, 0) as route:
        # NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE.
        route.send(struct.pack("=IHHII", 16 + len(body), kind, 0x405, 1, 0) + body)
        error = -struct.unpack("=i", route.recv(4096)[16:20])[0]
        return probe.name_of(error) if error else "ok"


probe.say("new address", change(20, struct.pack("=BBBBI", 2, 8, 0, 0, 1) + struct.pack("=HH4s", 8, 2, socket.inet_aton("10.1.2.3"))))
dummy = struct.pack("=HH", 12, 18 | 0x8000) + struct.pack("=HH", 6 + 2, 1) + b"dumm"
probe.say("new link", change(16, struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0) + dummy))
# Many exploits begin with queueing disciplines.
probe.say("new queueing discipline", change(36, struct.pack("=BBHiIII", 0, 0, 0, 1, 0x10000, 0xFFFFFFFF, 0) + struct.pack("=HH", 8, 1) + b"tbf\0"))
probe.errno("devices in /sys", lambda: os.listdir("/sys/class/net"))
