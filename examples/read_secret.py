"""Looks for secrets in the usual places, and prints the result of each attempt. Exits with 1 if one was found.

The arguments are further files to try. BELLJAR_DEMO_SECRET is a variable that the demo plants outside.
"""

import glob
import os
import sys

PLANTED = "BELLJAR_DEMO_SECRET"
SHOWN_BYTES = 60

found = 0


def report(what, answer):
    print(f"{what:<28} {answer}")


def leak(what, content):
    global found
    found += 1
    report(what, f"READ {content[:SHOWN_BYTES]!r}")


def try_file(path):
    try:
        with open(path, "rb") as file:
            leak(path, file.read())
    except OSError as error:
        report(path, error.strerror)


def try_directory(path):
    try:
        names = os.listdir(path)
    except OSError as error:
        report(path, error.strerror)
    else:
        leak(path, " ".join(names)) if names else report(path, "empty")


def try_pattern(pattern):
    paths = glob.glob(pattern)
    for path in paths:
        try_file(path)
    if not paths:
        report(pattern, "nothing there")


def try_environment(path):
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        report(path, error.strerror)
    else:
        leak(path, content) if PLANTED.encode() in content else report(path, f"{len(content)} bytes, nothing from outside")


for path in ["/etc/shadow", "/etc/ssh/ssh_host_ed25519_key", *sys.argv[1:]]:
    try_file(path)
for path in ["/root", "/root/.ssh", os.path.expanduser("~/.ssh"), "/var/lib", "/run/secrets"]:
    try_directory(path)
for pattern in ["/home/*/.ssh/*", "/home/*/.aws/credentials", "/proc/1/root/etc/shadow"]:
    try_pattern(pattern)
for path in ["/proc/self/environ", "/proc/1/environ", "/proc/2/environ"]:
    try_environment(path)

print(f"{found} found")
sys.exit(1 if found else 0)
