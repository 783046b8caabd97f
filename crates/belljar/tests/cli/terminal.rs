//! Pseudoterminals for tests.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize};

/// Timeout for anything that a test waits for.
const DEADLINE: Duration = Duration::from_secs(60);

/// A terminal with a command on it.
pub(crate) struct Terminal {
    master: File,
    slave: OwnedFd,
    pub(crate) child: Child,
    seen: String,
}

impl Terminal {
    /// Starts a command with a new terminal as its controlling one, so that keys send signals.
    pub(crate) fn start_controlling(belljar: &Command) -> Self {
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(belljar.get_program()).args(belljar.get_args());
        for (name, value) in belljar.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = belljar.get_current_dir() {
            command.current_dir(dir);
        }
        Self::start(command)
    }

    /// Starts a command on a new terminal.
    pub(crate) fn start(mut command: Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        let copy = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(copy()).stdout(copy()).stderr(copy()).env("TERM", "vt100");
        let terminal =
            Self { child: command.spawn().unwrap(), master: File::from(master), slave, seen: String::new() };
        terminal.resize(24, 80);
        terminal
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&self.slave, size).unwrap();
    }

    pub(crate) fn is_raw(&self) -> bool {
        !rustix::termios::tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until `expected` is shown, and returns and removes everything up to its end.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &str) -> String {
        let mut buffer = [0; 4096];
        let mut searched = 0;
        loop {
            if let Some(at) = self.seen.get(searched..).and_then(|new| new.find(expected)) {
                let rest = self.seen.split_off(searched + at + expected.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            searched = self.seen.floor_char_boundary(self.seen.len().saturating_sub(expected.len()));
            let timeout = Timespec { tv_sec: DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
            let mut ready = [PollFd::new(&self.master, PollFlags::IN)];
            let count = rustix::event::poll(&mut ready, Some(&timeout)).unwrap();
            assert_eq!(count, 1, "{expected:?} is not in {:?}", self.seen);
            let count = self.master.read(&mut buffer).unwrap();
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    }
}
