import os

import host

token = os.urandom(16).hex()
shared = os.path.join(host.scratch(), "shared")
os.mkdir(shared)
os.chmod(shared, 0o777)
CODE = "IFS= read -r t; umask 0; for f in token /tmp/token /dev/shm/token /m/token; do echo $t > $f; done; echo ready; read -r x; cat token /tmp/token /dev/shm/token /m/token"
neighbour = host.spawn(code=CODE, language="sh", flags=["--mount", f"{shared}:/m:rw"])
neighbour.stdin.write(f"{token}\n".encode())
neighbour.stdin.flush()
neighbour.stdout.readline()
host.relay(host.run("program.py", shared, token[:16], token[16:]))
said = neighbour.communicate(b"\n", timeout=10)[0].decode().split()
host.say("neighbour", "has its token" if said == [token] * 4 else said)
