//! Checks the numbers in the tables and in the policy against the `libc` crate, where it has them.

use std::collections::{BTreeMap, BTreeSet};

use crate::seccomp::Arch;

/// The number of each given `libc` constant, under its name.
macro_rules! constants {
    ($($name:ident)*) => { BTreeMap::from([$((stringify!($name), i128::from(libc::$name))),*]) };
}

#[test]
fn tables_are_sorted_and_unambiguous() {
    for arch in Arch::ALL {
        assert!(arch.calls().is_sorted_by(|(one, _), (other, _)| one < other), "{}", arch.name());
        let names: BTreeSet<&str> = arch.calls().iter().map(|(_, name)| *name).collect();
        assert_eq!(names.len(), arch.calls().len(), "{}", arch.name());
        assert_eq!(Arch::from_name(arch.name()), Some(arch));
    }
}

/// Since Linux 5.1 a new call has the same number on all architectures (Documentation/process/adding-syscalls.rst).
#[test]
fn new_calls_have_one_number() {
    for (number, name) in Arch::Aarch64.calls().iter().filter(|(number, _)| *number >= 424) {
        assert_eq!(Arch::X86_64.number(name), Some(*number), "{name}");
    }
    assert_eq!(Arch::X86_64.calls().last(), Arch::Aarch64.calls().last());
}

#[test]
fn calls_are_numbered_as_in_libc() {
    let known = known_calls();
    for (name, number) in &known {
        let call = name.trim_start_matches("SYS_");
        assert_eq!(Arch::NATIVE.number(call).map(i128::from), Some(*number), "{name}");
    }
    // The table may know newer calls, but only these few.
    assert!(Arch::NATIVE.calls().len() < known.len() + 25);
}

