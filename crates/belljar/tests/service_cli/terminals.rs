//! Behaviour on a terminal.

use std::io::Write as _;

use rustix::process::Signal;

use crate::fixture::{Home, eventually};
use crate::terminal::Terminal;

fn wait(terminal: &mut Terminal) -> i32 {
    let status =
        eventually(|| terminal.child.try_wait().unwrap().ok_or_else(|| "it does not end".to_owned()));
    status.code().unwrap()
}

#[test]
fn shell_runs_on_a_terminal_in_the_sandbox() {
    let home = Home::new();
    let id = home.create("");
    home.inside(&id, "echo made > note");
    let mut terminal = Terminal::start(home.belljar(&["sandbox", "shell", &id]));
    terminal.expect("$ ");
    assert!(terminal.is_raw());
    terminal.write("tty; cat note; echo $TERM:$HOME\n");
    terminal.expect("/dev/pts/");
    terminal.expect("made\r\n");
    terminal.expect("vt100:/home/user\r\n");
    terminal.resize(33, 111);
    rustix::process::kill_process(rustix::process::Pid::from_child(&terminal.child), Signal::WINCH).unwrap();
    terminal.write("until [ \"$(stty size)\" = '33 111' ]; do :; done; echo re''sized\n");
    terminal.expect("resized\r\n");
    terminal.write("exit 7\n");
    assert_eq!(wait(&mut terminal), 7);
    assert!(!terminal.is_raw());
    // The sandbox keeps running.
    assert_eq!(home.inside(&id, "cat note"), "made\n");
    let mut terminal = Terminal::start(home.belljar(&[
        "sandbox",
        "shell",
        &id,
        "--",
        "sh",
        "-c",
        "test -t 0 && echo yes; exit 4",
    ]));
    terminal.expect("yes\r\n");
    assert_eq!(wait(&mut terminal), 4);
}

#[test]
fn q_ends_top() {
    let home = Home::new();
    let id = home.create("");
    let mut terminal = Terminal::start(home.belljar(&["top", "--delay", "100ms"]));
    terminal.expect(&id);
    terminal.write("q");
    assert_eq!(wait(&mut terminal), 0);
    // What is typed is shown again.
    assert!(!terminal.is_raw());
}

#[test]
fn ctrl_c_ends_only_the_command() {
    let home = Home::new();
    let id = home.create("");
    let (server, _) = home.holder().unwrap();
    let mut terminal = Terminal::start_controlling(&home.belljar(&[
        "sandbox",
        "exec",
        &id,
        "--",
        "sh",
        "-c",
        "echo rea''dy; sleep 100",
    ]));
    terminal.expect("ready\r\n");
    terminal.write("\u{3}");
    assert_eq!(wait(&mut terminal), 130);
    assert_eq!(home.holder().unwrap().0, server);
    assert_eq!(home.inside(&id, "echo alive"), "alive\n");
}

#[test]
fn progress_of_long_work_is_shown_and_cleared() {
    let home = Home::new();
    let id = home.create("");
    for quiet in [false, true] {
        let fifo = home.file(if quiet { "quiet" } else { "loud" });
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let belljar = home.belljar(&[]);
        let line = format!(
            "\"$0\" sandbox cp {} - {id}:slow < {}; echo status $?",
            if quiet { "-q" } else { "" },
            fifo.display()
        );
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", &line])
            .arg(belljar.get_program())
            .env("BELLJAR_HOME", home.path())
            .env_remove("NO_COLOR");
        let mut terminal = Terminal::start(command);
        let mut writer = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
        writer.write_all(&vec![b'x'; 3 << 20]).unwrap();
        if quiet {
            // Longer than the delay of the progress indicator.
            let begin = std::time::Instant::now();
            while begin.elapsed() < std::time::Duration::from_secs(1) {
                writer.write_all(b"x").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            drop(writer);
            assert_eq!(terminal.expect("status 0\r\n"), "status 0\r\n");
        } else {
            terminal.expect("copying: 3.0 MiB");
            drop(writer);
            let shown = terminal.expect("status 0\r\n");
            assert!(shown.ends_with("\u{1b}[2Kstatus 0\r\n"), "{shown:?}");
        }
        assert_eq!(wait(&mut terminal), 0);
    }
}

#[test]
fn archive_is_not_written_to_a_terminal() {
    let home = Home::new();
    let id = home.create("");
    home.inside(&id, "mkdir d");
    let mut terminal = Terminal::start(home.belljar(&["sandbox", "cp", &format!("{id}:d"), "-"]));
    terminal.expect("send standard output to a file or a pipe");
    assert_eq!(wait(&mut terminal), 125);
}

#[test]
fn tables_fit_the_terminal() {
    let home = Home::new();
    let id = home.create(&format!("--name one --label note={}", "x".repeat(60)));
    for (no_color, state) in [("", "\u{1b}[32mrunning\u{1b}[0m"), ("1", "running")] {
        let mut command = home.belljar(&["sandbox", "ls"]);
        command.env("NO_COLOR", no_color);
        let mut terminal = Terminal::start(command);
        let shown = terminal.expect("…\r\n");
        assert!(shown.contains(&id) && shown.contains(state), "{shown:?}");
        assert_eq!(shown.contains('\u{1b}'), no_color.is_empty(), "{shown:?}");
        let plain =
            ["\u{1b}[1m", "\u{1b}[32m", "\u{1b}[0m"].iter().fold(shown, |text, code| text.replace(code, ""));
        assert!(plain.lines().all(|line| line.chars().count() <= 80), "{plain}");
        assert_eq!(wait(&mut terminal), 0);
    }
    // Nothing is cut elsewhere.
    assert!(home.good("sandbox ls").contains(&"x".repeat(60)));
}
