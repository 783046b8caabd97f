//! Machine code by which a warm interpreter's parent forks a child into a sandbox.
//!
//! A child has to pass through two short-lived processes, as a process enters a pid namespace only with its children, and only a
//! child whose parent ends inside is adopted by the namespace's first process (`pid_namespaces(7)`). As forks, each of them copies
//! the interpreter's page tables. This code makes them share the interpreter's memory instead (`CLONE_VM`, `CLONE_VFORK`), so that
//! only the last one is a copy. An interpreter cannot do that itself: it would run on memory that the child changes. This code
//! changes nothing but registers, the result, and, in the copy, what is the copy's own.
//!
//! ```text
//! parent ── clone3(VM, VFORK) ──► first: its steps ── clone(VM, VFORK) ──► second ── clone ──► the child: its steps, returns 0
//!    waits, returns its pid          waits, exits                             exits
//! ```
//!
//! A kill of the first or the second at any instant leaves the parent as it was. Signals: no process of the sandbox may send any to
//! the first, which it does not see, or to the second, whose real and saved ids are the parent's (`kill(2)`).
//!
//! `long entry(steps *first, steps *last, clone_args *, size_t, int *tid, result *)`. Steps are arrays of eight words: the number of a
//! system call, its six arguments, and one that is unused; a number of -1 ends them. The result has two words: the negative error
//! number of the first step that failed, and the address of that step, 0 if a clone has failed. Without first steps it returns
//! the thread pointer, by which what the C library has registered for the thread (`rseq(2)`) is found.

#![expect(unsafe_code, reason = "machine code for another process; the block says why it is sound")]

use std::arch::global_asm;

// Intel syntax. A system call changes rax, rcx and r11, and takes its arguments in rdi, rsi, rdx, r10, r8 and r9.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .rodata.belljar_entry, \"a\", @progbits",
    ".globl belljar_entry_start",
    ".globl belljar_entry_end",
    ".hidden belljar_entry_start",
    ".hidden belljar_entry_end",
    "belljar_entry_start:",
    "test rdi, rdi",
    "jnz 11f",
    "mov rax, fs:[0]",
    "ret",
    "11:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "mov rbx, rdi", // the step
    "mov r13, rsi",
    "mov r14, r8",
    "mov rbp, r9",
    "mov rdi, rdx",
    "mov rsi, rcx",
    "mov eax, {clone3}",
    "syscall",
    "test rax, rax",
    "jnz 9f",
    // The first process, on the parent's stack, which it does not use: the parent waits until it has ended.
    "lea r12, [rip + 3f]",
    "jmp 2f",
    "3:",
    "mov eax, {clone}",
    "mov edi, {share}",
    "xor esi, esi",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "syscall",
    "cmp rax, -4095",
    "jae 6f",
    "test rax, rax",
    "jnz 12f",
    // The second. Its stack and its memory are the first's, which waits.
    "mov eax, {clone}",
    "mov edi, {copy}",
    "xor esi, esi",
    "xor edx, edx",
    "mov r10, r14",
    "xor r8d, r8d",
    "syscall",
    "cmp rax, -4095",
    "jae 6f",
    "test rax, rax",
    "jnz 8f",
    // The child, with a copy of it all.
    "mov rbx, r13",
    "lea r12, [rip + 9f]",
    "xor r13d, r13d",
    // Makes the steps from rbx on, then continues at r12. r13 is zero in the child.
    "2:",
    "mov rax, [rbx]",
    "cmp rax, -1",
    "je 4f",
    "mov rdi, [rbx + 8]",
    "mov rsi, [rbx + 16]",
    "mov rdx, [rbx + 24]",
    "mov r10, [rbx + 32]",
    "mov r8, [rbx + 40]",
    "mov r9, [rbx + 48]",
    "syscall",
    "cmp rax, -4095",
    "jae 5f",
    "add rbx, 64",
    "jmp 2b",
    "4:",
    "xor eax, eax",
    "jmp r12",
    "5:",
    "mov [rbp], rax",
    "mov [rbp + 8], rbx",
    "xor eax, eax",
    "test r13, r13",
    "jz 9f", // The child reports what failed.
    "jmp 7f",
    "6:",
    "mov [rbp], rax",
    "7:",
    "mov edi, 1",
    "jmp 10f",
    // The first waits until the second is gone, not only until it has left the memory: no other process would reap it. With SIGCHLD
    // ignored this ends with ECHILD.
    "12:",
    "mov edi, eax",
    "xor esi, esi",
    "xor edx, edx",
    "xor r10d, r10d",
    "mov eax, {wait4}",
    "syscall",
    "8:",
    "xor edi, edi",
    "10:",
    "mov eax, {exit_group}",
    "syscall",
    "9:",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    "belljar_entry_end:",
    ".popsection",
    clone3 = const libc::SYS_clone3,
    clone = const libc::SYS_clone,
    wait4 = const libc::SYS_wait4,
    exit_group = const libc::SYS_exit_group,
    share = const SHARE,
    copy = const COPY,
);

