//! The system call policy.

use belljar_linux::fuzzing::{answer_for, filter_answer};
use belljar_linux::seccomp::{Action, Arch, Policy, Profile, Program, SeccompError, compile};

use crate::data::text;

pub(crate) fn seccomp_policy(data: &[u8]) {
    let text = text(data);
    let read = Profile::ALL.map(|profile| Policy::parse(&text, profile));
    // A policy is valid for every profile or for none.
    assert!(read.iter().all(Result::is_ok) || read.iter().all(Result::is_err), "{read:?}");
    let seed = data.iter().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    let mut base = None;
    for policy in read {
        let policy = match policy {
            Ok(policy) => policy,
            Err(error) => {
                assert!(matches!(error, SeccompError::Syntax { .. } | SeccompError::Policy { .. }));
                assert!(error.to_string().contains("seccomp policy"), "{error}");
                return;
            }
        };
        for arch in Arch::ALL {
            check_program(&policy, base.as_ref(), arch, seed);
        }
        base.get_or_insert(policy);
    }
}

/// Checks that the compiled filter agrees with the policy, and that a profile only restricts.
fn check_program(policy: &Policy, base: Option<&Policy>, arch: Arch, seed: u32) {
    let program = match compile(policy, arch) {
        Ok(program) => program,
        Err(error) => {
            assert!(matches!(error, SeccompError::Program { .. }), "{error}");
            return;
        }
    };
    Program::check(&program.instructions).expect("the kernel accepts a compiled program");
    for step in 0..64_u32 {
        let number = if step < 48 { seed.wrapping_add(step * 11) % 470 } else { seed.rotate_left(step) };
        for argument in [0, 1, u64::from(seed), u64::from(seed) << 32, u64::MAX] {
            let arguments =
                std::array::from_fn(|index| argument.rotate_left(8 * u32::try_from(index).unwrap()));
            let expected = policy.verdict(arch, number, &arguments).action;
            let found = filter_answer(&program, arch.audit(), number, arguments);
            assert_eq!(found, answer_for(expected), "{} {number} {arguments:x?}", arch.name());
            if let Some(base) = base
                && expected == Action::Allow
            {
                assert_eq!(base.verdict(arch, number, &arguments).action, Action::Allow, "{number}");
            }
        }
    }
}
