"""Turns a forked child into a process of a sandbox: joins its groups and namespaces, and applies its walls.

The sandbox's user owns the sandbox's user namespace, so a child that has changed to that user may enter it
(user_namespaces(7)), and the namespaces that belong to it; for that the parent has CAP_SETUID and CAP_SETGID. The remaining
steps are those of every process of the sandbox, in the same order.
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
    """`clone_args` of clone(2), up to the version with `cgroup`."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup".split())
    ]


class _Program(ctypes.Structure):
    """A `sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class Calls:
    """System calls that Python has no function for, by the numbers that the host sends."""

    def __init__(self, numbers):
        """Prepares everything that a child needs, so that it allocates little."""
        self._numbers = numbers
        self._call = _libc.syscall
        self._call.restype = ctypes.c_long

    def call(self, name, *arguments):
        """Makes one call; raises the kernel's error."""
        words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
        result = self._call(ctypes.c_long(self._numbers[name]), *words)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return result

    def clone_into(self, group):
        """Forks a child into this control group. The child has one thread, and forks again before it runs anything."""
        arguments = _CloneArguments(flags=CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=group)
        return self.call("clone3", ctypes.byref(arguments), ctypes.sizeof(arguments))

    def clone(self):
        """Forks without Python's hooks: cheaper, for a child that does little before it forks or exits."""
        return self.call("clone", signal.SIGCHLD, 0, 0, 0, 0)

    def prctl(self, option, value):
        """Calls prctl(2)."""
        return self.call("prctl", option, value, 0, 0, 0)

    def set_filter(self, instructions):
        """Installs a system call filter, irrevocably."""
        text = ctypes.create_string_buffer(instructions, len(instructions))
        program = _Program(len(instructions) // 8, ctypes.addressof(text))
        self.call("seccomp", SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(program))

    def drop_capabilities(self):
        """Drops all capabilities, permanently."""
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
    """Moves allocated memory to huge pages, for which a fork copies fewer entries. Ignored if the kernel does not support it."""
    import gc

    # Frozen objects are not listed.
    gc.unfreeze()
    pages = {id(thing) // HUGE_PAGE for thing in gc.get_objects()}
    gc.freeze()
    for page in pages:
        try:
            calls.call("madvise", page * HUGE_PAGE, HUGE_PAGE, MADV_COLLAPSE)
        except OSError:
            # The range is not uniform.
            continue


def enter_sandbox(calls, request, fds):
    """Enters the sandbox. Only the process inside it returns, as a child of the sandbox's first process."""
    import resource

    for group in fds["groups"]:
        os.write(group, b"0")
    if request["keyring"]:
        calls.call("keyctl", KEYCTL_JOIN_SESSION_KEYRING, 0)
    os.setgroups([])
    os.setresgid(request["gid"], request["gid"], request["gid"])
    os.setresuid(request["uid"], request["uid"], request["uid"])
    calls.call("setns", fds["target"], request["namespaces"])
    # The first child is in the pid namespace; its exit makes the second one a child of the first process.
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
    for resource_number, value in request["rlimits"]:
        hard = resource.getrlimit(resource_number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_number, (value, value))
    if request["capabilities"]:
        calls.drop_capabilities()
    calls.prctl(PR_SET_NO_NEW_PRIVS, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate((null, fds["stdout"], fds["stderr"])):
        os.dup2(fd, number)
    control = fds["control"]
    os.closerange(3, control)
    os.closerange(control + 1, 4096)
    # Python itself ignores these two; the others were ignored earlier.
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if request["filter"] is not None:
        calls.set_filter(request["filter"])
    # So that processes of the sandbox can see it; the change of ids cleared this.
    calls.prctl(PR_SET_DUMPABLE, 1)
    while os.getppid() != 1:
        os.sched_yield()


def apply_settings(calls, frame, fds):
    """Applies what the sandbox's first process applies to every process."""
    import resource

    for fd in fds:
        calls.call("landlock_restrict_self", fd, 0)
        os.close(fd)
    for resource_number, value in frame["rlimits"]:
        hard = resource.getrlimit(resource_number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_number, (value, value))
    os.umask(frame["umask"])
