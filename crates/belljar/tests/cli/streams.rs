//! Streams and signals of a run.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;

use crate::host::{DEADLINE, Host, is_running, marker, read_until, send, status_of, wait_for};

fn spawn(host: &Host, args: &[&str]) -> Child {
    let mut command = host.belljar(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn output_and_input_stream_while_the_program_runs() {
    let host = Host::new();
    let code = "import sys\nfor line in sys.stdin: print('got', line, end='', flush=True)";
    let mut child = spawn(&host, &["run", "-c", code]);
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    for word in ["one", "two"] {
        writeln!(stdin, "{word}").unwrap();
        assert_eq!(read_until(&mut stdout, "\n"), format!("got {word}\n"));
    }
    drop(stdin);
    assert_eq!(status_of(&mut child), 0);
}

#[test]
fn unread_input_does_not_delay_the_end() {
    let mut child = spawn(&Host::new(), &["run", "-c", "print(1)"]);
    // The write end stays open.
    let stdin = child.stdin.take().unwrap();
    assert_eq!(status_of(&mut child), 0);
    drop(stdin);
}

#[test]
fn large_input_is_passed_unchanged() {
    let host = Host::new();
    let bytes: Vec<u8> =
        (0..10_000_000u32).map(|index| index.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let done = host.run_with_stdin(&["run", "-l", "sh", "-c", "cat"], &bytes);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""));
    assert!(done.stdout == bytes, "{} bytes of {}", done.stdout.len(), bytes.len());
}

#[test]
fn standard_streams_may_be_regular_files() {
    let host = Host::new();
    let content = "line\n".repeat(100_000);
    host.write("in", &content);
    let file = |name: &str| std::fs::File::create(host.path().join(name)).unwrap();
    let mut command = host.belljar(&["run", "-l", "sh", "-c", "cat; echo done >&2"]);
    command
        .stdin(std::fs::File::open(host.path().join("in")).unwrap())
        .stdout(file("out"))
        .stderr(file("err"));
    assert_eq!(command.status().unwrap().code(), Some(0));
    assert!(host.read("out") == content.as_bytes());
    assert_eq!(host.read("err"), b"done\n");
}

/// They belong to the sandbox's user, whoever has made them.
#[test]
fn standard_streams_are_opened_by_name() {
    let code = "cat /dev/stdin; echo out > /dev/stdout; echo err > /dev/stderr; cat <&0 > /proc/self/fd/1";
    for more in [&[][..], &["--json"]] {
        let args = [&["run", "-l", "sh"], more, &["-c", code]].concat();
        let done = Host::new().run_with_stdin(&args, b"in\n");
        assert_eq!(done.status, 0, "{}", done.stderr);
        match more {
            [] => assert_eq!((done.stdout.as_slice(), done.stderr.as_str()), (&b"in\nout\n"[..], "err\n")),
            _ => assert!(String::from_utf8_lossy(&done.stdout).contains("in\\nout\\n")),
        }
    }
}

/// Orphans of the program are reaped while it runs, and do not count against the limit of processes.
#[test]
fn orphans_do_not_use_up_the_limit_of_processes() {
    let code = "i=0; while [ $i -lt 300 ]; do (true &); i=$((i+1)); done; echo done";
    let done = Host::new().run(&["run", "--pids", "16", "-l", "sh", "-c", code]);
    assert_eq!((done.status, done.stdout.as_slice()), (0, &b"done\n"[..]), "{}", done.stderr);
}

#[test]
fn closed_output_ends_the_run_quietly() {
    let host = Host::new();
    let marker = marker("pipe");
    let mut child = spawn(&host, &["run", "-l", "sh", "-c", "while true; do echo y; done", &marker]);
    let mut stdout = child.stdout.take().unwrap();
    read_until(&mut stdout, "y\n");
    drop(stdout);
    assert_eq!(status_of(&mut child), 141);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
    wait_for("the sandbox's end", || !is_running(&marker));
}

#[test]
fn unwritable_output_is_a_failure() {
    let host = Host::new();
    let mut command = host.belljar(&["run", "-c", "print(1)"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = command.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "belljar: cannot write to standard output: No space left on device (os error 28)\n"
    );
}

/// Runs a program with a child process, sends `signals` once it is ready, and returns its status and output.
fn run_with_signals(handler: &str, signals: &[Signal]) -> (i32, String, String) {
    let host = Host::new();
    let marker = marker(&format!("signal-{}-{}", handler.len(), signals.len()));
    let code = format!(
        "import signal, subprocess, sys, time\n\
         signal.signal(signal.SIGINT, {handler})\n\
         subprocess.Popen(['sh', '-c', 'trap \"\" INT; sleep 1000; true', sys.argv[1]])\n\
         print('ready', flush=True)\n\
         while True: time.sleep(1)\n"
    );
    let mut child = spawn(&host, &["run", "-c", &code, &marker]);
    let mut stdout = child.stdout.take().unwrap();
    let mut seen = read_until(&mut stdout, "ready\n");
    let begin = Instant::now();
    for (index, signal) in signals.iter().enumerate() {
        if index > 0 {
            seen += &read_until(&mut stdout, "\n");
        }
        send(&child, *signal);
    }
    let status = status_of(&mut child);
    assert!(begin.elapsed() < DEADLINE / 2);
    stdout.read_to_string(&mut seen).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    wait_for("the end of the whole tree", || !is_running(&marker));
    (status, seen, stderr)
}

#[test]
fn first_interrupt_goes_to_the_program() {
    let own = "lambda *_: (print('caught', flush=True), sys.exit(5))";
    assert_eq!(run_with_signals(own, &[Signal::INT]), (5, "ready\ncaught\n".to_owned(), String::new()));
    let (status, _, _) = run_with_signals("signal.SIG_DFL", &[Signal::INT]);
    assert_eq!(status, 130);
}

#[test]
fn second_interrupt_ends_the_sandbox() {
    let stubborn = "lambda *_: print('no', flush=True)";
    let (status, seen, stderr) = run_with_signals(stubborn, &[Signal::INT, Signal::INT]);
    assert_eq!((status, seen.as_str(), stderr.as_str()), (130, "ready\nno\n", ""));
}

#[test]
fn termination_and_hang_up_end_the_sandbox() {
    for (signal, status) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let (found, seen, stderr) = run_with_signals("signal.SIG_IGN", &[signal]);
        assert_eq!((found, seen.as_str(), stderr.as_str()), (status, "ready\n", ""));
    }
}

#[test]
fn signal_ignored_by_the_caller_stays_ignored() {
    let host = Host::new();
    let belljar = host.belljar(&["run", "-c", "print('ready', flush=True); print('got', input())"]);
    let mut command = Command::new("nohup");
    command.arg(belljar.get_program()).args(belljar.get_args()).current_dir(host.path());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    read_until(&mut stdout, "ready\n");
    send(&child, Signal::HUP);
    child.stdin.take().unwrap().write_all(b"line\n").unwrap();
    assert_eq!(read_until(&mut stdout, "\n"), "got line\n");
    assert_eq!(status_of(&mut child), 0);
}
