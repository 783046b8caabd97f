import os

import host

key, name = str(0x62000000 | int.from_bytes(os.urandom(3), "big")), f"x04-{os.urandom(6).hex()}"
neighbour = host.spawn("keeper.py", key, name, flags=["--timeout", "20s"])
number = neighbour.stdout.readline().decode().strip()
try:
    host.relay(host.run("program.py", key, name, number))
finally:
    said = neighbour.communicate(b"\n", timeout=10)[0].decode().strip()
host.say("neighbour", "has what it had" if said == "kept" else said)
