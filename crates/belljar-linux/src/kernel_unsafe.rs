//! System calls that neither `std` nor `rustix` offers. Every function here is safe to call unless it is marked
//! `unsafe`; each block says why it is sound. The functions marked *fork-safe* allocate nothing, take no lock and call
//! only async-signal-safe code (signal-safety(7)), so they may run between a clone and an exec.

#![expect(unsafe_code, reason = "raw system calls; each block says why it is sound")]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

use crate::seccomp::Instruction;

/// The child's side or the parent's side of a [`clone3`].
pub(crate) enum Cloned {
    /// This is the child.
    Child,
    /// This is the parent; the child's pid in this pid namespace and its pidfd.
    Parent { pid: i32, pidfd: OwnedFd },
}

#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Calls clone3(2) without shared memory, like fork(2): the child runs on a copy of this thread.
/// `namespaces` holds `CLONE_NEW*` bits; `cgroup` puts the child into that cgroup v2 from its start.
/// Fork-safe, and so must be everything that the child does until it execs or exits.
///
/// # Safety
/// The child must call only fork-safe functions: other threads of this process may have held any lock
/// of the process at the moment of the clone.
pub(crate) unsafe fn clone3(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned, Errno> {
    let mut pidfd: c_int = -1;
    let mut args = CloneArgs {
        flags: namespaces | libc::CLONE_PIDFD as u64,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    }
    // SAFETY: `args` is a valid clone_args of the given size that outlives the call, and its pointer fields
    // are zero or point to `pidfd`, which does too. No memory is shared with the child.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    match result {
        0 => {
            #[cfg(feature = "mutation")]
            crate::fork_guard::enter();
            Ok(Cloned::Child)
        }
        pid if pid > 0 => {
            // SAFETY: the kernel stored a new descriptor there, and nothing else knows its number.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Cloned::Parent { pid: i32::try_from(pid).unwrap_or(i32::MAX), pidfd })
        }
        _ => Err(last_errno()),
    }
}

/// Forks this process, which must have one thread (fork(2)). Returns the child's process id, and none in the child, which may do whatever
/// its parent may.
///
/// # Errors
/// `EBUSY` if it has more threads, or the kernel's reason.
pub fn fork_alone() -> Result<Option<rustix::process::Pid>, Errno> {
    if std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) != 1 {
        return Err(Errno::BUSY);
    }
    // SAFETY: no other thread holds a lock of the process, or changes anything that the child finds.
    let pid = unsafe { libc::fork() };
    check(pid.into()).map(|_| rustix::process::Pid::from_raw(pid))
}

/// From linux/sched.h; libc has it as a wrapping constant.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// From linux/sched.h; the bit is in the low byte, which only clone3 can carry.
pub(crate) const CLONE_NEWTIME: u64 = 0x80;

/// Arguments or environment in the form that execve(2) takes, built before the clone.
#[derive(Debug)]
pub struct CStringArray {
    /// Owns the strings that `pointers` points to; a `CString`'s buffer does not move when the vector does.
    strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

// SAFETY: the pointers point only into `strings`, which moves with them and is never changed.
unsafe impl Send for CStringArray {}
// SAFETY: as above; nothing is ever written through the pointers.
unsafe impl Sync for CStringArray {}

impl CStringArray {
    /// Builds the array from strings, in order.
    #[must_use]
    pub fn new(strings: Vec<CString>) -> Self {
        let mut pointers: Vec<*const c_char> = strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Self { strings, pointers }
    }

    /// Returns the strings, without the pointers to them.
    pub(crate) fn strings(&self) -> &Vec<CString> {
        &self.strings
    }

    /// Returns the strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &CStr> {
        self.strings.iter().map(CString::as_c_str)
    }
}

