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
    total, held = fill(tcp_pairs(600), PIECE)
    # The host looks every 20 ms.
    time.sleep(0.2)
    del held
    return judge(total)


def unaccepted(listeners, connections, options=(), keep=True):
    """Connects and sends, and accepts nothing. Closed connections need no open file, and keep what the receiving end holds."""
    total, held = 0, []
    for _ in range(listeners):
        server = socket.socket()
        for option, value in options:
            server.setsockopt(socket.SOL_SOCKET, option, value)
        server.bind(("127.0.0.1", 0))
        server.listen(65535)
        held.append(server)
        for _ in range(connections):
            client = socket.socket()
            client.setsockopt(*SEND, 1)
            client.settimeout(0.5)
            try:
                client.connect(server.getsockname())
                client.setblocking(False)
                while total <= MOST * MIB * 8:
                    total += client.send(PIECE)
            except OSError:
                pass
            if keep:
                held.append(client)
            else:
                client.close()
    # The host looks every 20 ms.
    time.sleep(0.2)
    return "connections made"


def exchanged(pairs):
    """Leaves a connection waiting for each end of an accepted one that is closed, so that the number of sockets stays the same."""
    held = list(tcp_pairs(pairs))
    time.sleep(0.3)
    reset = (socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(65535)
    while held:
        for end in held.pop():
            end.setsockopt(*reset)
            end.close()
            with socket.socket() as client:
                client.settimeout(0.5)
                try:
                    client.connect(server.getsockname())
                    client.sendall(PIECE[:28000])
                except OSError:
                    pass
    time.sleep(1)
    return "connections made"


def remembered(connections):
    """Closes connections, which the kernel remembers for a minute (TIME_WAIT)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(connections):
            client = socket.create_connection(server.getsockname())
            accepted = server.accept()[0]
            client.close()
            accepted.close()
    with open("/proc/self/net/sockstat", encoding="ascii") as lines:
        words = next(line for line in lines if line.startswith("TCP:")).split()
    count = int(words[words.index("tw") + 1])
    return "at most 4096" if count <= 4096 else f"{count}"


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
    "TCP": tcp, "UDP": udp, "unaccepted": lambda: unaccepted(1, 800),
    "unaccepted, large buffers": lambda: unaccepted(1, 300, [(socket.SO_RCVBUF, 4 * MIB)]),
    "unaccepted, low-water mark": lambda: unaccepted(1, 300, [(socket.SO_RCVLOWAT, 4 * MIB)]),
    "unaccepted, exchanged": lambda: exchanged(1100),
    "remembered": lambda: remembered(8000),
    "unaccepted, many": lambda: unaccepted(6, 4000, keep=False),
}
probe.say(sys.argv[1], attacks[sys.argv[1]]())
