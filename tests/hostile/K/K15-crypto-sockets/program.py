import ctypes
import socket

import probe

ALG = 38
I386 = {"socketcall": 102, "socket": 359, "bind": 361, "getpid": 20}

probe.syscall("socket", "socket", ALG, 5, 0)
probe.syscall("socket, closed by exec", "socket", ALG, 5 | 0o2000000, 0)
probe.syscall("socket, high bits", "socket", ALG | 1 << 32, 5, 0)
probe.syscall("socket, negative high bits", "socket", ALG | -1 << 32, 5, 0)
probe.syscall("no such kind", "socket", ALG, 15, 0)
probe.syscall("pair", "socketpair", ALG, 5, 0, ctypes.create_string_buffer(8))


def bind(kind, name):
    with socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET) as algorithm:
        algorithm.bind((kind, name))


probe.errno("aead", lambda: bind("aead", "authencesn(hmac(sha256),cbc(aes))"))
probe.errno("skcipher", lambda: bind("skcipher", "cbc(aes)"))
probe.errno("hash", lambda: bind("hash", "sha256"))
arguments = probe.low(b"".join(value.to_bytes(4, "little") for value in (ALG, 5, 0)))
probe.say("socketcall of 32 bits", probe.int80(I386["socketcall"], 1, arguments))
probe.say("socket of 32 bits", probe.int80(I386["socket"], ALG, 5, 0))
probe.say("socket by x32", probe.x32("socket", ALG, 5, 0))
# Every kernel has these, so they show whether the filter answers.
local = probe.low(b"".join(value.to_bytes(4, "little") for value in (1, 1, 0)))
probe.say("local socket by socketcall of 32 bits", probe.int80(I386["socketcall"], 1, local))
probe.syscall("raw IPv6, to compare", "socket", 10, 3, 58)
with open("/proc/self/stat", encoding="ascii") as file:
    probe.say("still alive", "ok" if file.read() else "no")