/// Returns name and number on this architecture of the system calls by which a child of a warm interpreter enters a sandbox.
#[must_use]
pub fn moving_calls() -> [(&'static str, i64); 24] {
    [
        ("capset", libc::SYS_capset),
        ("clone", libc::SYS_clone),
        ("clone3", libc::SYS_clone3),
        ("close", libc::SYS_close),
        ("close_range", libc::SYS_close_range),
        ("dup3", libc::SYS_dup3),
        ("get_robust_list", libc::SYS_get_robust_list),
        ("keyctl", libc::SYS_keyctl),
        ("landlock_restrict_self", libc::SYS_landlock_restrict_self),
        ("madvise", libc::SYS_madvise),
        ("mmap", libc::SYS_mmap),
        ("mprotect", libc::SYS_mprotect),
        ("openat", libc::SYS_openat),
        ("prctl", libc::SYS_prctl),
        ("prlimit64", libc::SYS_prlimit64),
        ("rseq", libc::SYS_rseq),
        ("seccomp", libc::SYS_seccomp),
        ("set_robust_list", libc::SYS_set_robust_list),
        ("setgroups", libc::SYS_setgroups),
        ("setns", libc::SYS_setns),
        ("setresgid", libc::SYS_setresgid),
        ("setresuid", libc::SYS_setresuid),
        ("setsid", libc::SYS_setsid),
        ("write", libc::SYS_write),
    ]
}

/// Calls execveat(2) on a descriptor itself. Returns only on failure. Fork-safe.
pub(crate) fn exec_fd(fd: BorrowedFd<'_>, argv: &CStringArray, envp: &CStringArray) -> Errno {
    // SAFETY: both arrays end in a null pointer and hold valid C strings; the empty path is a C string.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            fd.as_raw_fd(),
            c"".as_ptr(),
            argv.pointers.as_ptr(),
            envp.pointers.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    last_errno()
}

/// Calls execve(2). Returns only on failure. Fork-safe.
#[must_use]
pub fn exec_path(path: &CStr, argv: &CStringArray, envp: &CStringArray) -> Errno {
    // SAFETY: as in `exec_fd`.
    unsafe {
        libc::syscall(libc::SYS_execve, path.as_ptr(), argv.pointers.as_ptr(), envp.pointers.as_ptr());
    }
    last_errno()
}

/// Calls _exit(2). Fork-safe.
pub(crate) fn exit_now(status: c_int) -> ! {
    // SAFETY: ends the process; runs no handlers.
    unsafe { libc::_exit(status) }
}

/// The stack of a [`spawn_vfork`] child, with a guard page below it.
struct Stack {
    base: *mut c_void,
}

const STACK_BYTES: usize = 64 * 1024;
const GUARD_BYTES: usize = 4096;

impl Stack {
    fn new() -> io::Result<Self> {
        // SAFETY: a fresh private mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                STACK_BYTES + GUARD_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the lowest page of the mapping just made; nothing uses it.
        if unsafe { libc::mprotect(base, GUARD_BYTES, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base })
    }

    fn top(&self) -> *mut c_void {
        // SAFETY: one past the end of the mapping, which is a valid address to compute.
        unsafe { self.base.byte_add(STACK_BYTES + GUARD_BYTES) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made, and the child that used it has execed or exited.
        unsafe { libc::munmap(self.base, STACK_BYTES + GUARD_BYTES) };
    }
}

/// Starts a child that shares this memory until it execs (`CLONE_VM | CLONE_VFORK`, as posix_spawn(3) does):
/// no page table is copied. `child` runs in it and must end in an exec; it returns only if that fails, with the
/// reason. All signals are blocked in the meantime, so that no handler runs in the child.
///
/// # Errors
/// The kernel's reason for refusing the clone, or the error that `child` returned.
///
/// # Safety
/// `child` may call only fork-safe functions, must not unwind, and must not free or move anything of the
/// parent's: the parent is suspended, but its memory is the same.
pub(crate) unsafe fn spawn_vfork<F: FnMut() -> Errno>(mut child: F) -> io::Result<(i32, Option<OwnedFd>)> {
    struct Shared<'a, F> {
        child: &'a mut F,
        failure: Option<Errno>,
    }
    extern "C" fn enter<F: FnMut() -> Errno>(shared: *mut c_void) -> c_int {
        // SAFETY: the pointer is to the `Shared` below, and the parent does not touch it until this function ends.
        let shared = unsafe { &mut *shared.cast::<Shared<'_, F>>() };
        #[cfg(feature = "mutation")]
        crate::fork_guard::enter();
        shared.failure = Some((shared.child)());
        127
    }
    let stack = Stack::new()?;
    let mut shared = Shared { child: &mut child, failure: None };
    let mut pidfd: c_int = -1;
    let all = SignalMask::block_all()?;
    let mut clone = |flags: c_int| {
        // SAFETY: the stack is large enough and lives until the child has execed or exited, because CLONE_VFORK suspends
        // this thread until then; `shared` lives as long; CLONE_PIDFD stores into `pidfd` through the fifth argument.
        unsafe {
            libc::clone(
                enter::<F>,
                stack.top(),
                libc::CLONE_VM | libc::CLONE_VFORK | flags | libc::SIGCHLD,
                (&raw mut shared).cast(),
                &raw mut pidfd,
            )
        }
    };
    let mut pid = clone(libc::CLONE_PIDFD);
    let mut error = io::Error::last_os_error();
    if pid < 0 && error.raw_os_error() == Some(libc::EINVAL) {
        // gVisor has no pidfds.
        pid = clone(0);
        error = io::Error::last_os_error();
    }
    #[cfg(feature = "mutation")]
    crate::fork_guard::leave();
    drop(all);
    if pid < 0 {
        return Err(error);
    }
    // SAFETY: the kernel stored a new descriptor there, and nothing else knows its number.
    let pidfd = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) });
    if let Some(failure) = shared.failure {
        // The child is a zombie now; reap it here, so that no other code sees its end.
        if let Some(child) = rustix::process::Pid::from_raw(pid) {
            let _ = rustix::process::waitid(
                rustix::process::WaitId::Pid(child),
                rustix::process::WaitIdOptions::EXITED,
            );
        }
        return Err(failure.into());
    }
    Ok((pid, pidfd))
}

