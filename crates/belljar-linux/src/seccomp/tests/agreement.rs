//! Checks that the compiled program, run in an interpreter, agrees with a direct evaluation of the policy.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::seccomp::interpreter::{Call, Run, run, value};
use crate::seccomp::policy::{Condition, Entry, Rule};
use crate::seccomp::{Action, Arch, FilterErrno, Policy, Profile, Program, compile};

/// i386, 32-bit Arm, riscv64, zero, all ones, and each native architecture with a bit changed (linux/audit.h).
const OTHER_ARCHES: [u32; 7] = [0x4000_0003, 0x4000_0028, 0xC000_00F3, 0, u32::MAX, 0x8000_003E, 0x8000_00B7];

/// Numbers beyond every table: x32, sign bits and ends.
const EDGE_NUMBERS: [u32; 10] = [
    0x3fff_ffff,
    0x4000_0000,
    0x4000_0001,
    0x4000_0029,
    0x4000_0208,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0029,
    0xbfff_ffff,
    u32::MAX,
];

fn answer(program: &Program, arch: u32, number: u32, arguments: [u64; 6]) -> Run {
    run(&program.instructions, &Call { number, arch, arguments })
}

fn assert_agrees(policy: &Policy, program: &Program, arch: Arch, number: u32, arguments: [u64; 6]) {
    let expected = policy.verdict(arch, number, &arguments).action;
    let found = answer(program, arch.audit(), number, arguments).value;
    assert_eq!(found, value(expected), "{} {number:#x} {arguments:#x?}: {expected}", arch.name());
}

/// Returns values of `argument` around all that `entry` compares it with.
fn boundaries(entry: &Entry, argument: u8) -> Vec<u64> {
    let conditions = entry.rules.iter().flat_map(|rule| &rule.conditions);
    let mut points = BTreeSet::new();
    for condition in conditions.filter(|condition| condition.argument == argument) {
        let bits = if condition.wide { u64::MAX } else { 0xffff_ffff };
        let set: Vec<u64> = (0..64).map(|bit| 1 << bit).filter(|bit| condition.mask & bit != 0).collect();
        // Each bit of a mask alone; a plain comparison has no mask, so that would be every bit.
        if condition.mask != bits {
            points.extend(set);
            points.extend([condition.mask, !condition.mask]);
        }
        for point in &condition.values {
            points.extend([*point, point.wrapping_add(1), point.wrapping_sub(1), point | !condition.mask]);
        }
    }
    if points.is_empty() {
        // No condition tests this argument.
        return vec![0x5555_5555_5555_5555];
    }
    points.extend([0, u64::MAX]);
    points.into_iter().collect()
}

/// Returns all combinations of the six arguments' boundaries, each also with bits set in the high half of all arguments or
/// of one.
fn products(entry: &Entry) -> Vec<[u64; 6]> {
    let mut products = vec![[0; 6]];
    for argument in 0..6_u8 {
        let points = boundaries(entry, argument);
        products = products
            .iter()
            .flat_map(|before| {
                points.iter().map(|point| {
                    let mut after = *before;
                    after[usize::from(argument)] = *point;
                    after
                })
            })
            .collect();
    }
    let ones = (0..6).map(|argument| {
        let mut high = [0; 6];
        high[argument] = 1 << 32;
        high
    });
    let highs: Vec<[u64; 6]> = ones.chain([[0; 6], [1 << 63; 6], [0xffff_ffff << 32; 6]]).collect();
    let with = |low: &[u64; 6], high: &[u64; 6]| std::array::from_fn(|index| low[index] ^ high[index]);
    products.iter().flat_map(|low| highs.iter().map(move |high| with(low, high))).collect()
}

#[test]
fn program_agrees_on_every_number_and_boundary() {
    let fillers = [[0; 6], [u64::MAX; 6], [1, 2, 3, 4, 5, 6], [0x1_0000_0002; 6]];
    for profile in Profile::ALL {
        let policy = Policy::builtin(profile).unwrap();
        for arch in Arch::ALL {
            let program = compile(policy, arch).unwrap();
            for number in (0..=1023).chain(EDGE_NUMBERS) {
                let cases = match policy.entry(arch, number) {
                    Some((_, entry)) if !entry.rules.is_empty() => products(entry),
                    _ => fillers.to_vec(),
                };
                for arguments in cases {
                    assert_agrees(policy, &program, arch, number, arguments);
                }
            }
        }
    }
}

