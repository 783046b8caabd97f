//! The suite that every engine passes: each behaviour of a sandbox is a case that any engine can be put through.
//!
//! An engine's tests make a [`Context`] for each way in which the engine can be set up, and run all of [`cases`] in
//! it. A case passes, fails, or is skipped because of a [`Capability`] that the engine does not have. Programs inside
//! are `/bin/sh` and `/usr/bin/python3`.

mod archives;
mod background;
mod case;
mod context;
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
}
