//! The purpose of the policy, call by call: attacks that must fail, and the legitimate calls beside them that must run.
//! Written with the kernel's constants from `libc`, so that a mistake in the policy is not repeated here.

use crate::seccomp::interpreter::{Call, action, run, value};
use crate::seccomp::{Arch, Instruction, Profile, explain};

/// Returns the checked-in program of `profile` for each architecture.
fn compiled(profile: Profile) -> [(Arch, &'static [Instruction]); 2] {
    use crate::seccomp::{generated_aarch64 as arm, generated_x86_64 as x86};
    let (x86, arm) = match profile {
        Profile::Default => (&x86::DEFAULT[..], &arm::DEFAULT[..]),
        Profile::Hardened => (&x86::HARDENED[..], &arm::HARDENED[..]),
        Profile::NoNetwork => (&x86::NO_NETWORK[..], &arm::NO_NETWORK[..]),
        Profile::Watched => (&x86::WATCHED[..], &arm::WATCHED[..]),
        Profile::Build => (&x86::BUILD[..], &arm::BUILD[..]),
        Profile::Machine => (&x86::MACHINE[..], &arm::MACHINE[..]),
        Profile::Warm => (&x86::WARM[..], &arm::WARM[..]),
        Profile::Gateway => (&x86::GATEWAY[..], &arm::GATEWAY[..]),
    };
    [(Arch::X86_64, x86), (Arch::Aarch64, arm)]
}

/// Checks both architectures and four profiles (`expected` is default, hardened, no_network, watched). `build` is as default
/// except for [`build_cannot_change_owners`], `warm` except for [`warm_parent_may_enter_namespaces_and_become_sandbox_users`].
fn check(call: &str, arguments: [i64; 6], expected: [&str; 4]) {
    let arguments = arguments.map(i64::cast_unsigned);
    for (profile, expected) in Profile::ALL.into_iter().zip(expected) {
        for (arch, program) in compiled(profile) {
            let Some(number) = arch.number(call) else { continue };
            let found = run(program, &Call { number, arch: arch.audit(), arguments }).value;
            let place = format!("{call} {arguments:#x?} {} {}", profile.name(), arch.name());
            assert_eq!(found, value(action(expected)), "{place} is not {expected}");
        }
        assert!(Arch::ALL.iter().any(|arch| arch.number(call).is_some()), "there is no call {call}");
        if let Some(number) = Arch::NATIVE.number(call) {
            assert_eq!(explain(profile, number, &arguments).unwrap().action, action(expected));
        }
    }
}

/// Expects the same answer in every profile.
fn all(call: &str, arguments: [i64; 6], expected: &str) {
    check(call, arguments, [expected; 4]);
}

/// Checks four 32-bit arguments as a C library may pass them: with sign bits or garbage in the half that the kernel drops.
fn all_spellings(call: &str, arguments: [i32; 4], expected: [&str; 4]) {
    for high in [0, -1 << 32, 1 << 32, 0x7fff_0000_0000_0000] {
        let wide = arguments.map(|argument| i64::from(argument) & 0xffff_ffff | high);
        check(call, [wide[0], wide[1], wide[2], wide[3], 0, 0], expected);
    }
}

#[test]
fn sockets() {
    use libc::*;
    let socket = |family: i32, kind: i32, protocol: i32, expected: [&str; 4]| {
        for flags in [0, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC] {
            all_spellings("socket", [family, kind | flags, protocol, 0], expected);
            all_spellings("socketpair", [family, kind | flags, protocol, 0], expected);
        }
    };
    let internet = ["allow", "allow", "EACCES", "allow"];
    // Local sockets reach the file system, so no_network allows only pairs that cannot send anywhere else.
    for flags in [0, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC] {
        for kind in [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET] {
            let paired = if kind == SOCK_DGRAM { internet } else { ["allow"; 4] };
            all_spellings("socket", [AF_UNIX, kind | flags, 0, 0], internet);
            all_spellings("socketpair", [AF_UNIX, kind | flags, 0, 0], paired);
        }
        // The kernel turns a raw socket into a datagram socket.
        for call in ["socket", "socketpair"] {
            let refused = ["EAFNOSUPPORT", "EAFNOSUPPORT", "EACCES", "EAFNOSUPPORT"];
            all_spellings(call, [AF_UNIX, SOCK_RAW | flags, 0, 0], refused);
        }
    }
    socket(AF_INET, SOCK_STREAM, 0, internet);
    socket(AF_INET, SOCK_STREAM, IPPROTO_TCP, internet);
    socket(AF_INET, SOCK_DGRAM, IPPROTO_UDP, internet);
    for kind in [SOCK_STREAM, SOCK_DGRAM] {
        socket(AF_INET6, kind, 0, internet);
    }
    // getaddrinfo and getifaddrs open these.
    socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE, internet);
    socket(AF_NETLINK, SOCK_DGRAM, NETLINK_ROUTE, internet);

    let refused = |errno| [errno, errno, "EACCES", errno];
    socket(AF_INET, SOCK_RAW, IPPROTO_TCP, refused("EPERM"));
    socket(AF_INET, SOCK_RAW, IPPROTO_RAW, refused("EPERM"));
    socket(AF_INET, 10, 0x0300, refused("EPERM")); // SOCK_PACKET: the kernel turns it into AF_PACKET
    socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP, refused("EPERM"));
    for (kind, protocol) in [
        (SOCK_SEQPACKET, IPPROTO_SCTP),
        (SOCK_STREAM, IPPROTO_SCTP),
        (SOCK_STREAM, IPPROTO_MPTCP),
        (SOCK_STREAM, 256), // IPPROTO_SMC
        (6, IPPROTO_DCCP),  // SOCK_DCCP
        (SOCK_DGRAM, IPPROTO_UDPLITE),
        (SOCK_RDM, 0),
    ] {
        socket(AF_INET, kind, protocol, refused("EAFNOSUPPORT"));
    }
    for protocol in
        [NETLINK_XFRM, NETLINK_NETFILTER, NETLINK_KOBJECT_UEVENT, NETLINK_SOCK_DIAG, NETLINK_AUDIT]
    {
        socket(AF_NETLINK, SOCK_RAW, protocol, refused("EPROTONOSUPPORT"));
    }
    for (kind, protocol) in [
        (SOCK_RAW, IPPROTO_ICMPV6),
        (SOCK_RAW, IPPROTO_RAW),
        (SOCK_DGRAM, IPPROTO_ICMPV6),
        (SOCK_STREAM, IPPROTO_MPTCP),
        (SOCK_STREAM, IPPROTO_SCTP),
        (SOCK_SEQPACKET, 0),
        (10, 0x0300),
    ] {
        socket(AF_INET6, kind, protocol, refused("EAFNOSUPPORT"));
    }
    socket(AF_PACKET, SOCK_RAW, 0, ["EPERM"; 4]);
    socket(AF_PACKET, SOCK_DGRAM, 0x0300, ["EPERM"; 4]);
    for family in [
        AF_UNSPEC,
        AF_VSOCK,
        AF_ALG,
        AF_RDS,
        AF_RXRPC,
        AF_TIPC,
        AF_XDP,
        AF_KEY,
        AF_BLUETOOTH,
        AF_CAN,
        AF_NFC,
        AF_PPPOX,
        AF_LLC,
        AF_X25,
        AF_IEEE802154,
        41,
        42,
        43,
        45,
        46,
        -1,
    ] {
        for kind in [SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET] {
            socket(family, kind, 0, ["EAFNOSUPPORT"; 4]);
        }
    }
}

