//! `belljar code` and `belljar run --rich`.

use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Home, eventually};
use crate::terminal::Terminal;

/// A picture of one point.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// Reports whether this machine has what a Python context needs, and prints that the test is skipped if not.
pub(crate) fn has_ipython() -> bool {
    let found = std::process::Command::new("python3").args(["-c", "import IPython"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "SKIPPED: python3-ipython is not installed here");
    }
    found
}

#[test]
fn cell_is_read_from_standard_input() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    let done = home.feed("code", b"x = 40\nprint('out')\nx + 2\n");
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "out\n42\n"), "{done:?}");
    // The sandbox that was created for it has ended.
    assert_eq!(home.good("sandbox ls -q"), "");
    let id = home.create("");
    let done = home.feed(&format!("code --sandbox {id}"), b"kept = 7");
    assert_eq!(done.status, Some(0), "{done:?}");
    let done = home.feed(&format!("code --sandbox {id} --format json"), b"print('a')\nkept");
    let result: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(
        (&result["state"], &result["stdout"]["data"]),
        (&"preserved".into(), &"a\n".into()),
        "{result}"
    );
    assert_eq!(result["results"][0]["data"]["text/plain"], "7");
    let failed = home.feed(&format!("code --sandbox {id}"), b"1/0");
    assert_eq!(failed.status, Some(1), "{failed:?}");
    assert!(failed.stderr.contains("ZeroDivisionError") && !failed.stderr.contains('\u{1b}'), "{failed:?}");
    let left = home.feed(&format!("code --sandbox {id}"), b"import os; os._exit(3)");
    assert_eq!(left.status, Some(3), "{left:?}");
    let late = home.feed(&format!("code --sandbox {id} --timeout 300ms"), b"while True: pass");
    assert_eq!(late.status, Some(124), "{late:?}");
    assert_eq!(home.feed(&format!("code --sandbox {id}"), b"'kept' in dir()").good(), "False\n");
    home.feed("code --sandbox none", b"1").refused(125, &["none"]);
    home.feed(&format!("code -l cobol --sandbox {id}"), b"1").refused(2, &["language", "cobol"]);
    home.feed(&format!("code --sandbox {id} -o nowhere"), b"1").refused(125, &["out:", "nowhere"]);
    home.feed(&format!("code --sandbox {id} --template default"), b"1").refused(2, &["--template"]);
}

#[test]
fn new_sandbox_of_a_session_takes_files_limits_and_volumes() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    home.write("data.csv", "1,2\n");
    let code = b"import os; open('data.csv').read() + os.environ['A']";
    assert_eq!(home.feed("code -f data.csv -e A=x --memory 300m", code).good(), "'1,2\\nx'\n");
    assert_eq!(home.feed("code -f data.csv -e A=x --memory 300m --engine local", code).good(), "'1,2\\nx'\n");
    let id = home.create("");
    let kept = home.feed(&format!("code --sandbox {id} -f data.csv"), b"open('data.csv').read()");
    assert_eq!(kept.good(), "'1,2\\n'\n");
    home.feed("code --memory 1", b"1").refused(2, &["--memory", "16 MiB"]);
    home.feed("code --volume nosuch:/data", b"1").refused(125, &["nosuch"]);
    home.feed("code --file nosuch.csv", b"1").refused(125, &["nosuch.csv"]);
}

#[test]
fn run_uses_the_tree_of_a_template() {
    let home = Home::new();
    let id = home.create("");
    home.good(&format!("sandbox exec -c {id} -- echo kept > f; mkdir d"));
    home.good(&format!("sandbox snapshot {id} --name Kept_1"));
    home.good(&format!("sandbox kill {id}"));
    let run = |args: &[&str]| home.run_args(&[["run", "--template", "Kept_1"].as_slice(), args].concat());
    let plain = run(&["-c", "import sys; print(open('f').read(), sys.argv[1:]); sys.exit(3)", "a", "-b"]);
    assert_eq!((plain.status, plain.stdout.as_str()), (Some(3), "kept\n ['a', '-b']\n"), "{plain:?}");
    home.write("main.sh", "cat f data; pwd; echo out > result; read line; echo got $line");
    home.write("data", "data\n");
    let done = home.feed("run --template Kept_1 -f data -o result -e A=1 main.sh", b"input\n");
    assert_eq!(done.good(), "kept\ndata\n/home/user\ngot input\n");
    assert_eq!(home.read("result"), "out\n");
    let result: Value =
        serde_json::from_str(&run(&["--json", "--memory", "100m", "-l", "bash", "-c", "touch new"]).good())
            .unwrap();
    assert_eq!(
        (&result["outcome"]["kind"], &result["files"][0]["path"]),
        (&"exited".into(), &"new".into()),
        "{result}"
    );
    assert_eq!(result["isolation"]["engine"], "local");
    let late = run(&["--timeout", "300ms", "-c", "while True: pass"]);
    assert_eq!(late.status, Some(124), "{late:?}");
    let full = run(&["--memory", "64m", "-c", "x = bytearray(200 << 20)"]);
    assert_eq!(full.status, Some(137), "{full:?}");
    assert!(full.stderr.contains("--memory"), "{full:?}");
    let missing = run(&["-e", "PATH=/nowhere", "-l", "perl", "-c", "1"]);
    assert_eq!(missing.status, Some(127), "{missing:?}");
    assert!(
        missing
            .stderr
            .contains("is not installed in the template Kept_1; a step apt = [\"perl\"] installs it"),
        "{missing:?}"
    );
    home.run("run --template nosuch -c 1").refused(125, &["template \"nosuch\" not found"]);
    // Its sandboxes have ended.
    assert_eq!(home.good("sandbox ls -q"), "");
}

