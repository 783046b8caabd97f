//! Behaviour and output of each command.

use std::process::Stdio;

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::fixture::{Done, Home, eventually};

#[test]
fn exec_passes_streams_arguments_and_status() {
    let home = Home::new();
    let id = home.create("-e MADE=here");
    let done = home.run_args(&["sandbox", "exec", &id, "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((done.status, done.stdout.as_str(), done.stderr.as_str()), (Some(3), "out\n", "err\n"));
    let done = home.feed(&format!("sandbox exec {id} -- sha256sum"), &vec![b'x'; 1 << 20]);
    assert!(done.stdout.starts_with("8f990ba0b577b51cf009ea049368c16b"), "{done:?}");
    let words = home.run_args(&[
        "sandbox",
        "exec",
        &id,
        "-e",
        "A=1",
        "--cwd",
        "/tmp",
        "--",
        "sh",
        "-c",
        "echo $A$MADE; pwd; echo \"$1\"",
        "sh",
        "two words",
    ]);
    assert_eq!(words.good(), "1here\n/tmp\ntwo words\n");
    // All arguments after the sandbox belong to the command, with and without --.
    assert_eq!(home.good(&format!("sandbox exec {id} --cwd /tmp ls -d --color=never .")), ".\n");
    assert_eq!(home.good(&format!("sandbox exec {id} printf %s -- -d --cwd")), "---d--cwd");
    let mut inherits =
        home.belljar(&["sandbox", "exec", &id, "--env", "FROM_HERE", "--", "sh", "-c", "echo $FROM_HERE"]);
    let inherits = inherits.env("FROM_HERE", "value").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&inherits.stdout), "value\n");
    assert_eq!(home.run_args(&["sandbox", "exec", &id, "-c", "--", "echo a | tr a b"]).good(), "b\n");
    let late = home.run(&format!("sandbox exec {id} --timeout 300ms -- sleep 50"));
    assert_eq!(late.status, Some(124), "{late:?}");
    assert!(late.stderr.contains("timed out"), "{late:?}");
    let killed = home.run_args(&["sandbox", "exec", &id, "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(
        (killed.status, killed.stderr.as_str()),
        (Some(137), "belljar: the command was killed (SIGKILL)\n")
    );
    let small = home.create("--memory 32m");
    let killed = home.run_args(&["sandbox", "exec", &small, "--", "python3", "-c", "x = b'x' * (200 << 20)"]);
    assert_eq!(killed.status, Some(137), "{killed:?}");
    let hint = format!(
        "exceeded its 32.0 MiB memory limit, against which its files count too; raise it with belljar sandbox set {small} --memory"
    );
    assert!(killed.stderr.contains(&hint), "{killed:?}");
    let missing = home.run(&format!("sandbox exec {id} -- no-such-program"));
    assert_eq!(missing.status, Some(127), "{missing:?}");
    assert!(missing.stderr.contains("no-such-program"), "{missing:?}");
    let refused = home.run(&format!("sandbox exec {id} -- /etc/passwd"));
    assert_eq!(refused.status, Some(126), "{refused:?}");
    home.run("sandbox exec nosuch -- true").refused(125, &["sandbox \"nosuch\" not found"]);
}

#[test]
fn background_command_keeps_running_and_is_listed() {
    let home = Home::new();
    let id = home.create("");
    for flag in ["-d", "--detach", "--background"] {
        let number = home.good(&format!("sandbox exec {flag} {id} -- sleep 200"));
        let number: u64 = number.trim().parse().unwrap();
        let listed = home.good(&format!("sandbox ps {id}"));
        let line = listed.lines().find(|line| line.split_whitespace().next() == Some(&number.to_string()));
        assert!(line.is_some_and(|line| line.contains("running") && line.ends_with("sleep 200")), "{listed}");
    }
    let process = home.json(&format!("sandbox ps {id}"));
    assert_eq!(process["argv"], serde_json::json!(["sleep", "200"]));
    assert_eq!((process["running"].as_bool(), process["exit_code"].is_null()), (Some(true), true));
    let started = home.run_args(&["sandbox", "exec", "-d", &id, "--format", "json", "--", "true"]).good();
    let started: Value = serde_json::from_str(&started).unwrap();
    assert!(started["process"].as_u64().is_some(), "{started}");
}

#[test]
fn background_command_can_be_read_attached_awaited_and_killed() {
    let home = Home::new();
    let id = home.create("");
    let line = "echo one; echo err >&2; while [ ! -e go ]; do sleep 0.02; done; echo two; exit 5";
    let number = home.run_args(&["sandbox", "exec", "-d", &id, "sh", "-c", line]).good();
    let process = |what: &str| format!("sandbox process {what} {id} {}", number.trim());
    eventually(|| {
        let read = home.run(&process("read"));
        let is_whole = (read.stdout.as_str(), read.stderr.as_str()) == ("one\n", "err\n");
        if read.status == Some(0) && is_whole { Ok(()) } else { Err(format!("{read:?}")) }
    });
    let line = process("attach");
    let attached = home.belljar(&line.split(' ').collect::<Vec<_>>()).stdout(Stdio::piped()).spawn().unwrap();
    home.inside(&id, "touch go");
    let attached = attached.wait_with_output().unwrap();
    assert_eq!(
        (attached.status.code(), attached.stdout.as_slice()),
        (Some(5), &b"one\ntwo\n"[..]),
        "{attached:?}"
    );
    let waited = home.run(&process("wait"));
    assert_eq!((waited.status, waited.stdout.as_str()), (Some(5), ""), "{waited:?}");
    assert_eq!(home.run(&process("read")).good(), "one\ntwo\n");
    let sleeping = home.good(&format!("sandbox exec -d {id} sleep 300"));
    let waiting = format!("sandbox process wait {id} {}", sleeping.trim());
    let waiting = home.belljar(&waiting.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    home.good(&format!("sandbox process kill {id} {}", sleeping.trim()));
    assert_eq!(waiting.wait_with_output().unwrap().status.code(), Some(143));
    home.run(&format!("sandbox process kill {id} 1 -s NOSUCH")).refused(2, &["--signal", "TERM"]);
    for what in ["attach", "read", "wait", "kill"] {
        home.run(&format!("sandbox process {what} {id} 999999")).refused(125, &["999999"]);
        home.run(&format!("sandbox process {what} nosuch 1")).refused(125, &["sandbox \"nosuch\" not found"]);
    }
}

#[test]
fn logs_contain_foreground_runs_and_outlive_the_sandbox() {
    let home = Home::new();
    let id = home.create("");
    home.run_args(&["sandbox", "exec", &id, "sh", "-c", "exit 3"]);
    let logs = home.good(&format!("sandbox logs {id}"));
    let events = |logs: &str, event: &str| {
        logs.lines().filter(|line| line.contains(&format!("  {event} process "))).count()
    };
    assert_eq!((events(&logs, "exec"), events(&logs, "exited")), (1, 1), "{logs}");
    assert!(logs.contains("exit code 3"), "{logs}");
    let number =
        home.run_args(&["sandbox", "exec", "-d", &id, "sh", "-c", "echo last words; sleep 300"]).good();
    eventually(|| match home.good(&format!("sandbox process read {id} {}", number.trim())).as_str() {
        "last words\n" => Ok(()),
        other => Err(other.to_owned()),
    });
    home.good(&format!("sandbox kill {id}"));
    let look = || {
        let info = home.json(&format!("sandbox info {id}"));
        assert_eq!(
            (&info["state"], &info["reason"]),
            (&"gone".into(), &"ended on request of the operator".into())
        );
        let logs = home.good(&format!("sandbox logs {id}"));
        for words in
            ["created", "exit code 3", "when the sandbox ended", "| last words\n", "ended  ended on request"]
        {
            assert!(logs.contains(words), "{words:?} is not in {logs}");
        }
    };
    look();
    // The next server has the history as well.
    eventually(|| if home.is_held() { Err("the server stays".to_owned()) } else { Ok(()) });
    look();
    home.run(&format!("sandbox ps {id}")).refused(125, &["ended on request"]);
}

#[test]
fn sandboxes_are_listed_by_label_and_state() {
    let home = Home::new();
    let first = home.create("--name one --label job=42 --label who=me");
    let second = home.create("--name two --label job=43");
    assert_eq!(home.good("sandbox ls -q --label job=42").trim(), first);
    assert_eq!(home.good("sandbox ls -q --label job=42 --label who=you"), "");
    assert_eq!(home.json("sandbox ls --label job=43")["name"], "two");
    let table = home.good("sandbox ls");
    let row = table.lines().find(|line| line.starts_with(&first)).unwrap();
    assert!(table.starts_with("ID ") && row.contains("one ") && row.ends_with("job=42,who=me"), "{table}");
    assert_eq!(home.good("sandbox pause one").trim(), first);
    assert_eq!(home.good("sandbox ls -q --state paused").trim(), first);
    assert_eq!(home.good("sandbox list -q --state running").trim(), second);
    assert_eq!(home.good("sandbox kill two").trim(), "two");
    assert_eq!(home.good("sandbox ls -q").trim(), first);
    let all = home.good("sandbox ls --all");
    let gone = all.lines().find(|line| line.starts_with(&second)).unwrap();
    assert!(gone.contains("gone") && gone.contains("ended on request"), "{all}");
    let again = home.good("sandbox create --name one --or-get -q");
    assert_eq!(again.trim(), first);
}

#[test]
fn sandbox_is_inspected_changed_paused_and_resumed() {
    let home = Home::new();
    let id = home.create("--timeout 10m --memory 128m --cpus 0.5 --pids 50 --disk 64m --tmp 32m");
    let info = home.good(&format!("sandbox info {id}"));
    for (name, value) in [
        ("id", id.as_str()),
        ("state", "running"),
        ("memory", "128.0 MiB"),
        ("cpus", "0.5"),
        ("pids", "50"),
        ("disk", "64.0 MiB"),
        ("network", "disabled"),
    ] {
        assert!(
            info.lines().any(|line| line.split_whitespace().next() == Some(name) && line.ends_with(value)),
            "{name}: {info}"
        );
    }
    assert!(info.contains("wall "), "{info}");
    assert_eq!(home.json(&format!("sandbox pause {id}"))["state"], "paused");
    assert_eq!(home.json(&format!("sandbox info {id}"))["state"], "paused");
    assert_eq!(home.json(&format!("sandbox resume {id}"))["state"], "running");
    let set = home.json(&format!(
        "sandbox set {id} --timeout 1h --idle-timeout 20m --on-timeout pause --memory 256m --label a=b"
    ));
    assert_eq!(
        (set["limits"]["memory_bytes"].as_u64(), set["labels"]["a"].as_str(), set["on_timeout"].as_str()),
        (Some(256 << 20), Some("b"), Some("pause")),
        "{set}"
    );
    assert!(home.json(&format!("sandbox set {id} --label a-"))["labels"].is_null());
    let logs = home.good(&format!("sandbox logs {id}"));
    for event in ["created", "paused", "resumed"] {
        assert!(logs.contains(event), "{logs}");
    }
    let stats = home.json(&format!("sandbox stats {id}"));
    assert_eq!(
        (stats["memory_limit_bytes"].as_u64(), stats["pids_limit"].as_u64()),
        (Some(256 << 20), Some(50)),
        "{stats}"
    );
    let table = home.good(&format!("sandbox stats {id}"));
    assert!(
        table.contains("memory") && table.contains("256.0 MiB") && table.contains("disk /home/user"),
        "{table}"
    );
}

/// A sandbox reports its current limits, not those of its launch, also one of the pool.
#[test]
fn walls_are_shown_with_current_limits() {
    let home = Home::configured("[server]\nlinger = '1s'\n[sandboxes]\npool = 1\n");
    let wall = |info: &serde_json::Value, name: &str| {
        let layers = info["isolation"]["layers"].as_array().unwrap();
        let layer = layers.iter().find(|layer| layer["name"] == name).unwrap();
        layer["detail"].as_str().unwrap().split(" by ").next().unwrap().to_owned()
    };
    let info = eventually(|| {
        let made = home.json("sandbox create");
        if made["pooled"] == true { Ok(made) } else { Err("the sandbox is not from the pool".to_owned()) }
    });
    let id = info["id"].as_str().unwrap();
    home.good(&format!("sandbox set {id} --memory 160m --pids 33 --cpus 0.5"));
    let info = home.json(&format!("sandbox info {id}"));
    assert_eq!(["memory", "pids", "cpu"].map(|name| wall(&info, name)), ["160 MiB", "33", "0.5"], "{info}");
}

#[test]
fn logs_are_followed() {
    let home = Home::new();
    let id = home.create("");
    let mut command = home.belljar(&["sandbox", "logs", "-f", &id]);
    let out = home.file("logs");
    let mut following =
        command.stdout(std::fs::File::create(&out).unwrap()).stderr(Stdio::null()).spawn().unwrap();
    let has = |word: &str| {
        eventually(|| if home.read("logs").contains(word) { Ok(()) } else { Err(home.read("logs")) })
    };
    has("created");
    home.good(&format!("sandbox pause {id}"));
    has("paused");
    home.good(&format!("sandbox kill {id}"));
    eventually(|| following.try_wait().unwrap().ok_or_else(|| "the log does not end".to_owned()));
}

#[test]
fn snapshots_and_forks_copy_files() {
    let home = Home::new();
    let id = home.create("--label kind=original");
    home.inside(&id, "mkdir d && echo content > d/file");
    let template = home.good(&format!("sandbox snapshot {id} --name base --note first"));
    assert!(template.trim().starts_with("tpl_"), "{template}");
    let table = home.good("template ls");
    assert!(table.contains("base") && table.contains("first") && table.contains(&id), "{table}");
    assert_eq!(home.json("template info base")["id"].as_str(), Some(template.trim()));
    let copy = home.create("--template base");
    assert_eq!(home.inside(&copy, "cat d/file"), "content\n");
    let forks = home.good(&format!("sandbox fork {id} -n 3 --label kind=fork"));
    assert_eq!(forks.lines().count(), 3);
    for fork in forks.lines() {
        assert_eq!(home.inside(fork, "cat d/file"), "content\n");
    }
    assert_eq!(home.good("sandbox ls -q --label kind=fork").lines().count(), 3);
    assert_eq!(home.good("template rm base"), template);
    assert!(!home.good("template ls").contains("base"));
    home.run("template info base").refused(125, &["template \"base\" not found"]);
    assert_eq!(home.good("sandbox kill --label kind=fork").lines().count(), 3);
    assert_eq!(home.good("sandbox kill --all").lines().count(), 2);
    assert_eq!(home.good("sandbox ls -q"), "");
}

/// A build is followed, left, found again and cancelled; its server does not end before it does.
#[test]
fn builds_are_listed_attached_to_and_cancelled() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let home = Home::new();
    let text = |command: &str| {
        format!(
            "name = \"one\"\nbase = \"host\"\n[[step]]\nrun = \"echo noise\"\n[[step]]\nrun = \"{command}\"\n"
        )
    };
    home.write("slow.toml", &text("sleep 1000"));
    home.write("quick.toml", &text("echo made > made"));
    let start = |args: &[&str], name: &str| {
        let mut command = home.belljar(args);
        command.stdout(Stdio::null()).stderr(std::fs::File::create(home.file(name)).unwrap());
        command.spawn().unwrap()
    };
    let shows = |name: &str, text: &str| {
        eventually(|| if home.read(name).contains(text) { Ok(()) } else { Err(home.read(name)) });
    };
    let end = |mut child: std::process::Child, signal: Signal| {
        rustix::process::kill_process(Pid::from_child(&child), signal).unwrap();
        eventually(|| child.try_wait().unwrap().ok_or_else(|| "it does not end".to_owned())).code()
    };
    let first = start(&["template", "build", "slow.toml"], "first");
    shows("first", "[2/2] run sleep 1000");
    assert!(home.read("first").contains("[1/2] 0.") && home.read("first").contains(" noise\n"));
    let table = home.good("template builds");
    assert!(table.contains("running") && table.contains("[2/2] run sleep 1000"), "{table}");
    let id = home.good("template builds -q").trim().to_owned();
    assert_eq!(end(first, Signal::HUP), Some(129));
    assert!(home.read("first").contains(&format!("belljar template attach {id}")), "{}", home.read("first"));
    let second = start(&["template", "build", "quick.toml", "--name", "two"], "second");
    shows("second", "queued: 1 build before it");
    let attached = start(&["template", "attach", &id], "attached");
    shows("attached", "[2/2] run sleep 1000");
    assert_eq!(end(attached, Signal::INT), Some(130));
    assert_eq!(home.json("template builds")["ahead"], 1);
    assert_eq!(home.good(&format!("template cancel {id}")).trim(), id);
    let done = Done::of(second.wait_with_output().unwrap());
    assert_eq!(done.status, Some(0), "{}", home.read("second"));
    shows("second", "[1/2] cached");
    // Ctrl-C cancels a build.
    let third = start(&["template", "build", "slow.toml"], "third");
    shows("third", "[2/2] run sleep 1000");
    assert_eq!(end(third, Signal::INT), Some(130));
    shows("third", "cancelled; steps that had ended stay cached");
    let states = home.good("template builds");
    assert_eq!(states.matches("cancelled").count(), 2, "{states}");
    home.run("template cancel bld_nosuch").refused(125, &["build \"bld_nosuch\" not found"]);
    home.run("template attach bld_nosuch").refused(125, &["build \"bld_nosuch\" not found"]);
    // A failed step shows its output, on a terminal too.
    home.write("bad.toml", &text("echo reason; exit 3"));
    home.run("template build bad.toml -q").refused(125, &["step 2 of 2 (run)", "exit code 3", "reason"]);
    let child = "name = \"child\"\nbase = \"template:two\"\n[limits]\nmemory = \"300m\"\n[[step]]\nenv = { A = \"b\" }\n";
    home.write("child.toml", child);
    home.good("template build child.toml");
    let info = home.good("template info child");
    for line in ["parent", "two", "limit", "memory 300 MiB", "A=b", "1 env A", "warm"] {
        assert!(info.contains(line), "{line}: {info}");
    }
    let removed = home.run("template rm two");
    assert!(removed.stderr.contains("child based on two: they keep all their files"), "{removed:?}");
    assert!(home.good("template info child").contains("A=b"));
}

#[test]
fn ports_are_published_and_unpublished() {
    let home = Home::new();
    let id = home.create("");
    home.inside(&id, "echo content > file");
    home.good(&format!("sandbox exec -d {id} -- python3 -m http.server 8000"));
    // The printed URL works as is, with the socket in the hint.
    let done = home.run(&format!("sandbox port {id} 8000"));
    let socket = home.path().join("belljar.sock");
    let (url, hint) = (done.stdout.trim(), format!("curl --unix-socket {} URL", socket.display()));
    assert!(
        url.starts_with(&format!("http://localhost/v1/sandboxes/{id}/ports/8000/proxy/?belljar_token=")),
        "{done:?}"
    );
    assert!(done.stderr.contains(&hint) && done.stderr.contains("port-forward"), "{done:?}");
    curl(&["--unix-socket", socket.to_str().unwrap(), &url.replace("/?", "/file?")]);
    let mut command = home.belljar(&["sandbox", "port-forward", &id, "0:8000"]);
    let mut forwarding = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(forwarding.stdout.take().unwrap()), &mut line)
        .unwrap();
    curl(&[&format!("{}file", line.trim())]);
    home.run(&format!("sandbox port-forward {id} 0:0")).refused(2, &["is not allowed"]);
    home.run("sandbox port-forward nosuch 0:80").refused(125, &["sandbox \"nosuch\" not found"]);
    forwarding.kill().unwrap();
    forwarding.wait().unwrap();
    // With a server that has an address, the URL uses it.
    let (server, said) = home.serve(&[]);
    let address = said.split_once("http://").unwrap().1.lines().next().unwrap();
    let done = home.run(&format!("sandbox port {id} 8000"));
    assert!(done.stdout.starts_with(&format!("http://{address}/v1/")) && done.stderr.is_empty(), "{done:?}");
    curl(&[&done.stdout.trim().replace("/?", "/file?")]);
    crate::fixture::stop(server);
    home.good(&format!("sandbox port {id} 9000 --public"));
    let table = home.good(&format!("sandbox port {id}"));
    assert!(table.contains("with a token") && table.contains("anybody"), "{table}");
    assert!(!home.good(&format!("sandbox port {id} 8000 --token 1h")).trim().is_empty());
    assert_eq!(home.good(&format!("sandbox port {id} 8000 --remove")), "");
    assert!(!home.good(&format!("sandbox port {id}")).contains("8000"));
}

