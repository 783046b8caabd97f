//! `belljar config`.

use crate::fixture::Home;

struct Done {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(home: &Home, args: &[&str]) -> Done {
    let output = home.belljar(args).output().unwrap();
    Done {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap().replace(home.dir.path().to_str().unwrap(), "DIR"),
    }
}

#[test]
fn file_is_checked() {
    let home = Home::new();
    let done = run(&home, &["config", "check"]);
    assert_eq!((done.status, done.stderr.as_str()), (Some(0), ""));
    assert!(done.stdout.starts_with("good; there is no file"), "{}", done.stdout);
    home.configure("[sandboxes]\npool = 2\n");
    let done = run(&home, &["config", "check"]);
    assert!(done.status == Some(0) && done.stdout.ends_with("home/belljar.toml: good\n"), "{}", done.stdout);
    // A named file takes precedence over the default one.
    std::fs::write(
        home.dir.path().join("other.toml"),
        "[server]\nlisten = ['nowhere']\n\n[sandboxs]\npool = 1\n[store]\nurl = 'postgres://['\n",
    )
    .unwrap();
    // All errors are reported at once, wherever they come from.
    let mut command = home.belljar(&["config", "check", "other.toml", "--set", "server.drian=1s"]);
    let output = command.env("BELLJAR_LOG_FORMAT", "xml").env("BELLJAR_LOGLEVEL", "info").output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), &b""[..]));
    insta::assert_snapshot!(String::from_utf8(output.stderr).unwrap());
    std::fs::write(home.dir.path().join("other.toml"), "[store]\nurl = 'postgres://['\n").unwrap();
    let done = run(&home, &["config", "check", "other.toml"]);
    assert_eq!(done.status, Some(125));
    insta::assert_snapshot!(done.stderr);
    // Nothing was created.
    assert!(!home.path().join("belljar.db").exists());
}

#[test]
fn example_is_valid() {
    let home = Home::new();
    let example = run(&home, &["config", "example"]).stdout;
    home.configure(&example);
    assert_eq!(run(&home, &["config", "check"]).status, Some(0));
    home.configure(&example.replace("\n#:", "\n"));
    let done = run(&home, &["config", "check"]);
    assert_eq!((done.status, done.stderr.as_str()), (Some(0), ""));
}

#[test]
fn effective_values_are_shown_with_their_origin() {
    let home = Home::new();
    home.configure("[sandboxes]\npool = 2\n[template.env]\nTOKEN = 'hush'\n");
    let mut command = home.belljar(&["config", "show", "--set", "metrics.open=true"]);
    command.env("BELLJAR_LOG_FORMAT", "json").env("BELLJAR_STORE_URL", "postgres://u:hush@h/d");
    let output = command.output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    for line in [
        "pool = 2  # ",
        "belljar.toml:2:8\n",
        "format = \"json\"  # BELLJAR_LOG_FORMAT\n",
        "open = true  # --set metrics.open\n",
        "url = \"postgres://u@h/d\"  # BELLJAR_STORE_URL\n",
        "drain = \"10s\"  # default\n",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(!shown.contains("hush"), "{shown}");
}

#[test]
fn file_is_found_by_flag_and_variable() {
    let home = Home::new();
    home.configure("[sandboxes]\npool = 1\n");
    let other = home.dir.path().join("other.toml");
    std::fs::write(&other, "[sandboxes]\npool = 2\n").unwrap();
    let third = home.dir.path().join("third.toml");
    std::fs::write(&third, "[sandboxes]\npool = 3\n").unwrap();
    let pool = |command: &mut std::process::Command| {
        let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
        shown.lines().find_map(|line| line.strip_prefix("pool = ")).map(|line| line[..1].to_owned())
    };
    assert_eq!(pool(&mut home.belljar(&["config", "show"])).as_deref(), Some("1"));
    let mut named = home.belljar(&["config", "show"]);
    assert_eq!(pool(named.env("BELLJAR_CONFIG", &other)).as_deref(), Some("2"));
    let mut both = home.belljar(&["config", "show", "--config", third.to_str().unwrap()]);
    assert_eq!(pool(both.env("BELLJAR_CONFIG", &other)).as_deref(), Some("3"));
    let mut missing = home.belljar(&["config", "show"]);
    assert_eq!(pool(missing.env("BELLJAR_CONFIG", home.dir.path().join("none"))), None);
}
