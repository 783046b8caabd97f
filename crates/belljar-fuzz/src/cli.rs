//! Parsers of the program `belljar`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use belljar_engine::GuestClient;
use belljar_model::MountPolicy;

use crate::copy_out::Outputs;
use crate::data::{Input, text};
use crate::files::{checked_path, split_pair};
use crate::hostile::run_against;
use crate::message::{Quit, chain, clean, one_line, without_controls};

/// Reports whether a terminal acts on a character, or it changes the direction of text.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

pub(crate) fn terminal_text(data: &[u8]) {
    let text = text(data);
    let cleaned = clean(&text);
    assert!(!cleaned.chars().any(|character| is_unsafe(character) && character != '\n'), "{cleaned:?}");
    assert_eq!(clean(&cleaned), cleaned, "cleaning is idempotent");
    assert_eq!(cleaned.chars().count(), text.trim_end().chars().count());
    let max = data.len() % 70;
    let line = one_line(&text, max);
    assert!(line.chars().count() <= max && !line.chars().any(is_unsafe), "{line:?}");
    // JSON keeps its value, and contains no unsafe character but its own end of line.
    let json = serde_json::to_string(&text).unwrap();
    let safe = without_controls(&json);
    assert!(!safe.chars().any(is_unsafe), "{safe:?}");
    assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
}

pub(crate) fn file_pair(data: &[u8]) {
    let (source, target) = split_pair(OsStr::from_bytes(data));
    let source_bytes = source.as_os_str().as_bytes();
    match &target {
        // Only the colon of the pair is removed.
        Some(target) => {
            assert_eq!([source_bytes, b":", target.as_os_str().as_bytes()].concat(), data);
            assert!(!target.as_os_str().as_bytes().contains(&b':') && !target.as_os_str().is_empty());
        }
        None => assert_eq!(source_bytes, data.strip_suffix(b":").unwrap_or(data)),
    }
    for path in std::iter::once(&source).chain(&target) {
        match checked_path(path) {
            Ok(place) => {
                assert!(place.file_name().is_some());
                assert!(
                    place.components().all(|part| matches!(part, Component::Normal(_) | Component::RootDir))
                );
                assert_eq!(place.is_absolute(), path.is_absolute());
                // Joined to a home directory it stays below it, unless it is absolute.
                assert!(Path::new("/home/user").join(&place).starts_with("/home/user") || path.is_absolute());
                assert_eq!(checked_path(&place).ok(), Some(place));
            }
            // Messages show the user's own input in full.
            Err(Quit::Error(error)) => {
                let words = clean(&chain(error.as_ref()));
                assert!(words.contains("invalid destination") && !words.chars().any(is_unsafe), "{words:?}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

pub(crate) fn policy_file(data: &[u8]) {
    let text = text(data);
    let mut policy = MountPolicy::new(&["/home/ann".into()]);
    let before = policy.forbidden().to_vec();
    match crate::policy::apply(&text, &mut policy) {
        Ok(()) => {
            // A file only adds forbidden paths.
            assert!(policy.forbidden().starts_with(&before));
            assert!(policy.forbidden().iter().all(|path| path.is_absolute() && path.parent().is_some()));
        }
        Err(Quit::Error(error)) => {
            let words = clean(&chain(error.as_ref()));
            assert!(
                !words.is_empty()
                    && !words.chars().any(|character| is_unsafe(character) && character != '\n')
            );
        }
        Err(other) => panic!("{other:?}"),
    }
}

pub(crate) fn users(data: &[u8]) {
    let text = text(data);
    for uid in [0, 1000, u32::from(data.first().copied().unwrap_or(0))] {
        if let Some(home) = crate::policy::home_of(&text, uid) {
            assert!(text.contains(&uid.to_string()) || text.contains("+"), "{uid}");
            assert!(text.contains(home.to_str().expect("part of the text")));
        }
    }
}

/// Checks a copy out of a sandbox: a byte for the size of the old file, then answers.
pub(crate) fn copy_out(data: &[u8]) {
    let mut input = Input(data);
    let old = vec![b'o'; usize::from(input.byte())];
    let dir = tempfile::tempdir().expect("a directory");
    let target = dir.path().join("target");
    std::fs::write(&target, &old).expect("a file");
    let mut pair = OsString::from("inside:");
    pair.push(&target);
    let outputs = match Outputs::find(&[pair]) {
        Ok(outputs) => outputs,
        Err(error) => panic!("{error:?}"),
    };
    let errors = run_against(input, async |stream| {
        let guest = GuestClient::new(stream);
        let copy = outputs.copy_all(&guest, 1 << 20);
        tokio::time::timeout(std::time::Duration::from_secs(3600), copy).await
    });
    let errors = errors.expect("the copy ends, whatever the guest does");
    let now = std::fs::read(&target).expect("the file exists before and after");
    if errors.is_empty() {
        assert!(now.len() as u64 <= 1 << 20, "{} bytes copied", now.len());
    } else {
        assert_eq!(now, old, "an incomplete file replaced the old one");
    }
    for error in &errors {
        let words = clean(&chain(error));
        assert!(!words.chars().any(is_unsafe) && words.chars().count() < 4096, "{words:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a file was left behind");
}
