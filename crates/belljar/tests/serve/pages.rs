//! Runs the commands of the documentation.

use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::fixture::{BELLJAR, Home, repository};

pub(crate) fn page(name: &str) -> String {
    std::fs::read_to_string(repository().join("docs").join(name)).unwrap()
}

/// Returns the fenced blocks of one kind.
pub(crate) fn blocks(page: &str, kind: &str) -> Vec<String> {
    let fence = format!("```{kind}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

pub(crate) fn lacks(programs: &[&str]) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).exists());
    programs.iter().find(|name| !there(name)).map(|name| format!("SKIPPED: there is no program {name}"))
}

pub(crate) fn say(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn has_ipython() -> bool {
    let found = Command::new("python3").args(["-c", "import IPython"]).output();
    let has = found.is_ok_and(|output| output.status.success());
    if !has {
        say("SKIPPED: python3-ipython is not installed here");
    }
    has
}

/// Runs all commands of docs/rest.md in one shell.
#[test]
fn rest_page_commands_work() {
    if let Some(lack) = lacks(&["curl", "jq", "timeout"]) {
        return say(&lack);
    }
    let mut blocks = blocks(&page("rest.md"), "sh");
    assert_eq!(blocks.len(), 15);
    let has_code = has_ipython();
    if !has_code {
        blocks.retain(|block| !block.contains("/code "));
    }
    if !rustix::process::geteuid().is_root() {
        blocks.retain(|block| !block.contains("/v1/volumes"));
        say("SKIPPED: volumes need a server of root");
    }
    let home = Home::new();
    let server = home.serve(&[]);
    let mut shell = home.isolated_command("/bin/bash".as_ref());
    shell.args(["-euxo", "pipefail", "-c", &blocks.concat()]);
    shell.env("BELLJAR_URL", format!("http://{}", server.address)).env("BELLJAR_API_KEY", &server.key);
    let output = shell.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    assert!(!has_code || stdout.contains("preserved\n42\n"), "{stdout}");
    for expected in [
        r#""data":"hello\nuser\n""#,
        "event: result",
        r#""data":"/tmp\n""#,
        "print(\"hello\")\n",
        "event: sandbox.created",
        "event: ready",
        "belljar_token=",
        r#""data":"done\n""#,
        r#""sandboxes":4"#,
        r#""action":"key.create""#,
        r#""ok":true"#,
        r#""leftovers":"#,
    ] {
        assert!(stdout.contains(expected), "{expected}: {stdout}");
    }
}

/// Runs the REST commands of docs/code-interpreter.md in one shell.
#[test]
fn code_page_commands_work() {
    if let Some(lack) = lacks(&["curl", "jq"]) {
        return say(&lack);
    }
    if !has_ipython() {
        return;
    }
    let blocks = blocks(&page("code-interpreter.md"), "sh");
    assert_eq!(blocks.len(), 4);
    let home = Home::new();
    let server = home.serve(&[]);
    let mut shell = home.isolated_command("/bin/bash".as_ref());
    shell.args(["-euxo", "pipefail", "-c", &blocks[2..].join("\n")]);
    shell.env("BELLJAR_URL", format!("http://{}", server.address)).env("BELLJAR_API_KEY", &server.key);
    let output = shell.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    let expected =
        ["preserved\n42\n", "event: ended", "'/tmp'", "python idle\nc", "{\"interrupted\":false}2\n9\n"];
    for expected in expected {
        assert!(stdout.contains(expected), "{expected}: {stdout}");
    }
}

/// Runs the lines with `$` of the pages for operators, each in a shell of its own, as the operator of a running server.
#[test]
fn operator_page_commands_work() {
    if let Some(lack) = lacks(&["curl", "openssl"]) {
        return say(&lack);
    }
    let home = Home::new();
    let server = home.serve(&[]);
    server.create("{}");
    let fresh = Home::new();
    let bin = std::path::Path::new(BELLJAR).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let shell = |home: &Home, line: &str| {
        let mut shell = home.isolated_command("/bin/bash".as_ref());
        shell.args(["-ec", line]).env("PATH", &path).env("BELLJAR_API_KEY", &server.key);
        shell
    };
    let certificate = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
                       -subj /CN=localhost -keyout key.pem -out cert.pem";
    assert!(shell(&fresh, certificate).stderr(Stdio::null()).status().unwrap().success());
    let mut count = 0;
    for name in ["configuration.md", "observability.md", "remote-host.md", "serve.md", "upgrade.md"] {
        for block in blocks(&page(&format!("operating/{name}")), "console") {
            for line in block.lines().filter_map(|line| line.strip_prefix("$ ")) {
                count += 1;
                if line.starts_with("belljar serve") {
                    serve(&fresh, &mut shell(&fresh, line), line);
                    continue;
                }
                let line = line.replace("http://127.0.0.1:8787", &format!("http://{}", server.address));
                let output = shell(&home, &line).output().unwrap();
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{name}: {line}: {stderr}");
                assert!(!output.stdout.is_empty() || line.contains('>'), "{name}: {line} says nothing");
            }
        }
    }
    assert!(count >= 10, "only {count} lines were run");
}

/// Runs a line that starts a server. It serves on loopback; on other addresses it fails without a key.
fn serve(home: &Home, shell: &mut Command, line: &str) {
    // The default port may be in use.
    shell.env("BELLJAR_SERVER_LISTEN", "127.0.0.1:0").env("BELLJAR_SANDBOXES_ON_EXIT", "end");
    let started = home.spawn(shell);
    if line.contains("0.0.0.0") {
        let refused = started.err().unwrap();
        assert_eq!(refused.status, Some(125), "{refused:?}");
        assert!(refused.stderr.contains("there is no API key yet"), "{line}: {refused:?}");
        return;
    }
    let server = started.unwrap_or_else(|refused| panic!("{line}: {refused:?}"));
    assert_eq!(server.call("GET", "/v1/me", "").status, 200, "{line}");
    assert_eq!(server.stop(Signal::TERM), Some(0));
    // The next server starts from scratch again.
    std::fs::remove_dir_all(home.path()).unwrap();
}

/// systemd accepts the units without warnings.
#[test]
fn systemd_accepts_the_units() {
    if let Some(lack) = lacks(&["systemd-analyze"]) {
        return say(&lack);
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["belljar.service", "belljar.socket"] {
        let unit = std::fs::read_to_string(repository().join("deploy/systemd").join(name)).unwrap();
        // The program is not installed here.
        let unit = unit.replace("/usr/local/bin/belljar", BELLJAR);
        std::fs::write(dir.path().join(name), unit).unwrap();
    }
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["verify", "--man=no", "belljar.service", "belljar.socket"]).current_dir(dir.path());
    let output = analyze.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("belljar"), "{said}");
}
