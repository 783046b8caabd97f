import ctypes
import os
import resource
import signal

import probe

ATTACH, SEIZE, DETACH, TRACEME, ALL_CHILDREN = 16, 0x4206, 17, 0, 0x40000000
INTERRUPT = 0x4207
KCMP_FILE = 0

secret = ctypes.create_string_buffer(b"what only this process knows")
reader, writer = os.pipe()


def beside():
    """Forks a process that waits until this one ends."""
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    return pid


child = beside()
# The same, but its parent has ended, so its new parent is the first process: it is a sibling of this program.
pid_reader, pid_writer = os.pipe()
if os.fork() == 0:
    os.write(pid_writer, str(beside()).encode())
    os._exit(0)
os.wait()
sibling = int(os.read(pid_reader, 16))


def vector(address, size):
    return (ctypes.c_uint64 * 2)(address, size)


def memory(pid):
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as file:
        file.seek(ctypes.addressof(secret))
        return file.read(4)


def trace(name, how, pid):
    answer = probe.outcome("ptrace", how, pid, 0, 0)
    probe.say(name, answer)
    if answer == "ok":
        # It must continue, because it relays the output of this program.
        if how == ATTACH:
            os.waitpid(pid, ALL_CHILDREN)
        else:
            probe.outcome("ptrace", INTERRUPT, pid, 0, 0)
            os.waitpid(pid, ALL_CHILDREN)
        probe.outcome("ptrace", DETACH, pid, 0, 0)


copy = ctypes.create_string_buffer(64)
# A fork has the same addresses, so these are valid there.
mine, theirs = vector(ctypes.addressof(copy), 16), vector(ctypes.addressof(secret), 16)
for name, pid in [("first process", 1), ("own child", child), ("sibling", sibling)]:
    trace(f"{name}, ptrace attach", ATTACH, pid)
    trace(f"{name}, ptrace seize", SEIZE, pid)
    probe.syscall(f"{name}, process_vm_readv", "process_vm_readv", pid, mine, 1, theirs, 1, 0)
    probe.syscall(f"{name}, process_vm_writev", "process_vm_writev", pid, mine, 1, theirs, 1, 0)
    probe.syscall(f"{name}, kcmp", "kcmp", os.getpid(), pid, KCMP_FILE, 0, 0)
    process, error = probe.raw("pidfd_open", pid, 0)
    probe.say(f"{name}, pidfd_getfd", probe.name_of(error) if error else probe.outcome("pidfd_getfd", process, 0, 0))
    advice = probe.outcome("process_madvise", process, theirs, 1, 21, 0)
    probe.say(f"{name}, process_madvise", probe.name_of(error) if error else advice)
probe.errno("first process's memory", lambda: memory(1))
probe.errno("first process's map", lambda: open("/proc/1/maps").read())
probe.errno("first process's program", lambda: open("/proc/1/exe", "r+b"))
probe.errno("first process's environment", lambda: open("/proc/1/environ", "rb").read())
probe.errno("first process's descriptors", lambda: os.listdir("/proc/1/fd"))
probe.errno("first process's stack", lambda: open("/proc/1/stack").read())
probe.errno("first process's score for out of memory", lambda: open("/proc/1/oom_score_adj", "w").write("1000"))
probe.errno("first process, limits", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE))
probe.syscall("be traced", "ptrace", TRACEME, 0, 0, 0)
PR_SET_PTRACER = 0x59616D61
probe.syscall("let all trace", "prctl", PR_SET_PTRACER, -1, 0, 0, 0)
for number, name in [(signal.SIGSTOP, "stop"), (signal.SIGKILL, "kill"), (0, "look")]:
    probe.errno(f"first process, signal to {name}", lambda number=number: os.kill(1, number))
# The first process is unharmed: it still relays the output.
probe.say("memory afterwards", "the same" if secret.value.startswith(b"what only") else "another")
os.close(writer)
os.waitpid(child, 0)