/// Blocks SIGCHLD in this thread, because another thread of the process handles it.
///
/// # Errors
/// The kernel's reason.
pub fn block_child_signal() -> Result<(), Errno> {
    // SAFETY: a plain set of bits, emptied before it is changed and read.
    let error = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(error)) }
}

/// Ends of children, as a descriptor that is readable once one has ended. Until it is dropped, SIGCHLD is blocked in this thread.
#[derive(Debug)]
pub struct ChildSignal {
    fd: OwnedFd,
}

impl ChildSignal {
    /// Opens it (signalfd(2)).
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn open() -> Result<Self, Errno> {
        block_child_signal()?;
        // SAFETY: a plain set of bits, emptied before it is changed and read; the kernel returns a new descriptor.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        check(fd.into())?;
        // SAFETY: it has just been opened, and nothing else knows its number.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Takes what has been signalled; the children are reaped with [`reap_one`] afterwards.
    pub fn clear(&self) {
        let mut signals = [0u8; size_of::<libc::signalfd_siginfo>()];
        while matches!(rustix::io::read(&self.fd, &mut signals), Ok(1..) | Err(Errno::INTR)) {}
    }
}

impl AsFd for ChildSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for ChildSignal {
    fn drop(&mut self) {
        // SAFETY: a plain set of bits, emptied before it is changed and read.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
    }
}

/// Blocks every signal of this thread until dropped.
struct SignalMask {
    before: libc::sigset_t,
}

impl SignalMask {
    fn block_all() -> io::Result<Self> {
        // SAFETY: plain sets of bits, filled by the calls before they are read.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) {
                0 => Ok(Self { before }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        // SAFETY: the set that `block_all` got from the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Unblocks all signals and resets all to their defaults, including those that this process or its ancestors ignore and the
/// two reserved by the C library, which posix_spawn(3) leaves ignored in its children. Fork-safe.
pub fn reset_signals() {
    // The kernel's `struct sigaction`, with room for any architecture's: all zero is SIG_DFL without flags.
    const DEFAULT: [u64; 8] = [0; 8];
    const SET_BYTES: usize = 8;
    // SAFETY: plain sets of bits; the kernel reads a sigaction's bytes and writes none.
    unsafe {
        for signal in 1..=64 {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                DEFAULT.as_ptr(),
                std::ptr::null_mut::<c_void>(),
                SET_BYTES,
            );
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Removes the handlers by which Rust's library reports a stack overflow. They mistake a SIGSEGV sent by another process for
/// a fault, and may end this process; without a handler, no process inside its namespace can send one to a first process
/// (pid_namespaces(7)).
pub fn reset_fault_handlers() {
    // SAFETY: SIG_DFL is a valid disposition for both.
    unsafe {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Ignores the signals that a terminal or a service manager sends to a whole process group. Fork-safe.
pub(crate) fn ignore_group_signals() {
    // SAFETY: SIG_IGN and SIG_DFL are valid dispositions for each of these.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        // Ignored, as it may be by who has started the host, children would leave nothing to wait for.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// Sends `signal` to every process that this one may signal, except itself and pid 1 (kill(2), pid -1). Meant for
/// pid 1 of a pid namespace, where these are all other processes. Fork-safe.
///
/// # Errors
/// `ESRCH` if there is no such process.
pub fn kill_all(signal: c_int) -> Result<(), Errno> {
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(libc::SYS_kill, -1, signal) }).map(drop)
}

/// Sends `signal` to one process by number (kill(2)).
///
/// # Errors
/// The kernel's reason; `ESRCH` if there is no such process, as for numbers that mean a group or all.
pub fn kill(pid: i32, signal: c_int) -> Result<(), Errno> {
    if pid <= 0 {
        return Err(Errno::SRCH);
    }
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(libc::SYS_kill, pid, signal) }).map(drop)
}

/// Sends `signal` by pidfd (pidfd_send_signal(2)), so that a reused pid is never hit.
///
/// # Errors
/// The kernel's reason; `ESRCH` if the process has ended.
pub fn pidfd_kill(pidfd: BorrowedFd<'_>, signal: c_int) -> Result<(), Errno> {
    // SAFETY: a null siginfo is allowed.
    check(unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<c_void>(), 0)
    })
    .map(drop)
}

/// Attributes of a mount, as mount_setattr(2) takes them.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Calls mount_setattr(2) on the mount whose root is `fd`; `recursive` includes the mounts below.
/// `idmap` is a user namespace whose id map the mount adopts. Fork-safe.
///
/// # Errors
/// The kernel's reason.
pub fn mount_setattr(
    fd: BorrowedFd<'_>,
    set: u64,
    propagation: u64,
    recursive: bool,
    idmap: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut attr = MountAttr { attr_set: set, propagation, ..MountAttr::default() };
    if let Some(idmap) = idmap {
        attr.attr_set |= MOUNT_ATTR_IDMAP;
        attr.userns_fd = u64::from(idmap.as_raw_fd().unsigned_abs());
    }
    set_mount_attr(fd, recursive, &attr)
}

/// Clears attributes of the mount whose root is `fd`.
///
/// # Errors
/// As mount_setattr(2).
pub(crate) fn mount_clearattr(fd: BorrowedFd<'_>, clear: u64) -> Result<(), Errno> {
    set_mount_attr(fd, false, &MountAttr { attr_clr: clear, ..MountAttr::default() })
}

fn set_mount_attr(fd: BorrowedFd<'_>, recursive: bool, attr: &MountAttr) -> Result<(), Errno> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string; `attr` is a mount_attr of the given size.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const *attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Nothing can be written. Source of all `MOUNT_ATTR_*`: linux/mount.h.
pub const MOUNT_ATTR_RDONLY: u64 = 0x1;
/// Set-user-ID bits and file capabilities are ignored.
pub const MOUNT_ATTR_NOSUID: u64 = 0x2;
/// Device files cannot be opened.
pub const MOUNT_ATTR_NODEV: u64 = 0x4;
/// Nothing can be executed.
pub const MOUNT_ATTR_NOEXEC: u64 = 0x8;
/// Symbolic links are not followed.
pub const MOUNT_ATTR_NOSYMFOLLOW: u64 = 0x20_0000;
const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;
/// `MS_PRIVATE`: mounts do not propagate in or out.
pub const PROPAGATION_PRIVATE: u64 = 1 << 18;

/// Marks all descriptors from `first` on close-on-exec (close_range(2)). Fork-safe.
///
/// # Errors
/// Fails if the kernel is older than Linux 5.11, or a filter refuses the call.
pub fn cloexec_from(first: c_uint) -> Result<(), Errno> {
    const CLOSE_RANGE_CLOEXEC: c_uint = 1 << 2;
    // SAFETY: no pointers, and nothing is closed yet.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, LAST_FD, CLOSE_RANGE_CLOEXEC) }).map(drop)
}

/// No descriptor has a higher number, and gVisor takes one for negative in close_range(2).
const LAST_FD: c_uint = c_int::MAX.cast_unsigned();

/// Closes every descriptor from `first` on. For a process that has just begun: nothing may own one of them yet.
///
/// # Errors
/// Fails if the kernel is older than Linux 5.9, or a filter refuses the call.
pub fn close_from(first: c_uint) -> Result<(), Errno> {
    // SAFETY: no pointers; no object of this process owns the descriptors.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, LAST_FD, 0) }).map(drop)
}

/// Closes every descriptor except those in `keep`, which it sorts. Fork-safe. For children of a raw clone only: the
/// closed descriptors belong to objects of the copied parent, which are never used here.
pub(crate) fn close_all_but(keep: &mut [RawFd]) -> Result<(), Errno> {
    keep.sort_unstable();
    let mut first: c_uint = 0;
    for fd in keep.iter().copied().filter(|fd| *fd >= 0).map(RawFd::unsigned_abs) {
        if fd > first {
            // SAFETY: no pointers; see above for the objects that own the descriptors.
            check(unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) })?;
        }
        first = first.max(fd + 1);
    }
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, LAST_FD, 0) }).map(drop)
}

