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
    assert_eq!(home.feed(&format!("code --sandbox {id} -o made/out"), b"1").good(), "1\n");
    assert!(home.file("made/out").is_dir());
    home.write("file", "");
    for out in ["file", "file/out"] {
        home.feed(&format!("code --sandbox {id} -o {out}"), b"1").refused(125, &["out:", out]);
    }
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
    // The directory is made, unless something is refused before.
    let done = home.run("run --rich --pictures new/out -l nosuch --engine local plot.py");
    assert!(done.status == Some(2) && !home.file("new").exists(), "{done:?}");
    let done = home.run("run --rich --pictures new/out --engine local plot.py");
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "before\n'after'\n"), "{done:?}");
    assert!(home.file("new/out/belljar-1.png").exists());
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
fn rich_runs_and_notebooks_bring_files_out() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    let write = "open('made.txt', 'w').write('made'); None";
    let cell = serde_json::json!({"cell_type": "code", "metadata": {}, "source": write});
    home.write("n.ipynb", &serde_json::json!({"nbformat": 4, "metadata": {}, "cells": [cell]}).to_string());
    for (args, made) in [
        (&["--rich", "-o", "made.txt", "-c", write][..], "made.txt"),
        (&["--rich", "-o", "made.txt:other.txt", "--engine", "local", "-c", write], "other.txt"),
        (&["-o", "made.txt:from-notebook.txt", "n.ipynb"], "from-notebook.txt"),
    ] {
        let done = home.run_args(&[&["run"], args].concat());
        assert_eq!((done.status, done.stdout.as_str()), (Some(0), ""), "{done:?}");
        assert_eq!(std::fs::read_to_string(home.file(made)).unwrap(), "made");
    }
    let done = home.run_args(&["run", "--rich", "-o", "none.txt", "-c", "1"]);
    assert!(done.status == Some(125) && done.stderr.contains("\"none.txt\" was not created"), "{done:?}");
    let done = home.run_args(&["run", "--rich", "-o", "none.txt", "-c", "1/0"]);
    assert!(done.status == Some(1) && done.stderr.contains("warning: output file"), "{done:?}");
    home.run("run --pictures out n.txt").refused(2, &["--rich"]);
    // A kernel that the sandbox does not have is asked for, not refused as no language.
    for args in [&["--rich", "-l", "jupyter:nosuch", "-c", "1"][..], &["-l", "jupyter:nosuch", "n.ipynb"]] {
        let done = home.run_args(&[&["run"], args].concat());
        assert!(done.status != Some(2) && done.stderr.contains("nosuch"), "{done:?}");
    }
}

#[test]
fn session_keeps_variables_and_reads_input() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    let mut terminal = Terminal::start_controlling(&home.belljar(&["code"]));
    terminal.expect("In [1]: ");
    terminal.write("x = 40\r");
    terminal.expect("In [2]: ");
    terminal.write("x + 2\r");
    terminal.expect("Out[2]: 42\r\n");
    terminal.expect("In [3]: ");
    terminal.write("def f(n):\r    return n * 2\r\r");
    terminal.expect("In [4]: ");
    terminal.write("f(x)\r");
    terminal.expect("Out[4]: 80\r\n");
    terminal.expect("In [5]: ");
    terminal.write("input('na' 'me? ')\r");
    terminal.expect("name? ");
    terminal.write("Ada\r");
    terminal.expect("Out[5]: 'Ada'\r\n");
    terminal.expect("In [6]: ");
    terminal.write("print('be' + 'gun', flush=True); [None for _ in iter(int, 1)]\r");
    terminal.expect("begun\r\n");
    terminal.write("\u{3}");
    terminal.expect("KeyboardInterrupt");
    terminal.expect("In [7]: ");
    terminal.write("x\r");
    terminal.expect("Out[7]: 40\r\n");
    terminal.expect("In [8]: ");
    terminal.write("\u{4}");
    assert_eq!(status(&mut terminal), Some(0));
    assert!(!terminal.is_raw());
    assert_eq!(home.good("sandbox ls -q"), "");
}

fn status(terminal: &mut Terminal) -> Option<i32> {
    eventually(|| terminal.child.try_wait().unwrap().ok_or_else(|| "it does not end".to_owned())).code()
}

