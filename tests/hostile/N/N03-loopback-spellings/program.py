import os
import socket

import probe

port = int(os.environ["CANARY_PORT"])


def reach(name, host):
    def attempt():
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(3)
            connection.connect(address)

    try:
        probe.errno(name, attempt)
    except UnicodeError:
        probe.say(name, "gaierror")


def reach_or_gaierror(name, host):
    try:
        socket.getaddrinfo(host, port)
    except (socket.gaierror, UnicodeError):
        probe.say(name, "gaierror")
        return
    reach(name, host)


for host in ["127.0.0.1", "127.1", "0.0.0.0", "0", "2130706433", "0x7f000001", "017700000001", "0177.0.0.1"]:
    reach(host, host)
reach_or_gaierror("localhost", "localhost")
reach_or_gaierror("mapped", "::ffff:127.0.0.1")
reach_or_gaierror("circled digits", "①②⑦.⓪.⓪.①")
reach_or_gaierror("ideographic stops", "127。0。0。1")


def unix(name, address):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(3)
        probe.errno(name, lambda: connection.connect(address))


unix("abstract socket", "\0" + os.environ["CANARY_ABSTRACT"])
unix("socket in a directory", os.environ["CANARY_SOCKET"])
