//! Checks that the checked-in arrays and tables match the policy. With `BELLJAR_BLESS=1` they are regenerated; the
//! arrays are compiled into this test, so only the next run sees the new ones.

use std::fmt::Write as _;
use std::path::Path;

use crate::seccomp::{
    Arch, Instruction, Policy, Profile, compile, generated_aarch64, generated_x86_64, program,
};

fn is_blessing() -> bool {
    std::env::var_os("BELLJAR_BLESS").is_some_and(|value| value == "1")
}

/// Compares the file `path` of this crate with `expected`, or writes it.
fn check(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if is_blessing() {
        std::fs::write(&file, expected).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap();
    if let Some(line) = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected) {
        let lines = |text: &str| text.lines().nth(line).map(str::to_owned);
        panic!(
            "{path} line {} is {:?} and should be {:?}; review the change, then run the tests with BELLJAR_BLESS=1",
            line + 1,
            lines(&found),
            lines(expected)
        );
    }
    assert_eq!(found, expected, "{path} has too many or too few lines; run the tests with BELLJAR_BLESS=1");
}

fn compiled(profile: Profile, arch: Arch) -> Vec<Instruction> {
    compile(Policy::builtin(profile).unwrap(), arch).unwrap().instructions
}

#[test]
fn generated_files_are_current() {
    for arch in Arch::ALL {
        let mut text = format!(
            "//! The compiled filters for {}. Generated from policy/seccomp.toml by the tests; do not edit.\n\n\
             use super::program::Instruction;\n",
            arch.name()
        );
        for profile in Profile::ALL {
            let instructions = compiled(profile, arch);
            let (name, length) = (profile.name(), instructions.len());
            write!(text, "\n/// The profile `{name}`.\n").unwrap();
            let name = name.to_uppercase();
            writeln!(text, "pub(super) static {name}: [Instruction; {length}] = [").unwrap();
            for Instruction { code, jt, jf, k } in instructions {
                writeln!(text, "    Instruction::new({code:#04x}, {jt}, {jf}, {k:#x}),").unwrap();
            }
            text.push_str("];\n");
        }
        check(&format!("src/seccomp/generated_{}.rs", arch.name()), &text);
    }
}

#[test]
fn generated_arrays_match_the_policy() {
    if is_blessing() {
        return;
    }
    let arrays = [
        (Arch::X86_64, Profile::Default, &generated_x86_64::DEFAULT[..]),
        (Arch::X86_64, Profile::Hardened, &generated_x86_64::HARDENED),
        (Arch::X86_64, Profile::NoNetwork, &generated_x86_64::NO_NETWORK),
        (Arch::X86_64, Profile::Watched, &generated_x86_64::WATCHED),
        (Arch::X86_64, Profile::Build, &generated_x86_64::BUILD),
        (Arch::X86_64, Profile::Machine, &generated_x86_64::MACHINE),
        (Arch::X86_64, Profile::Warm, &generated_x86_64::WARM),
        (Arch::X86_64, Profile::Gateway, &generated_x86_64::GATEWAY),
        (Arch::Aarch64, Profile::Default, &generated_aarch64::DEFAULT),
        (Arch::Aarch64, Profile::Hardened, &generated_aarch64::HARDENED),
        (Arch::Aarch64, Profile::NoNetwork, &generated_aarch64::NO_NETWORK),
        (Arch::Aarch64, Profile::Watched, &generated_aarch64::WATCHED),
        (Arch::Aarch64, Profile::Build, &generated_aarch64::BUILD),
        (Arch::Aarch64, Profile::Machine, &generated_aarch64::MACHINE),
        (Arch::Aarch64, Profile::Warm, &generated_aarch64::WARM),
        (Arch::Aarch64, Profile::Gateway, &generated_aarch64::GATEWAY),
    ];
    for (arch, profile, array) in arrays {
        assert_eq!(array, compiled(profile, arch), "{} {}", arch.name(), profile.name());
        if arch == Arch::NATIVE {
            assert_eq!(array, program(profile));
        }
    }
}

#[test]
fn verdict_tables_are_current() {
    for arch in Arch::ALL {
        let mut text = format!(
            "# Outcome of each system call on {} in the profiles default, hardened, no_network, watched, build, machine, warm and\n\
             # gateway. `conditional` depends on the arguments; ENOSYS with `unlisted` means that the policy does not list the\n\
             # call. Generated from seccomp.toml by the tests; do not edit.\n",
            arch.name()
        );
        let mut calls: Vec<(u32, &str)> = arch.calls().to_vec();
        calls.sort_by_key(|(_, name)| *name);
        for (number, name) in calls {
            let verdicts =
                Profile::ALL.map(|profile| match Policy::builtin(profile).unwrap().entry(arch, number) {
                    None => String::from("ENOSYS unlisted"),
                    Some((_, entry)) if entry.rules.is_empty() => entry.otherwise.to_string(),
                    Some(_) => String::from("conditional"),
                });
            let [default, hardened, no_network, watched, build, machine, warm, gateway] = verdicts;
            let line = format!(
                "{name:24} {default:16} {hardened:16} {no_network:16} {watched:16} {build:16} {machine:16} {warm:16} \
                 {gateway}"
            );
            writeln!(text, "{line}").unwrap();
        }
        check(&format!("policy/verdicts_{}.txt", arch.name()), &text);
    }
}