// A system call changes x0 alone, and takes its arguments in x0 to x5. The order of those of clone(2) is another one.
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .rodata.belljar_entry, \"a\", %progbits",
    ".balign 4",
    ".globl belljar_entry_start",
    ".globl belljar_entry_end",
    ".hidden belljar_entry_start",
    ".hidden belljar_entry_end",
    "belljar_entry_start:",
    "cbnz x0, 11f",
    "mrs x0, tpidr_el0",
    "ret",
    "11:",
    "mov x9, x0", // the step
    "mov x10, x1",
    "mov x11, x4",
    "mov x12, x5",
    "mov x0, x2",
    "mov x1, x3",
    "mov x8, #{clone3}",
    "svc #0",
    "cbnz x0, 9f",
    "adr x13, 3f",
    "b 2f",
    "3:",
    "mov x8, #{clone}",
    "mov w0, #{share}",
    "mov x1, xzr",
    "mov x2, xzr",
    "mov x3, xzr",
    "mov x4, xzr",
    "svc #0",
    "cmn x0, #4095",
    "b.hs 6f",
    "cbnz x0, 12f",
    "mov x8, #{clone}",
    "movz w0, #{copy_low}",
    "movk w0, #{copy_high}, lsl #16",
    "mov x1, xzr",
    "mov x2, xzr",
    "mov x3, xzr",
    "mov x4, x11",
    "svc #0",
    "cmn x0, #4095",
    "b.hs 6f",
    "cbnz x0, 8f",
    "mov x9, x10",
    "adr x13, 9f",
    "mov x10, xzr",
    "2:",
    "ldr x8, [x9]",
    "cmn x8, #1",
    "b.eq 4f",
    "ldp x0, x1, [x9, #8]",
    "ldp x2, x3, [x9, #24]",
    "ldp x4, x5, [x9, #40]",
    "svc #0",
    "cmn x0, #4095",
    "b.hs 5f",
    "add x9, x9, #64",
    "b 2b",
    "4:",
    "mov x0, xzr",
    "br x13",
    "5:",
    "stp x0, x9, [x12]",
    "mov x0, xzr",
    "cbz x10, 9f",
    "b 7f",
    "6:",
    "str x0, [x12]",
    "7:",
    "mov x0, #1",
    "b 10f",
    "12:",
    "mov x1, xzr",
    "mov x2, xzr",
    "mov x3, xzr",
    "mov x8, #{wait4}",
    "svc #0",
    "8:",
    "mov x0, xzr",
    "10:",
    "mov x8, #{exit_group}",
    "svc #0",
    "9:",
    "ret",
    "belljar_entry_end:",
    ".popsection",
    clone3 = const libc::SYS_clone3,
    clone = const libc::SYS_clone,
    wait4 = const libc::SYS_wait4,
    exit_group = const libc::SYS_exit_group,
    share = const SHARE,
    copy_low = const COPY & 0xffff,
    copy_high = const COPY >> 16,
);

/// A process that shares the memory of its maker, which waits for its end.
const SHARE: i32 = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;

/// A process with a copy of it, as the C library's `fork` makes it.
const COPY: i32 = libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;

