import os
import socket
import struct
import sys
import threading

import probe

port, public, private = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def serve(names):
    """Runs a name server inside, which answers with a public address, then a private one, then the loopback's."""
    answers = [public, private, "127.0.0.1"]
    while True:
        query, sender = names.recvfrom(512)
        address = answers.pop(0) if len(answers) > 1 else answers[0]
        record = struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(address)
        names.sendto(query[:2] + struct.pack("!HHHHH", 0x8180, 1, 1, 0, 0) + query[12:] + record, sender)


def look_up(server):
    """Returns the server's answer for rebind.example."""
    question = b"".join(bytes([len(part)]) + part for part in (b"rebind", b"example")) + b"\0" + struct.pack("!HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        query.settimeout(3)
        query.sendto(struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + question, server)
        return socket.inet_ntoa(query.recv(512)[-4:])


def dial(address):
    with socket.socket() as connection:
        connection.settimeout(3)
        connection.connect((address, port))


names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("127.0.0.1", 0))
threading.Thread(target=serve, args=(names,), daemon=True).start()
for expected in ("public", "private", "loopback"):
    address = look_up(names.getsockname())
    probe.errno(f"name that is {expected} now", lambda: dial(address))


def resolve(name):
    try:
        return "found" if socket.getaddrinfo(name, port) else "nothing"
    except socket.gaierror:
        return "not found"


probe.say("name of the world", resolve("example.com"))
probe.say("name of the network beside", resolve("router.local"))
# To answer other programs in the sandbox, code would have to be the name server, or configure it.
probe.errno("be the server of names", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("127.0.0.1", 53)))
probe.errno("change the list of hosts", lambda: open("/etc/hosts", "a"))
probe.errno("change who is asked", lambda: open("/etc/resolv.conf", "w"))
with open("aliases", "w", encoding="ascii") as file:
    file.write("alias 10.0.0.1\n")
os.environ["HOSTALIASES"] = os.path.abspath("aliases")
probe.say("alias", resolve("alias"))