#[test]
fn foreign_entries_are_refused() {
    let refused = value(Action::Errno(FilterErrno::NOSYS));
    for profile in Profile::ALL {
        for arch in Arch::ALL {
            let program = compile(Policy::builtin(profile).unwrap(), arch).unwrap();
            let others = Arch::ALL.map(Arch::audit).into_iter().filter(|other| *other != arch.audit());
            for other in OTHER_ARCHES.into_iter().chain(others) {
                for number in (0..=1023).chain(EDGE_NUMBERS) {
                    let found = answer(&program, other, number, [0; 6]);
                    assert_eq!((found.value, found.saw_argument), (refused, false), "{other:#x} {number:#x}");
                }
            }
            for number in EDGE_NUMBERS.into_iter().chain((0..=1023).map(|number| number | 0x4000_0000)) {
                assert_eq!(answer(&program, arch.audit(), number, [0; 6]).value, refused, "{number:#x}");
            }
        }
    }
}

#[test]
fn small_and_shallow() {
    for profile in Profile::ALL {
        for arch in Arch::ALL {
            let policy = Policy::builtin(profile).unwrap();
            let program = compile(policy, arch).unwrap();
            let place = format!("{} {}", profile.name(), arch.name());
            assert!(program.instructions.len() < 440, "{place}: {}", program.instructions.len());
            // Outside the search there are five: two loads, two checks, and the return.
            for number in (0..=1023).chain(EDGE_NUMBERS) {
                let found = answer(&program, arch.audit(), number, [0; 6]);
                assert!(found.saw_argument || found.steps <= 5 + 10, "{place} {number}: {}", found.steps);
            }
        }
    }
}

/// When the filter is installed, the kernel evaluates it once for each number without arguments, and never again for a
/// number that this allows. So calls that are always allowed must be decided without loading an argument.
#[test]
fn unconditional_calls_load_no_argument() {
    for profile in Profile::ALL {
        for arch in Arch::ALL {
            let policy = Policy::builtin(profile).unwrap();
            let program = compile(policy, arch).unwrap();
            for (number, name) in arch.calls() {
                let conditional =
                    policy.entry(arch, *number).is_some_and(|(_, entry)| !entry.rules.is_empty());
                let found = answer(&program, arch.audit(), *number, [0; 6]);
                assert_eq!(found.saw_argument, conditional, "{} {name}", profile.name());
            }
        }
    }
}

/// Uses blocks of rules that are longer than an 8-bit jump, so that every kind of bridge is needed.
#[test]
fn far_jumps_are_bridged() {
    let condition =
        |argument, values| Condition { argument, wide: false, mask: 0xffff_ffff, values, negated: false };
    let action = |index: u64| {
        if index.is_multiple_of(2) { Action::Allow } else { Action::Errno(FilterErrno::NOSYS) }
    };
    let mut policy = Policy::builtin(Profile::Default).unwrap().clone();
    for (call, step) in [("socket", 2), ("ioctl", 3), ("prctl", 5)] {
        let rules = (0..150)
            .map(|index| Rule {
                conditions: vec![
                    condition(0, vec![index * step, index * step + 1000]),
                    condition(2, vec![index % 3]),
                ],
                then: action(index),
                why: String::new(),
            })
            .collect();
        let otherwise = Action::Errno(FilterErrno::from_name("EINVAL").unwrap());
        let entry = Entry { only: None, rules, otherwise, why: String::new() };
        policy.entries.insert(call.to_owned(), entry);
    }
    for arch in Arch::ALL {
        let program = compile(&policy, arch).unwrap();
        assert!(program.instructions.len() > 2000, "{}", program.instructions.len());
        for number in 0..=500 {
            for first in 0..1760 {
                assert_agrees(&policy, &program, arch, number, [first, 0, first % 4, 0, 0, 0]);
                if policy.entry(arch, number).is_none_or(|(_, entry)| entry.rules.len() < 150) {
                    break;
                }
            }
        }
    }
}