/// Closes one descriptor by number. Fork-safe; the same rule about owning objects holds as for [`close_all_but`].
pub(crate) fn close_number(fd: RawFd) {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Joins a new, anonymous session keyring, so that none of the caller's keys can be reached (keyctl(2)).
/// Succeeds on a kernel without key support. Fork-safe.
///
/// # Errors
/// The kernel's reason.
pub(crate) fn leave_session_keyring() -> Result<(), Errno> {
    const KEYCTL_JOIN_SESSION_KEYRING: c_int = 1;
    // SAFETY: a null name is allowed and requests an anonymous keyring.
    let result = check(unsafe {
        libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<c_char>())
    });
    match result {
        Err(Errno::NOSYS) => Ok(()),
        other => other.map(drop),
    }
}

/// Requests `signal` when the parent thread ends (PR_SET_PDEATHSIG). Fork-safe.
///
/// # Errors
/// The kernel's reason.
pub(crate) fn die_with_parent(signal: c_int) -> Result<(), Errno> {
    prctl(libc::PR_SET_PDEATHSIG, c_long::from(signal), 0).map(drop)
}

/// Sets whether other processes of the same user may inspect this one (PR_SET_DUMPABLE). Fork-safe.
///
/// # Errors
/// The kernel's reason.
pub fn set_dumpable(dumpable: bool) -> Result<(), Errno> {
    prctl(libc::PR_SET_DUMPABLE, c_long::from(dumpable), 0).map(drop)
}