#[test]
fn socket_options() {
    use libc::*;
    let option =
        |level: i32, name: i32, expected| all_spellings("setsockopt", [3, level, name, 0], [expected; 4]);
    option(SOL_SOCKET, SO_REUSEADDR, "allow");
    option(SOL_SOCKET, SO_REUSEPORT, "allow");
    option(SOL_SOCKET, SO_RCVBUF, "PRETEND");
    option(SOL_SOCKET, SO_RCVLOWAT, "PRETEND");
    option(SOL_SOCKET, SO_SNDBUF, "allow");
    option(IPPROTO_TCP, TCP_NODELAY, "allow");
    option(IPPROTO_TCP, TCP_KEEPIDLE, "allow");
    option(IPPROTO_IP, IP_TOS, "allow");
    option(IPPROTO_IPV6, IPV6_V6ONLY, "allow");
    option(IPPROTO_UDP, UDP_CORK, "allow");
    option(SOL_NETLINK, NETLINK_EXT_ACK, "allow");

    option(IPPROTO_TCP, TCP_ULP, "EPERM");
    for name in [UDP_ENCAP, UDP_SEGMENT, UDP_GRO] {
        option(IPPROTO_UDP, name, "EPERM");
    }
    for level in [SOL_TLS, SOL_RAW, SOL_PACKET, SOL_ALG, 284, -1] {
        option(level, 1, "EPERM");
    }
    for name in [
        SO_ZEROCOPY,
        SO_TXTIME,
        SO_TIMESTAMPING,
        SO_DETACH_FILTER,
        SO_ATTACH_FILTER,
        SO_ATTACH_BPF,
        SO_ATTACH_REUSEPORT_CBPF,
        SO_ATTACH_REUSEPORT_EBPF,
    ] {
        option(SOL_SOCKET, name, "EPERM");
    }
    for name in [IP_ADD_MEMBERSHIP, IP_ADD_SOURCE_MEMBERSHIP, MCAST_JOIN_GROUP, 46, 64] {
        option(IPPROTO_IP, name, "EPERM");
    }
    for name in
        [3, 4, 5, 6, IPV6_HOPOPTS, IPV6_RTHDR, IPV6_RTHDRDSTOPTS, IPV6_DSTOPTS, IPV6_ADD_MEMBERSHIP, 64]
    {
        option(IPPROTO_IPV6, name, "EPERM");
    }
}