/// Fetches the file as soon as the port is open.
fn curl(args: &[&str]) {
    eventually(|| {
        let output = std::process::Command::new("curl").arg("-sS").args(args).output().unwrap();
        if output.stdout == b"content\n" { Ok(()) } else { Err(format!("{output:?}")) }
    });
}

#[test]
fn keys_are_limited_by_role_and_quota() {
    let home = Home::new();
    let id = home.create("");
    let reader = home.good("key create --role read --name looks").trim().to_owned();
    let with = |key: &str, line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        let output = home.belljar(&args).env("BELLJAR_API_KEY", key).output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert!(reader.starts_with("bj_"));
    assert_eq!(with(&reader, "sandbox ls -q").1.trim(), id);
    let refused = with(&reader, &format!("sandbox kill {id}"));
    assert_eq!((refused.0, refused.1.as_str()), (Some(125), ""), "{refused:?}");
    assert!(refused.2.contains("user"), "{refused:?}");
    let table = home.good("key ls");
    let row = table.lines().find(|line| line.contains("looks")).unwrap();
    assert!(row.contains("read") && row.ends_with("yes") && !table.contains(&reader), "{table}");
    let key = row.split_whitespace().next().unwrap();
    home.good(&format!("key revoke {key}"));
    assert!(home.good("key ls").contains("revoked"));
    assert_eq!(with(&reader, "sandbox ls").0, Some(125));
    let made = home.json("key create --role user --max-sandboxes 1 --expires 1h");
    let user = made["key"].as_str().unwrap();
    let first = with(user, "sandbox create");
    assert_eq!(first.0, Some(0), "{first:?}");
    let second = with(user, "sandbox create");
    assert_eq!(second.0, Some(125), "{second:?}");
    // Quotas change individually, and take effect at once.
    let key = made["id"].as_str().unwrap();
    let set = home.json(&format!("key set {key} --max-sandboxes 2 --max-memory 4g"));
    let quotas = (&set["quotas"]["sandboxes"], &set["quotas"]["memory_bytes"]);
    assert_eq!(quotas, (&2.into(), &4_294_967_296_u64.into()), "{set}");
    let second = with(user, "sandbox create");
    assert_eq!(second.0, Some(0), "{second:?}");
    home.good(&format!("sandbox kill {}", second.1.trim()));
    let set = home.json(&format!("key set {key} --max-memory none"));
    let quotas = (&set["quotas"]["sandboxes"], &set["quotas"]["memory_bytes"]);
    assert_eq!(quotas, (&2.into(), &serde_json::Value::Null), "{set}");
    home.run(&format!("key set {key} --max-sandboxes many")).refused(2, &["--max-sandboxes"]);
    // So do the name, the role and the expiry.
    let set = home.json(&format!("key set {key} --name worker --role read --expires 2h"));
    assert_eq!(
        (&set["name"], &set["role"], &set["quotas"]["sandboxes"]),
        (&"worker".into(), &"read".into(), &2.into())
    );
    assert!(set["expires_at"].is_string(), "{set}");
    assert_eq!(with(user, "sandbox create").0, Some(125));
    let set = home.json(&format!("key set {key} --role user --expires none"));
    assert_eq!(
        (&set["name"], set["expires_at"].is_null(), &set["usage"]["sandboxes"]),
        (&"worker".into(), true, &1.into()),
        "{set}"
    );
    assert!(home.good("key ls").lines().any(|line| line.contains("worker") && line.contains("1 of 2")));
    home.run(&format!("key set {key} --role king")).refused(2, &["--role", "admin, user, approver or read"]);
    home.run("key set nosuch --max-sandboxes 1").refused(125, &["key \"nosuch\" not found"]);
    assert_eq!(with(user, &format!("key set {key} --max-sandboxes 9")).0, Some(125));
    // The operator sees both sandboxes, the key only its tenant's.
    assert_eq!(home.good("sandbox ls -q").lines().count(), 2);
}

