import os

import host

# The sender does everything it can, on request; the receiver looks before and after.
name = f"x10-{os.urandom(6).hex()}"
key, port = str(0x63000000 | int.from_bytes(os.urandom(3), "big")), str(20000 + int.from_bytes(os.urandom(2), "big") % 10000)
sender = host.spawn("sender.py", name, key, port, flags=["--timeout", "25s"])
sender.stdout.readline()
receiver = host.spawn("receiver.py", name, key, port, flags=["--timeout", "25s"])
receiver.stdout.readline()
try:
    sender.stdin.write(b"send\n")
    sender.stdin.flush()
    sender.stdout.readline()
    said = receiver.communicate(b"look\n", timeout=15)[0].decode()
finally:
    sender.communicate(b"tidy\n", timeout=15)
print(said, end="", flush=True)
