//! Classic BPF programs in the form that seccomp accepts.

use super::policy::{Profile, SeccompError};

/// Maximum number of instructions that the kernel accepts. Source: `BPF_MAXINSNS`, linux/bpf_common.h.
const MAX_INSTRUCTIONS: usize = 4096;

/// Size of `struct seccomp_data` in bytes: number, architecture, instruction pointer and six arguments.
const DATA_BYTES: u32 = 64;

/// One classic BPF instruction, laid out as the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// Instructions to skip if the condition holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

impl Instruction {
    /// Load the 32-bit word at byte `k` of `seccomp_data`: `BPF_LD | BPF_W | BPF_ABS`.
    pub(super) const LOAD: u16 = 0x20;
    /// Keep the bits in `k`: `BPF_ALU | BPF_AND | BPF_K`.
    pub(super) const AND: u16 = 0x54;
    /// Skip `k` instructions: `BPF_JMP | BPF_JA`.
    pub(super) const JUMP: u16 = 0x05;
    /// Branch if equal to `k`: `BPF_JMP | BPF_JEQ | BPF_K`.
    pub(super) const IF_EQUAL: u16 = 0x15;
    /// Branch if at least `k`: `BPF_JMP | BPF_JGE | BPF_K`.
    pub(super) const IF_AT_LEAST: u16 = 0x35;
    /// Branch if any bit of `k` is set: `BPF_JMP | BPF_JSET | BPF_K`.
    pub(super) const IF_ANY_BIT: u16 = 0x45;
    /// Return `k`: `BPF_RET | BPF_K`.
    pub(super) const RETURN: u16 = 0x06;

    /// Returns the instruction as laid out in the kernel's memory.
    #[must_use]
    pub fn bytes(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&self.code.to_ne_bytes());
        bytes[2] = self.jt;
        bytes[3] = self.jf;
        bytes[4..].copy_from_slice(&self.k.to_ne_bytes());
        bytes
    }

    /// Makes an instruction from its four fields.
    #[must_use]
    pub const fn new(code: u16, jt: u8, jf: u8, k: u32) -> Self {
        Self { code, jt, jf, k }
    }
}

/// A whole filter that passed [`Program::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The instructions, first to last; at least 1, at most 4096.
    pub instructions: Vec<Instruction>,
}

impl Program {
    /// Checks a filter as the kernel does before it accepts one, so that a bad one fails with a reason and not as
    /// `EINVAL`: known instructions, forward jumps inside the program, aligned loads inside `seccomp_data`, a return at
    /// the end. The same checks as `bpf_check_classic` and `seccomp_check_filter` for the instructions that the compiler
    /// emits.
    ///
    /// # Errors
    /// Returns [`SeccompError::Program`] with the position and the reason.
    pub fn check(instructions: &[Instruction]) -> Result<(), SeccompError> {
        let bad = |at: usize, reason: &'static str| Err(SeccompError::Program { at, reason });
        if instructions.is_empty() || instructions.len() > MAX_INSTRUCTIONS {
            return bad(instructions.len(), "the length is not 1 to 4096");
        }
        for (at, instruction) in instructions.iter().enumerate() {
            let left = u64::try_from(instructions.len() - at - 1).unwrap_or(u64::MAX);
            match instruction.code {
                Instruction::LOAD if !instruction.k.is_multiple_of(4) || instruction.k >= DATA_BYTES => {
                    return bad(at, "the load is not an aligned word of seccomp_data");
                }
                Instruction::JUMP if u64::from(instruction.k) >= left => {
                    return bad(at, "the jump leaves the program");
                }
                Instruction::IF_EQUAL | Instruction::IF_AT_LEAST | Instruction::IF_ANY_BIT
                    if u64::from(instruction.jt.max(instruction.jf)) >= left =>
                {
                    return bad(at, "the branch leaves the program");
                }
                Instruction::LOAD
                | Instruction::AND
                | Instruction::JUMP
                | Instruction::IF_EQUAL
                | Instruction::IF_AT_LEAST
                | Instruction::IF_ANY_BIT
                | Instruction::RETURN => {}
                _ => return bad(at, "the instruction is not one that the compiler emits"),
            }
        }
        match instructions.last() {
            Some(last) if last.code == Instruction::RETURN => Ok(()),
            _ => bad(instructions.len() - 1, "the program does not end in a return"),
        }
    }
}

/// Returns the compiled filter of `profile` for the architecture that this code was built for. It costs nothing: the
/// instructions are part of the binary.
#[must_use]
pub fn program(profile: Profile) -> &'static [Instruction] {
    #[cfg(target_arch = "aarch64")]
    use super::generated_aarch64 as generated;
    #[cfg(target_arch = "x86_64")]
    use super::generated_x86_64 as generated;
    match profile {
        Profile::Default => &generated::DEFAULT,
        Profile::Hardened => &generated::HARDENED,
        Profile::NoNetwork => &generated::NO_NETWORK,
        Profile::Watched => &generated::WATCHED,
        Profile::Build => &generated::BUILD,
        Profile::Machine => &generated::MACHINE,
        Profile::Warm => &generated::WARM,
        Profile::Gateway => &generated::GATEWAY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_matches_the_kernels() {
        assert_eq!(size_of::<Instruction>(), size_of::<libc::sock_filter>());
        assert_eq!(align_of::<Instruction>(), align_of::<libc::sock_filter>());
        assert_eq!(u32::try_from(size_of::<libc::seccomp_data>()).unwrap(), DATA_BYTES);
    }

    #[test]
    fn programs_that_the_kernel_refuses_are_refused() {
        let ret = Instruction::new(Instruction::RETURN, 0, 0, 0);
        let check = |instructions: &[Instruction], expected: Option<&str>| {
            let reason = match Program::check(instructions) {
                Ok(()) => None,
                Err(SeccompError::Program { reason, .. }) => Some(reason),
                Err(other) => panic!("{other}"),
            };
            assert_eq!(reason, expected, "{instructions:?}");
        };
        check(&[ret], None);
        check(&[], Some("the length is not 1 to 4096"));
        check(&[ret; 4096], None);
        check(&[ret; 4097], Some("the length is not 1 to 4096"));
        let load = |k| [Instruction::new(Instruction::LOAD, 0, 0, k), ret];
        check(&load(60), None);
        check(&load(64), Some("the load is not an aligned word of seccomp_data"));
        check(&load(2), Some("the load is not an aligned word of seccomp_data"));
        let branch = |jt, jf| [Instruction::new(Instruction::IF_EQUAL, jt, jf, 0), ret, ret];
        check(&branch(1, 0), None);
        check(&branch(2, 0), Some("the branch leaves the program"));
        check(&branch(0, 255), Some("the branch leaves the program"));
        check(&[Instruction::new(Instruction::JUMP, 0, 0, 0), ret], None);
        check(&[Instruction::new(Instruction::JUMP, 0, 0, 1), ret], Some("the jump leaves the program"));
        check(
            &[Instruction::new(Instruction::JUMP, 0, 0, u32::MAX), ret],
            Some("the jump leaves the program"),
        );
        check(&[Instruction::new(Instruction::AND, 0, 0, 1)], Some("the program does not end in a return"));
        check(
            &[Instruction::new(0x15 | 0x08, 0, 0, 0), ret],
            Some("the instruction is not one that the compiler emits"),
        );
    }
}