#[test]
fn status_and_top_show_what_is_used() {
    let home = Home::new();
    let none = home.run("status");
    assert_eq!((none.status, none.stdout.as_str()), (Some(1), ""), "{none:?}");
    assert!(none.stderr.contains("no server is running"), "{none:?}");
    let started = home.json("status --start");
    let socket = started["socket"].as_str().unwrap();
    assert!(std::os::unix::net::UnixStream::connect(socket).is_ok(), "{started}");
    let (process, _) = home.holder().unwrap();
    assert_eq!(started["pid"], process.as_raw_nonzero().get(), "{started}");
    let id = home.create("--name busy --memory 96m");
    let status = home.json("status");
    assert_eq!((&status["ready"], &status["sandboxes"]["running"]), (&true.into(), &1.into()), "{status}");
    assert_eq!(
        status["engines"][0],
        serde_json::json!({"name": "local", "is_default": true, "obstacles": []})
    );
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    let table = home.good("status");
    assert!(table.contains("1 running") && table.contains("role admin"), "{table}");
    assert!(table.contains(&format!("kill {} ends it", process.as_raw_nonzero())), "{table}");
    let line = home.json("top --delay 0");
    assert_eq!(
        (&line["id"], &line["cpus"], &line["memory_limit_bytes"]),
        (&id.as_str().into(), &serde_json::Value::Null, &(96_u64 << 20).into()),
        "{line}"
    );
    home.inside(&id, "(while :; do :; done) > /dev/null 2>&1 &");
    let busy = eventually(|| {
        let line = home.json("top --delay 300ms -n 1");
        if line["cpus"].as_f64().is_some_and(|cpus| cpus > 0.05) { Ok(line) } else { Err(line.to_string()) }
    });
    assert!(busy["pids"].as_u64().is_some_and(|pids| pids > 0), "{busy}");
    let table = home.good("top --delay 300ms -n 1");
    assert!(table.contains("busy") && table.contains("of 96.0 MiB") && table.contains(" %"), "{table}");
    home.run("top --delay soon").refused(2, &["delay"]);
}