#[test]
fn rich_run_shows_or_saves_pictures() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    let text = format!(
        "from IPython.display import display, Image\nimport base64\nprint('before')\ndisplay(Image(base64.b64decode('{PNG}')))\n'after'\n"
    );
    home.write("plot.py", &text);
    let done = home.run("run --rich plot.py");
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "before\n'after'\n"), "{done:?}");
    assert!(done.stderr.contains("saved belljar-1.png"), "{done:?}");
    assert!(std::fs::read(home.file("belljar-1.png")).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
    std::fs::create_dir(home.file("out")).unwrap();
    let done = home.run("run --rich -o out --engine local plot.py");
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "before\n'after'\n"), "{done:?}");
    assert!(home.file("out/belljar-1.png").exists());
    let result: Value = serde_json::from_str(&home.good("run --rich --json plot.py")).unwrap();
    assert_eq!(result["results"][0]["data"]["image/png"].as_str().map(str::trim_end), Some(PNG), "{result}");
    home.write("data.csv", "1,2\n");
    let done = home.run_args(&["run", "--rich", "-f", "data.csv", "-c", "open('data.csv').read()"]);
    assert_eq!(done.good(), "'1,2\\n'\n");
    assert_eq!(home.run_args(&["run", "--rich", "-c", "1/0"]).status, Some(1));
    assert_eq!(
        home.run_args(&["run", "--rich", "--timeout", "300ms", "-c", "while True: pass"]).status,
        Some(124)
    );
    home.run("run --rich plot.py argument").refused(2, &["arguments"]);
    home.run("run --rich --hostname x plot.py").refused(2, &["--hostname", "--engine"]);
    home.run("run --rich --events plot.py").refused(2, &["--events"]);
    // A terminal that supports pictures gets it inline.
    let mut command = home.belljar(&["run", "--rich", "plot.py"]);
    command.env_remove("TMUX").env_remove("TERM_PROGRAM").env("KITTY_WINDOW_ID", "1");
    let mut terminal = Terminal::start(command);
    terminal.expect("\u{1b}_Ga=T,f=100,m=0;iVBORw0KGgo");
    terminal.expect("'after'\r\n");
    assert!(!home.file("belljar-2.png").exists());
}

#[test]
fn session_keeps_variables_and_reads_input() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    let mut terminal = Terminal::start_controlling(&home.belljar(&["code"]));
    terminal.expect("In [1]: ");
    terminal.write("x = 40\n");
    terminal.expect("In [2]: ");
    terminal.write("x + 2\n");
    terminal.expect("Out[2]: 42\r\n");
    terminal.expect("In [3]: ");
    terminal.write("def f(n):\n");
    terminal.expect("   ...: ");
    terminal.write("    return n * 2\n\n");
    terminal.expect("In [4]: ");
    terminal.write("f(x)\n");
    terminal.expect("Out[4]: 80\r\n");
    terminal.expect("In [5]: ");
    terminal.write("input('name? ')\n");
    terminal.expect("name? ");
    terminal.write("Ada\n");
    terminal.expect("Out[5]: 'Ada'\r\n");
    terminal.expect("In [6]: ");
    terminal.write("print('be' + 'gun', flush=True); [None for _ in iter(int, 1)]\n");
    terminal.expect("begun\r\n");
    terminal.write("\u{3}");
    terminal.expect("KeyboardInterrupt");
    terminal.expect("In [7]: ");
    terminal.write("x\n");
    terminal.expect("Out[7]: 40\r\n");
    terminal.expect("In [8]: ");
    terminal.write("\u{4}");
    let status =
        eventually(|| terminal.child.try_wait().unwrap().ok_or_else(|| "it does not end".to_owned()));
    assert_eq!(status.code(), Some(0));
    assert_eq!(home.good("sandbox ls -q"), "");
}

/// The server is killed while code runs: the client's connection breaks, and the sandbox and its variables survive.
#[test]
fn variables_outlive_a_killed_server() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    let id = home.create("");
    assert_eq!(home.feed(&format!("code --sandbox {id}"), b"kept = 7").status, Some(0));
    let mut command = home.belljar(&["code", "--sandbox", &id]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let text = "open('begun', 'w').close()\nwhile True: pass";
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    eventually(|| match home.inside(&id, "ls") {
        found if found == "begun\n" => Ok(()),
        found => Err(found),
    });
    let (server, _) = home.holder().unwrap();
    rustix::process::kill_process(server, Signal::KILL).unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(125), "{done:?}");
    eventually(|| if home.is_held() { Err("the server lives".to_owned()) } else { Ok(()) });
    // Without its client, the code is interrupted, and earlier variables are preserved.
    assert_eq!(home.feed(&format!("code --sandbox {id}"), b"kept").good(), "7\n");
}
