//! Screening in a jailed process, which is this program again.

#![expect(clippy::unwrap_used, reason = "a case that fails says so")]

use std::process::ExitCode;

use belljar_screen::{
    ADVICE, Language, MAX_CODE_BYTES, MAX_FINDINGS, Modules, Report, Request, ScreenError, Screeners,
    Severity, screen_in_jail,
};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    belljar_screen::enter_screener();
    let cases: [(&str, fn()); 9] = [
        ("answers_are_advice", answers_are_advice),
        ("process_reaches_nothing", process_reaches_nothing),
        ("process_that_waits_reads_one_piece", process_that_waits_reads_one_piece),
        ("large_code_is_bounded", large_code_is_bounded),
        ("deep_code_is_bounded", deep_code_is_bounded),
        ("many_findings_are_bounded", many_findings_are_bounded),
        ("broken_code_is_a_finding", broken_code_is_a_finding),
        ("modules_are_compared_with_lists", modules_are_compared_with_lists),
        ("invalid_requests_are_refused", invalid_requests_are_refused),
    ];
    let trial = |(name, case): (&'static str, fn())| {
        Trial::test(name, move || {
            case();
            Ok::<(), Failed>(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), cases.into_iter().map(trial).collect()).exit_code()
}

fn request(language: Language, code: impl Into<String>) -> Request {
    Request { language, code: code.into(), modules: Modules::default() }
}

fn screen(language: Language, code: impl Into<String>) -> Report {
    screen_in_jail(&request(language, code)).unwrap()
}

fn rules(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.rule.as_str()).collect()
}

fn answers_are_advice() {
    for language in Language::ALL {
        let report = screen(language, if language == Language::Go { "package main\n" } else { "" });
        assert_eq!(
            (report.risk, report.complete, report.findings.len()),
            (Severity::Low, true, 0),
            "{report:?}"
        );
        assert_eq!(report.advice, ADVICE);
        assert!(report.advice.contains("not a wall"));
    }
    let report = screen(Language::Python, "import os\nos.system('rm -rf /')");
    assert_eq!(report.risk, Severity::High);
    let found = report.findings.iter().find(|finding| finding.rule == "destructive-command").unwrap();
    assert_eq!((found.line, found.column, found.end_line, found.end_column), (2, 1, 2, 22));
    assert_eq!((found.name.as_str(), found.inside.as_deref()), ("rm", Some("bash")));
    assert!(!found.walls.is_empty());
}

/// Looks at the process from outside, while it waits for its request.
fn process_reaches_nothing() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let mut child = Command::new("/proc/self/exe")
        .arg(belljar_screen::ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    check_jail(child.id());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"{\"language\": \"bash\", \"modules\": {}}\nls").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let answer: Result<Report, String> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer.unwrap().language, "bash");

    let screeners = Screeners::default();
    screeners.prepare();
    let forked: Vec<_> = forks().into_iter().flat_map(|forks| children(&forks.to_string())).collect();
    assert!(!forked.is_empty());
    forked.into_iter().for_each(check_jail);
}

#[track_caller]
fn check_jail(pid: u32) {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let field = |name: &str| {
        let status = read("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    };
    belljar_testing::wait::eventually(|| match field("Seccomp").as_str() {
        "2" => Ok(()),
        other => Err(format!("the filter of system calls is {other:?}")),
    });
    assert_eq!(field("CapEff"), "0000000000000000");
    assert_eq!(field("NoNewPrivs"), "1");
    if rustix::process::geteuid().is_root() {
        assert_eq!(field("Uid"), "65534\t65534\t65534\t65534");
    }
    let limits = read("limits");
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line[name.len()..].split_whitespace().next().unwrap_or_default().to_owned()
    };
    // No descriptor can be opened, so there is no way to a file, a socket or another process.
    for name in ["Max open files", "Max processes", "Max file size"] {
        assert_eq!(limit(name), "0", "{limits}");
    }
}

/// Returns the children of a process.
fn children(pid: &str) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let read = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default()
    };
    let text: String = tasks.map(read).collect();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Returns the processes of this one that fork those of screenings.
