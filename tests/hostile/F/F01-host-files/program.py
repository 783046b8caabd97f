import os

import probe

secret, public = os.environ["CANARY_FILE"], os.environ["CANARY_PUBLIC"]


def read(path):
    with open(path, "rb") as file:
        return file.read()


probe.errno("secret file", lambda: read(secret))
probe.errno("public file", lambda: read(public))
probe.errno("public file by the old root", lambda: read("/old-root" + public))
probe.errno("public file by proc self root", lambda: read("/proc/self/root" + public))
probe.errno("public file by proc 1 root", lambda: read("/proc/1/root" + public))
probe.errno("public file upwards", lambda: read("../" * 40 + public))
probe.errno("shadow", lambda: read("/etc/shadow"))
probe.errno("root's home", lambda: os.listdir("/root"))
names = {line.split(":")[0] for line in read("/etc/passwd").decode().splitlines()}
extra = names - {"root", "user", "nobody"}
probe.say("passwd", ", ".join(sorted(extra)) if extra else "only accounts of the sandbox")
