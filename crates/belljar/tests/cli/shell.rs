//! `belljar shell`, on a pseudoterminal.

use rustix::process::Signal;

use crate::host::{Host, is_running, marker, send, status_of, wait_for};
use crate::terminal::Terminal;

/// A terminal with a command on it.
fn start(host: &Host, args: &[&str]) -> Terminal {
    Terminal::start(host.belljar(args))
}

#[test]
fn shell_runs_on_a_terminal() {
    let host = Host::new();
    let mut terminal = start(&host, &["shell"]);
    terminal.expect("$ ");
    assert!(terminal.is_raw());
    terminal.write("tty; echo $TERM:$HOME:$?\n");
    terminal.expect("/dev/pts/");
    terminal.expect("vt100:/home/user:0\r\n");
    terminal.expect("$ ");
    // The size changes a moment after the signal, so it is polled.
    terminal.resize(33, 111);
    send(&terminal.child, Signal::WINCH);
    terminal.write("until [ \"$(stty size)\" = '33 111' ]; do :; done; echo re''sized\n");
    terminal.expect("resized\r\n");
    terminal.write("sh -c 'echo be''fore; exec sleep 1000'\n");
    terminal.expect("before\r\n");
    terminal.write("\u{3}");
    terminal.expect("$ ");
    terminal.write("exit 7\n");
    assert_eq!(status_of(&mut terminal.child), 7);
    assert!(!terminal.is_raw());
}

#[test]
fn shell_runs_a_given_command() {
    let host = Host::new();
    let mut terminal =
        start(&host, &["shell", "--env", "K=V", "--", "sh", "-c", "echo $K-$1; exit 4", "sh", "x y"]);
    terminal.expect("V-x y\r\n");
    assert_eq!(status_of(&mut terminal.child), 4);
    let mut terminal = start(&host, &["shell", "--", "no-such-program"]);
    terminal.expect("no-such-program");
    assert_eq!(status_of(&mut terminal.child), 127);
    assert!(!terminal.is_raw());
}

#[test]
fn terminal_is_restored_after_a_signal() {
    let host = Host::new();
    for (signal, status) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let marker = marker(&format!("shell-{status}"));
        let command = "trap '' TERM HUP INT; echo rea''dy; while :; do sleep 1; done";
        let mut terminal = start(&host, &["shell", "--", "sh", "-c", command, &marker]);
        terminal.expect("ready\r\n");
        assert!(terminal.is_raw());
        send(&terminal.child, signal);
        assert_eq!(status_of(&mut terminal.child), status);
        assert!(!terminal.is_raw());
        wait_for("the sandbox's end", || !is_running(&marker));
    }
}

#[test]
fn shell_times_out() {
    let mut terminal = start(&Host::new(), &["shell", "--timeout", "1", "--", "sleep", "1000"]);
    terminal.expect("belljar: the shell timed out after 1 s");
    assert_eq!(status_of(&mut terminal.child), 124);
    assert!(!terminal.is_raw());
}

#[test]
fn run_without_a_script_on_a_terminal_is_wrong_usage() {
    let mut terminal = start(&Host::new(), &["run"]);
    terminal.expect("belljar: give a script, -c CODE, or pipe a script in; belljar run --help says more");
    assert_eq!(status_of(&mut terminal.child), 2);
}

#[test]
fn run_on_a_terminal_reads_lines_and_sends_no_escapes() {
    let host = Host::new();
    let mut terminal = start(&host, &["run", "-c", "print('got', input()); raise SystemExit(3)"]);
    terminal.write("line\n");
    let shown = terminal.expect("got line\r\n");
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    assert_eq!(status_of(&mut terminal.child), 3);
}

#[test]
fn ctrl_c_stops_the_whole_tree() {
    let host = Host::new();
    let marker = marker("ctrl-c");
    let code = "import subprocess, sys\n\
                child = subprocess.Popen(['sh', '-c', 'sleep 1000; true', sys.argv[1]])\n\
                print('ready', flush=True)\n\
                child.wait()";
    let mut terminal = Terminal::start_controlling(&host.belljar(&["run", "-c", code, &marker]));
    terminal.expect("ready\r\n");
    assert!(is_running(&marker));
    terminal.write("\u{3}");
    assert_eq!(status_of(&mut terminal.child), 130);
    wait_for("the end of the whole tree", || !is_running(&marker));
    assert!(terminal.expect("KeyboardInterrupt").starts_with("^CTraceback"));
}

#[test]
fn progress_of_a_long_start_is_shown_and_cleared() {
    let host = Host::new();
    let main = "int main(void) { puts(\"done\"); }\n";
    host.write("small.c", format!("#include <stdio.h>\n{main}"));
    // The compiler takes seconds, so that the indicator is there in time on a busy machine as well.
    let functions = (0..300).map(|n| format!("int f{n}(int n) {{ return n * {n} + printf(\"%d\", n); }}\n"));
    host.write("slow.c", format!("#include <stdio.h>\n{}{main}", functions.collect::<String>()));
    let mut terminal = start(&host, &["run", "--cpus", "0.05", "slow.c"]);
    terminal.expect("compiling");
    let shown = terminal.expect("done\r\n");
    assert!(shown.ends_with("\u{1b}[2Kdone\r\n"), "{shown:?}");
    assert_eq!(status_of(&mut terminal.child), 0);
    let mut terminal = start(&host, &["run", "--quiet", "--cpus", "0.05", "small.c"]);
    assert_eq!(terminal.expect("done\r\n"), "done\r\n");
    assert_eq!(status_of(&mut terminal.child), 0);
}
