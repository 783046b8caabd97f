import os
import socket
import sys
import time

import probe

MIB = 1 << 20
LIMIT, MOST = 64, 150
PIECE = bytes(64 << 10)
RECEIVE, SEND = (socket.SOL_SOCKET, socket.SO_RCVBUF), (socket.SOL_SOCKET, socket.SO_SNDBUF)


def judge(total):
    return "within the limit" if total <= LIMIT * MIB else f"{total / MIB:.0f} MiB"


def pipes():
    total = 0
    for _ in range(MOST * 16):
        if total > MOST * MIB:
            break
        try:
            _, writer = os.pipe()
            os.set_blocking(writer, False)
            while True:
                total += os.write(writer, PIECE)
        except BlockingIOError:
            continue
        except OSError:
            break
    return judge(total)


def fill(pairs, piece):
    """Sends on each of the sockets until it is full. Nothing is received."""
    total, held = 0, []
    for pair in pairs:
        held.append(pair)
        pair[0].setblocking(False)
        for option in (RECEIVE, SEND):
            for end in pair:
                end.setsockopt(*option, 4 * MIB)
        deadline = time.monotonic() + 0.2
        while total <= MOST * MIB and time.monotonic() < deadline:
            try:
                total += pair[0].send(piece)
            except OSError:
                break
        if total > MOST * MIB:
            break
    return total, held


def unix(kind, piece):
    return lambda: judge(fill((socket.socketpair(socket.AF_UNIX, kind) for _ in range(1500)), piece)[0])


def tcp_pairs(count):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        for _ in range(count):
            try:
                client = socket.create_connection(server.getsockname(), timeout=0.5)
                yield client, server.accept()[0]
            except OSError:
                # No memory for another one.
                return


def tcp():
    return judge(fill(tcp_pairs(600), PIECE)[0])


def udp():
    """Counts received datagrams, because those without room are dropped silently."""
    receivers, sent = [], 0
    piece = PIECE[:32768]
    while sent <= MOST * MIB and len(receivers) < 600:
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1", 0))
        receiver.setsockopt(*RECEIVE, 4 * MIB)
        receiver.setblocking(False)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(receiver.getsockopt(*RECEIVE) // len(piece) // 2):
                try:
                    sent += sender.sendto(piece, receiver.getsockname())
                except OSError:
                    break
        receivers.append(receiver)
    total = 0
    for receiver in receivers:
        try:
            while True:
                total += len(receiver.recv(65536))
        except OSError:
            pass
    return judge(total)


attacks = {
    "pipes": pipes, "Unix sockets": unix(socket.SOCK_STREAM, PIECE), "datagrams": unix(socket.SOCK_DGRAM, PIECE[:1024]),
    "TCP": tcp, "UDP": udp,
}
probe.say(sys.argv[1], attacks[sys.argv[1]]())
