"""Forks a child into a sandbox: it joins the sandbox's groups and namespaces, and applies its walls.

The sandbox's user owns the sandbox's user namespace, so a process that has changed to that user may enter it
(user_namespaces(7)), and the namespaces that belong to it; for that the parent has CAP_SETUID and CAP_SETGID. The remaining
steps are those of every process of the sandbox, in the same order.

What is done is a list of system calls for each of two processes: the first, which is outside of the sandbox's pid namespace, and
the last, which is the child. Machine code from the host makes them (crates/belljar-linux/src/entry_unsafe.rs), with one copy of
the memory, or this module, with three.
"""

import array
import base64
import ctypes
import errno
import functools
import os
import resource
import signal

_libc = ctypes.PyDLL(None, use_errno=True)

CLONE_NEWTIME = 0x80
CLONE_VM = 0x100
CLONE_VFORK = 0x4000
CLONE_INTO_CGROUP = 0x200000000
PR_SET_DUMPABLE = 4
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_GET_TID_ADDRESS = 40
AT_FDCWD = -100
ALL = 0xFFFFFFFF
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
        self.numbers = numbers
        self._call = _libc.syscall
        self._call.restype = ctypes.c_long

    @functools.cached_property
    def capabilities(self):
        """How many capabilities the kernel has."""
        for number in range(64):
            try:
                self.call("prctl", PR_CAPBSET_READ, number, 0, 0, 0)
            except OSError:
                return number
        return 64

    def call(self, name, *arguments):
        """Makes one call; raises the kernel's error."""
        words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
        result = self._call(ctypes.c_long(self.numbers[name]), *words)
        if result < 0:
            raise failure(name, ctypes.get_errno())
        return result

    def clone_into(self, group):
        """Forks a child into this control group, without Python's hooks. It does little before it forks again."""
        if group is None:
            return self.call("clone", signal.SIGCHLD, 0, 0, 0, 0)
        arguments = _CloneArguments(flags=CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=group)
        return self.call("clone3", ctypes.byref(arguments), ctypes.sizeof(arguments))


def failure(name, number):
    """Returns the error of a system call."""
    return OSError(number, f"{name}: {os.strerror(number)}")


