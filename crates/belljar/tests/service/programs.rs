//! The small programs of `bench/programs`: each is self-contained, and all of them run in one context.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::contexts::{Fixture, code};
use crate::run;

/// Number of programs, to which the benchmark's result refers.
const PROGRAMS: usize = 164;

/// Returns the programs, sorted by name.
fn programs() -> Vec<(PathBuf, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/programs");
    let entries = std::fs::read_dir(dir).expect("the programs are there");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "py"));
    paths.sort();
    paths
        .into_iter()
        .map(|path| (path.clone(), std::fs::read_to_string(path).expect("it can be read")))
        .collect()
}

#[test]
fn programs_are_small_check_themselves_and_differ() {
    let programs = programs();
    assert_eq!(programs.len(), PROGRAMS);
    let mut first_lines = std::collections::BTreeSet::new();
    for (path, text) in &programs {
        let name = path.display();
        let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
        assert!((5..=40).contains(&lines), "{name}: {lines} lines");
        assert!(text.lines().any(|line| line.trim_start().starts_with("assert ")), "{name} checks nothing");
        let first = text.lines().next().unwrap_or_default();
        assert!(
            first.starts_with("\"\"\"") && first_lines.insert(first),
            "{name} has the same description as another"
        );
    }
}

#[test]
fn programs_run_as_processes_of_their_own() {
    if !Path::new("/usr/bin/python3").exists() {
        crate::say("SKIPPED programs_run_as_processes_of_their_own: there is no /usr/bin/python3");
        return;
    }
    for (path, _) in programs() {
        let done = Command::new("/usr/bin/python3").arg("-I").arg(&path).output().expect("python3 starts");
        let said = [done.stdout, done.stderr].concat();
        assert!(
            done.status.success() && said.is_empty(),
            "{}: {}",
            path.display(),
            String::from_utf8_lossy(&said)
        );
    }
}

#[test]
fn programs_run_in_one_context() {
    const NAME: &str = "programs_run_in_one_context";
    if crate::skipped(NAME) {
        return;
    }
    run(async {
        let fixture = Fixture::new(&["sandboxes.pool=0"]).await;
        if !fixture.lacks(NAME, "/usr/bin/python3 -c 'import IPython'").await {
            for (path, text) in programs() {
                let done = code(&fixture.client, &fixture.id, &json!({ "code": text })).await;
                let end = (&done["status"], &done["state"], &done["stdout"]["bytes"]);
                let fine = (&json!("ok"), &json!("preserved"), &json!(0));
                assert_eq!(end, fine, "{}: {done}", path.display());
            }
            // A failing program is reported.
            let wrong =
                code(&fixture.client, &fixture.id, &json!({ "code": "assert sorted([2, 1]) == [2, 1]" }))
                    .await;
            assert_eq!(
                (&wrong["status"], &wrong["error"]["name"]),
                (&json!("error"), &json!("AssertionError"))
            );
        }
        fixture.shut_down().await;
    });
}