#[test]
fn namespaces() {
    use libc::*;
    let threads =
        CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    all_spellings("clone", [SIGCHLD, 0, 0, 0], ["allow"; 4]);
    all_spellings("clone", [threads | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, 0, 0, 0], ["allow"; 4]);
    all_spellings("clone", [CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0], ["allow"; 4]);
    all_spellings("clone", [CLONE_PIDFD | SIGCHLD, 0, 0, 0], ["allow"; 4]);
    for flag in [
        CLONE_NEWNS,
        CLONE_NEWUTS,
        CLONE_NEWIPC,
        CLONE_NEWUSER,
        CLONE_NEWPID,
        CLONE_NEWNET,
        CLONE_NEWCGROUP,
        0x80,
    ] {
        all_spellings("clone", [flag, 0, 0, 0], ["EPERM"; 4]);
        all_spellings("clone", [flag | SIGCHLD, 0, 0, 0], ["EPERM"; 4]);
        all_spellings("clone", [flag | threads, 0, 0, 0], ["EPERM"; 4]);
    }
    all("clone3", [0; 6], "ENOSYS");
    all("unshare", [0; 6], "EPERM");
    all("setns", [0; 6], "EPERM");
}

#[test]
fn terminals_and_files() {
    use libc::*;
    let control = |command: u64, expected| {
        for high in [0, 1 << 32, 0xffff_ffff << 32] {
            check("ioctl", [0, (command | high).cast_signed(), 0, 0, 0, 0], expected);
        }
    };
    control(TCGETS, ["allow"; 4]);
    control(TIOCGWINSZ, ["allow"; 4]);
    control(FIONREAD, ["allow"; 4]);
    control(FIOCLEX, ["allow"; 4]);
    control(TIOCSTI, ["EPERM"; 4]);
    control(TIOCLINUX, ["EPERM"; 4]);
    control(0x5423, ["EPERM"; 4]); // TIOCSETD
    for command in [0x4004_9409, 0x4020_940d, 0xc018_9436] {
        control(command, ["allow", "EOPNOTSUPP", "allow", "allow"]); // FICLONE, FICLONERANGE, FIDEDUPERANGE
    }
    for call in ["splice", "tee", "vmsplice", "copy_file_range"] {
        check(call, [0; 6], ["allow", "ENOSYS", "allow", "allow"]);
    }
    check("sendfile", [0; 6], ["allow", "EINVAL", "allow", "allow"]);
}

