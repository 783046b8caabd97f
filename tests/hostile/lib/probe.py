"""Helpers for attacks in Python: perform an action, and print one line about it, `name: answer`.

An answer is the name of an error such as EPERM, `ok`, or a short fact. Lines are written immediately, so that no answer is lost
if the program dies.
"""

import ctypes
import errno as _errno
import mmap
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

# Numbers of system calls: x86_64, aarch64. None: no such call.
_NUMBERS = {
    "read": (0, 63), "write": (1, 64), "open": (2, None), "close": (3, 57), "mmap": (9, 222), "mprotect": (10, 226),
    "ioctl": (16, 29), "dup": (32, 23), "getpid": (39, 172), "socket": (41, 198), "connect": (42, 203),
    "sendto": (44, 206), "sendmsg": (46, 211), "bind": (49, 200), "listen": (50, 201), "socketpair": (53, 199),
    "setsockopt": (54, 208), "getsockopt": (55, 209), "clone": (56, 220), "fork": (57, None), "vfork": (58, None),
    "execve": (59, 221), "kill": (62, 129), "fcntl": (72, 25), "semget": (64, 190), "semop": (65, 193),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186), "msgsnd": (69, 189),
    "syslog": (103, 116), "setuid": (105, 146), "setgid": (106, 144), "ptrace": (101, 117), "mknod": (133, None),
    "uselib": (134, None), "personality": (135, 92), "ustat": (136, None), "sysfs": (139, None),
    "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "vhangup": (153, 58),
    "modify_ldt": (154, None), "pivot_root": (155, 41), "_sysctl": (156, None), "prctl": (157, 167),
    "arch_prctl": (158, None), "adjtimex": (159, 171), "setrlimit": (160, 164), "chroot": (161, 51), "sync": (162, 81),
    "acct": (163, 89), "settimeofday": (164, 170), "mount": (165, 40), "umount2": (166, 39), "swapon": (167, 224),
    "swapoff": (168, 225), "reboot": (169, 142), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, None), "ioperm": (173, None), "create_module": (174, None), "init_module": (175, 105),
    "delete_module": (176, 106), "get_kernel_syms": (177, None), "query_module": (178, None), "quotactl": (179, 60),
    "nfsservctl": (180, 42), "gettid": (186, 178), "setxattr": (188, 5), "lsetxattr": (189, 6), "tkill": (200, 130),
    "io_setup": (206, 0), "lookup_dcookie": (212, 18), "remap_file_pages": (216, 234), "clock_settime": (227, 112),
    "vserver": (236, None), "mbind": (237, 235), "set_mempolicy": (238, 237), "mq_open": (240, 180),
    "kexec_load": (246, 104), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "ioprio_set": (251, 30), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27), "migrate_pages": (256, 238),
    "openat": (257, 56), "mknodat": (259, 33), "unshare": (272, 97), "splice": (275, 76), "tee": (276, 77),
    "vmsplice": (278, 75), "move_pages": (279, 239), "signalfd": (282, None), "timerfd_create": (283, 85),
    "fallocate": (285, 47), "perf_event_open": (298, 241), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    "prlimit64": (302, 261), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266), "setns": (308, 268), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "kcmp": (312, 272), "finit_module": (313, 273), "sched_setattr": (314, 274),
    "seccomp": (317, 277), "memfd_create": (319, 279), "kexec_file_load": (320, 294), "bpf": (321, 280),
    "execveat": (322, 281), "userfaultfd": (323, 282), "pkey_alloc": (330, 289), "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "pidfd_open": (434, 434), "clone3": (435, 435),
    "close_range": (436, 436), "openat2": (437, 437), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "mount_setattr": (442, 442), "quotactl_fd": (443, 443), "landlock_create_ruleset": (444, 444),
    "memfd_secret": (447, 447), "process_mrelease": (448, 448), "set_mempolicy_home_node": (450, 450),
    "cachestat": (451, 451), "map_shadow_stack": (453, 453), "statmount": (457, 457), "listmount": (458, 458),
    "lsm_get_self_attr": (459, 459), "lsm_set_self_attr": (460, 460), "lsm_list_modules": (461, 461),
    "setxattrat": (463, 463), "getxattrat": (464, 464), "listxattrat": (465, 465), "removexattrat": (466, 466),
    "open_tree_attr": (467, 467),
}
_COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]

