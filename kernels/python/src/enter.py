"""How a forked child becomes a process of a sandbox: into its groups and namespaces, and behind its walls.

The sandbox's user owns the sandbox's user namespace, so a child that has become that user may enter it (user_namespaces(7)),
and the namespaces that belong to it; for that the parent has CAP_SETUID and CAP_SETGID. What comes after that is what every
process of the sandbox goes through, in the same order.
"""

import ctypes
import errno
import os
import signal

_libc = ctypes.PyDLL(None, use_errno=True)

CLONE_INTO_CGROUP = 0x200000000
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
KEYCTL_JOIN_SESSION_KEYRING = 1
SECCOMP_SET_MODE_FILTER = 1
CAPABILITY_VERSION_3 = 0x20080522
# SECBIT_NOROOT, SECBIT_NO_SETUID_FIXUP, SECBIT_NO_CAP_AMBIENT_RAISE and their locks (capabilities(7)).
SECUREBITS = 0b11001111
MADV_COLLAPSE = 25
HUGE_PAGE = 2 << 20


class _CloneArguments(ctypes.Structure):
    """As clone(2) has it, up to the version with `cgroup`."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup".split())
    ]


class _Program(ctypes.Structure):
    """A `sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class Calls:
    """System calls that Python has no function for, by the numbers that the host gives."""

    def __init__(self, numbers):
        """Makes everything that a child needs, so that it allocates little."""
        self._numbers = numbers
        self._call = _libc.syscall
        self._call.restype = ctypes.c_long

    def call(self, name, *arguments):
        """One call; raises what the kernel says."""
        words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
        result = self._call(ctypes.c_long(self._numbers[name]), *words)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return result

    def clone_into(self, group):
        """A fork whose child begins in this control group. The child has one thread, and forks again before it runs anything."""
        arguments = _CloneArguments(flags=CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=group)
        return self.call("clone3", ctypes.byref(arguments), ctypes.sizeof(arguments))

    def clone(self):
        """A fork that Python knows nothing of: cheaper, for a child that does next to nothing before it forks or ends."""
        return self.call("clone", signal.SIGCHLD, 0, 0, 0, 0)

    def prctl(self, option, value):
        """One prctl(2)."""
        return self.call("prctl", option, value, 0, 0, 0)

    def set_filter(self, instructions):
        """Takes a filter of system calls, of which there is no way back."""
        text = ctypes.create_string_buffer(instructions, len(instructions))
        program = _Program(len(instructions) // 8, ctypes.addressof(text))
        self.call("seccomp", SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(program))

    def drop_capabilities(self):
        """None is left, and none comes back."""
        for capability in range(64):
            try:
                self.prctl(PR_CAPBSET_DROP, capability)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                break
        self.prctl(PR_SET_SECUREBITS, SECUREBITS)
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
        self.call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def use_huge_pages(calls):
    """Puts what has been allocated into huge pages, of which a fork copies fewer entries. A kernel that cannot, does not."""
    import gc

    for page in {id(thing) // HUGE_PAGE for thing in gc.get_objects()}:
        try:
            calls.call("madvise", page * HUGE_PAGE, HUGE_PAGE, MADV_COLLAPSE)
        except OSError:
            # It is not all of one kind.
            continue


def move_in(calls, order, fds):
    """Enters the sandbox. Only the process that belongs to it returns, as a child of the sandbox's first process."""
    import resource

    for group in fds["groups"]:
        os.write(group, b"0")
    if order["keyring"]:
        calls.call("keyctl", KEYCTL_JOIN_SESSION_KEYRING, 0)
    os.setgroups([])
    os.setresgid(order["gid"], order["gid"], order["gid"])
    os.setresuid(order["uid"], order["uid"], order["uid"])
    calls.call("setns", fds["target"], order["namespaces"])
    # The first child is in the namespace of processes, and its end makes the second one the first process's.
    child = calls.clone()
    if child:
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            pass
        os._exit(0)
    if os.fork():
        os._exit(0)
    os.setsid()
    for resource_number, value in order["rlimits"]:
        hard = resource.getrlimit(resource_number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_number, (value, value))
    if order["capabilities"]:
        calls.drop_capabilities()
    calls.prctl(PR_SET_NO_NEW_PRIVS, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate((null, fds["stdout"], fds["stderr"])):
        os.dup2(fd, number)
    control = fds["control"]
    os.closerange(3, control)
    os.closerange(control + 1, 4096)
    # Python itself ignores these two; the others were ignored on the way here.
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if order["filter"] is not None:
        calls.set_filter(order["filter"])
    # So that processes of the sandbox see it as each other; it was taken away with the change of ids.
    calls.prctl(PR_SET_DUMPABLE, 1)
    while os.getppid() != 1:
        os.sched_yield()


def settle(calls, frame, fds):
    """What the sandbox's first process does for all that it starts."""
    import resource

    for fd in fds:
        calls.call("landlock_restrict_self", fd, 0)
        os.close(fd)
    for resource_number, value in frame["rlimits"]:
        hard = resource.getrlimit(resource_number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_number, (value, value))
    os.umask(frame["umask"])
