import probe

# 32-bit x86 numbers (syscall_32.tbl) of calls that the filter refuses, or allows only with some arguments.
I386 = {
    "mknod": 14, "mount": 21, "umount": 22, "ptrace": 26, "acct": 51, "umount2": 52, "chroot": 61, "sethostname": 74,
    "settimeofday": 79, "swapon": 87, "reboot": 88, "ioperm": 101, "socketcall": 102, "syslog": 103, "iopl": 110, "vhangup": 111,
    "vm86old": 113, "swapoff": 115, "ipc": 117, "setdomainname": 121, "modify_ldt": 123, "adjtimex": 124, "init_module": 128,
    "delete_module": 129, "quotactl": 131, "personality": 136, "vm86": 166, "pivot_root": 217, "io_setup": 245,
    "set_thread_area": 243, "clock_settime": 264, "mbind": 274, "kexec_load": 283, "add_key": 286, "request_key": 287, "keyctl": 288,
    "migrate_pages": 294, "mknodat": 297, "unshare": 310, "move_pages": 317, "perf_event_open": 336, "fanotify_init": 338,
    "name_to_handle_at": 341, "open_by_handle_at": 342, "clock_adjtime": 343, "setns": 346, "process_vm_readv": 347,
    "process_vm_writev": 348, "kcmp": 349, "finit_module": 350, "seccomp": 354, "memfd_create": 356, "bpf": 357, "execveat": 358,
    "socket": 359, "socketpair": 360, "setsockopt": 366, "userfaultfd": 374, "arch_prctl": 384, "clock_settime64": 404,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430,
    "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "openat2": 437, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "statmount": 457, "listmount": 458,
}
# Calls that every program may make, but not by this entry.
I386_HARMLESS = {"getpid": 20, "getuid": 24, "gettid": 224, "sched_yield": 158, "time": 13, "uname": 122}
NATIVE = [
    "getpid", "socket", "socketpair", "setsockopt", "ptrace", "syslog", "personality", "modify_ldt", "pivot_root", "arch_prctl",
    "adjtimex", "chroot", "acct", "settimeofday", "mount", "umount2", "swapon", "swapoff", "reboot", "sethostname", "setdomainname",
    "iopl", "ioperm", "init_module", "delete_module", "quotactl", "io_setup", "clock_settime", "kexec_load", "add_key",
    "request_key", "keyctl", "migrate_pages", "unshare", "move_pages", "perf_event_open", "fanotify_init", "name_to_handle_at",
    "open_by_handle_at", "clock_adjtime", "setns", "process_vm_readv", "process_vm_writev", "kcmp", "finit_module", "seccomp",
    "memfd_create", "bpf", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "open_tree", "move_mount",
    "fsopen", "fsconfig", "fsmount", "fspick", "clone3", "openat2", "pidfd_getfd", "mount_setattr", "memfd_secret", "statmount",
]


def arguments(name):
    # An unknown operation; 0 would be the strict mode, which kills.
    return (99, 0, 0) if name == "seccomp" else (0, 0, 0)


def namespaces():
    return probe.status("CapEff"), probe.status("Seccomp")


before = namespaces()
# Changes last no longer than the child.
for name, number in I386_HARMLESS.items():
    probe.say(f"int 0x80 {name}", probe.int80(number, probe.low(bytes(1024))))
probe.say("int 0x80, refused calls", probe.in_child(lambda: probe.together({name: probe.int80(number, *arguments(name)) for name, number in I386.items()})))
probe.say("int 0x80, new user namespace", probe.in_child(lambda: probe.int80(I386["unshare"], 0x10000000)))
inet = probe.low(b"".join(value.to_bytes(4, "little") for value in (2, 3, 1)))
probe.say("int 0x80, raw socket by socketcall", probe.in_child(lambda: probe.int80(I386["socketcall"], 1, inet)))
probe.say("int 0x80, minus one", probe.int80(-1))
probe.say("int 0x80, 0x40000014", probe.int80(0x40000014))
probe.say("x32, refused calls", probe.in_child(lambda: probe.together({name: probe.x32(name, *arguments(name), 0, 0, 0) for name in NATIVE})))
# Numbers that only x32 has, except those that return from a signal or replace the program.
own = [number for number in range(512, 548) if number not in (513, 520, 545)]
probe.say("x32, its own numbers", probe.in_child(lambda: probe.together({number: probe.x32(number, 0, 0, 0) for number in own})))
probe.say("x32, own numbers without the bit", probe.in_child(lambda: probe.together({number: probe.outcome(number, 0, 0, 0) for number in own})))
probe.say("x32, getpid", probe.x32("getpid"))
probe.say("x32, twice the bit", probe.outcome(0xC0000000 | probe.number("getpid")))
# The kernel uses only the low half of the number.
probe.say("native number with a bit above", probe.outcome(probe.number("unshare") | 1 << 32, 0x10000000))
probe.say("afterwards", "the same" if namespaces() == before else "another")
