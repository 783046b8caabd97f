import ctypes
import os
import socket

import probe


def text(value):
    return ctypes.create_string_buffer(value.encode())


nothing = ctypes.create_string_buffer(64)
probe.syscall("init_module", "init_module", nothing, 64, text(""))
with open("not-a-module.ko", "wb+") as module:
    module.write(bytes(64))
    probe.syscall("finit_module", "finit_module", module.fileno(), text(""), 0)
probe.syscall("delete_module", "delete_module", text("loop"), 0)
probe.syscall("kexec_load", "kexec_load", 0, 0, None, 0)
probe.syscall("kexec_file_load", "kexec_file_load", -1, -1, 0, None, 0)


def family(number, kind=socket.SOCK_DGRAM):
    return probe.outcome("socket", number, kind, 0)


# Each would make the kernel look for a module: all but UNIX, INET, INET6, NETLINK and PACKET.
others = [number for number in range(0, 64) if number not in (1, 2, 10, 16, 17)]
probe.say("address families", probe.together({number: family(number) for number in others}) if probe.is_filtered() else "not tried")
internet = {number: probe.outcome("socket", 2, 5, number) for number in (33, 132, 136, 143, 262)} if probe.is_filtered() else {}
probe.say("protocols of IPv4", probe.together(internet) if internet else "not tried")
netlink = {number: probe.outcome("socket", 16, 3, number) for number in range(1, 23)} if probe.is_filtered() else {}
probe.say("protocols of netlink", probe.together(netlink) if netlink else "not tried")
for kind in ("udf", "ext4", "overlay"):
    probe.syscall(f"filesystem {kind}", "fsopen", text(kind), 0)
with socket.socket() as connection:
    for name in ("tls", "espintcp", "smc", "no-such-protocol"):
        probe.errno(f"upper layer {name}", lambda name=name: connection.setsockopt(6, 31, name.encode()))
    # Allowed; without a capability the kernel loads no module for it.
    probe.errno("congestion control", lambda: connection.setsockopt(6, 13, b"no-such-control"))
lines = {number: probe.outcome("ioctl", 0, 0x5423, ctypes.byref(ctypes.c_int(number))) for number in range(1, 30)}
probe.say("line disciplines", probe.together(lines))
probe.errno("modprobe's path", lambda: open("/proc/sys/kernel/modprobe", "w").write("/tmp/mine"))
probe.errno("list of modules", lambda: os.listdir("/sys/module"))
# Kernels before 6.14 look for a module for a program of an unknown format.
with open("unknown", "wb") as file:
    file.write(b"\x01\x02\x03\x04" * 64)
os.chmod("unknown", 0o755)
probe.errno("program of no known kind", lambda: os.execv("./unknown", ["unknown"]))