fn forks() -> Vec<u32> {
    let is_one = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"\0screener\0forks\0"))
    };
    children("self").into_iter().filter(is_one).collect()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Each piece of code has a process of its own, also where that has been forked before, and one that is gone by then is no finding.
fn process_that_waits_reads_one_piece() {
    let before = forks();
    let forks = || forks().into_iter().filter(|pid| !before.contains(pid)).collect::<Vec<_>>();
    let waiting = || forks().iter().flat_map(|pid| children(&pid.to_string())).collect::<Vec<_>>();
    let none_waits = || {
        belljar_testing::wait::eventually(|| match &waiting()[..] {
            [] => Ok(()),
            left => Err(format!("{left:?} are left")),
        });
    };
    let screeners = Screeners::default();
    let high =
        |code: &str| screeners.screen(&request(Language::Python, code)).unwrap().risk == Severity::High;
    const RISKY: &str = "import os\nos.system('rm -rf /')";
    assert!(high(RISKY));
    none_waits();
    screeners.prepare();
    screeners.prepare();
    let [first] = waiting()[..] else { panic!("one process waits, not {:?}", waiting()) };
    assert!(!high("print(1)"));
    none_waits();
    screeners.prepare();
    let [second] = waiting()[..] else { panic!("one process waits, not {:?}", waiting()) };
    assert_ne!(first, second);
    kill(second);
    none_waits();
    assert!(high(RISKY));
    // That which forks them ends.
    let [one] = forks()[..] else { panic!("one process forks, not {:?}", forks()) };
    screeners.prepare();
    kill(one);
    assert!(high(RISKY) && !high("print(1)"));
    let [other] = forks()[..] else { panic!("one process forks, not {:?}", forks()) };
    assert_ne!(one, other);
    none_waits();
    screeners.prepare();
    let [last] = waiting()[..] else { panic!("one process waits, not {:?}", waiting()) };
    drop(screeners);
    belljar_testing::wait::eventually(|| {
        let is_left = !forks().is_empty() || std::fs::exists(format!("/proc/{last}")).unwrap();
        if is_left { Err("a process is left".to_owned()) } else { Ok(()) }
    });
}

fn large_code_is_bounded() {
    for (language, line) in [
        (Language::Python, "x = [f(a, 'b') for a in range(10)]\n"),
        (Language::JavaScript, "x = a.map((b) => `${b} text`);\n"),
        (Language::Bash, "for a in b c; do echo \"$a\" | cat; done\n"),
        (Language::Python, "("),
        (Language::Php, "<?php $a['b'](1);"),
    ] {
        let code = line.repeat(MAX_CODE_BYTES / line.len());
        let report = screen(language, code);
        // Either all of it was read, or the report says that not all was. The one that only opens brackets fills the reader's memory.
        assert!(!rules(&report).contains(&"reader-failed") || line == "(", "{line}: {:?}", rules(&report));
        assert!(report.complete || report.risk >= Severity::Medium, "{line}");
    }
}

fn deep_code_is_bounded() {
    for (language, open, close) in [
        (Language::Python, "[", "]"),
        (Language::JavaScript, "(", ")"),
        (Language::Python, "f(", ")"),
        (Language::Python, "a + (", "a)"),
        (Language::Rust, "{", "}"),
    ] {
        let code = format!("{}1{}", open.repeat(5_000), close.repeat(5_000));
        let report = screen(language, code);
        let found = rules(&report);
        assert!(!found.contains(&"reader-failed"), "{open}: {found:?}");
        let is_known = |rule: &&str| ["too-deep", "does-not-parse", "not-read-in-time"].contains(rule);
        assert!(found.iter().any(is_known), "{open}: {found:?}");
        assert!(report.risk >= Severity::Medium);
    }
    // A chain of operators is deep in the tree, but is read.
    let sum = format!("import os\nx = {}'a'\nos.system('rm -rf /')", "'a' + ".repeat(200));
    assert_eq!(screen(Language::Python, sum).risk, Severity::High);
}

