//! Packages that are installed before code runs: `--with`, and the header of a script.

use std::process::Stdio;

use serde_json::Value;

use crate::Case;
use crate::clients::cases;
use crate::fixture::Fixture;
use crate::headers::home;
use crate::home::{Done, Home};

cases![
    packages_are_installed_before_the_script,
    failed_installation_is_explained,
    packages_are_installed_in_contexts_and_templates,
];

/// Tells whether the module is there, and whether code reaches the index.
const CODE: &str = "
import socket
try:
    import tiny; print(tiny.WORD)
except ImportError:
    print('none')
try:
    socket.create_connection(('pypi.org', 443), timeout=20); print('open')
except OSError:
    print('closed')
";

const HEADER: &str = "# /// script\n# requires-python = '>=3.8'\n# dependencies = ['tiny']\n# ///\n";

fn run(home: &Home, fixture: &Fixture, args: &[&str]) -> Done {
    let policy = fixture.dir().join("policy.toml");
    let mut command = home.belljar(&["run", "--policy", policy.to_str().unwrap()]);
    command.args(args).env_remove("BELLJAR_ENGINE").stdin(Stdio::null());
    home.feed_command(command, b"")
}

/// The home of a server, and a policy of the operator for runs without one.
fn prepare(fixture: &Fixture) -> Home {
    fixture.policy(&format!("ca_file = \"{}\"", fixture.dir().join("ca.pem").display()));
    home(fixture, "")
}

fn packages_are_installed_before_the_script(fixture: &Fixture) {
    let home = prepare(fixture);
    home.write("plain.py", CODE);
    home.write("header.py", &format!("{HEADER}{CODE}"));
    let remark = "the network preset pip is allowed until the code starts";
    let done = run(&home, fixture, &["plain.py"]);
    assert_eq!((done.stdout.as_str(), done.stderr.contains(remark)), ("none\nclosed\n", false), "{done:?}");
    for args in [&["--with", "tiny", "plain.py"][..], &["header.py"]] {
        let done = run(&home, fixture, args);
        // The network is closed again before the code starts.
        assert_eq!((done.status, done.stdout.as_str()), (Some(0), "tiny\nclosed\n"), "{done:?}");
        assert!(done.stderr.contains("installing tiny") && done.stderr.contains(remark), "{done:?}");
    }
    let done = run(&home, fixture, &["-q", "--with", "tiny>=1", "--preset", "pip", "plain.py"]);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("tiny\nopen\n", ""), "{done:?}");
    let done = run(&home, fixture, &["--json", "--timings", "--with", "tiny", "plain.py"]);
    let result: Value = serde_json::from_str(&done.stdout).unwrap();
    assert!(result["timings"]["install"].is_number() && result["files"] == serde_json::json!([]), "{result}");
}

fn failed_installation_is_explained(fixture: &Fixture) {
    let home = prepare(fixture);
    home.write("plain.py", "print('ran')");
    home.write("header.py", &format!("{HEADER}{CODE}"));
    let refused = |args: &[&str], status: i32, words: &[&str]| {
        let done = run(&home, fixture, args);
        done.refused(status, words);
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    };
    let before = fixture.said().len();
    refused(
        &["--net", "disabled", "--with", "tiny", "plain.py"],
        2,
        &["--with: tiny cannot be installed", "disabled"],
    );
    refused(&["--net", "disabled", "header.py"], 2, &["the script's header: tiny cannot be installed"]);
    refused(&["--with", "-r x", "plain.py"], 2, &["--with", "is not a package"]);
    refused(&["--with", "tiny", "-l", "bash", "-c", "true"], 2, &["--with", "bash"]);
    home.write("broken.py", "# /// script\n# dependencies = [\n# ///\n");
    refused(&["broken.py"], 125, &["script: line 2", "is not valid"]);
    assert_eq!(fixture.said().len(), before);
    refused(&["-q", "--with", "nosuch", "plain.py"], 125, &["the package index has no nosuch"]);
    refused(
        &["-q", "--with", "tiny", "--preset", "npm", "--deny", "pypi.org", "plain.py"],
        125,
        &["the package index cannot be reached"],
    );
    home.write("old.py", "# /// script\n# requires-python = '>=4'\n# ///\n");
    refused(&["old.py"], 125, &["requires-python: >=4 is required, and the sandbox has Python 3."]);
    home.write("odd.py", "# /// script\n# requires-python = 'new'\n# ///\n");
    refused(&["odd.py"], 125, &["requires-python: \"new\" is no version specifier"]);
    refused(&["-q", "--engine", "process", "--with", "tiny", "plain.py"], 125, &["network", "such as local"]);
}

fn packages_are_installed_in_contexts_and_templates(fixture: &Fixture) {
    let home = prepare(fixture);
    let cell = serde_json::json!({"cell_type": "code", "metadata": {}, "source": CODE});
    home.write("n.ipynb", &serde_json::json!({"nbformat": 4, "metadata": {}, "cells": [cell]}).to_string());
    home.write("header.py", &format!("{HEADER}{CODE}"));
    if std::process::Command::new("/usr/bin/python3")
        .args(["-c", "import IPython"])
        .status()
        .unwrap()
        .success()
    {
        for args in [&["--with", "tiny", "n.ipynb"][..], &["--rich", "header.py"]] {
            let done = home.run_args(&[&["run"][..], args].concat());
            assert_eq!((done.status, done.stdout.as_str()), (Some(0), "tiny\nclosed\n"), "{done:?}");
        }
        home.run("run --net disabled --with tiny n.ipynb").refused(2, &["disabled"]);
    }
    let id = home.create("");
    home.good(&format!("sandbox snapshot {id} --name kept"));
    home.good(&format!("sandbox kill {id}"));
    let done = home.run("run --template kept header.py");
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "tiny\nclosed\n"), "{done:?}");
    assert_eq!(home.good("sandbox ls -q"), "");
}