class Entry:
    """The steps of one request: system calls by name, with their arguments, for the first process and for the last."""

    def __init__(self, calls, request, fds):
        """Prepares them; nothing is done yet."""
        self._calls = calls
        # True in the processes that a fork has made.
        self.is_forked = False
        # What the steps point to.
        self._kept = []
        self._group = fds.get("cgroup")
        self._first = self._steps_outside(request, fds)
        self._last = self._steps_inside(request, fds)

    def _keep(self, thing):
        self._kept.append(thing)
        return ctypes.addressof(thing)

    def _join(self, groups):
        itself = self._keep(ctypes.create_string_buffer(b"0"))
        return [("write", group, itself, 1) for group in groups]

    def _steps_outside(self, request, fds):
        steps = self._join(fds["groups"])
        gid = request["gid"]
        # The effective id alone decides about the namespaces, and the others about who may send signals (kill(2)): no process
        # of the sandbox may, as long as it shares the parent's memory.
        steps += [("setgroups", 0, 0), ("setresgid", gid, gid, gid), ("setresuid", ALL, request["uid"], ALL)]
        # A process that shares its memory cannot change its time namespace.
        return [*steps, ("setns", fds["target"], request["namespaces"] & ~CLONE_NEWTIME)]

    def _steps_inside(self, request, fds):
        uid, control = request["inside"], fds["control"]
        # The parent waits for the processes in between, which must not wait for a processor that others of the sandbox use up.
        steps = self._join(fds["late_groups"])
        if request["namespaces"] & CLONE_NEWTIME:
            steps.append(("setns", fds["target"], CLONE_NEWTIME))
        steps += [("setresuid", uid, uid, uid), ("setsid",)]
        if request["keyring"]:
            # Counts against the sandbox's user, who may have 200 keys as the parent's has.
            steps.append(("keyctl", KEYCTL_JOIN_SESSION_KEYRING, 0))
        for number, value in request["rlimits"]:
            limit = (ctypes.c_uint64 * 2)(*_lowered(number, value))
            steps.append(("prlimit64", 0, number, self._keep(limit), 0))
        if request["capabilities"]:
            steps += [("prctl", PR_CAPBSET_DROP, number, 0, 0, 0) for number in range(self._calls.capabilities)]
            steps.append(("prctl", PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0))
            header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
            steps.append(("capset", self._keep(header), self._keep(none)))
        steps.append(("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        null = self._keep(ctypes.create_string_buffer(os.devnull.encode()))
        # The lowest free number is 0 then.
        steps += [("close", 0), ("openat", AT_FDCWD, null, os.O_RDONLY, 0)]
        steps += [("dup3", fds["stdout"], 1, 0), ("dup3", fds["stderr"], 2, 0)]
        if control > 3:
            steps.append(("close_range", 3, control - 1, 0))
        steps.append(("close_range", control + 1, ALL, 0))
        # So that processes of the sandbox can see it; the change of ids cleared this.
        steps.append(("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0))
        if request["filter"] is not None:
            text = ctypes.create_string_buffer(request["filter"], len(request["filter"]))
            program = _Program(len(request["filter"]) // 8, self._keep(text))
            steps.append(("seccomp", SECCOMP_SET_MODE_FILTER, 0, self._keep(program)))
        return steps

    def fork(self, native):
        """Forks, and returns true only in the child, once it is a process of the sandbox and its first process's child."""
        if native is not None:
            self.is_forked, error = native.fork(self._group, self._first, self._last)
            if error is not None:
                raise error
        elif self._calls.clone_into(self._group) == 0:
            self.is_forked = True
            self._fork_twice()
        if not self.is_forked:
            return False
        # Python itself ignores these two; the others were ignored earlier.
        for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        while os.getppid() != 1:
            os.sched_yield()
        return True

    def _fork_twice(self):
        """Runs in the first process; returns in the last."""
        for step in self._first:
            self._calls.call(*step)
        # The next one is in the pid namespace; its end makes the last one a child of the first process there.
        second = self._calls.clone_into(None)
        if second:
            try:
                os.waitpid(second, 0)
            except ChildProcessError:
                pass
            os._exit(0)
        if os.fork():
            os._exit(0)
        for step in self._last:
            self._calls.call(*step)


def _lowered(number, value):
    hard = resource.getrlimit(number)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return value, value


class Native:
    """The host's machine code, in this process."""

    def __init__(self, calls, code):
        """Prepares it; raises `OSError` if it cannot be used here."""
        self._calls = calls
        self._page = calls.call("mmap", 0, len(code), 3, 0x22, -1, 0)
        ctypes.memmove(self._page, code, len(code))
        calls.call("mprotect", self._page, len(code), 5)
        words = [ctypes.c_void_p] * 6
        self._enter = ctypes.PYFUNCTYPE(ctypes.c_long, *words)(self._page)
        self._tid = self._thread_id()
        self._again = self._registrations()
        self._result = (ctypes.c_long * 2)()

    def _thread_id(self):
        """Returns where the C library keeps the id of the thread, which a fork has to replace."""
        address = ctypes.c_void_p()
        self._calls.call("prctl", PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0)
        if not address.value or ctypes.c_int.from_address(address.value).value != os.getpid():
            raise OSError(0, "the C library keeps no thread id there")
        return address.value

    def _registrations(self):
        """Returns steps by which the child registers with the kernel what the C library has registered for its thread, since the
        processes in between have no registrations.
        """
        head, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._calls.call("get_robust_list", 0, ctypes.byref(head), ctypes.byref(size))
        steps = [("set_robust_list", head.value, size.value)] if head.value else []
        try:
            offset = ctypes.c_ssize_t.in_dll(_libc, "__rseq_offset").value
            length = ctypes.c_uint.in_dll(_libc, "__rseq_size").value
        except ValueError:
            return steps
        if length:
            area = self._enter(None, None, None, None, None, None) + offset
            signature = 0xD428BC00 if os.uname().machine == "aarch64" else 0x53053053
            # glibc registers 32 bytes also where fewer are used.
            step = ("rseq", area, max(length, 32), 0, signature)
            try:
                self._calls.call(*step)
            except OSError as error:
                # So the kernel answers who registers the same again.
                if error.errno != errno.EBUSY:
                    raise
            steps.append(step)
        return steps

    def fork(self, group, first, last):
        """Forks. Returns true in the child, once it has made the last steps, and the error of the process's own steps."""
        flags = CLONE_VM | CLONE_VFORK | (0 if group is None else CLONE_INTO_CGROUP)
        arguments = _CloneArguments(flags=flags, exit_signal=signal.SIGCHLD, cgroup=group or 0)
        first, last = first, self._again + last
        tables = [self._table(first), self._table(last)]
        addresses = [table.buffer_info()[0] for table in tables]
        self._result[0] = self._result[1] = 0
        api = ctypes.pythonapi
        api.PyOS_BeforeFork()
        pid = self._enter(
            *addresses, ctypes.addressof(arguments), ctypes.sizeof(arguments), self._tid, ctypes.addressof(self._result)
        )
        (api.PyOS_AfterFork_Parent if pid else api.PyOS_AfterFork_Child)()
        if pid < 0:
            return False, failure("clone3", -pid)
        number, place = self._result
        if not number:
            return pid == 0, None
        steps, address = (first, addresses[0]) if pid else (last, addresses[1])
        return pid == 0, failure(steps[(place - address) // 64][0] if place else "clone", -number)

    def _table(self, steps):
        words = array.array("Q")
        for name, *arguments in steps:
            values = [value & 0xFFFFFFFFFFFFFFFF for value in arguments]
            words.extend([self._calls.numbers[name], *values, *[0] * (7 - len(values))])
        words.extend([0xFFFFFFFFFFFFFFFF] * 8)
        return words


def load_native(calls, code):
    """Returns the host's machine code, if it is there and can be used in this interpreter."""
    if code is None:
        return None
    try:
        return Native(calls, base64.b64decode(code))
    except OSError:
        return None


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


def apply_settings(calls, frame, fds):
    """Applies what the sandbox's first process applies to every process."""
    for fd in fds:
        calls.call("landlock_restrict_self", fd, 0)
        os.close(fd)
    for resource_number, value in frame["rlimits"]:
        hard = resource.getrlimit(resource_number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_number, (value, value))
    os.umask(frame["umask"])
