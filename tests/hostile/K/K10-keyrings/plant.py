"""Creates a session keyring with a secret key that its owner and possessors may read, and executes belljar."""

import ctypes
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
# x86_64, aarch64.
add_key, keyctl = (248, 250) if os.uname().machine == "x86_64" else (217, 219)
JOIN, SETPERM, SESSION, ALL = 1, 5, -3, 0x3F3F3F3F
if libc.syscall(keyctl, JOIN, None) == -1:
    sys.exit(77)
for kind in (b"user", b"logon"):
    name = b"belljar:canary" if kind == b"logon" else b"belljar-canary"
    key = libc.syscall(add_key, kind, name, sys.argv[1].encode(), len(sys.argv[1]), SESSION)
    if key == -1:
        sys.exit(77)
    libc.syscall(keyctl, SETPERM, key, ALL)
    if kind == b"user":
        os.environ["BELLJAR_CANARY_KEY"] = str(key)
os.execv(sys.argv[2], [*sys.argv[2:], os.environ["BELLJAR_CANARY_KEY"]])
