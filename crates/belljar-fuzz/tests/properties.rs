//! Property tests: the check of each fuzz target, over the target's seeds with random changes.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

/// Minimum number of cases for each target; `PROPTEST_CASES` may set more. Takes a few seconds at most in a build without
/// optimisation.
const MIN_CASES: u32 = 4_000;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(name)
}

/// Returns the checked-in inputs of a target: valid ones, and every one that has once found a bug.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let entries =
        std::fs::read_dir(directory("seeds").join(name)).unwrap_or_else(|_| panic!("{name} has no seeds"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{name} has no seeds");
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// A change to an input.
#[derive(Debug, Clone)]
enum Edit {
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Replace(Index, u8),
    /// Repeats a part of the input at another position.
    Repeat(Index, Index, usize),
}

impl Edit {
    fn apply(&self, data: &mut Vec<u8>) {
        let end = data.len() + 1;
        match self {
            Self::Insert(at, bytes) => {
                let at = at.index(end);
                data.splice(at..at, bytes.iter().copied());
            }
            Self::Remove(at, length) => {
                let at = at.index(end);
                data.drain(at..data.len().min(at + length));
            }
            Self::Replace(at, byte) => {
                if let Some(place) = data.get_mut(at.index(end)) {
                    *place = *byte;
                }
            }
            Self::Repeat(from, to, length) => {
                let from = from.index(end);
                let part = data[from..data.len().min(from + length)].to_vec();
                let to = to.index(end);
                data.splice(to..to, part);
            }
        }
    }
}

/// Generates input that is hard for parsers: signs, brackets, terminators, and bytes that are not text.
fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 1..6),
        "[ -~]{1,6}".prop_map(String::into_bytes),
        prop::sample::select(
            &[
                "\0",
                "\n",
                "\"",
                "'",
                "{",
                "}",
                "[",
                "]",
                ":",
                "=",
                "..",
                "/",
                "-",
                "0",
                "9999999999",
                "1e9",
                "\u{1b}[",
                "\u{202e}",
                "ü",
                "\u{0}",
                "{args}",
                "(",
                ")",
            ][..]
        )
        .prop_map(|text| text.as_bytes().to_vec()),
    ]
}

fn any_edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        (any::<Index>(), any_piece()).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (any::<Index>(), 1_usize..16).prop_map(|(at, length)| Edit::Remove(at, length)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Edit::Replace(at, byte)),
        (any::<Index>(), any::<Index>(), 1_usize..64)
            .prop_map(|(from, to, length)| Edit::Repeat(from, to, length)),
    ]
}

/// Checks the property for every seed, for changed seeds, and for random bytes.
fn check_property(name: &str, check: fn(&[u8])) {
    let seeds = seeds(name);
    for seed in &seeds {
        check(seed);
    }
    check(b"");
    let changed = (prop::sample::select(seeds), vec(any_edit(), 1..6)).prop_map(|(mut data, edits)| {
        edits.iter().for_each(|edit| edit.apply(&mut data));
        data
    });
    let input = prop_oneof![8 => changed, 1 => vec(any::<u8>(), 0..128)];
    let given = Config::default();
    let config = Config { cases: given.cases.max(MIN_CASES), failure_persistence: None, ..given };
    let result = TestRunner::new(config).run(&input, |data| {
        check(&data);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{name}: {error}");
    }
}

macro_rules! properties {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check_property(stringify!($name), belljar_fuzz::$name);
        })*

        const PROPERTIES: &[&str] = &[$(stringify!($name)),*];
    };
}

properties! {
    spec_toml spec_json tool_file screening screening_query tool_patch size timeout cpus count word mount env mount_targets mount_policy policy_file language
    command_template script result_json event_json stream_output collector hint seccomp_policy launch_report
    cgroup_tables cgroup_number proc_stat tcp_table stream_marks guest_path archive_tar archive_zip glob guest_config message guest_frames guest_answer guest_run
    copy_out file_pair terminal_text users template_file dockerfile bundle_head oci_documents
    network_policy network_flag network_name dns_query client_hello request_head
    next_hop request_path redaction
    e2b_frames e2b_call e2b_sandbox e2b_signature e2b_filter e2b_upload
}

#[test]
fn every_check_has_a_fuzz_target_and_a_property_test() {
    let checks: BTreeSet<String> = belljar_fuzz::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let properties: BTreeSet<String> = PROPERTIES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(checks, properties);
    let targets: BTreeSet<String> = std::fs::read_dir(directory("fuzz_targets"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(checks, targets);
    let manifest = std::fs::read_to_string(directory("Cargo.toml")).unwrap();
    let page = std::fs::read_to_string(directory("../docs/fuzzing.md")).unwrap();
    for name in checks {
        let source = std::fs::read_to_string(directory("fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(source.contains(&format!("belljar_fuzz::{name}(data)")), "{name}.rs calls something else");
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "fuzz/Cargo.toml lacks {name}");
        assert!(page.contains(&format!("| `{name}` |")), "docs/fuzzing.md lacks {name}");
    }
}
