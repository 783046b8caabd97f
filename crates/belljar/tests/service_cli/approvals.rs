//! Calls that wait for another person: what the command that waits says, and what others see.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::code::has_ipython;
use crate::fixture::{Done, Home, eventually, stop};

/// A home with a key whose calls all wait, and one of a person who decides.
struct People {
    home: Home,
    agent: String,
    ann: String,
}

impl People {
    fn new() -> Self {
        Self::in_home(Home::new())
    }

    fn in_home(home: Home) -> Self {
        let key = |line: &str| home.good(&format!("key create {line}")).trim().to_owned();
        let agent = key("--name agent --owner agent --approval always");
        let ann = key("--name ann --owner ann --role approver");
        Self { home, agent, ann }
    }

    /// Starts a command of the agent, with this standard input.
    fn start(&self, args: &[&str], stdin: Stdio) -> Child {
        let mut command: Command = self.home.belljar(args);
        command.env("BELLJAR_API_KEY", &self.agent).stdin(stdin);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Returns the id of the next call that waits.
    fn waiting(&self) -> String {
        eventually(|| {
            let id = self.home.good(&format!("approval ls -q --api-key {}", self.ann)).trim().to_owned();
            if id.is_empty() { Err("no call waits".to_owned()) } else { Ok(id) }
        })
    }

    fn approve(&self) -> String {
        let id = self.waiting();
        self.home.good(&format!("approval approve {id} --api-key {}", self.ann));
        id
    }

    /// Runs a command of the agent whose call is approved, and checks that it says for what it waits.
    #[track_caller]
    fn approved(&self, args: &[&str], stdin: Stdio) -> Done {
        let running = self.start(args, stdin);
        let id = self.approve();
        let done = Done::of(running.wait_with_output().unwrap());
        let said = format!("belljar: the call waits for approval {id}, for ");
        assert!(done.stderr.starts_with(&said), "{done:?}");
        assert!(
            done.stderr.contains(&format!("another person decides: belljar approval approve {id}\n")),
            "{done:?}"
        );
        done
    }

    /// Starts a line in the background, once it is approved.
    #[track_caller]
    fn in_background(&self, id: &str, line: &str) -> Done {
        let running = self.start(&["sandbox", "exec", "-d", id, "--", "sh", "-c", line], Stdio::null());
        self.approve();
        let done = Done::of(running.wait_with_output().unwrap());
        assert_eq!(done.status, Some(0), "{done:?}");
        done
    }

    fn sandbox(&self) -> String {
        self.home.good(&format!("sandbox create -q --api-key {}", self.agent)).trim().to_owned()
    }
}

/// Returns an end of a pipe that has this in it, and its other end, which stays open.
fn pipe(text: &str) -> Stdio {
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut writer, text.as_bytes()).unwrap();
    reader.into()
}

#[test]
fn commands_say_that_they_wait() {
    let people = People::new();
    let id = people.sandbox();
    let exec = ["sandbox", "exec", &id, "--", "sh", "-c", "echo out; echo err >&2; exit 3"];
    let done = people.approved(&exec, Stdio::null());
    assert_eq!((done.status, done.stdout.as_str()), (Some(3), "out\n"), "{done:?}");
    assert!(done.stderr.ends_with("\nerr\n"), "{done:?}");
    // Input is sent with the call.
    let done = people.approved(&["sandbox", "exec", &id, "--", "cat"], pipe("some input\n"));
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "some input\n"), "{done:?}");
    let done = people.in_background(&id, "true");
    assert!(done.stderr.contains("the command may wait for another person: belljar approval ls"), "{done:?}");
    let done =
        people.approved(&["run", "--template", "default", "-l", "sh", "-c", "echo run; cat"], pipe("more\n"));
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "run\nmore\n"), "{done:?}");
    let done = people.approved(&["run", "--rich", "-l", "bash", "-c", "echo rich"], Stdio::null());
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "rich\n"), "{done:?}");
    let done = people.approved(&["code", "-l", "bash"], pipe("echo code\n"));
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "code\n"), "{done:?}");
    // Messages that are not wanted are left out, and so is what is too long to be shown to anybody.
    let quiet = people.start(&["sandbox", "exec", "-q", &id, "--", "true"], Stdio::null());
    people.approve();
    assert_eq!(Done::of(quiet.wait_with_output().unwrap()).stderr, "");
    let long = people.home.file("long");
    std::fs::write(&long, "x".repeat((64 << 10) + 1)).unwrap();
    let refused =
        people.start(&["sandbox", "exec", &id, "--", "cat"], std::fs::File::open(&long).unwrap().into());
    Done::of(refused.wait_with_output().unwrap())
        .refused(2, &["standard input: it has more than 65536 bytes"]);
    people.home.good(&format!("sandbox kill {id}"));
}