fn many_findings_are_bounded() {
    // Few enough for a slow processor and no optimisation: what is not read in time has no findings.
    let mut code = "eval(x)\n".repeat(MAX_FINDINGS + 1);
    code.push_str("import os; os.system('rm -rf /')\n");
    let report = screen(Language::Python, code);
    assert_eq!(report.findings.len(), MAX_FINDINGS);
    assert!(report.complete && report.left_out > 0, "{report:?}");
    assert!(report.findings.is_sorted_by_key(|finding| (finding.line, finding.column)));
    let name = format!("os.{}", "a".repeat(5_000));
    let report = screen(Language::Python, format!("import os\neval({name})\neval('{}')", "b".repeat(10_000)));
    assert!(report.findings.iter().all(|finding| finding.name.chars().count() <= 100), "{report:?}");
}

fn broken_code_is_a_finding() {
    for (language, code) in [
        (Language::Python, "def f(:\n  pass"),
        (Language::JavaScript, "const = ;"),
        (Language::Go, "func ("),
        (Language::Bash, "if then fi ("),
        (Language::Python, "\u{0}\u{1}\u{feff}\u{202e}"),
    ] {
        let report = screen(language, code);
        assert!(rules(&report).contains(&"does-not-parse"), "{code}: {report:?}");
        assert!(report.risk >= Severity::Medium, "{code}");
    }
    // What surrounds it is read nevertheless.
    let report = screen(Language::Python, "def f(:\nimport os\nos.system('rm -rf /')\n");
    assert!(rules(&report).contains(&"process-spawn"), "{report:?}");
}

fn modules_are_compared_with_lists() {
    let code = "import numpy as n, os.path\nfrom socket import *\nimportlib = __import__('importlib')\n\
                importlib.import_module('sub' + 'process')\n";
    let mut request = request(Language::Python, code);
    let names = |report: &Report, rule: &str| {
        let found = report.findings.iter().filter(|finding| finding.rule == rule);
        found.map(|finding| finding.name.clone()).collect::<Vec<_>>()
    };
    request.modules.deny = vec!["socket".to_owned(), "subprocess".to_owned(), "nump".to_owned()];
    let report = screen_in_jail(&request).unwrap();
    assert_eq!(names(&report, "module-denied"), ["socket", "subprocess"]);
    assert_eq!(report.risk, Severity::High);
    request.modules.deny.clear();
    request.modules.allow = Some(vec!["numpy".to_owned(), "os".to_owned(), "importlib".to_owned()]);
    let report = screen_in_jail(&request).unwrap();
    assert_eq!(names(&report, "module-not-allowed"), ["socket", "subprocess"]);
    for (language, code, denied) in [
        (Language::JavaScript, "import x from 'node:fs/promises'", "fs"),
        (Language::TypeScript, "import x = require('fs')", "fs"),
        (Language::Go, "package main\nimport x \"os/exec\"", "os/exec"),
        (Language::Rust, "use std::{net::{self as n, TcpStream}, fs};", "std.net"),
        (Language::Ruby, "require 'open3'", "open3"),
        (Language::Php, "<?php use Foo\\Bar as Baz;", "foo"),
    ] {
        let mut request = Request { language, code: code.to_owned(), modules: Modules::default() };
        request.modules.deny = vec![denied.to_owned()];
        let report = screen_in_jail(&request).unwrap();
        assert!(!names(&report, "module-denied").is_empty(), "{code}: {report:?}");
    }
}

fn invalid_requests_are_refused() {
    let error = screen_in_jail(&request(Language::Python, " ".repeat(MAX_CODE_BYTES + 1))).unwrap_err();
    assert_eq!(error.to_string(), "code: too large: 1048577 bytes > limit 1048576");
    for (modules, expected) in [
        (Modules { deny: vec![String::new()], allow: None }, "modules.deny"),
        (Modules { deny: vec![], allow: Some(vec!["a\n".to_owned()]) }, "modules.allow"),
        (Modules { deny: vec!["a".to_owned(); 257], allow: None }, "modules.deny"),
        (Modules { deny: vec!["a".repeat(129)], allow: None }, "modules.deny"),
    ] {
        let request = Request { modules, ..request(Language::Python, "") };
        match screen_in_jail(&request) {
            Err(ScreenError::Modules { field, .. }) => assert_eq!(field, expected),
            other => panic!("{other:?}"),
        }
    }
}