#[test]
fn audit_log_is_read_verified_and_exported() {
    let home = Home::new();
    let id = home.create("");
    for number in 0..3 {
        home.inside(&id, &format!("echo {number}"));
    }
    home.good(&format!("sandbox kill {id}"));
    let last = home.good("audit tail -n 1");
    assert_eq!(last.lines().count(), 1, "{last}");
    let record: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(
        (record["action"].as_str(), record["sandbox"].as_str()),
        (Some("sandbox.kill"), Some(id.as_str()))
    );
    let tail = home.good("audit tail -n 200");
    let seq = |line: &str| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap();
    assert!(tail.lines().map(seq).eq(1..=record["seq"].as_u64().unwrap()), "{tail}");
    assert_eq!(home.good(&format!("audit tail --sandbox {id} --action sandbox.create")).lines().count(), 1);
    let whole = home.good("audit verify");
    assert!(whole.starts_with(&format!("whole: {} records", tail.lines().count())), "{whole}");
    assert_eq!(home.json("audit verify")["ok"], true);
    let exported = home.good("audit export");
    home.write("trail.jsonl", &exported);
    assert!(home.good("audit verify trail.jsonl").starts_with("whole: "));
    home.write("trail.jsonl", &exported.replacen("sandbox.create", "sandbox.delete", 1));
    let broken = home.run("audit verify trail.jsonl");
    broken.refused(1, &["broken at"]);
}