/// Each name in the policy's table of values has the number of `libc`, or of the header where `libc` lacks it.
#[test]
fn values_match_the_kernels() {
    let policy: toml::Table = toml::from_str(include_str!("../../../policy/seccomp.toml")).unwrap();
    let values = policy["values"].as_table().unwrap();
    let mut known = constants! {
        AF_INET AF_INET6 AF_NETLINK AF_PACKET AF_UNIX CLONE_NEWCGROUP CLONE_NEWIPC CLONE_NEWNET CLONE_NEWNS
        CLONE_NEWPID CLONE_NEWTIME CLONE_NEWUSER CLONE_NEWUTS FICLONE FICLONERANGE IPPROTO_ICMP
        IPPROTO_IP IPPROTO_IPV6 IPPROTO_TCP IPPROTO_UDP IPV6_DONTFRAG IPV6_MTU_DISCOVER
        IPV6_MULTICAST_HOPS IPV6_MULTICAST_IF IPV6_MULTICAST_LOOP IPV6_RECVERR IPV6_RECVHOPLIMIT
        IPV6_RECVPKTINFO IPV6_RECVTCLASS IPV6_TCLASS IPV6_UNICAST_HOPS IPV6_V6ONLY
        IP_BIND_ADDRESS_NO_PORT IP_FREEBIND IP_MTU_DISCOVER IP_MULTICAST_ALL IP_MULTICAST_IF
        IP_MULTICAST_LOOP IP_MULTICAST_TTL IP_PKTINFO IP_RECVERR IP_RECVORIGDSTADDR IP_RECVTOS
        IP_RECVTTL IP_TOS IP_TTL MAP_ANONYMOUS MAP_SHARED MFD_HUGETLB MSG_OOB NETLINK_CAP_ACK
        NETLINK_EXT_ACK NETLINK_GET_STRICT_CHK NETLINK_PKTINFO NETLINK_ROUTE O_CREAT PRIO_USER PROT_EXEC
        PR_SET_MM PR_SET_PTRACER SECCOMP_FILTER_FLAG_NEW_LISTENER SOCK_DGRAM SOCK_RAW SOCK_SEQPACKET
        SOCK_STREAM SOL_NETLINK SOL_SOCKET SO_BROADCAST SO_DONTROUTE SO_INCOMING_CPU SO_KEEPALIVE
        SO_LINGER SO_OOBINLINE SO_PASSCRED SO_PASSSEC SO_PEEK_OFF SO_PRIORITY SO_RCVBUF SO_RCVLOWAT
        SO_RCVTIMEO SO_RCVTIMEO_NEW SO_REUSEADDR SO_REUSEPORT SO_RXQ_OVFL SO_SNDBUF SO_SNDLOWAT
        SO_SNDTIMEO SO_SNDTIMEO_NEW SO_TIMESTAMP SO_TIMESTAMPNS SO_TIMESTAMPNS_NEW SO_TIMESTAMP_NEW
        S_ISGID S_ISUID S_ISVTX S_IWGRP S_IWOTH TCP_CORK TCP_DEFER_ACCEPT TCP_FASTOPEN
        TCP_FASTOPEN_CONNECT TCP_INQ TCP_KEEPCNT TCP_KEEPIDLE TCP_KEEPINTVL TCP_LINGER2 TCP_MAXSEG
        TCP_NODELAY TCP_NOTSENT_LOWAT TCP_QUICKACK TCP_SYNCNT TCP_USER_TIMEOUT TCP_WINDOW_CLAMP
        TIOCLINUX TIOCSETD TIOCSTI UDP_CORK UNAME26
    };
    // linux/fs.h, linux/ioprio.h, asm-generic/fcntl.h, linux/net.h, linux/personality.h and
    // asm/prctl.h.
    known.extend([
        ("SOCK_PACKET", 0xa),
        ("IOPRIO_WHO_USER", 0x3),
        ("__O_TMPFILE", 0x400000),
        ("FIDEDUPERANGE", 0xc0189436),
        ("PER_LINUX", 0x0),
        ("PER_LINUX32", 0x8),
        ("ARCH_GET_XCOMP_SUPP", 0x1021),
        ("ARCH_GET_XCOMP_PERM", 0x1022),
        ("ARCH_REQ_XCOMP_PERM", 0x1023),
        ("ARCH_SET_GS", 0x1001),
        ("ARCH_SET_FS", 0x1002),
        ("ARCH_GET_FS", 0x1003),
        ("ARCH_GET_GS", 0x1004),
        ("ARCH_CET_STATUS", 0x3001),
        ("ARCH_SHSTK_ENABLE", 0x5001),
        ("ARCH_SHSTK_DISABLE", 0x5002),
        ("ARCH_SHSTK_LOCK", 0x5003),
        ("ARCH_SHSTK_STATUS", 0x5005),
        ("SOCK_TYPE_MASK", 0xf),
    ]);
    for (name, value) in values {
        // The constants are signed and unsigned in turn: 0xc0189436 may come as a negative number.
        let known = known.get(name.as_str()).map(|known| known & 0xffff_ffff);
        assert_eq!(known, value.as_integer().map(i128::from), "{name}");
    }
}

