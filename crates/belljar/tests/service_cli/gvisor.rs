//! The engine `gvisor` on the command line, with the `runsc` of the search path.

use rustix::process::Signal;

use crate::fixture::{Done, Home, eventually};

/// Returns a home whose server has the engine; says that the test is skipped, and returns `None`, where it cannot be used.
fn home() -> Option<Home> {
    let home = Home::configured(
        "[server]\nlinger = '1s'\n[sandboxes]\nengines = ['gvisor']\npool = 0\ntemplate_pool = 0\n",
    );
    let report = Done::of(home.belljar(&["engine", "ls", "--json"]).output().unwrap()).stdout;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let engine = report.as_array().unwrap().iter().find(|engine| engine["name"] == "gvisor").unwrap();
    let Some(obstacle) = engine["obstacles"].get(0) else { return Some(home) };
    let reason = obstacle["detail"].as_str().unwrap();
    let text = format!("SKIPPED the engine gvisor: {reason}\n");
    std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()).unwrap();
    None
}

fn run(home: &Home, args: &[&str], variables: &[(&str, &str)]) -> Done {
    Done::of(home.belljar(args).envs(variables.iter().copied()).output().unwrap())
}

#[test]
fn code_runs_under_another_kernel() {
    let Some(home) = home() else { return };
    let code = "import os, platform; print(platform.release(), 2**64, os.getuid(), os.getcwd())";
    for platform in ["", "ptrace"] {
        let variables = [("BELLJAR_ENGINES_GVISOR_PLATFORM", platform)];
        let done = run(&home, &["run", "--engine", "gvisor", "-c", code], &variables);
        assert_eq!(
            (done.status, done.stdout.as_str()),
            (Some(0), "4.4.0 18446744073709551616 1000 /home/user\n"),
            "{done:?}"
        );
    }
    let hog = ["run", "--engine", "gvisor", "--memory", "64m", "-c", "x = b'x' * (256 << 20)"];
    assert_eq!(run(&home, &hog, &[]).status, Some(137));
    // What the engine lacks is refused, with the field's name.
    for (flags, field) in [(["--inodes", "1000"], "inodes:"), (["--limits", "watched"], "limits")] {
        let done = run(&home, &[&["run", "--engine", "gvisor", "-c", "1"], &flags[..]].concat(), &[]);
        assert!(done.status == Some(125) && done.stderr.contains(field), "{done:?}");
    }
    for (name, value, status, text) in [
        (
            "BELLJAR_ENGINES_GVISOR_PLATFORM",
            "xen",
            2,
            "BELLJAR_ENGINES_GVISOR_PLATFORM: \"xen\" is not allowed; give systrap or ptrace",
        ),
        ("BELLJAR_ENGINES_GVISOR_RUNSC", "/no/such", 125, "cannot run /no/such"),
        ("BELLJAR_ENGINES_GVISOR_RUNSC", "runsc", 125, "runsc is not an absolute path"),
    ] {
        let done = run(&home, &["run", "--engine", "gvisor", "-c", "1"], &[(name, value)]);
        assert!(done.status == Some(status) && done.stderr.contains(text), "{done:?}");
    }
    assert!(home.holder().is_none(), "a server was started");
}

#[test]
fn engine_shows_what_stands_in() {
    let Some(home) = home() else { return };
    let done = run(&home, &["engine", "info", "gvisor"], &[]);
    for text in ["Engine gvisor", "a kernel of its own", "landlock", "stand in for it", "RLIMIT_NPROC"] {
        assert!(done.status == Some(0) && done.stdout.contains(text), "{text}: {done:?}");
    }
    let done = run(&home, &["engine", "ls"], &[("BELLJAR_ENGINES_GVISOR_RUNSC", "/no/such")]);
    assert!(done.stdout.contains("cannot run /no/such"), "{done:?}");
}

#[test]
fn sandboxes_outlive_the_server() {
    let Some(home) = home() else { return };
    let sandbox = home.create("--engine gvisor --timeout 10m --memory 128m -q");
    assert_eq!(home.inside(&sandbox, "echo kept > file; uname -r"), "4.4.0\n");
    let info = home.json(&format!("sandbox info {sandbox}"));
    assert_eq!((&info["engine"], &info["isolation"]["tree"]), (&"gvisor".into(), &"host".into()), "{info}");
    home.good(&format!("sandbox pause {sandbox}"));
    let (server, _) = home.holder().unwrap();
    rustix::process::kill_process(server, Signal::KILL).unwrap();
    eventually(|| if home.is_held() { Err("the server is there".to_owned()) } else { Ok(()) });
    assert_eq!(home.inside(&sandbox, "cat file"), "kept\n");
    let fork = home.good(&format!("sandbox fork {sandbox} -q"));
    assert_eq!(home.inside(fork.trim(), "cat file; uname -r"), "kept\n4.4.0\n");
    let texts = ["limits: refused by the engine gvisor", "do not change; create one with other limits"];
    home.run(&format!("sandbox set {sandbox} --memory 256m")).refused(125, &texts);
    let args = ["sandbox", "exec", &sandbox, "--", "python3", "-c", "x = b'x' * (512 << 20)"];
    let killed = home.run_args(&args);
    let advice =
        "limits of a running sandbox of the engine gvisor do not change; create one with --memory SIZE";
    assert!(killed.status == Some(137) && killed.stderr.contains(advice), "{killed:?}");
    home.good(&format!("sandbox kill {sandbox} {}", fork.trim()));
    for ended in [sandbox.trim(), fork.trim()] {
        let dir = home.path().join("launcher/gvisor").join(ended);
        assert!(!dir.exists(), "{} is left", dir.display());
    }
}
