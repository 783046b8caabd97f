//! The conformance suite of engines: each behaviour of a sandbox is a case that runs on any engine.
//!
//! An engine's tests create a [`Context`] for each configuration of the engine, and run all [`cases`] in it. A case
//! passes, fails, or is skipped because of a [`Capability`] that the engine lacks. Programs inside are `/bin/sh` and
//! `/usr/bin/python3`.

mod archives;
mod background;
mod case;
mod context;
mod contexts;
mod contexts_ends;
mod contexts_hostile;
mod contexts_jupyter;
mod contexts_languages;
mod contexts_tools;
mod engines;
mod files;
mod files_hostile;
mod health;
mod hostile;
mod isolation;
mod languages;
mod leaks;
mod limits;
mod limits_disk;
mod long_lived;
mod mounts;
mod ports;
mod processes;
mod program;
mod runs;
mod runs_output;
mod search;
mod sessions;
mod setup;
mod stopping;
mod streams;
mod terminal;

use crate::capabilities::Capabilities;

pub use case::{Capability, Case, Checked, Outcome, Stop};
pub use context::{Context, HostDirs};
pub use engines::{Conforming, DOCKER, GVISOR, LOCAL, NONE, PROCESS, cases_by_engine};
pub use setup::{
    OwnTest, Setup, Tested, block_on, case_trial, guest_program, id, in_a_row_leave_nothing, nothing_is_left,
    own_trial, run, run_to_end, sandbox_outlives_its_server, spec, waiting_connections_end_the_sandbox,
};

/// Returns all cases, in a stable order and with stable names.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = [
        processes::CASES,
        streams::CASES,
        background::CASES,
        contexts::CASES,
        contexts_ends::CASES,
        contexts_hostile::CASES,
        contexts_jupyter::CASES,
        contexts_languages::CASES,
        contexts_tools::CASES,
        sessions::CASES,
        stopping::CASES,
        limits::CASES,
        limits_disk::CASES,
        hostile::CASES,
        terminal::CASES,
        files::CASES,
        files_hostile::CASES,
        archives::CASES,
        search::CASES,
        ports::CASES,
        health::CASES,
        runs::CASES,
        runs_output::CASES,
        mounts::CASES,
        isolation::CASES,
        leaks::CASES,
        long_lived::CASES,
    ]
    .into_iter()
    .flatten()
    .cloned()
    .collect();
    all.extend(languages::cases());
    all
}

/// Cases of each kind, and those whose outcome depends on the configuration of an engine. They are run in the
/// configurations in which not all cases are run.
const SMOKE: &[&str] = &[
    "argv_is_exact",
    "environment_is_as_requested",
    "exit_codes_are_exact",
    "signals_are_reported",
    "stdout_and_stderr_are_apart",
    "flood_is_complete",
    "stdin_streams_and_closes",
    "detached_process_keeps_running",
    "output_is_read_by_offset",
    "context_keeps_state_and_displays_results",
    "context_survives_interrupt",
    "context_of_bash",
    "session_keeps_state",
    "session_survives_timeout_if_possible",
    "timeout_kills_after_grace",
    "leftovers_are_killed_and_counted",
    "orphans_are_reaped",
    "pids_limit_is_exact",
    "memory_hog_is_reported",
    "cpu_limit_is_enforced",
    "full_disk_is_an_error_inside",
    "guest_survives_every_signal",
    "guest_cannot_be_traced",
    "terminal_is_a_terminal",
    "file_is_written_and_read",
    "directory_listing_is_ordered_and_deep",
    "changes_are_watched",
    "links_do_not_leave_the_sandbox",
    "pack_and_unpack_carry_a_tree_between_sandboxes",
    "search_finds_lines_and_names",
    "tunnel_is_bidirectional",
    "metrics_count_memory_and_time",
    "run_python_prints",
    "run_times_out",
    "run_compiles_first",
    "run_hints_at_the_missing_network",
    "mount_is_written_back",
    "report_names_every_layer",
    "code_has_no_network",
    "code_cannot_read_the_host",
    "sandboxes_do_not_see_each_others_processes",
    "stop_leaves_nothing",
    "ended_sandbox_leaves_nothing",
    "frozen_sandbox_pauses_and_continues",
    "deadline_is_enforced_outside",
    "language_sh_greets",
];

