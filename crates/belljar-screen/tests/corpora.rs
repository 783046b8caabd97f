//! Code that is found, code that is not, and code that is honest.

#![expect(clippy::unwrap_used, reason = "a case that fails says so")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_screen::{Finding, Language, Modules, Report, Request, Rule, Severity};
use serde::Deserialize;

/// Ten times what is needed on a loaded machine.
const TIME: Duration = Duration::from_secs(20);

fn screen(language: Language, code: &str) -> Report {
    let request = Request { language, code: code.to_owned(), modules: Modules::default() };
    belljar_screen::screen(&request, TIME).unwrap()
}

fn rules(report: &Report) -> BTreeSet<&str> {
    report.findings.iter().map(|finding| finding.rule.as_str()).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Evasions {
    evasion: Vec<Evasion>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Evasion {
    name: String,
    language: Language,
    code: String,
    finds: Option<String>,
    missed: Option<String>,
}

#[test]
fn evasions_are_found_or_documented() {
    let Evasions { evasion } = toml::from_str(include_str!("evasions.toml")).unwrap();
    let page = std::fs::read_to_string(root().join("docs/screening.md")).unwrap();
    let mut faults = Vec::new();
    for Evasion { name, language, code, finds, missed } in &evasion {
        let report = screen(*language, code);
        let found = rules(&report);
        let row = format!("| {} | {name} | ", language.as_str());
        match (finds, missed) {
            (Some(rule), None) if !found.contains(rule.as_str()) => {
                faults.push(format!("{}, {name}: {rule} is not among {found:?}", language.as_str()));
            }
            (Some(_), None) => assert!(!page.contains(&row), "{row} is found, and listed as missed"),
            (None, Some(why)) => {
                if report.risk == Severity::High {
                    faults.push(format!("{}, {name}: is found now, by {found:?}", language.as_str()));
                }
                if !page.contains(&format!("{row}{why} |")) {
                    faults.push(format!("docs/screening.md lacks {row}{why} |"));
                }
            }
            _ => panic!("{name}: one of finds and missed"),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(evasion.iter().filter(|one| one.finds.is_some()).count() >= 70);
}

/// Adds the files below a directory that have this extension.
fn add_files(directory: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        // Not programs, or of others who may do anything.
        let is_skipped =
            ["test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "node_modules"]
                .iter()
                .any(|name| path.file_name().is_some_and(|file| file == *name));
        if path.is_dir() && !is_skipped {
            add_files(&path, extension, files);
        } else if path.extension().is_some_and(|one| one == extension) {
            files.push(path);
        }
    }
}

/// Python's library as installed here, exercises that measure Belljar, and the project's own examples: at most 2.5 % are of high risk
/// or are not all read.
#[test]
fn honest_programs_are_rarely_of_high_risk() {
    let library = std::process::Command::new("python3")
        .args(["-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"])
        .output()
        .unwrap();
    let library = PathBuf::from(String::from_utf8(library.stdout).unwrap().trim());
    let mut programs = Vec::new();
    let root = root();
    for (directory, extension, language) in [
        (root.join("bench/programs"), "py", Language::Python),
        (root.join("tests/programs"), "py", Language::Python),
        (root.join("tests/programs"), "js", Language::JavaScript),
        (root.join("tests/programs"), "ts", Language::TypeScript),
        (root.join("tests/programs"), "rb", Language::Ruby),
        (root.join("tests/programs"), "php", Language::Php),
        (root.join("tests/programs"), "go", Language::Go),
        (root.join("tests/programs"), "rs", Language::Rust),
        (root.join("tests/programs"), "sh", Language::Bash),
        (root.join("scripts"), "sh", Language::Bash),
        (root.join("sdk/python/belljar"), "py", Language::Python),
        (root.join("sdk/typescript/src"), "ts", Language::TypeScript),
        (root.join("crates/belljar-model/src"), "rs", Language::Rust),
        (root.join("crates/belljar-files/src"), "rs", Language::Rust),
        (library, "py", Language::Python),
    ] {
        let mut files = Vec::new();
        add_files(&directory, extension, &mut files);
        programs.extend(files.into_iter().map(|file| (language, file)));
    }
    let (mut read, mut high) = (0, Vec::new());
    let mut languages = BTreeSet::new();
    for (language, file) in programs {
        let Ok(code) = std::fs::read_to_string(&file) else { continue };
        if code.len() > 200_000 || read >= 900 {
            continue;
        }
        read += 1;
        languages.insert(language.as_str());
        let report = screen(language, &code);
        // What has more values than are followed counts as of high risk where calls wait by their risk.
        let is_unread = report.findings.iter().any(|one| one.rule == "too-many-values");
        assert!(report.complete || is_unread, "{}", file.display());
        if report.risk == Severity::High || !report.complete {
            let is_grave = |one: &&Finding| one.severity == Severity::High || one.rule == "too-many-values";
            let found: Vec<_> = report.findings.iter().filter(is_grave).collect();
            high.push(format!("{}: {found:?}", file.display()));
        }
    }
    assert!(read >= 500, "only {read} programs are here");
    assert_eq!(languages.len(), Language::ALL.len(), "{languages:?}");
    println!("{} of {read} honest programs are of high risk", high.len());
    assert!(high.len() * 40 <= read, "{} of {read}: {}", high.len(), high.join("\n"));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    language: Language,
    code: String,
    rules: BTreeSet<String>,
}

#[test]
fn each_rule_finds_what_it_names() {
    let Cases { case } = toml::from_str(include_str!("findings.toml")).unwrap();
    let mut faults = Vec::new();
    for Case { language, code, rules: expected } in &case {
        let report = screen(*language, code);
        if rules(&report) != expected.iter().map(String::as_str).collect() {
            faults.push(format!("{}: {code:?}: {expected:?}, not {:?}", language.as_str(), rules(&report)));
        }
        assert!(report.findings.iter().all(|one| !one.name.contains("horse")), "a password is not shown");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // Those about the reading itself have no conditions; tests/jail.rs has them, except that of dynamic imports.
    for rule in belljar_screen::rules().unwrap() {
        let is_tested = case.iter().any(|case| case.rules.contains(&rule.id));
        assert!(is_tested || rule.languages.is_empty(), "{} is in no case", rule.id);
    }
}

#[test]
fn page_lists_every_rule_and_promises_nothing() {
    let page = std::fs::read_to_string(root().join("docs/screening.md")).unwrap();
    for Rule { id, severity, meaning, walls, .. } in belljar_screen::rules().unwrap() {
        let row = format!("| `{id}` | {} | {meaning} | {walls} |", severity.as_str());
        assert!(page.contains(&row), "docs/screening.md lacks {row}");
    }
    assert!(page.contains("**advice and a trigger, never a wall**"));
}
