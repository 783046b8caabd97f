//! Compiles a policy to classic BPF.
//!
//! The program checks the architecture, then finds the call's number by binary search over ranges with equal
//! outcome, then checks arguments where the policy requires it:
//!
//! ```text
//! architecture? ──no──► ENOSYS      x32 bit? ──yes──► ENOSYS
//!     │yes                              │no
//!     └────────► load number ───────────┴──► search ──► allow / errno / argument rules ──► allow / errno
//! ```
//!
//! Before an argument is loaded, only the number and the architecture are, with only the instructions that the
//! kernel's static analysis supports (`seccomp_is_const_allow`): it determines once, when the filter is installed,
//! which calls are always allowed, and never runs the filter for those.
//!
//! Instructions are emitted from last to first. Jumps only go forward, so the target of each is already placed
//! when the jump is emitted, and a distance that does not fit 8 bits is detected at once and bridged.

use std::collections::BTreeMap;

use super::arch::Arch;
use super::evaluate::Action;
use super::policy::{Condition, Entry, Policy, SeccompError};
use super::program::{Instruction, Program};

/// `offsetof(struct seccomp_data, nr)`.
const NUMBER_OFFSET: u32 = 0;
/// `offsetof(struct seccomp_data, arch)`.
const ARCH_OFFSET: u32 = 4;
/// `offsetof(struct seccomp_data, args)`; each is 8 bytes, the low half first.
const ARGUMENTS_OFFSET: u32 = 16;
/// `__X32_SYSCALL_BIT` (asm/unistd.h): the x32 entry has the same architecture value as the native one.
const X32_BIT: u32 = 0x4000_0000;
/// `SECCOMP_RET_ALLOW` (linux/seccomp.h).
const RETURN_ALLOW: u32 = 0x7fff_0000;
/// `SECCOMP_RET_ERRNO` (linux/seccomp.h); the number is in the low 16 bits.
const RETURN_ERRNO: u32 = 0x0005_0000;

/// Compiles `policy` for `arch` into a program that the kernel accepts.
///
/// # Errors
/// [`SeccompError::Program`] if the policy is too large for one filter.
pub fn compile(policy: &Policy, arch: Arch) -> Result<Program, SeccompError> {
    let mut assembler = Assembler::default();
    let ranges = ranges(policy, arch);
    // Calls with equal rules share one block of code.
    let mut blocks: Vec<(&Entry, Label)> = Vec::new();
    for (_, outcome) in &ranges {
        if let Outcome::Rules(entry) = outcome
            && !blocks.iter().any(|(placed, _)| same(placed, entry))
        {
            let label = assembler.rules(entry)?;
            blocks.push((entry, label));
        }
    }
    let root = assembler.search(&ranges, &blocks)?;
    let unlisted = Action::Errno(policy.unlisted);
    let refuse = assembler.answer(unlisted);
    let number = match arch {
        Arch::X86_64 => assembler.branch(Instruction::IF_AT_LEAST, X32_BIT, refuse, root)?,
        Arch::Aarch64 => root,
    };
    let number = assembler.then(Instruction::LOAD, NUMBER_OFFSET, number)?;
    let refuse = assembler.answer(unlisted);
    let check = assembler.branch(Instruction::IF_EQUAL, arch.audit(), number, refuse)?;
    assembler.then(Instruction::LOAD, ARCH_OFFSET, check)?;
    assembler.finish()
}

/// Outcome for a range of call numbers.
#[derive(Clone, Copy)]
enum Outcome<'policy> {
    Always(Action),
    Rules(&'policy Entry),
}

fn same(one: &Entry, other: &Entry) -> bool {
    one.otherwise == other.otherwise
        && one.rules.len() == other.rules.len()
        && one.rules.iter().zip(&other.rules).all(|(a, b)| a.conditions == b.conditions && a.then == b.then)
}

fn equal(one: Outcome<'_>, other: Outcome<'_>) -> bool {
    match (one, other) {
        (Outcome::Always(one), Outcome::Always(other)) => one == other,
        (Outcome::Rules(one), Outcome::Rules(other)) => same(one, other),
        _ => false,
    }
}

/// Splits all 32-bit numbers into ranges, each given by its first number; adjacent ranges have different outcomes.
fn ranges(policy: &Policy, arch: Arch) -> Vec<(u32, Outcome<'_>)> {
    let unlisted = Outcome::Always(Action::Errno(policy.unlisted));
    let mut ranges = vec![(0, unlisted)];
    for (number, _) in arch.calls() {
        if let Some((_, entry)) = policy.entry(arch, *number) {
            let always = entry.rules.is_empty();
            let outcome = if always { Outcome::Always(entry.otherwise) } else { Outcome::Rules(entry) };
            // A range that starts here replaces the unlisted one that the previous call opened.
            ranges.pop_if(|(first, _)| first == number);
            ranges.extend([(*number, outcome), (number + 1, unlisted)]);
        }
    }
    ranges.dedup_by(|(_, outcome), (_, before)| equal(*outcome, *before));
    ranges
}

/// Position of an instruction, counted from the end of the program.
type Label = usize;

/// Builds a program from its last instruction to its first.
#[derive(Default)]
struct Assembler {
    reversed: Vec<Instruction>,
    /// The latest return instruction of each kind.
    answers: BTreeMap<Action, Label>,
}