#[test]
fn audit_log_is_archived_and_verified_with_its_files() {
    let home = Home::new();
    let id = home.create("");
    for number in 0..3 {
        home.inside(&id, &format!("echo {number}"));
    }
    let before = home.good("audit export");
    let noted: Value = serde_json::from_str(before.lines().nth(1).unwrap()).unwrap();
    let noted = format!("2:{}", noted["hash"].as_str().unwrap());
    let says = |line: &str, words: &[&str]| {
        let done = home.run(line);
        assert!(words.iter().all(|word| done.stderr.contains(word)), "{line}: {done:?}");
        done.good()
    };

    let archived = home.good("audit archive --through 3");
    let a = archived.trim().strip_prefix("records 1 to 3: ").unwrap();
    assert!(a.ends_with("home/audit/audit-000000000001-000000000003.jsonl"), "{a}");
    let record: Value = serde_json::from_str(&home.good("audit tail -n 1 --action audit.archive")).unwrap();
    assert_eq!((&record["details"]["first"], &record["details"]["last"]), (&json!("1"), &json!("3")));
    let rest = says("audit export", &["records up to 3 are archived"]);
    assert!((std::fs::read_to_string(a).unwrap() + &rest).starts_with(&before));
    says("audit tail -n 100", &["records up to 3 are archived"]);
    assert_eq!(says("audit tail -n 1", &[""]).lines().count(), 1);
    says("audit verify", &["records up to 3 are archived"]);
    assert_eq!(home.json("audit verify")["first"], 4);
    says("audit archive --through 3", &["nothing to archive"]);
    says("audit archive --keep 1h", &["nothing to archive"]);

    let second = home.json("audit archive --before 2100-01-01T00:00:00Z");
    let b = second["path"].as_str().unwrap();
    assert_eq!(second["first"], 4);
    assert!(home.good(&format!("audit verify {b} {a}")).starts_with("whole: "));
    let database = ["the files are whole: ", "are archived"];
    says(&format!("audit verify --database {b} {a}"), &database);
    says(&format!("audit verify --database --head {noted} {b} {a}"), &database);
    says(&format!("audit verify {b}"), &["record 4 is the first one"]);
    home.run(&format!("audit verify --head {noted}")).refused(2, &["record 2 of the audit log is archived"]);
    home.run(&format!("audit verify --database {a}")).refused(1, &["broken at record 4", "no file has"]);
    home.write("changed.jsonl", &std::fs::read_to_string(a).unwrap().replacen("sandbox.create", "exec", 1));
    home.run(&format!("audit verify {b} changed.jsonl")).refused(1, &["changed.jsonl: broken at record 1: "]);
    for (line, word) in [
        ("audit archive --through 1 --keep 1h", "cannot be used with"),
        ("audit archive --keep soon", "--keep"),
        ("audit verify --database", "FILE"),
    ] {
        home.run(line).refused(2, &[word]);
    }
    home.run("audit verify nosuch.jsonl").refused(125, &["nosuch.jsonl"]);
}