#[test]
fn out_of_band_data() {
    let oob = i64::from(libc::MSG_OOB);
    let quiet = i64::from(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    for call in ["sendto", "recvfrom", "sendmmsg", "recvmmsg"] {
        check(call, [3, 1, 1, oob, 0, 0], ["allow", "EPERM", "allow", "allow"]);
        check(call, [3, 1, 1, oob | quiet, 0, 0], ["allow", "EPERM", "allow", "allow"]);
        all(call, [3, 1, 1, quiet, 0, 0], "allow");
    }
    for call in ["sendmsg", "recvmsg"] {
        check(call, [3, 1, oob, 0, 0, 0], ["allow", "EPERM", "allow", "allow"]);
        all(call, [3, 1, quiet, oob, 0, 0], "allow");
    }
}

#[test]
fn process_properties() {
    use libc::*;
    for option in
        [PR_SET_NAME, PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, 0x53564d41]
    {
        all_spellings("prctl", [option, 1, 0, 0], ["allow"; 4]);
    }
    all_spellings("prctl", [PR_SET_MM, 1, 0, 0], ["EPERM"; 4]);
    all_spellings("prctl", [PR_SET_PTRACER, -1, 0, 0], ["EPERM"; 4]);
    for (persona, expected) in [
        (0, "allow"),
        (8, "allow"),
        (0x20000, "allow"),
        (-1, "allow"),
        (0x0040000, "EPERM"),
        (0x0040008, "EPERM"),
    ] {
        all_spellings("personality", [persona, 0, 0, 0], [expected; 4]);
    }
    all_spellings("prlimit64", [0, 7, 0, 0], ["allow"; 4]);
    all_spellings("prlimit64", [1, 7, 0, 0], ["EPERM"; 4]);
    all_spellings("seccomp", [1, 0, 0, 0], ["allow"; 4]);
    all_spellings("seccomp", [1, 1, 0, 0], ["allow"; 4]);
    all_spellings("seccomp", [1, 8, 0, 0], ["EPERM"; 4]);
    all_spellings("seccomp", [1, 8 | 1 | 16, 0, 0], ["EPERM"; 4]);
}

/// The memory watcher cannot see memory that no process has mapped, or that all have unmapped.
#[test]
fn memory_resident_nowhere() {
    use libc::*;
    let watched = |answer| ["allow", "allow", answer, answer];
    all_spellings("memfd_create", [0, 3, 0, 0], watched("ENOSYS"));
    all_spellings("memfd_create", [0, 4 | 1, 0, 0], ["EPERM", "EPERM", "ENOSYS", "ENOSYS"]);
    check("shmget", [0, 4096, 0o1600, 0, 0, 0], watched("ENOSYS"));
    let map = |flags, expected| all_spellings("mmap", [0, 4096, PROT_READ | PROT_WRITE, flags], expected);
    map(MAP_SHARED | MAP_ANONYMOUS, watched("EPERM"));
    map(MAP_SHARED_VALIDATE | MAP_ANONYMOUS, watched("EPERM"));
    map(MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | MAP_POPULATE, watched("EPERM"));
    map(MAP_SHARED_VALIDATE | MAP_ANONYMOUS | MAP_HUGETLB, watched("EPERM"));
    map(MAP_PRIVATE | MAP_ANONYMOUS, ["allow"; 4]);
    map(MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, ["allow"; 4]);
    map(MAP_SHARED, ["allow"; 4]);
    map(MAP_SHARED_VALIDATE, ["allow"; 4]);
    map(MAP_PRIVATE | MAP_FIXED, ["allow"; 4]);
}

/// A file of the sandbox on a writable host mount belongs to the mount's owner outside.
#[test]
fn set_id_bits_are_refused() {
    use libc::*;
    // Each call, with `mode` as the argument where it belongs.
    let by_path = |mode: i32| {
        [("chmod", [1, mode, 0, 0]), ("fchmodat", [1, 1, mode, 0]), ("fchmodat2", [1, 1, mode, 0x100])]
    };
    let others = |mode: i32| {
        [
            ("fchmod", [3, mode, 0, 0]),
            ("mknod", [1, mode, 0, 0]),
            ("mknodat", [1, 1, mode, 0]),
            ("creat", [1, mode, 0, 0]),
            ("open", [1, O_WRONLY | O_CREAT | O_CLOEXEC, mode, 0]),
            ("openat", [1, 1, O_WRONLY | O_CREAT | O_CLOEXEC, mode]),
            ("open", [1, O_RDWR | O_TMPFILE, mode, 0]),
            ("openat", [1, 1, O_RDWR | O_TMPFILE, mode]),
            // This bit alone is enough for the kernel to use the mode.
            ("openat", [1, 1, O_RDWR | (O_TMPFILE & !O_DIRECTORY), mode]),
        ]
    };
    for mode in [0o4000, 0o2000, 0o6000, 0o4755, 0o2755, 0o7777, S_IFREG.cast_signed() | 0o4700, -1] {
        for (call, arguments) in by_path(mode).into_iter().chain(others(mode)) {
            all_spellings(call, arguments, ["EPERM"; 4]);
        }
    }
    let honest = [0, 0o600, 0o644, 0o755, 0o777, 0o1777, S_IFREG.cast_signed() | 0o644];
    for mode in honest {
        for (call, arguments) in others(mode) {
            all_spellings(call, arguments, ["allow"; 4]);
        }
        // Landlock does not govern modes, so without a mount tree no path can be made writable for others.
        let own = if mode & 0o7022 == 0 { "allow" } else { "EPERM" };
        for (call, arguments) in by_path(mode) {
            all_spellings(call, arguments, ["allow", "allow", own, "allow"]);
        }
    }
    for (call, arguments) in by_path(0o700) {
        all_spellings(call, arguments, ["allow"; 4]);
    }
    // The mode is unset when a file is only opened: the register holds an arbitrary value.
    for flags in [O_RDONLY, O_RDWR | O_TRUNC | O_CLOEXEC, O_PATH, O_DIRECTORY, O_EXCL | O_APPEND] {
        for garbage in [0o4755, 0o6000, -1, 0x7fff_fc00] {
            all_spellings("open", [1, flags, garbage, 0], ["allow"; 4]);
            all_spellings("openat", [1, 1, flags, garbage], ["allow"; 4]);
        }
    }
    all("openat2", [0; 6], "ENOSYS");
    all("mkdirat", [1, 1, 0o2755, 0, 0, 0], "allow"); // the kernel drops the bit
}

/// Without namespaces the host's IPC objects and the user's other files and processes are in reach.
#[test]
fn no_network_replaces_namespaces() {
    let closed = |errno| ["allow", "allow", errno, "allow"];
    for call in ["shmat", "shmctl", "msgget", "msgsnd", "msgrcv", "msgctl"] {
        check(call, [0; 6], closed("ENOSYS"));
    }
    for call in ["semget", "semop", "semtimedop", "semctl", "mq_open", "mq_unlink"] {
        check(call, [0; 6], closed("ENOSYS"));
    }
    let by_path = ["fchownat", "setxattr", "lsetxattr", "removexattr", "lremovexattr", "setxattrat"];
    for call in by_path.into_iter().chain(["removexattrat"]) {
        check(call, [0; 6], closed("EPERM"));
    }
    // The mount tree or Landlock has already allowed files that are open.
    for call in ["fchown", "fsetxattr", "fremovexattr", "getxattr", "lgetxattr", "listxattr", "shmdt"] {
        all(call, [0; 6], "allow");
    }

    let which = |kind: u32| i32::try_from(kind).unwrap();
    let (process, group, user) = (which(libc::PRIO_PROCESS), which(libc::PRIO_PGRP), which(libc::PRIO_USER));
    for (kind, who, expected) in [
        (process, 0, ["allow"; 4]),
        (group, 0, ["allow"; 4]),
        (process, 3, closed("EPERM")),
        (process, -1, closed("EPERM")),
        (group, 3, closed("EPERM")),
        // The guest's threads.
        (process, 1, ["EPERM"; 4]),
        (process, 2, ["EPERM"; 4]),
        (group, 1, ["EPERM"; 4]),
        (user, 1000, ["EPERM"; 4]),
        (user, 0, ["EPERM"; 4]), // every process of the user
    ] {
        all_spellings("setpriority", [kind, who, 19, 0], expected);
        all_spellings("ioprio_set", [kind + 1, who, 0, 0], expected); // the same kinds, counted from 1
    }
    for call in ["sched_setaffinity", "sched_setattr"] {
        all_spellings(call, [0, 8, 1, 0], ["allow"; 4]);
        all_spellings(call, [3, 8, 1, 0], closed("EPERM"));
        all_spellings(call, [-1, 8, 1, 0], closed("EPERM"));
    }
    for call in ["sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"] {
        for thread in [1, 2] {
            all_spellings(call, [thread, 8, 1, 0], ["EPERM"; 4]);
        }
    }
    for call in ["getpriority", "ioprio_get", "sched_getaffinity", "sched_getattr"] {
        all_spellings(call, [0, 1, 0, 0], ["allow"; 4]);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn only_on_x86_64() {
    for code in [0x1001, 0x1002, 0x1003, 0x1004, 0x3001, 0x5001, 0x5005, 0x1022, 0x1023] {
        all_spellings("arch_prctl", [code, 0, 0, 0], ["allow"; 4]);
    }
    // CPUID faulting, the vDSO, address tags, unlocking a shadow stack, and invalid codes.
    for code in [0x1011, 0x1012, 0x2001, 0x2003, 0x4002, 0x5004, 0, -1] {
        all_spellings("arch_prctl", [code, 0, 0, 0], ["EINVAL"; 4]);
    }
    for call in ["iopl", "ioperm", "modify_ldt"] {
        all(call, [0; 6], "EPERM");
    }
    for call in ["chown", "lchown"] {
        check(call, [0; 6], ["allow", "allow", "EPERM", "allow"]);
    }
    for call in ["open", "stat", "fork", "vfork", "poll", "select", "time", "epoll_wait"] {
        all(call, [0; 6], "allow");
    }
    for call in ["uselib", "ustat", "sysfs", "_sysctl", "create_module", "vserver"] {
        all(call, [0; 6], "ENOSYS");
    }
}

#[test]
fn always_refused_calls() {
    let refused = |errno, calls: &[&str]| {
        for call in calls {
            all(call, [0; 6], errno);
            all(call, [-1; 6], errno);
        }
    };
    refused(
        "EPERM",
        &["mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick"],
    );
    refused("EPERM", &["move_mount", "open_tree", "open_tree_attr", "mount_setattr"]);
    refused("EPERM", &["bpf", "perf_event_open", "userfaultfd", "fanotify_init", "fanotify_mark"]);
    refused("EPERM", &["keyctl", "add_key", "request_key"]);
    refused("EPERM", &["ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"]);
    refused("EPERM", &["name_to_handle_at", "open_by_handle_at"]);
    refused("EPERM", &["clock_settime", "settimeofday", "clock_adjtime", "adjtimex"]);
    refused(
        "EPERM",
        &["sethostname", "setdomainname", "syslog", "acct", "quotactl", "quotactl_fd", "reboot"],
    );
    refused("EPERM", &["swapon", "swapoff", "init_module", "finit_module", "delete_module"]);
    refused("EPERM", &["kexec_load", "kexec_file_load", "vhangup"]);
    refused("ENOSYS", &["io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_secret", "clone3"]);
    refused("ENOSYS", &["io_setup", "io_submit", "io_destroy", "io_getevents", "io_pgetevents", "io_cancel"]);
    refused("ENOSYS", &["openat2", "listmount", "statmount", "file_setattr"]);
}

#[test]
fn always_allowed_calls() {
    for call in [
        "read",
        "write",
        "close_range",
        "statx",
        "execve",
        "execveat",
        "futex",
        "futex_waitv",
        "rseq",
        "set_robust_list",
        "epoll_pwait2",
        "pidfd_open",
        "pidfd_send_signal",
        "mseal",
        "cachestat",
        "process_mrelease",
        "landlock_restrict_self",
        "kill",
        "tgkill",
        "madvise",
        "fcntl",
        "getrandom",
        "mkdirat",
        "ppoll",
    ] {
        all(call, [0; 6], "allow");
        all(call, [-1; 6], "allow");
    }
}

#[test]
fn verdicts_have_reasons() {
    let number = |call| Arch::NATIVE.number(call).unwrap();
    let why = |call, arguments: [u64; 6]| explain(Profile::Default, number(call), &arguments).unwrap();
    let typed = why("ioctl", [0, libc::TIOCSTI, 0, 0, 0, 0]);
    assert_eq!((typed.call, typed.why), (Some("ioctl"), "it types into the operator's terminal"));
    let plain = why("ioctl", [0; 6]);
    assert_eq!(plain.why, "device and file controls; the sandbox has few devices");
    let unlisted = explain(Profile::Default, 1023, &[0; 6]).unwrap();
    assert_eq!((unlisted.call, unlisted.why), (None, "the policy does not list this call"));
}

#[test]
fn build_cannot_change_owners() {
    let owners = ["chown", "lchown", "fchown", "fchownat"];
    for (arch, program) in compiled(Profile::Build) {
        let (_, default) = compiled(Profile::Default).into_iter().find(|(other, _)| *other == arch).unwrap();
        for (number, name) in arch.calls() {
            let call = Call { number: *number, arch: arch.audit(), arguments: [0, 0o4755, 0o4755, 0, 0, 0] };
            let expected = if owners.contains(name) {
                value(action("PRETEND"))
            } else if name.contains("chmod") {
                value(action("allow"))
            } else {
                run(default, &call).value
            };
            assert_eq!(run(program, &call).value, expected, "{name} {}", arch.name());
        }
    }
}

#[test]
fn warm_parent_may_enter_namespaces_and_become_sandbox_users() {
    let free = ["clone3", "keyctl", "setns"];
    let ids = ["setgid", "setuid", "setregid", "setreuid", "setresgid", "setresuid"];
    for (arch, program) in compiled(Profile::Warm) {
        let (_, default) = compiled(Profile::Default).into_iter().find(|(other, _)| *other == arch).unwrap();
        let verdict =
            |program, number, arguments| run(program, &Call { number, arch: arch.audit(), arguments }).value;
        for (number, name) in arch.calls() {
            let (place, allowed) = (format!("{name} {}", arch.name()), value(action("allow")));
            if ids.contains(name) {
                let count = if name.contains("res") { 3 } else { usize::from(name.contains("re")) + 1 };
                for id in [1_900_000_000u64, 1_900_065_535, 1000, 0xffff_ffff] {
                    assert_eq!(verdict(program, *number, [id; 6]), allowed, "{place} {id}");
                }
                for id in [0u64, 1, 999, 65_534, 1_800_000_000, 2_000_000_000] {
                    for at in 0..count {
                        let mut arguments = [1000; 6];
                        arguments[at] = id;
                        assert_eq!(
                            verdict(program, *number, arguments),
                            value(action("EINVAL")),
                            "{place} {id}"
                        );
                    }
                }
                continue;
            }
            let expected = match *name {
                _ if free.contains(name) => allowed,
                "setfsuid" | "setfsgid" => value(action("EPERM")),
                "pidfd_open" => value(action("ENOSYS")),
                _ => verdict(default, *number, [0; 6]),
            };
            assert_eq!(verdict(program, *number, [0; 6]), expected, "{place}");
        }
        let groups = arch.number("setgroups").unwrap();
        assert_eq!(verdict(program, groups, [1, 0, 0, 0, 0, 0]), value(action("EPERM")));
    }
}

#[test]
fn gateway_is_limited_to_sockets_and_memory() {
    let (allow, deny) = (value(action("allow")), value(action("EACCES")));
    for (arch, program) in compiled(Profile::Gateway) {
        let (_, default) = compiled(Profile::Default).into_iter().find(|(other, _)| *other == arch).unwrap();
        let verdict = |program, name: &str, arguments| {
            let number = arch.number(name).unwrap();
            run(program, &Call { number, arch: arch.audit(), arguments }).value
        };
        let socket = |family: i32, kind: i32| {
            [family, kind, 0, 0, 0, 0].map(|argument| u64::from(argument.cast_unsigned()))
        };
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
            assert_eq!(verdict(program, "socket", socket(libc::AF_INET, kind)), allow, "{}", arch.name());
        }
        for family in [libc::AF_UNIX, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK] {
            assert_eq!(verdict(program, "socket", socket(family, libc::SOCK_STREAM)), deny, "{family}");
        }
        for protection in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
            let arguments = [0, 4096, protection.cast_unsigned().into(), 0x22, u64::MAX, 0];
            assert_eq!(verdict(program, "mmap", arguments), allow);
            let arguments =
                [0, 4096, (protection | libc::PROT_EXEC).cast_unsigned().into(), 0x22, u64::MAX, 0];
            assert_eq!(
                (verdict(program, "mmap", arguments), verdict(program, "mprotect", arguments)),
                (deny, deny)
            );
        }
        let mut runs = 0;
        for (number, name) in arch.calls() {
            let call = Call { number: *number, arch: arch.audit(), arguments: [0; 6] };
            let is_allowed = run(program, &call).value == allow;
            assert!(!is_allowed || run(default, &call).value == allow, "{name}: a profile may only restrict");
            runs += u32::from(is_allowed);
        }
        assert!((30..=45).contains(&runs), "{runs} on {}", arch.name());
        for name in [
            "openat", "execve", "clone", "clone3", "kill", "tgkill", "ptrace", "bind", "listen", "dup",
            "bpf", "ioctl",
        ] {
            assert_ne!(verdict(program, name, [0; 6]), allow, "{name} {}", arch.name());
        }
    }
}