/// Makes this process the parent of its orphaned descendants (PR_SET_CHILD_SUBREAPER). Fork-safe.
///
/// # Errors
/// The kernel's reason.
pub fn become_subreaper() -> Result<(), Errno> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0).map(drop)
}

/// Drops one capability from the bounding set. `EINVAL` means a number past the last capability. Fork-safe.
pub(crate) fn drop_bounding(capability: u32) -> Result<(), Errno> {
    prctl(libc::PR_CAPBSET_DROP, c_long::from(capability), 0).map(drop)
}

/// Sets the name that ps(1) shows. Fork-safe.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: a C string; the kernel copies at most 16 bytes of it.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Locks the secure bits, so that no uid, not even 0, brings capabilities back. Fork-safe.
pub(crate) fn lock_securebits() -> Result<(), Errno> {
    // SECBIT_NOROOT, SECBIT_NO_SETUID_FIXUP, SECBIT_NO_CAP_AMBIENT_RAISE and their locks (capabilities(7)).
    prctl(libc::PR_SET_SECUREBITS, 0b1100_1111, 0).map(drop)
}

fn prctl(option: c_int, first: c_long, second: c_long) -> Result<c_long, Errno> {
    // SAFETY: the callers pass only options whose arguments are numbers.
    check(unsafe { libc::syscall(libc::SYS_prctl, option, first, second, 0, 0) })
}

/// Reduces the capabilities of this thread to `kept`, which survive an exec (capset(2), PR_CAP_AMBIENT). Fork-safe.
pub(crate) fn set_capabilities(kept: u64) -> Result<(), Errno> {
    capset(kept, kept, kept)?;
    for capability in (0..64).filter(|capability| kept >> capability & 1 != 0) {
        prctl(libc::PR_CAP_AMBIENT, c_long::from(libc::PR_CAP_AMBIENT_RAISE), capability)?;
    }
    Ok(())
}