#[test]
fn audit_log_is_followed_from_its_last_records() {
    let home = Home::new();
    home.good("sandbox kill --all");
    let first = home.create("");
    let second = home.create("");
    let mut command = home.belljar(&["audit", "tail", "-f", "-n", "1"]);
    let out = home.file("tail");
    let mut following =
        command.stdout(std::fs::File::create(&out).unwrap()).stderr(Stdio::null()).spawn().unwrap();
    let has = |word: &str| {
        eventually(|| if home.read("tail").contains(word) { Ok(()) } else { Err(home.read("tail")) })
    };
    has(&second);
    home.good(&format!("sandbox kill {second}"));
    has("sandbox.kill");
    assert!(!home.read("tail").contains(&first));
    following.kill().unwrap();
    following.wait().unwrap();
}

#[test]
fn completion_is_printed_for_each_shell() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = home.good(&format!("completion {shell}"));
        assert!(script.contains("snapshot") && script.contains("outward-links"), "{shell}");
    }
    home.write("completion.bash", &home.good("completion bash"));
    let line = "source completion.bash; COMP_WORDS=(belljar sandbox sna); COMP_CWORD=2; _belljar belljar sna sandbox; \
                echo ${COMPREPLY[*]}";
    let output =
        std::process::Command::new("bash").args(["-c", line]).current_dir(home.dir.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "snapshot\n", "{output:?}");
    // Completion starts no server.
    assert!(!home.path().join("belljar.sock").exists());
}