impl Assembler {
    /// Emits a binary search among `ranges` for the loaded number.
    fn search(
        &mut self,
        ranges: &[(u32, Outcome<'_>)],
        blocks: &[(&Entry, Label)],
    ) -> Result<Label, SeccompError> {
        if let [(_, outcome)] = ranges {
            return match outcome {
                Outcome::Always(action) => Ok(self.answer(*action)),
                Outcome::Rules(entry) => {
                    let block = blocks.iter().find(|(placed, _)| same(placed, entry));
                    block.map(|(_, label)| *label).ok_or(self.error("a block of rules was not placed"))
                }
            };
        }
        let (low, high) = ranges.split_at(ranges.len() / 2);
        let Some((first, _)) = high.first() else { return Err(self.error("there are no ranges to search")) };
        let above = self.search(high, blocks)?;
        let below = self.search(low, blocks)?;
        self.branch(Instruction::IF_AT_LEAST, *first, above, below)
    }

    /// Emits the rules of `entry` in order.
    fn rules(&mut self, entry: &Entry) -> Result<Label, SeccompError> {
        let mut next = self.answer(entry.otherwise);
        for rule in entry.rules.iter().rev() {
            let mut holds = self.answer(rule.then);
            for condition in rule.conditions.iter().rev() {
                holds = self.condition(condition, holds, next)?;
            }
            next = holds;
        }
        Ok(next)
    }

    /// Emits a jump to `yes` if `condition` holds, else to `no`.
    fn condition(&mut self, condition: &Condition, yes: Label, no: Label) -> Result<Label, SeccompError> {
        let (found, other) = if condition.negated { (no, yes) } else { (yes, no) };
        let offset = ARGUMENTS_OFFSET + 8 * u32::from(condition.argument);
        let (mask_high, mask_low) = halves(condition.mask);
        if !condition.wide {
            let values: Vec<u32> = condition.values.iter().map(|value| halves(*value).1).collect();
            return self.word(offset, mask_low, &values, found, other);
        }
        let mut next = other;
        for value in condition.values.iter().rev() {
            let (high, low) = halves(*value);
            let low = self.word(offset, mask_low, &[low], found, next)?;
            next = self.word(offset + 4, mask_high, &[high], low, next)?;
        }
        Ok(next)
    }

    /// Emits a jump to `found` if the masked word at `offset` is one of `values`, else to `other`.
    fn word(
        &mut self,
        offset: u32,
        mask: u32,
        values: &[u32],
        found: Label,
        other: Label,
    ) -> Result<Label, SeccompError> {
        if values == [0] && mask != u32::MAX {
            let test = self.branch(Instruction::IF_ANY_BIT, mask, other, found)?;
            return self.then(Instruction::LOAD, offset, test);
        }
        let mut next = other;
        for value in values.iter().rev() {
            next = self.branch(Instruction::IF_EQUAL, *value, found, next)?;
        }
        if mask != u32::MAX {
            next = self.then(Instruction::AND, mask, next)?;
        }
        self.then(Instruction::LOAD, offset, next)
    }

    /// Emits or reuses a return that is near enough for the next branch.
    fn answer(&mut self, action: Action) -> Label {
        match self.answers.get(&action) {
            Some(label) if self.is_near(*label) => *label,
            _ => {
                let value = match action {
                    Action::Allow => RETURN_ALLOW,
                    Action::Errno(errno) => RETURN_ERRNO | u32::from(errno.number()),
                };
                let label = self.push(Instruction::new(Instruction::RETURN, 0, 0, value));
                self.answers.insert(action, label);
                label
            }
        }
    }

    /// Emits an instruction that falls through to `next`, with a jump if `next` is not the most recent one.
    fn then(&mut self, code: u16, k: u32, next: Label) -> Result<Label, SeccompError> {
        if next + 1 != self.reversed.len() {
            let jump = self.jump(next)?;
            return self.then(code, k, jump);
        }
        Ok(self.push(Instruction::new(code, 0, 0, k)))
    }

    /// Emits a test that jumps to `yes` or to `no`, through a bridge if one of them is far.
    fn branch(&mut self, code: u16, k: u32, yes: Label, no: Label) -> Result<Label, SeccompError> {
        let no = if self.is_near(no) { no } else { self.jump(no)? };
        let yes = if self.is_near(yes) { yes } else { self.jump(yes)? };
        let at = self.reversed.len();
        let skip = |label: Label| u8::try_from(at - label - 1);
        match (skip(yes), skip(no)) {
            (Ok(jt), Ok(jf)) => Ok(self.push(Instruction::new(code, jt, jf, k))),
            _ => Err(self.error("a branch is longer than 255 instructions")),
        }
    }

    fn jump(&mut self, target: Label) -> Result<Label, SeccompError> {
        let Ok(skip) = u32::try_from(self.reversed.len() - target - 1) else {
            return Err(self.error("a jump is longer than a program may be"));
        };
        Ok(self.push(Instruction::new(Instruction::JUMP, 0, 0, skip)))
    }

    /// Reports whether a branch can still reach `label` after two more instructions, which may become its bridges.
    fn is_near(&self, label: Label) -> bool {
        self.reversed.len() + 2 - label - 1 <= usize::from(u8::MAX)
    }

    fn push(&mut self, instruction: Instruction) -> Label {
        self.reversed.push(instruction);
        self.reversed.len() - 1
    }

    fn finish(mut self) -> Result<Program, SeccompError> {
        self.reversed.reverse();
        Program::check(&self.reversed)?;
        Ok(Program { instructions: self.reversed })
    }

    fn error(&self, reason: &'static str) -> SeccompError {
        SeccompError::Program { at: self.reversed.len(), reason }
    }
}

/// Splits `value` into its high and low half.
fn halves(value: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
}