#[test]
fn session_edits_lines() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    let mut terminal = Terminal::start_controlling(&home.belljar(&["code"]));
    terminal.expect("In [1]: ");
    // A pasted function with an empty line stays one cell.
    terminal.write("\u{1b}[200~def twice(n):\n\n    return n * 2\n\u{1b}[201~\r");
    let shown = terminal.expect("In [2]: ");
    assert!(shown.contains("\u{1b}[34mdef\u{1b}[0m twice"), "{shown:?}");
    terminal.write("twi\t(21)\r");
    terminal.expect("Out[2]: 42\r\n");
    terminal.expect("In [3]: ");
    terminal.write("\u{1b}[A\r");
    terminal.expect("Out[3]: 42\r\n");
    terminal.expect("In [4]: ");
    terminal.write("left('\u{3}");
    terminal.expect("\r\n");
    terminal.expect("In [4]: ");
    // Lines of a block are indented, `pass` ends one, Backspace takes a level back, and a blank line ends the cell.
    terminal
        .write("for n in [1, 2]:\rif n > 1:\rpass\rprint('line' + str(n))\rif n > 1:\rprint('in' + 'ner')\r");
    terminal.write("\u{7f}print('out' + 'er')\r\r");
    for line in ["line1\r\n", "outer\r\n", "line2\r\n", "inner\r\n", "outer\r\n"] {
        terminal.expect(line);
    }
    terminal.expect("In [5]: ");
    // An edited line: Home, and a letter before it.
    terminal.write("wice(4)\u{1}t\r");
    terminal.expect("Out[5]: 8\r\n");
    terminal.expect("In [6]: ");
    terminal.write(" secret = 1\rexit\r");
    assert_eq!(status(&mut terminal), Some(0));
    assert!(!terminal.is_raw());
    let history = home.path().join("code-history");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&history).unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o600);
    let kept = std::fs::read_to_string(&history).unwrap();
    assert!(kept.contains("twice(4)") && !kept.contains("secret"), "{kept}");
    // The next session has it, without colour if that is not wanted.
    let mut command = home.belljar(&["code"]);
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::start_controlling(&command);
    terminal.expect("In [1]: ");
    terminal.write("\u{1b}[A\u{1b}[A\u{1}\u{b}'a' 'b'\r");
    let shown = terminal.expect("Out[1]: 'ab'\r\n");
    assert!(shown.contains("twice(4)") && !shown.contains("\u{1b}[3"), "{shown:?}");
    terminal.expect("In [2]: ");
    // A signal while a line is edited ends the session, and the terminal is as before.
    assert!(terminal.is_raw());
    let session = rustix::process::Pid::from_child(&terminal.child);
    rustix::process::kill_process(session, Signal::TERM).unwrap();
    assert_eq!(status(&mut terminal), Some(143));
    assert!(!terminal.is_raw());
    assert_eq!(home.good("sandbox ls -q"), "");
}

#[test]
fn huge_paste_is_refused_and_the_session_goes_on() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    let mut terminal = Terminal::start_controlling(&home.belljar(&["code"]));
    terminal.expect("In [1]: ");
    terminal.write("\u{1b}[200~");
    terminal.write(&"x = 'a' # \"b\"\n".repeat((10 << 20) / 14));
    terminal.write("\u{1b}[201~\r");
    terminal.expect("at most that many are allowed");
    terminal.expect("In [1]: ");
    terminal.write("6 * 7\r");
    terminal.expect("Out[1]: 42\r\n");
    // Between prompts Ctrl-D is the program's.
    terminal.expect("In [2]: ");
    terminal.write("\u{4}");
    assert_eq!(status(&mut terminal), Some(0));
}

#[test]
fn history_of_another_user_is_not_used() {
    if !has_ipython() || !rustix::process::geteuid().is_root() {
        return;
    }
    let home = Home::new();
    let history = home.path().join("code-history");
    std::fs::write(&history, "\"leaked\"\n").unwrap();
    std::os::unix::fs::chown(&history, Some(65534), None).unwrap();
    let mut terminal = Terminal::start_controlling(&home.belljar(&["code"]));
    terminal.expect("belongs to another user");
    terminal.expect("In [1]: ");
    terminal.write("\u{1b}[A7\r");
    terminal.expect("Out[1]: 7\r\n");
    terminal.expect("In [2]: ");
    terminal.write("exit\r");
    assert_eq!(status(&mut terminal), Some(0));
    assert_eq!(std::fs::read_to_string(&history).unwrap(), "\"leaked\"\n");
}