/// Returns the machine code, which runs at any address.
#[must_use]
pub fn entry_code() -> &'static [u8] {
    unsafe extern "C" {
        static belljar_entry_start: u8;
        static belljar_entry_end: u8;
    }
    let (start, end) = (&raw const belljar_entry_start, &raw const belljar_entry_end);
    // SAFETY: both symbols are in one section of this program, which is never unmapped or changed, the second after the first.
    unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

    use super::{SHARE, entry_code};

    type Step = [u64; 8];
    const END: Step = [u64::MAX; 8];

    fn step(number: i64, arguments: &[i64]) -> Step {
        let mut step = [0; 8];
        step[0] = number.cast_unsigned();
        for (place, argument) in step[1..].iter_mut().zip(arguments) {
            *place = argument.cast_unsigned();
        }
        step
    }

    /// Returns what the parent gets, the result, and what all processes have written to a pipe. The child has no copy of the
    /// writing end after its last step, which ends it.
    fn enter(
        make: impl Fn(i64, &dyn Fn(&'static [u8]) -> Step) -> [Vec<Step>; 2],
    ) -> (i64, [i64; 2], String) {
        type Entry = unsafe extern "C" fn(
            *const Step,
            *const Step,
            *const [u64; 8],
            usize,
            *mut i32,
            *mut [i64; 2],
        ) -> i64;
        let code = entry_code();
        let mut pipe = [0; 2];
        let mut result = [0; 2];
        let mut tid = 0;
        // SAFETY: the mapping is new and large enough, executable once it is written, and has a function of this type at its
        // start; all pointers stay valid until it returns, and the child ends with its last step. The pipe's ends are new.
        let (pid, mut reader) = unsafe {
            let (write, exec) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ | libc::PROT_EXEC);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), code.len(), write, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            std::ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len());
            assert_eq!(libc::mprotect(page, code.len(), exec), 0);
            let entry: Entry = std::mem::transmute(page);
            assert_eq!(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC), 0);
            let [reader, writer] = pipe.map(|fd| OwnedFd::from_raw_fd(fd));
            let fd = i64::from(writer.as_raw_fd());
            let say = |text: &'static [u8]| {
                step(libc::SYS_write, &[fd, i64::try_from(text.as_ptr().addr()).unwrap(), 1])
            };
            let [mut first, mut last] = make(fd, &say);
            first.push(END);
            last.extend([step(libc::SYS_exit_group, &[0]), END]);
            let flags = u64::try_from(SHARE - libc::SIGCHLD).unwrap();
            let arguments = [flags, 0, 0, 0, u64::try_from(libc::SIGCHLD).unwrap(), 0, 0, 0];
            let size = size_of_val(&arguments);
            let pid = entry(
                first.as_ptr(),
                last.as_ptr(),
                &raw const arguments,
                size,
                &raw mut tid,
                &raw mut result,
            );
            libc::munmap(page, code.len());
            (pid, std::fs::File::from(reader))
        };
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        if let Ok(pid) = i32::try_from(pid)
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
        }
        (pid, result, said)
    }

    #[test]
    fn steps_are_made_by_their_processes_in_order() {
        let (pid, result, said) = enter(|_, say| [vec![say(b"a"), say(b"b")], vec![say(b"c"), say(b"d")]]);
        assert!(pid > 0);
        assert_eq!((result, said.as_str()), ([0, 0], "abcd"));
        // Without the pipe, the last process is a copy of its own: what it closes stays open here.
        let (_, result, said) = enter(|fd, say| {
            [vec![say(b"a")], vec![step(libc::SYS_close, &[fd]), step(libc::SYS_exit_group, &[0])]]
        });
        assert_eq!((result, said.as_str()), ([0, 0], "a"));
    }

    #[test]
    fn failed_first_step_is_told_and_ends_it() {
        let (pid, result, said) =
            enter(|_, say| [vec![say(b"a"), step(libc::SYS_close, &[-1]), say(b"b")], vec![say(b"c")]]);
        assert!(pid > 0);
        assert_eq!((result[0], said.as_str()), (-i64::from(libc::EBADF), "a"));
        assert_ne!(result[1], 0);
    }
}
