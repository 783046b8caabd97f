//! Interpreter for classic BPF over `seccomp_data`, with the kernel's semantics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "only for tests, of this crate and of belljar-fuzz: a program that the kernel would refuse is a failure"
)]

#[cfg(test)]
use crate::seccomp::FilterErrno;
use crate::seccomp::{Action, Instruction};

/// The call as a filter sees it (`struct seccomp_data`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: u32,
    pub(crate) arch: u32,
    pub(crate) arguments: [u64; 6],
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The filter's return value.
    pub(crate) value: u32,
    /// Number of executed instructions.
    pub(crate) steps: usize,
    /// True if an argument was loaded. If not, the kernel knows the answer from the number alone.
    pub(crate) saw_argument: bool,
}

/// Runs `program` on `call`. Panics on a program that the kernel would refuse.
pub(crate) fn run(program: &[Instruction], call: &Call) -> Run {
    // Words 2 and 3 are the instruction pointer, on which no policy may depend.
    let mut data = [call.number, call.arch, 0xbeef_dead, 0x7fff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (words, argument) in data[4..].chunks_exact_mut(2).zip(call.arguments) {
        words[0] = u32::try_from(argument & 0xffff_ffff).unwrap();
        words[1] = u32::try_from(argument >> 32).unwrap();
    }
    let (mut accumulator, mut at, mut saw_argument) = (0_u32, 0_usize, false);
    for steps in 1.. {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let branch = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            // BPF_LD | BPF_W | BPF_ABS
            0x20 => {
                let word = usize::try_from(k / 4).unwrap();
                accumulator = data[word];
                saw_argument |= word >= 2;
            }
            // BPF_ALU | BPF_AND | BPF_K
            0x54 => accumulator &= k,
            // BPF_JMP | BPF_JA
            0x05 => at += usize::try_from(k).unwrap(),
            // BPF_JMP | BPF_JEQ | BPF_K, then JGE, then JSET
            0x15 => at += branch(accumulator == k),
            0x35 => at += branch(accumulator >= k),
            0x45 => at += branch(accumulator & k != 0),
            // BPF_RET | BPF_K
            0x06 => return Run { value: k, steps, saw_argument },
            other => panic!("instruction {other:#x}"),
        }
    }
    unreachable!("every program ends");
}

/// Returns the filter's return value for `action` (linux/seccomp.h).
pub(crate) fn value(action: Action) -> u32 {
    match action {
        Action::Allow => libc::SECCOMP_RET_ALLOW,
        Action::Errno(errno) => libc::SECCOMP_RET_ERRNO | u32::from(errno.number()),
    }
}

/// Returns the action named `name`, as the policy spells it.
#[cfg(test)]
pub(crate) fn action(name: &str) -> Action {
    if name == "allow" {
        Action::Allow
    } else {
        Action::Errno(FilterErrno::from_name(name).expect("an error name"))
    }
}