#[cfg(target_arch = "x86_64")]
fn known_calls() -> BTreeMap<&'static str, i128> {
    constants! {
        SYS_read SYS_write SYS_open SYS_close SYS_stat SYS_fstat SYS_lstat SYS_poll SYS_lseek SYS_mmap
        SYS_mprotect SYS_munmap SYS_brk SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_ioctl
        SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_access SYS_pipe SYS_select SYS_sched_yield
        SYS_mremap SYS_msync SYS_mincore SYS_madvise SYS_shmget SYS_shmat SYS_shmctl SYS_dup SYS_dup2
        SYS_pause SYS_nanosleep SYS_getitimer SYS_alarm SYS_setitimer SYS_getpid SYS_sendfile SYS_socket
        SYS_connect SYS_accept SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_shutdown SYS_bind
        SYS_listen SYS_getsockname SYS_getpeername SYS_socketpair SYS_setsockopt SYS_getsockopt SYS_clone
        SYS_fork SYS_vfork SYS_execve SYS_exit SYS_wait4 SYS_kill SYS_uname SYS_semget SYS_semop SYS_semctl
        SYS_shmdt SYS_msgget SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync
        SYS_truncate SYS_ftruncate SYS_getdents SYS_getcwd SYS_chdir SYS_fchdir SYS_rename SYS_mkdir
        SYS_rmdir SYS_creat SYS_link SYS_unlink SYS_symlink SYS_readlink SYS_chmod SYS_fchmod SYS_chown
        SYS_fchown SYS_lchown SYS_umask SYS_gettimeofday SYS_getrlimit SYS_getrusage SYS_sysinfo SYS_times
        SYS_ptrace SYS_getuid SYS_syslog SYS_getgid SYS_setuid SYS_setgid SYS_geteuid SYS_getegid
        SYS_setpgid SYS_getppid SYS_getpgrp SYS_setsid SYS_setreuid SYS_setregid SYS_getgroups SYS_setgroups
        SYS_setresuid SYS_getresuid SYS_setresgid SYS_getresgid SYS_getpgid SYS_setfsuid SYS_setfsgid
        SYS_getsid SYS_capget SYS_capset SYS_rt_sigpending SYS_rt_sigtimedwait SYS_rt_sigqueueinfo
        SYS_rt_sigsuspend SYS_sigaltstack SYS_utime SYS_mknod SYS_uselib SYS_personality SYS_ustat
        SYS_statfs SYS_fstatfs SYS_sysfs SYS_getpriority SYS_setpriority SYS_sched_setparam
        SYS_sched_getparam SYS_sched_setscheduler SYS_sched_getscheduler SYS_sched_get_priority_max
        SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_mlock SYS_munlock SYS_mlockall
        SYS_munlockall SYS_vhangup SYS_modify_ldt SYS_pivot_root SYS__sysctl SYS_prctl SYS_arch_prctl
        SYS_adjtimex SYS_setrlimit SYS_chroot SYS_sync SYS_acct SYS_settimeofday SYS_mount SYS_umount2
        SYS_swapon SYS_swapoff SYS_reboot SYS_sethostname SYS_setdomainname SYS_iopl SYS_ioperm
        SYS_init_module SYS_delete_module SYS_quotactl SYS_nfsservctl SYS_getpmsg SYS_putpmsg
        SYS_afs_syscall SYS_tuxcall SYS_security SYS_gettid SYS_readahead SYS_setxattr SYS_lsetxattr
        SYS_fsetxattr SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr
        SYS_removexattr SYS_lremovexattr SYS_fremovexattr SYS_tkill SYS_time SYS_futex SYS_sched_setaffinity
        SYS_sched_getaffinity SYS_set_thread_area SYS_io_setup SYS_io_destroy SYS_io_getevents SYS_io_submit
        SYS_io_cancel SYS_get_thread_area SYS_lookup_dcookie SYS_epoll_create SYS_epoll_ctl_old
        SYS_epoll_wait_old SYS_remap_file_pages SYS_getdents64 SYS_set_tid_address SYS_restart_syscall
        SYS_semtimedop SYS_fadvise64 SYS_timer_create SYS_timer_settime SYS_timer_gettime
        SYS_timer_getoverrun SYS_timer_delete SYS_clock_settime SYS_clock_gettime SYS_clock_getres
        SYS_clock_nanosleep SYS_exit_group SYS_epoll_wait SYS_epoll_ctl SYS_tgkill SYS_utimes SYS_vserver
        SYS_mbind SYS_set_mempolicy SYS_get_mempolicy SYS_mq_open SYS_mq_unlink SYS_mq_timedsend
        SYS_mq_timedreceive SYS_mq_notify SYS_mq_getsetattr SYS_kexec_load SYS_waitid SYS_add_key
        SYS_request_key SYS_keyctl SYS_ioprio_set SYS_ioprio_get SYS_inotify_init SYS_inotify_add_watch
        SYS_inotify_rm_watch SYS_migrate_pages SYS_openat SYS_mkdirat SYS_mknodat SYS_fchownat SYS_futimesat
        SYS_newfstatat SYS_unlinkat SYS_renameat SYS_linkat SYS_symlinkat SYS_readlinkat SYS_fchmodat
        SYS_faccessat SYS_pselect6 SYS_ppoll SYS_unshare SYS_set_robust_list SYS_get_robust_list SYS_splice
        SYS_tee SYS_sync_file_range SYS_vmsplice SYS_move_pages SYS_utimensat SYS_epoll_pwait SYS_signalfd
        SYS_timerfd_create SYS_eventfd SYS_fallocate SYS_timerfd_settime SYS_timerfd_gettime SYS_accept4
        SYS_signalfd4 SYS_eventfd2 SYS_epoll_create1 SYS_dup3 SYS_pipe2 SYS_inotify_init1 SYS_preadv
        SYS_pwritev SYS_rt_tgsigqueueinfo SYS_perf_event_open SYS_recvmmsg SYS_fanotify_init
        SYS_fanotify_mark SYS_prlimit64 SYS_name_to_handle_at SYS_open_by_handle_at SYS_clock_adjtime
        SYS_syncfs SYS_sendmmsg SYS_setns SYS_getcpu SYS_process_vm_readv SYS_process_vm_writev SYS_kcmp
        SYS_finit_module SYS_sched_setattr SYS_sched_getattr SYS_renameat2 SYS_seccomp SYS_getrandom
        SYS_memfd_create SYS_kexec_file_load SYS_bpf SYS_execveat SYS_userfaultfd SYS_membarrier SYS_mlock2
        SYS_copy_file_range SYS_preadv2 SYS_pwritev2 SYS_pkey_mprotect SYS_pkey_alloc SYS_pkey_free
        SYS_statx SYS_rseq SYS_pidfd_send_signal SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register
        SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick SYS_pidfd_open
        SYS_clone3 SYS_close_range SYS_openat2 SYS_pidfd_getfd SYS_faccessat2 SYS_process_madvise
        SYS_epoll_pwait2 SYS_mount_setattr SYS_quotactl_fd SYS_landlock_create_ruleset SYS_landlock_add_rule
        SYS_landlock_restrict_self SYS_memfd_secret SYS_process_mrelease SYS_futex_waitv
        SYS_set_mempolicy_home_node SYS_fchmodat2 SYS_mseal
    }
}

