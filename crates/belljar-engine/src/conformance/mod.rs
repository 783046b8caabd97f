//! The suite that every engine passes: each behaviour of a sandbox is a case that any engine can be put through.
//!
//! An engine's tests make a [`Context`] for each way in which the engine can be set up, and run all of [`cases`] in
//! it. A case passes, fails, or is skipped because of a [`Capability`] that the engine does not have. Programs inside
//! are `/bin/sh` and `/usr/bin/python3`.

mod archives;
mod background;
mod case;
mod context;
mod contexts;
mod contexts_hostile;
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
mod stopping;
mod streams;
mod terminal;

pub use case::{Capability, Case, Checked, Outcome, Stop};
pub use context::{Context, HostDirs};

/// All cases, in a stable order and with stable names.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = [
        processes::CASES,
        streams::CASES,
        background::CASES,
        contexts::CASES,
        contexts_hostile::CASES,
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

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique_and_plain() {
        let mut seen = std::collections::BTreeSet::new();
        for case in super::cases() {
            let plain =
                |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
            assert!(case.name.chars().all(plain), "{}", case.name);
            assert!(seen.insert(case.name.clone()), "{} is there twice", case.name);
        }
    }

    /// The table by which the SDKs are tested has each case, or says why it does not.
    #[test]
    fn the_sdks_have_each_case_or_a_reason() {
        use std::collections::BTreeSet;
        let table = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/conformance/cases.json");
        let table: serde_json::Value =
            serde_json::from_slice(&std::fs::read(table).expect("it is there")).expect("it is JSON");
        let text = |value: &serde_json::Value| value.as_str().expect("it is a name").to_owned();
        let list = |value: &serde_json::Value| value.as_array().expect("it is a list").clone();
        let mut told: Vec<String> = list(&table["cases"]).iter().map(|case| text(&case["name"])).collect();
        for names in table["elsewhere"].as_object().expect("it is an object").values() {
            told.extend(list(names).iter().map(text));
        }
        // Languages are files; what each greets with is asked of the engines only.
        let all: BTreeSet<String> = super::cases()
            .into_iter()
            .map(|case| case.name.into_owned())
            .filter(|name| !name.starts_with("language_"))
            .collect();
        let once: BTreeSet<String> = told.iter().cloned().collect();
        assert_eq!(once.len(), told.len(), "a name is there twice");
        assert_eq!(once.symmetric_difference(&all).collect::<Vec<_>>(), Vec::<&String>::new());
    }
}