#[test]
fn held_sandboxes_name_their_approval() {
    let people = People::new();
    let id = people.sandbox();
    let running = people.start(&["sandbox", "exec", &id, "--", "echo", "x"], Stdio::null());
    let approval = people.waiting();
    let home = &people.home;
    let held = format!("waits for {approval}");
    eventually(|| {
        let listed = home.good("sandbox ls");
        if listed.contains(&held) { Ok(()) } else { Err(listed) }
    });
    assert!(home.good(&format!("sandbox info {id}")).contains(&held));
    assert_eq!(home.json(&format!("sandbox info {id}"))["held_by"], Value::from(approval.as_str()));
    home.run(&format!("sandbox exec {id} -- true"))
        .refused(125, &["is paused", &format!("belljar approval show {approval}")]);
    let denied = home.run(&format!("approval deny {approval} --note no --api-key {}", people.ann));
    assert_eq!((denied.status, denied.stderr.as_str()), (Some(0), ""), "{denied:?}");
    let done = Done::of(running.wait_with_output().unwrap());
    assert_eq!(done.status, Some(125), "{done:?}");
    assert!(done.stderr.contains(&format!("approval {approval} is denied by ann: no")), "{done:?}");
    assert_eq!(home.inside(&id, "echo free"), "free\n");
}

/// Whoever decides about a call of code is shown which code of which sandbox makes it, and that this waits, frozen.
#[test]
fn calls_of_code_show_it() {
    if !has_ipython() {
        return;
    }
    let people = People::new();
    let home = &people.home;
    let caller = home.good("key create --name caller --owner caller").trim().to_owned();
    home.good("tool add deploy --language bash --approval always");
    let code = "import belljar\nbelljar.tools.deploy(code='echo released')['stdout']  # \x1b[2Jnote";
    let mut command: Command = home.belljar(&["run", "--rich", "--tool", "deploy", "-c", code]);
    command
        .env("BELLJAR_API_KEY", &caller)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let running = command.spawn().unwrap();
    let id = people.waiting();
    let approval = home.json(&format!("approval show {id}"));
    let calling = &approval["request"]["calling_code"];
    let sandbox = calling["sandbox"].as_str().unwrap();
    let listed = home.good("approval ls");
    assert!(listed.contains(&format!("deploy@1 by code in {sandbox}")), "{listed}");
    let shown = home.good(&format!("approval show {id}"));
    for line in [
        format!("call                    deploy@1 by code in {sandbox}"),
        format!(
            "called by               execution {} in context python of {sandbox}, frozen until the decision",
            calling["execution"]
        ),
        format!("digest of calling code  {}", calling["code_sha256"].as_str().unwrap()),
        "calling code, which runs already:\n  import belljar\n".to_owned(),
        "  belljar.tools.deploy(code='echo released')['stdout']  # ".to_owned(),
    ] {
        assert!(shown.contains(&line), "{line:?} is not in {shown}");
    }
    assert!(!shown.contains('\x1b'), "{shown:?}");
    people.approve();
    let done = Done::of(running.wait_with_output().unwrap());
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "'released\\n'\n"), "{done:?}");
    assert!(done.stderr.contains(&format!("the call waits for approval {id}")), "{done:?}");
    assert!(!home.good(&format!("approval show {id}")).contains("frozen until"));
    // Without a context, or a server, nothing can be called.
    home.run("run --tool deploy -c 1")
        .refused(2, &["--tool: code calls tools in a context alone; add --rich"]);
    home.run("run --rich --tool deploy --engine local -c 1").refused(2, &["--tool"]);
    home.run("run --rich --tool nosuch -c 1").refused(125, &["tool"]);
}

/// Whoever is too late is told, and does not believe to have stopped the call.
#[test]
fn late_denials_say_so() {
    let people = People::new();
    let (home, id) = (&people.home, people.sandbox());
    let running = people.start(&["sandbox", "exec", &id, "--", "echo", "ran"], Stdio::null());
    let approval = people.waiting();
    let given = home.run(&format!("approval approve {approval} --for 3 --api-key {}", people.ann));
    assert_eq!(given.status, Some(0), "{given:?}");
    assert!(given.stderr.contains("3 calls with this one may begin within 10 min"), "{given:?}");
    assert_eq!(Done::of(running.wait_with_output().unwrap()).stdout, "ran\n");
    let late = home.run(&format!("approval deny {approval} --note stop --api-key {}", people.ann));
    assert_eq!((late.status, late.stdout.trim()), (Some(0), approval.as_str()), "{late:?}");
    assert!(late.stderr.contains("too late to deny the call, which ann has approved"), "{late:?}");
    assert!(home.good(&format!("approval show {approval}")).contains("3 for call, ended"));
    home.run(&format!("approval deny {approval} --api-key {}", people.ann))
        .refused(125, &["is approved already"]);
}

/// A command in the background has what was shown with it until it ends, also after a restart of the server.
#[test]
fn background_commands_keep_their_sandbox_over_a_restart() {
    let home = Home::new();
    let (server, _) = home.serve(&[]);
    let people = People::in_home(home);
    let (home, id) = (&people.home, people.sandbox());
    let line = "until [ -e go ]; do sleep 0.1; done";
    people.in_background(&id, line);
    let pids = format!("sandbox set {id} --pids 50");
    home.run(&pids).refused(125, &["were shown"]);
    stop(server);
    let (server, _) = home.serve(&[]);
    home.run(&pids).refused(125, &["were shown"]);
    home.inside(&id, "touch go");
    eventually(|| {
        let done = home.run(&pids);
        if done.status == Some(0) { Ok(()) } else { Err(done.stderr) }
    });
    home.good(&format!("sandbox kill {id}"));
    stop(server);
}
