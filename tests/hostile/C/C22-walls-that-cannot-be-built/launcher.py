"""Disables kernel features and paths, and then executes another program.

call=ERROR          the system call fails with this error
call:N=ERROR        it fails if its first argument is N
readonly:PATH       makes mounts at and below PATH read-only
hide:PATH           mounts an empty directory over PATH
"""

import ctypes
import errno
import os
import struct
import sys

sys.path.insert(0, os.environ["PYTHONPATH"])
import probe  # noqa: E402

LOAD, JUMP_EQUAL, RETURN, ALLOW, ERROR = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
EXTRA = {
    "prctl": (157, 167), "capset": (126, 91), "setresuid": (117, 147), "setgroups": (116, 159), "mkdir": (83, None),
    "mkdirat": (258, 34), "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
}
COLUMN = probe._COLUMN
MS_BIND, MS_REC, MS_REMOUNT, MS_RDONLY, MS_PRIVATE = 0x1000, 0x4000, 0x20, 1, 0x40000


def number(call):
    return EXTRA[call][COLUMN] if call in EXTRA else probe.number(call)


def checked(call, *args):
    answer = probe.outcome(call, *args)
    if answer != "ok":
        sys.exit(f"{call} {args}: {answer}")


def text(value):
    return ctypes.c_char_p(value.encode())


split = sys.argv.index("--")
steps, argv = sys.argv[1:split], sys.argv[split + 1:]
rules = []
for step in steps:
    what, _, rest = step.partition(":")
    if what not in ("readonly", "hide"):
        call, _, error = step.partition("=")
        call, _, first = call.partition(":")
        at = number(call)
        if at is not None:
            rules.append((at, int(first) if first else None, getattr(errno, error)))
        continue
    if not os.path.isdir(rest):
        sys.exit(77)
    probe.outcome("unshare", 0x20000)
    checked("mount", text("none"), text("/"), 0, MS_REC | MS_PRIVATE, 0)
    if what == "hide":
        checked("mount", text("none"), text(rest), text("tmpfs"), 0, 0)
        continue
    with open("/proc/self/mountinfo") as lines:
        places = {line.split()[4] for line in lines}
    for place in sorted({rest} | {place for place in places if place.startswith(rest + "/")}):
        checked("mount", text(place), text(place), 0, MS_BIND, 0)
        checked("mount", text("none"), text(place), 0, MS_BIND | MS_REMOUNT | MS_RDONLY, 0)

if rules:
    program = [(LOAD, 0, 0, 0)]
    for at, first, error in rules:
        if first is None:
            program += [(JUMP_EQUAL, 0, 1, at), (RETURN, 0, 0, ERROR | error)]
        else:
            # Checks the first argument, then loads the number again for the next rule.
            program += [(JUMP_EQUAL, 0, 4, at), (LOAD, 0, 0, 16), (JUMP_EQUAL, 0, 1, first), (RETURN, 0, 0, ERROR | error), (LOAD, 0, 0, 0)]
    program.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    # By prctl, because seccomp may be a removed call; as root without no_new_privs, which is itself a wall.
    returned, error = probe.raw(number("prctl"), 22, 2, ctypes.addressof(header), 0, 0)
    if returned == -1:
        sys.exit(f"cannot install the filter: {os.strerror(error)}")
os.execv(argv[0], argv)
