import glob
import hashlib
import os

import host

FILES = ["/usr/bin/env", "/usr/bin/python3", "/bin/sh", "/usr/lib/os-release", host.BELLJAR, "/etc/ld.so.cache", "/etc/passwd"]
FILES += glob.glob("/usr/lib/*-linux-gnu/libc.so.6") + ["/usr/lib/python3/dist-packages"]
DIRECTORIES = ["/", "/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/local/bin", "/etc", "/var/lib", "/etc/ssl/certs"]


def digest():
    found = []
    for name in FILES:
        if os.path.isfile(name):
            with open(name, "rb") as file:
                stat = os.fstat(file.fileno())
                content = hashlib.sha256(file.read()).hexdigest()
                found.append((name, content, stat.st_mode, stat.st_uid, stat.st_mtime_ns))
    for name in DIRECTORIES:
        if os.path.isdir(name):
            # Others may change these meanwhile, so only the names that the attack uses count.
            found.append((name, [entry for entry in os.listdir(name) if "planted" in entry], os.stat(name).st_mode))
    return found


before = digest()
host.relay(host.run("program.py"))
host.say("the host's files", "as they were" if digest() == before else "changed")
done = host.run(code="ls / /etc /usr/bin /usr/lib /usr/local/bin /var/lib | grep planted; cat /etc/passwd | wc -l", language="sh")
host.say("the next run", "starts from the same" if done.output.strip() == "3" else f"{done}")