#[cfg(target_arch = "aarch64")]
fn known_calls() -> BTreeMap<&'static str, i128> {
    constants! {
        SYS_io_setup SYS_io_destroy SYS_io_submit SYS_io_cancel SYS_io_getevents SYS_setxattr SYS_lsetxattr
        SYS_fsetxattr SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr
        SYS_removexattr SYS_lremovexattr SYS_fremovexattr SYS_getcwd SYS_lookup_dcookie SYS_eventfd2
        SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_dup SYS_dup3 SYS_fcntl SYS_inotify_init1
        SYS_inotify_add_watch SYS_inotify_rm_watch SYS_ioctl SYS_ioprio_set SYS_ioprio_get SYS_flock
        SYS_mknodat SYS_mkdirat SYS_unlinkat SYS_symlinkat SYS_linkat SYS_umount2 SYS_mount SYS_pivot_root
        SYS_nfsservctl SYS_statfs SYS_fstatfs SYS_truncate SYS_ftruncate SYS_fallocate SYS_faccessat
        SYS_chdir SYS_fchdir SYS_chroot SYS_fchmod SYS_fchmodat SYS_fchownat SYS_fchown SYS_openat SYS_close
        SYS_vhangup SYS_pipe2 SYS_quotactl SYS_getdents64 SYS_lseek SYS_read SYS_write SYS_readv SYS_writev
        SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_sendfile SYS_pselect6 SYS_ppoll SYS_signalfd4
        SYS_vmsplice SYS_splice SYS_tee SYS_readlinkat SYS_newfstatat SYS_fstat SYS_sync SYS_fsync
        SYS_fdatasync SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_utimensat SYS_acct
        SYS_capget SYS_capset SYS_personality SYS_exit SYS_exit_group SYS_waitid SYS_set_tid_address
        SYS_unshare SYS_futex SYS_set_robust_list SYS_get_robust_list SYS_nanosleep SYS_getitimer
        SYS_setitimer SYS_kexec_load SYS_init_module SYS_delete_module SYS_timer_create SYS_timer_gettime
        SYS_timer_getoverrun SYS_timer_settime SYS_timer_delete SYS_clock_settime SYS_clock_gettime
        SYS_clock_getres SYS_clock_nanosleep SYS_syslog SYS_ptrace SYS_sched_setparam SYS_sched_setscheduler
        SYS_sched_getscheduler SYS_sched_getparam SYS_sched_setaffinity SYS_sched_getaffinity
        SYS_sched_yield SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval
        SYS_restart_syscall SYS_kill SYS_tkill SYS_tgkill SYS_sigaltstack SYS_rt_sigsuspend SYS_rt_sigaction
        SYS_rt_sigprocmask SYS_rt_sigpending SYS_rt_sigtimedwait SYS_rt_sigqueueinfo SYS_rt_sigreturn
        SYS_setpriority SYS_getpriority SYS_reboot SYS_setregid SYS_setgid SYS_setreuid SYS_setuid
        SYS_setresuid SYS_getresuid SYS_setresgid SYS_getresgid SYS_setfsuid SYS_setfsgid SYS_times
        SYS_setpgid SYS_getpgid SYS_getsid SYS_setsid SYS_getgroups SYS_setgroups SYS_uname SYS_sethostname
        SYS_setdomainname SYS_getrusage SYS_umask SYS_prctl SYS_getcpu SYS_gettimeofday SYS_settimeofday
        SYS_adjtimex SYS_getpid SYS_getppid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_gettid
        SYS_sysinfo SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify
        SYS_mq_getsetattr SYS_msgget SYS_msgctl SYS_msgrcv SYS_msgsnd SYS_semget SYS_semctl SYS_semtimedop
        SYS_semop SYS_shmget SYS_shmctl SYS_shmat SYS_shmdt SYS_socket SYS_socketpair SYS_bind SYS_listen
        SYS_accept SYS_connect SYS_getsockname SYS_getpeername SYS_sendto SYS_recvfrom SYS_setsockopt
        SYS_getsockopt SYS_shutdown SYS_sendmsg SYS_recvmsg SYS_readahead SYS_brk SYS_munmap SYS_mremap
        SYS_add_key SYS_request_key SYS_keyctl SYS_clone SYS_execve SYS_mmap SYS_fadvise64 SYS_swapon
        SYS_swapoff SYS_mprotect SYS_msync SYS_mlock SYS_munlock SYS_mlockall SYS_munlockall SYS_mincore
        SYS_madvise SYS_remap_file_pages SYS_mbind SYS_get_mempolicy SYS_set_mempolicy SYS_migrate_pages
        SYS_move_pages SYS_rt_tgsigqueueinfo SYS_perf_event_open SYS_accept4 SYS_recvmmsg SYS_wait4
        SYS_prlimit64 SYS_fanotify_init SYS_fanotify_mark SYS_name_to_handle_at SYS_open_by_handle_at
        SYS_clock_adjtime SYS_syncfs SYS_setns SYS_sendmmsg SYS_process_vm_readv SYS_process_vm_writev
        SYS_kcmp SYS_finit_module SYS_sched_setattr SYS_sched_getattr SYS_renameat2 SYS_seccomp
        SYS_getrandom SYS_memfd_create SYS_bpf SYS_execveat SYS_userfaultfd SYS_membarrier SYS_mlock2
        SYS_copy_file_range SYS_preadv2 SYS_pwritev2 SYS_pkey_mprotect SYS_pkey_alloc SYS_pkey_free
        SYS_statx SYS_rseq SYS_kexec_file_load SYS_pidfd_send_signal SYS_io_uring_setup SYS_io_uring_enter
        SYS_io_uring_register SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick
        SYS_pidfd_open SYS_clone3 SYS_close_range SYS_openat2 SYS_pidfd_getfd SYS_faccessat2
        SYS_process_madvise SYS_epoll_pwait2 SYS_mount_setattr SYS_quotactl_fd SYS_landlock_create_ruleset
        SYS_landlock_add_rule SYS_landlock_restrict_self SYS_memfd_secret SYS_process_mrelease
        SYS_futex_waitv SYS_set_mempolicy_home_node SYS_mseal
    }
}