#[test]
fn session_without_escape_sequences_is_plain() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    let belljar = home.belljar(&[]);
    let mut command = std::process::Command::new("env");
    command.args(["TERM=dumb".as_ref(), belljar.get_program(), "code".as_ref()]);
    command.env("BELLJAR_HOME", home.path());
    let mut terminal = Terminal::start_controlling(&command);
    let mut shown = terminal.expect("In [1]: ");
    terminal.write("if 1:\n");
    shown += &terminal.expect("   ...: ");
    terminal.write("  print('x' * 3)\n\n");
    shown += &terminal.expect("xxx\r\n");
    shown += &terminal.expect("In [2]: ");
    terminal.write("\u{4}");
    assert_eq!(status(&mut terminal), Some(0));
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    assert!(!home.path().join("code-history").exists());
}

/// A notebook with these code cells.
fn notebook(cells: &[&str]) -> String {
    let text = serde_json::json!({"cell_type": "markdown", "metadata": {}, "source": ["# a\n", "text"]});
    let code = cells.iter().map(
        |code| serde_json::json!({"cell_type": "code", "metadata": {}, "source": code, "outputs": ["old"]}),
    );
    let cells: Vec<Value> = std::iter::once(text).chain(code).collect();
    serde_json::json!({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).to_string()
}

#[test]
fn notebook_runs_cell_by_cell() {
    if !has_ipython() {
        return;
    }
    let home = Home::new();
    let show = format!(
        "from IPython.display import display, Image\nimport base64\ndisplay(Image(base64.b64decode('{PNG}')))"
    );
    home.write("good.ipynb", &notebook(&["x = 40", "print('out')\nx + 2", "", &show]));
    let done = home.run("run good.ipynb --save saved.ipynb");
    // Options come before the script, as always.
    done.refused(2, &["--save: options of belljar run go before the notebook"]);
    home.run("run good.ipynb one").refused(2, &["a notebook has no arguments"]);
    let done = home.run("run --save saved.ipynb good.ipynb");
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "out\n42\n"), "{done:?}");
    assert!(done.stderr.contains("saved belljar-1.png"), "{done:?}");
    let saved: Value = serde_json::from_str(&home.read("saved.ipynb")).unwrap();
    let outputs = |cell: usize| &saved["cells"][cell]["outputs"];
    assert_eq!(outputs(2)[0]["text"], "out\n", "{saved}");
    assert_eq!(outputs(2)[1]["data"]["text/plain"], "42");
    assert_eq!(
        (&saved["cells"][2]["execution_count"], &saved["cells"][3]["outputs"]),
        (&2.into(), &Value::Array(vec![]))
    );
    assert_eq!(outputs(4)[0]["data"]["image/png"].as_str().map(str::trim_end), Some(PNG));
    assert_eq!(saved["cells"][0]["source"][1], "text");

    home.write("bad.ipynb", &notebook(&["1", "1/0", "print('never')"]));
    let done = home.run("run -q --engine local --save saved.ipynb bad.ipynb");
    assert_eq!((done.status, done.stdout.as_str()), (Some(1), "1\n"), "{done:?}");
    assert!(
        done.stderr.contains("ZeroDivisionError")
            && done.stderr.contains("code cell 2 of 3 failed; the 1 after it were not run"),
        "{done:?}"
    );
    let saved: Value = serde_json::from_str(&home.read("saved.ipynb")).unwrap();
    assert_eq!(saved["cells"][2]["outputs"][0]["ename"], "ZeroDivisionError");
    assert_eq!(saved["cells"][3]["execution_count"], Value::Null);
    let lines = home.run("run --json bad.ipynb").stdout;
    let statuses: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["status"].clone()).collect();
    assert_eq!(statuses, ["ok", "error"]);
    assert_eq!(home.good("sandbox ls -q"), "");
}

#[test]
fn unusable_notebooks_are_refused_before_anything_starts() {
    let home = Home::new();
    for (text, reason) in [
        ("{\"nbformat\": 3, \"worksheets\": []}".to_owned(), "version 3; convert it"),
        ("print(1)".to_owned(), "not a notebook that can be read"),
        (notebook(&["1"; 10_001]), "more than 10000 cells"),
        (format!("{}{}", notebook(&["1"]), " ".repeat(64 << 20)), "at most 67108864 are allowed"),
    ] {
        home.write("n.ipynb", &text);
        home.run("run n.ipynb").refused(125, &[reason]);
    }
    home.write("n.ipynb", &notebook(&["1"]));
    home.run("run --save . n.ipynb").refused(125, &["save:", "directory"]);
    home.run("run --save nowhere/n.ipynb n.ipynb").refused(125, &["save:", "nowhere"]);
    home.run("run --events n.ipynb").refused(2, &["--events", "not for notebooks"]);
    home.run("run --save n.ipynb -c 1").refused(2, &["--save", ".ipynb"]);
    assert!(!home.is_held());
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