#[test]
fn gc_removes_only_leftovers() {
    let home = Home::new();
    let id = home.create("");
    home.inside(&id, "echo content > file");
    let template = home.good(&format!("sandbox snapshot {id} --name base")).trim().to_owned();
    assert_eq!(home.good("gc"), "");
    assert!(home.run("gc --dry-run").stderr.contains("nothing is left over"));
    home.write("home/templates/tpl_00000000000000000000.tar", &"x".repeat(5000));
    home.write("home/belljar.log.old", "old");
    home.write("home/templates/mine/note", "a directory of somebody");
    let left = home.path().join("templates/tpl_00000000000000000000.tar");
    let said = home.run("gc --dry-run");
    assert!(
        said.stdout.contains("archive") && said.stdout.contains("4.9 KiB") && said.stdout.contains("log "),
        "{said:?}"
    );
    assert!(said.stderr.contains("4.9 KiB can be freed"), "{said:?}");
    assert!(left.exists() && home.path().join("belljar.log.old").exists());
    assert_eq!(home.good("gc -q --dry-run").lines().count(), 2);
    let last = home.json("gc --dry-run");
    assert_eq!(
        (last["kind"].as_str(), last["bytes"].as_u64(), last["count"].as_u64()),
        (Some("log"), Some(3), Some(1))
    );
    let said = home.run("gc");
    assert!(said.status == Some(0) && said.stderr.contains("freed"), "{said:?}");
    assert!(!left.exists() && !home.path().join("belljar.log.old").exists());
    assert!(home.path().join(format!("templates/{template}.tar")).exists());
    assert!(home.path().join("templates/mine/note").exists());
    let copy = home.create("--template base");
    assert_eq!(home.inside(&copy, "cat file"), "content\n");
    // Only administrators may collect, and it is audited.
    let user = home.good("key create --role user").trim().to_owned();
    let refused = home.belljar(&["gc"]).env("BELLJAR_API_KEY", user).output().unwrap();
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert_eq!(
        home.good("audit tail --action server.collect")
            .lines()
            .filter(|line| line.contains("\"ok\""))
            .count(),
        2
    );
}