/// Reduces the capabilities of this thread to `kept`, of which none is inheritable: root has them again after an exec, and nobody else.
/// Fork-safe.
pub(crate) fn limit_capabilities(kept: u64) -> Result<(), Errno> {
    capset(kept, kept, 0)
}

/// Takes on a user's ids on this thread alone, and leaves it `effective` of the capabilities that it has. With these ids the thread opens
/// files as the user does. Its real and saved ids stay root's, so that the user's processes cannot signal or trace it.
///
/// # Errors
/// The kernel's reason: the thread has to be root of its user namespace.
pub fn serve_as(uid: u32, gid: u32, permitted: u64, effective: u64) -> Result<(), Errno> {
    let groups = [gid];
    // SAFETY: numbers only, and a list of the given length. These are the calls of this thread, not the C library's of the process.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
        check(libc::syscall(libc::SYS_setresgid, 0, gid, 0))?;
        check(libc::syscall(libc::SYS_setresuid, 0, uid, 0))?;
    }
    capset(effective, permitted, 0)
}

/// Takes on a user's ids for good. Fork-safe.
pub(crate) fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: numbers only, and a list of the given length.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid)).map(drop)
    }
}

/// Sets the capabilities of this thread (capset(2)). Fork-safe.
fn capset(effective: u64, permitted: u64, inheritable: u64) -> Result<(), Errno> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: c_int,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let low = |set: u64| u32::try_from(set & u64::from(u32::MAX)).unwrap_or(0);
    let sets = [effective, permitted, inheritable];
    // First the lower 32 bits of each, then the upper ones.
    let [a, b, c] = sets.map(low);
    let [d, e, f] = sets.map(|set| low(set >> 32));
    let data = [a, b, c, d, e, f];
    // SAFETY: version 3 reads two records of three words, which `data` holds.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// Preserves the capabilities across changes of ids (capabilities(7), `SECBIT_NO_SETUID_FIXUP`). Fork-safe.
pub(crate) fn keep_capabilities_over_ids() -> Result<(), Errno> {
    const SECBIT_NO_SETUID_FIXUP: c_long = 1 << 2;
    prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0).map(drop)
}

/// Sets the real, effective and saved ids of this thread, and empties its list of groups if `clear_groups`. Fork-safe.
pub(crate) fn set_ids(uid: u32, gid: u32, clear_groups: bool) -> Result<(), Errno> {
    // SAFETY: numbers only; a null list of length 0 is allowed.
    unsafe {
        if clear_groups {
            check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()))?;
        }
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid)).map(drop)
    }
}

/// Changes the effective user id of this thread, to which the kernel charges a new user namespace, and keeps the
/// capabilities in effect (capabilities(7), `SECBIT_NO_SETUID_FIXUP`). The real id stays, so that the change can be undone.
/// Fork-safe.
pub(crate) fn set_effective_uid(uid: u32) -> Result<(), Errno> {
    const SECBIT_NO_SETUID_FIXUP: c_long = 1 << 2;
    let bits = prctl(libc::PR_GET_SECUREBITS, 0, 0)?;
    // Before the id, so that after a refusal nothing has changed and the resources made so far can be removed.
    prctl(libc::PR_SET_SECUREBITS, bits | SECBIT_NO_SETUID_FIXUP, 0)?;
    // SAFETY: numbers only; -1 leaves an id as it is.
    check(unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) }).map(drop)
}

/// Drops a real-time policy and a negative nice value inherited from the caller: a processor limit does not bind the
/// former, and the latter would take time from other work (sched(7)). Fork-safe.
pub(crate) fn reset_priority() -> Result<(), Errno> {
    // SAFETY: 0 is this thread; no pointers.
    let policy = check(unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) })?;
    let policy = policy & !c_long::from(libc::SCHED_RESET_ON_FORK);
    if ![libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(c_long::from).contains(&policy) {
        let priority: c_int = 0;
        // SAFETY: a sched_param is one int, which `priority` is.
        check(unsafe {
            libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority)
        })?;
    }
    if rustix::process::getpriority_process(None)? < 0 {
        rustix::process::setpriority_process(None, 0)?;
    }
    Ok(())
}