impl Case {
    /// Reports whether the case is part of the smoke test of a configuration.
    #[must_use]
    pub fn is_smoke(&self) -> bool {
        SMOKE.contains(&&*self.name)
    }
}

/// Checks the column of an engine in the table of docs/engines.md.
///
/// # Panics
/// If they differ.
pub fn check_documented(engine: &str, can: &Capabilities) {
    let page = include_str!("../../../../docs/engines.md");
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let row = |name: &str| page.lines().find(|line| line.starts_with(&format!("| {name}|"))).map(cells);
    let column = row("").and_then(|head| head.iter().position(|cell| *cell == format!("`{engine}`")));
    let check = |name: &str, cell: &str| {
        let found = row(&format!("`{name}` ")).and_then(|row| row.get(column?).cloned());
        assert_eq!(found.as_deref(), Some(cell), "docs/engines.md: {name} of {engine}");
    };
    check("isolation", &format!("{:?}", can.isolation).to_lowercase());
    check("network", &if can.network.is_empty() { "the host's".to_owned() } else { can.network.join(", ") });
    for (name, has) in can.list() {
        check(name, if has { "yes" } else { "no" });
    }
    check("default_timeout_s", &can.default_timeout.duration().as_secs().to_string());
}

#[cfg(test)]
mod tests {
    #[test]
    fn smoke_cases_exist() {
        let found = super::cases().into_iter().filter(super::Case::is_smoke).count();
        assert_eq!(found, super::SMOKE.len(), "a name does not belong to a case");
    }

    #[test]
    fn names_are_unique_and_plain() {
        let mut seen = std::collections::BTreeSet::new();
        for case in super::cases() {
            let plain =
                |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
            assert!(case.name.chars().all(plain), "{}", case.name);
            assert!(seen.insert(case.name.clone()), "duplicate name {}", case.name);
        }
    }

    #[test]
    fn every_limit_has_a_case() {
        use belljar_model::{LimitScope, LimitsFile};
        let tested = [
            ("memory", "memory_hog_is_reported"),
            ("cpus", "cpu_limit_is_enforced"),
            ("timeout", "run_times_out"),
            ("pids", "pids_limit_is_exact"),
            ("tmp", "full_tmp_is_an_error_inside"),
            ("disk", "full_disk_is_an_error_inside"),
            ("inodes", "full_inodes_are_an_error_inside"),
            ("output", "run_keeps_head_and_tail_and_logs_the_rest"),
            ("open_files", "open_files_are_limited"),
        ];
        let limits: Vec<_> = LimitsFile::table(LimitScope::Create).map(|limit| limit.name).collect();
        assert_eq!(tested.map(|(limit, _)| limit).as_slice(), limits);
        let cases = super::cases();
        for (limit, name) in tested {
            assert!(cases.iter().any(|case| case.name == name), "{limit} has no case {name}");
        }
    }

    /// The table for testing the SDKs has each case, or the reason why it does not.
    #[test]
    fn sdk_table_has_each_case_or_a_reason() {
        use std::collections::BTreeSet;
        let table = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/conformance/cases.json");
        let table: serde_json::Value =
            serde_json::from_slice(&std::fs::read(table).expect("the file exists")).expect("it is JSON");
        let text = |value: &serde_json::Value| value.as_str().expect("it is a name").to_owned();
        let list = |value: &serde_json::Value| value.as_array().expect("it is a list").clone();
        let mut listed: Vec<String> = list(&table["cases"]).iter().map(|case| text(&case["name"])).collect();
        for names in table["elsewhere"].as_object().expect("it is an object").values() {
            listed.extend(list(names).iter().map(text));
        }
        // Languages are tested on engines only.
        let all: BTreeSet<String> = super::cases()
            .into_iter()
            .map(|case| case.name.into_owned())
            .filter(|name| !name.starts_with("language_"))
            .collect();
        let once: BTreeSet<String> = listed.iter().cloned().collect();
        assert_eq!(once.len(), listed.len(), "a name is duplicate");
        assert_eq!(once.symmetric_difference(&all).collect::<Vec<_>>(), Vec::<&String>::new());
    }
}