#[test]
fn policy_too_large_for_the_kernel_is_an_error() {
    let mut policy = Policy::builtin(Profile::Default).unwrap().clone();
    let values = (0..5000).collect();
    let condition = Condition { argument: 0, wide: false, mask: 0xffff_ffff, values, negated: false };
    let rule = Rule { conditions: vec![condition], then: Action::Allow, why: String::new() };
    policy.entries.get_mut("socket").unwrap().rules = vec![rule];
    let error = compile(&policy, Arch::NATIVE).unwrap_err().to_string();
    assert!(error.ends_with("the length is not 1 to 4096"), "{error}");
}

fn any_action() -> impl Strategy<Value = Action> {
    let errno = |name| Action::Errno(FilterErrno::from_name(name).unwrap());
    prop_oneof![Just(Action::Allow), Just(errno("EPERM")), Just(errno("ENOSYS")), Just(errno("EACCES"))]
}

fn any_condition() -> impl Strategy<Value = Condition> {
    let bits = prop_oneof![Just(u64::MAX), Just(0xffff_ffff), Just(0xff), Just(1), any::<u64>()];
    let values = prop::collection::vec(prop_oneof![0..8_u64, any::<u64>()], 1..5);
    (0..6_u8, any::<bool>(), bits, values, any::<bool>()).prop_map(
        |(argument, wide, bits, values, negated)| {
            let mask = if wide { bits } else { bits & 0xffff_ffff };
            let mask = if mask == 0 { 1 } else { mask };
            let values = values.iter().map(|value| value & mask).collect();
            Condition { argument, wide, mask, values, negated }
        },
    )
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let rule = (prop::collection::vec(any_condition(), 1..4), any_action())
        .prop_map(|(conditions, then)| Rule { conditions, then, why: String::new() });
    (prop::collection::vec(rule, 0..8), any_action()).prop_map(|(rules, otherwise)| Entry {
        only: None,
        rules,
        otherwise,
        why: String::new(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn program_agrees_on_random_arguments(
        number in 0..520_u32,
        arguments in any::<[u64; 6]>(),
        small in any::<[u8; 6]>(),
    ) {
        for profile in Profile::ALL {
            let policy = Policy::builtin(profile).unwrap();
            let program = compile(policy, Arch::NATIVE).unwrap();
            assert_agrees(policy, &program, Arch::NATIVE, number, arguments);
            assert_agrees(policy, &program, Arch::NATIVE, number, small.map(u64::from));
        }
    }

    #[test]
    fn program_agrees_on_random_policies(
        entries in prop::collection::btree_map(0..300_usize, any_entry(), 0..40),
        arguments in any::<[u64; 6]>(),
        picks in any::<[usize; 6]>(),
    ) {
        let calls = Arch::Aarch64.calls();
        let entries: Vec<(u32, Entry)> =
            entries.into_iter().map(|(index, entry)| (calls[index].0, entry)).collect();
        let named = entries.iter().filter_map(|(number, entry)| {
            Some((Arch::Aarch64.call(*number)?.to_owned(), entry.clone()))
        });
        let policy = Policy { unlisted: FilterErrno::NOSYS, entries: named.collect() };
        let program = compile(&policy, Arch::Aarch64).unwrap();
        let check = |number, arguments| assert_agrees(&policy, &program, Arch::Aarch64, number, arguments);
        for number in 0..=512 {
            check(number, arguments);
        }
        for (number, entry) in &entries {
            let points: Vec<Vec<u64>> = (0..6).map(|argument| boundaries(entry, argument)).collect();
            for shift in 0..64 {
                let mut near = [0; 6];
                for (argument, points) in points.iter().enumerate() {
                    near[argument] = points[picks[argument].wrapping_add(shift * (argument + 1)) % points.len()];
                }
                check(*number, near);
            }
        }
    }
}
