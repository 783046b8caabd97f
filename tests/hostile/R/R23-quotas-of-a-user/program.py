import ctypes
import os
import signal
import sys

import probe

libc = probe.libc


def until(attempt, most, limit=None):
    """Repeats `attempt` until it fails, `most` times at most."""
    for made in range(most):
        error = attempt(made)
        if error:
            name = probe.name_of(error)
            return f"{name} within {limit}" if limit and made <= limit else name if not limit else f"{name} after {made}"
    return "ok"


def queued():
    number = signal.SIGRTMIN
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    return until(lambda _: ctypes.get_errno() if libc.sigqueue(os.getpid(), number, None) else 0, 3000, 1024)


def timers():
    timer = ctypes.c_void_p()
    return until(lambda _: ctypes.get_errno() if libc.timer_create(1, None, ctypes.byref(timer)) else 0, 3000, 1024)


def locked():
    # A MiB: most machines allow 8 to every user.
    size = 1 << 20
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, 0)
    failed = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return probe.name_of(ctypes.get_errno()) if failed else "ok"


def queues():
    def attempt(made):
        failed = libc.mq_open(f"/q{made}".encode(), os.O_CREAT | os.O_RDWR, 0o600, None) < 0
        return ctypes.get_errno() if failed else 0

    return until(attempt, 600)


def descriptors(name, *args):
    files = []

    def attempt(_):
        file, error = probe.raw(name, *args)
        files.append(file)
        return error

    return until(attempt, 1100)


def aio():
    context = ctypes.c_ulong()
    answer = probe.outcome("io_setup", 4096, ctypes.byref(context))
    if answer == "ok":
        held.append(context)
    return answer


held = []
probe.say("queued signals", probe.in_child(queued))
probe.say("timers", probe.in_child(timers))
probe.say("locked memory", probe.in_child(locked))
probe.say("epoll", probe.in_child(lambda: descriptors(291 if os.uname().machine == "x86_64" else 20, 0)))
parameters = ctypes.create_string_buffer(256)
probe.say("io_uring", probe.in_child(lambda: probe.outcome("io_uring_setup", 4, parameters)))
probe.say("add_key", probe.outcome("add_key", ctypes.c_char_p(b"user"), ctypes.c_char_p(b"k"), ctypes.c_char_p(b"v"), 1, -2))
GET_KEYRING_ID, SESSION = 0, -3
probe.say("keyctl", probe.outcome("keyctl", GET_KEYRING_ID, SESSION, 0))
probe.say("fanotify", probe.outcome("fanotify_init", 0, 0))
# Held by this process while the host and the neighbour need some.
probe.say("message queues", queues())
probe.say("aio", aio())
probe.say("inotify", descriptors("inotify_init1", 0))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
for _ in range(1200):
    libc.sigqueue(os.getpid(), signal.SIGRTMIN, None)
probe.say("holding", "all")
sys.stdin.read(1)