/// Installs a filter for this thread and its children (seccomp(2)). Needs no-new-privileges. Fork-safe.
///
/// # Errors
/// The kernel's reason; `EINVAL` for an invalid program.
pub fn install_seccomp(program: &'static [Instruction]) -> Result<(), Errno> {
    const SECCOMP_SET_MODE_FILTER: c_int = 1;
    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const Instruction,
    }
    let program = Program { len: u16::try_from(program.len()).unwrap_or(0), filter: program.as_ptr() };
    // SAFETY: `Instruction` has the layout of sock_filter, and the length is that of the slice.
    check(unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
        .map(drop)
}

/// Enforces a Landlock ruleset on this thread and its children (landlock_restrict_self(2)). Needs
/// no-new-privileges. Fork-safe.
///
/// # Errors
/// The kernel's reason.
pub fn restrict_landlock(ruleset: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) }).map(drop)
}

/// What a Landlock domain handles (`struct landlock_ruleset_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct LandlockAttr {
    pub(crate) handled_access_fs: u64,
    pub(crate) handled_access_net: u64,
    pub(crate) scoped: u64,
}

impl LandlockAttr {
    /// Returns everything about files that Landlock of this ABI handles, and its scopes: signals and abstract sockets do not leave
    /// the domain. `None` without Landlock.
    #[must_use]
    pub fn whole(abi: u32) -> Option<Self> {
        // The access rights of each version (linux/landlock.h): 13, then REFER, TRUNCATE, and since 5 IOCTL_DEV.
        let rights = match abi {
            0 => return None,
            1 => 13,
            2 => 14,
            3 | 4 => 15,
            _ => 16,
        };
        Some(Self {
            handled_access_fs: (1 << rights) - 1,
            handled_access_net: 0,
            scoped: if abi >= 6 { 0b11 } else { 0 },
        })
    }
}

/// Access to a file by reading and executing it (`LANDLOCK_ACCESS_FS_EXECUTE` and `…_READ_FILE`, linux/landlock.h).
const EXECUTED: u64 = 1 | 1 << 2;

/// Enters a domain in which everything is allowed below these directories, and these files can be executed; what Landlock forbids in any
/// domain, such as mounts, is forbidden. Needs CAP_SYS_ADMIN or no-new-privileges. Fork-safe.
pub(crate) fn enter_landlock(
    attr: &LandlockAttr,
    dirs: &[BorrowedFd<'_>],
    files: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    const RULE_PATH_BENEATH: c_int = 1;
    #[repr(C, packed)]
    struct PathBeneath {
        allowed_access: u64,
        parent_fd: c_int,
    }
    // Older kernels refuse a structure with more than they know only if that is not zero.
    // SAFETY: the kernel reads a structure of this length.
    let ruleset = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::from_ref(attr), size_of_val(attr), 0)
    })?;
    let ruleset = c_int::try_from(ruleset).map_err(|_| Errno::BADF)?;
    // SAFETY: the call has just returned this descriptor, and nothing else owns it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
    let dirs = dirs.iter().map(|dir| (dir, attr.handled_access_fs));
    for (path, allowed_access) in dirs.chain(files.iter().map(|file| (file, EXECUTED))) {
        let beneath = PathBeneath { allowed_access, parent_fd: path.as_raw_fd() };
        // SAFETY: the kernel reads a structure of this type.
        check(unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                ruleset.as_raw_fd(),
                RULE_PATH_BENEATH,
                &raw const beneath,
                0,
            )
        })?;
    }
    restrict_landlock(ruleset.as_fd())
}

/// Returns the Landlock ABI of this kernel, 0 if it has none (landlock_create_ruleset(2)).
#[must_use]
pub fn landlock_abi() -> u32 {
    const LANDLOCK_CREATE_RULESET_VERSION: c_int = 1;
    // SAFETY: a null attribute of size 0 is allowed with this flag, which requests the version.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<c_void>(),
            0,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(result).unwrap_or(0)
}

/// Enters the namespace `fd`, or that of the process behind the pidfd `fd` (setns(2)). Fork-safe.
pub(crate) fn enter_namespace(fd: BorrowedFd<'_>, kind: c_int) -> Result<(), Errno> {
    // SAFETY: numbers only; the caller has one thread.
    check(unsafe { libc::syscall(libc::SYS_setns, fd.as_raw_fd(), kind) }).map(drop)
}

