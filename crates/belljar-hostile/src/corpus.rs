//! The corpus: the cases of a directory, and those that are built in.

use std::path::{Path, PathBuf};

use crate::case::{Case, GROUPS};
use crate::error::{CaseError, HarnessError};
use crate::scratch::Scratch;

/// Files, each with its name.
type Files = &'static [(&'static str, &'static [u8])];

/// The cases of the self-test: path below `tests/hostile`, and files.
const BUILT_IN: &[(&str, Files)] = include!(concat!(env!("OUT_DIR"), "/cases.rs"));

/// The module `probe`, which Python programs may import.
const PROBE: &[u8] = include!(concat!(env!("OUT_DIR"), "/probe.rs"));

/// Cases, and the files that they share.
#[derive(Debug)]
pub struct Corpus {
    /// The cases, sorted by id.
    pub cases: Vec<Case>,
    /// The directory with `probe.py` and `host.py`.
    pub lib: PathBuf,
    /// Owns the files of built-in cases.
    _scratch: Option<Scratch>,
}

/// Reads every case below `dir`, which is `tests/hostile`.
///
/// # Errors
/// Fails if a case is invalid, or two cases have the same id.
pub fn load(dir: &Path) -> Result<Corpus, CaseError> {
    let mut cases: Vec<Case> = Vec::new();
    for group in GROUPS {
        let group = dir.join(group);
        if !group.is_dir() {
            continue;
        }
        let failed = |source| CaseError::Read { path: group.clone(), source };
        for entry in std::fs::read_dir(&group).map_err(failed)? {
            cases.push(Case::read(&entry.map_err(failed)?.path())?);
        }
    }
    cases.sort_by(|one, other| one.id.cmp(&other.id));
    if let Some([one, other]) = cases.windows(2).find_map(|pair| match pair {
        [one, other] if one.id == other.id => Some([one, other]),
        _ => None,
    }) {
        return Err(CaseError::DuplicateId {
            id: one.id.clone(),
            first: one.dir.clone(),
            second: other.dir.clone(),
        });
    }
    Ok(Corpus { cases, lib: dir.join("lib"), _scratch: None })
}

/// Writes the cases of the self-test to a temporary directory, and loads them.
///
/// # Errors
/// Fails if they cannot be written.
pub fn unpack_self_test() -> Result<Corpus, HarnessError> {
    let scratch = Scratch::new(0o700)?;
    let write = |path: PathBuf, content: &[u8]| {
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, content))
            .map_err(HarnessError::step(format!("write {}", path.display())))
    };
    for (dir, files) in BUILT_IN {
        for (name, content) in *files {
            write(scratch.path().join(dir).join(name), content)?;
        }
    }
    write(scratch.path().join("lib/probe.py"), PROBE)?;
    let corpus = load(scratch.path())?;
    Ok(Corpus { _scratch: Some(scratch), ..corpus })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository_corpus() -> Corpus {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hostile");
        load(&dir).unwrap_or_else(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            panic!("{error}: {source}")
        })
    }

    #[test]
    fn every_case_is_valid() {
        assert!(repository_corpus().cases.len() >= 5);
    }

    #[test]
    fn cases_with_third_party_tools_are_separate_and_valid() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hostile/tools");
        let tools = load(&dir).unwrap();
        let ids: Vec<&str> = tools.cases.iter().map(|case| case.id.as_str()).collect();
        assert_eq!(ids, ["K23", "K23b"]);
        assert!(tools.lib.join("host.py").is_file(), "tools/lib is the shared lib");
        assert!(repository_corpus().cases.iter().all(|case| !ids.contains(&case.id.as_str())));
    }

    #[test]
    fn built_in_cases_are_the_self_test() {
        let ids = |cases: &[Case]| cases.iter().map(|case| case.id.clone()).collect::<Vec<_>>();
        let expected: Vec<Case> =
            repository_corpus().cases.into_iter().filter(|case| case.self_test).collect();
        let unpacked = unpack_self_test().unwrap();
        assert_eq!(ids(&unpacked.cases), ids(&expected));
        let dir = unpacked.lib.parent().unwrap().to_owned();
        assert!(dir.join("lib/probe.py").is_file());
        drop(unpacked);
        assert!(!dir.exists());
    }

    #[test]
    fn duplicate_ids_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let from = repository_corpus().cases.into_iter().find(|case| case.id == "K01").unwrap();
        for name in ["K01-one", "K01-two"] {
            let to = dir.path().join("K").join(name);
            std::fs::create_dir_all(&to).unwrap();
            for file in ["case.toml", "program.py"] {
                std::fs::copy(from.dir.join(file), to.join(file)).unwrap();
            }
        }
        let error = load(dir.path()).unwrap_err();
        assert!(matches!(error, CaseError::DuplicateId { .. }), "{error}");
    }
}