#[test]
fn quiet_listings_have_ids_alone() {
    let home = Home::new();
    let id = home.create("--name one");
    let key = home.json("key create --name worker")["id"].as_str().unwrap().to_owned();
    let secret = home.feed("secret create s1 --format json", b"a secret value").good();
    let secret: serde_json::Value = serde_json::from_str(secret.trim()).unwrap();
    let template = home.good(&format!("sandbox snapshot {id} --name kept")).trim().to_owned();
    for (line, expected) in [
        ("sandbox ls -q", id.as_str()),
        ("sandbox info -q one", &id),
        ("key ls -q", &key),
        ("secret ls -q", secret["id"].as_str().unwrap()),
        ("template info -q kept", &template),
    ] {
        assert_eq!(home.good(line), format!("{expected}\n"), "{line}");
    }
    assert!(home.good("template ls -q").lines().any(|line| line == template));
    assert_eq!(home.good("volume ls -q"), "");
    let events = home.good("events -q");
    assert!(!events.is_empty() && events.lines().all(|line| !line.contains(' ')), "{events}");
    // What is listed can be used.
    home.good(&format!("key set {} --max-sandboxes 5", home.good("key ls -q").trim()));
    // Both spellings of JSON are the same.
    for line in ["sandbox ls", "key ls", "template ls", "net presets pip"] {
        let spelt = [" --json", " --format json"].map(|flag| home.good(&format!("{line}{flag}")));
        assert!(spelt[0].starts_with('{') && spelt[0] == spelt[1], "{line}: {spelt:?}");
    }
    let result = home.run_args(&["run", "--format", "json", "-c", "print(1)"]).good();
    assert!(result.starts_with('{'), "{result}");
    home.run("run --events --format json -c 1").refused(2, &["--format"]);
}