CLONE_NEW = {
    "time": 0x80, "mount": 0x20000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000,
    "pid": 0x20000000, "net": 0x40000000,
}


def say(name, answer):
    """Prints a probe's line."""
    os.write(1, f"{name}: {answer}\n".encode())


def name_of(number):
    """Returns the name of an error number."""
    return _errno.errorcode.get(number, f"errno {number}")


def errno(name, attempt):
    """Calls `attempt`, prints the name of its error or `ok`, and returns its value."""
    value = None
    try:
        value = attempt()
        answer = "ok"
    except OSError as error:
        answer = name_of(error.errno) if error.errno else type(error).__name__
    say(name, answer)
    return value


def number(call):
    """Returns the number of a system call on this architecture."""
    if isinstance(call, int):
        return call
    value = _NUMBERS[call][_COLUMN]
    if value is None:
        raise LookupError(f"{call} is not a system call of {platform.machine()}")
    return value


def raw(call, *args):
    """Makes a system call. Returns its value, -1 for an error, and the error number."""
    values = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    ctypes.set_errno(0)
    returned = libc.syscall(ctypes.c_long(number(call)), *values)
    return returned, ctypes.get_errno() if returned == -1 else 0


def outcome(call, *args):
    """Makes a system call, and returns the name of its error or `ok`."""
    _, error = raw(call, *args)
    return name_of(error) if error else "ok"


def syscall(name, call, *args):
    """Makes a system call by name or number, prints the name of its error or `ok`, and returns its value."""
    returned, error = raw(call, *args)
    say(name, name_of(error) if error else "ok")
    return returned


# Puts five arguments where the 32-bit entry expects them: eax, ebx, ecx, edx, esi, edi; int $0x80; widens the answer.
_INT80 = bytes.fromhex("53 89f8 89f3 87d1 4489c6 4489cf cd80 4898 5b c3")
_code = []


def int80(number, *args):
    """Makes a 32-bit x86 call by its number there, and returns the error's name or `ok`. Pointers must come from `low`."""
    if platform.machine() != "x86_64":
        return "no such entry"
    if not _code:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.write(_INT80)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        # Not writable and executable at once, which a hardened sandbox may forbid.
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC):
            return "no executable memory"
        _code.extend([page, ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 6)(address)])
    returned = _code[1](number, *[*args, 0, 0, 0, 0, 0][:5])
    return name_of(-returned) if -4096 < returned < 0 else "ok"


def low(content):
    """Copies these bytes below 4 GiB, for `int80`, and returns the address."""
    libc.mmap.restype = ctypes.c_void_p
    map_32bit = 0x40
    address = libc.mmap(None, ctypes.c_size_t(mmap.PAGESIZE), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_32bit, -1, 0)
    ctypes.memmove(address, content, len(content))
    return address


def x32(call, *args):
    """Makes a call by the x32 entry, and returns the error's name or `ok`."""
    if platform.machine() != "x86_64":
        return "no such entry"
    return outcome(number(call) | 0x40000000, *args)


def is_filtered():
    """Reports whether the system call filter is active, by a raw socket of IPv6, which every kernel supports (or refuses for lack of
    a capability). Only then may calls be tried that would load host modules."""
    return outcome("socket", 10, 3, 58) == "EAFNOSUPPORT"


def together(answers):
    """Combines the answers of many calls: the most frequent one alone, the others with the calls that gave them."""
    by_answer = {}
    for name, answer in answers.items():
        by_answer.setdefault(answer, []).append(str(name))
    if len(by_answer) == 1:
        return next(iter(by_answer))
    most = max(by_answer, key=lambda answer: len(by_answer[answer]))
    others = [f"{answer} ({', '.join(names)})" for answer, names in sorted(by_answer.items()) if answer != most]
    return ", ".join([most, *others])


def in_child(attempt):
    """Calls `attempt` in a child process, whose death does no harm, and returns its value as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(attempt()).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return text or f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text


def status(key, pid="self"):
    """Returns a field of /proc/PID/status, such as CapEff."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        return next(line.split()[1] for line in lines if line.startswith(f"{key}:"))