/// Moves this process into new namespaces (unshare(2)). Fork-safe.
pub(crate) fn unshare(kinds: c_int) -> Result<(), Errno> {
    // SAFETY: numbers only; unsharing a namespace changes neither memory nor descriptors.
    check(unsafe { libc::syscall(libc::SYS_unshare, kinds) }).map(drop)
}

/// Sets the soft and hard limit of a resource for this process (prlimit(2)). Fork-safe.
pub(crate) fn set_rlimit(resource: u32, soft: u64, hard: u64) -> Result<(), Errno> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    // SAFETY: pid 0 is this process; the old limit is not requested.
    check(unsafe {
        libc::syscall(libc::SYS_prlimit64, 0, resource, &raw const limit, std::ptr::null::<libc::rlimit64>())
    })
    .map(drop)
}

/// Returns the soft and hard limit of a resource of this process. Fork-safe.
pub(crate) fn get_rlimit(resource: u32) -> Result<(u64, u64), Errno> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: pid 0 is this process; no new limit is given; the kernel fills `limit`.
    check(unsafe {
        libc::syscall(libc::SYS_prlimit64, 0, resource, std::ptr::null::<libc::rlimit64>(), &raw mut limit)
    })?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// A child that has ended, as wait4(2) reports it.
#[derive(Debug, Clone, Copy)]
pub struct Reaped {
    /// The child's pid.
    pub pid: i32,
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Processor time in user code, in microseconds, its waited-for children included.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds, its waited-for children included.
    pub system_us: u64,
    /// Largest resident set of the child or of one of its waited-for children, in bytes.
    pub max_rss: u64,
}

/// Reaps one child that has ended, if any (wait4(2) with WNOHANG). Fork-safe.
#[must_use]
pub fn reap_one() -> Option<Reaped> {
    let mut status: c_int = 0;
    // SAFETY: a rusage is plain numbers, filled by the kernel.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call.
    let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
    (pid > 0).then(|| Reaped {
        pid,
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        max_rss: u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024),
    })
}

/// Returns the user and system time of this process's waited-for children, in microseconds (getrusage(2)).
#[must_use]
pub fn children_cpu_us() -> (u64, u64) {
    // SAFETY: a rusage is plain numbers, filled by the kernel.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    (micros(usage.ru_utime), micros(usage.ru_stime))
}

fn micros(time: libc::timeval) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(time.tv_usec).unwrap_or(0))
}

/// Takes an exclusive lock on one byte of a file for the open file description (F_OFD_SETLK, fcntl(2)): it is
/// held until the last copy of the descriptor closes, so the kernel releases it when its holders die.
///
/// # Errors
/// `EAGAIN` if another file description holds it.
pub fn lock_byte(file: BorrowedFd<'_>, offset: i64) -> Result<(), Errno> {
    // SAFETY: a flock is plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = 1; // F_WRLCK
    lock.l_whence = 0; // SEEK_SET
    lock.l_start = offset;
    lock.l_len = 1;
    // SAFETY: the pointer is valid for the call.
    check(unsafe { libc::syscall(libc::SYS_fcntl, file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) })
        .map(drop)
}

/// Takes ownership of a descriptor that the process was started with, such as the guest's socket, and marks it close-on-exec.
///
/// # Errors
/// `EBADF` if it is not open.
pub fn inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD on any number changes at most whether an exec closes that descriptor.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and by the contract of start-up nothing else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Duplicates a descriptor onto a number, without close-on-exec (dup3(2)). Fork-safe.
pub(crate) fn dup_onto(fd: BorrowedFd<'_>, number: RawFd) -> Result<(), Errno> {
    if fd.as_raw_fd() == number {
        // dup3 refuses equal numbers; only close-on-exec remains to be cleared.
        // SAFETY: numbers only.
        return check(unsafe { libc::syscall(libc::SYS_fcntl, number, libc::F_SETFD, 0) }).map(drop);
    }
    // SAFETY: numbers only; any descriptor open at `number` belongs to a child about to exec.
    check(unsafe { libc::syscall(libc::SYS_dup3, fd.as_raw_fd(), number, 0) }).map(drop)
}

pub(crate) fn check(result: c_long) -> Result<c_long, Errno> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

pub(crate) fn last_errno() -> Errno {
    // SAFETY: errno of this thread.
    let raw = unsafe { *libc::__errno_location() };
    Errno::from_raw_os_error(raw)
}
