import glob
import os
import socket

import probe

abstract = os.environ["CANARY_ABSTRACT"]
SERVERS = [
    "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
    "/run/crio/crio.sock", "/run/systemd/private", "/run/systemd/notify", "/run/dbus/system_bus_socket", "/dev/log",
    "/run/belljar/belljar.sock", "/run/user/0/bus", "/tmp/.X11-unix/X0", os.environ["CANARY_SOCKET"],
]


def connect(address, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as connection:
        connection.settimeout(3)
        connection.connect(address)


for path in SERVERS[:-1]:
    probe.errno(path, lambda path=path: connect(path))
probe.errno("socket in a directory", lambda: connect(SERVERS[-1]))
probe.errno("abstract", lambda: connect("\0" + abstract))
probe.errno("abstract, datagram", lambda: connect("\0" + abstract, socket.SOCK_DGRAM))
probe.errno("abstract, seqpacket", lambda: connect("\0" + abstract, socket.SOCK_SEQPACKET))
probe.errno("abstract, with a zero byte behind", lambda: connect("\0" + abstract + "\0"))
probe.errno("abstract of X11", lambda: connect("\0/tmp/.X11-unix/X0"))


def listed():
    """Returns the names in the kernel's table of local sockets."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as lines:
        return {line.split()[7] for line in lines.readlines()[1:] if len(line.split()) > 7}


def of_others():
    names = listed()
    return "none" if not names else " ".join(sorted(names)[:3])


probe.say("names in the table", of_others())
found = [path for pattern in ("/run/**", "/var/run/**", "/dev/**", "/tmp/**", "/home/**") for path in glob.glob(pattern, recursive=True)]
sockets = [path for path in found if os.path.exists(path) and (os.stat(path).st_mode & 0o170000) == 0o140000]
probe.say("sockets in the tree", "none" if not sockets else " ".join(sockets[:3]))


def same_name():
    """Connects to its own socket of that name, which does not conflict with the host's."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + abstract)
        server.listen()
        connect("\0" + abstract)


probe.errno("own abstract socket of that name", same_name)
# None of a program's streams is a socket of the host.
kinds = {os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in (0, 1, 2)}
probe.say("streams", " ".join(sorted(kinds)))
