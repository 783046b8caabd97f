//! A sandbox started through the command line, and the caller: an idle process that was started the same way.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::pty::OpenptFlags;

/// Timeout for every wait.
const DEADLINE: Duration = Duration::from_secs(30);

/// The account that ordinary users' sandboxes run as; scripts/install-deps.sh creates it.
const ACCOUNT: &str = "belljar-test";

static COPYING: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// The user who starts the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    User,
}

impl Who {
    /// Returns uid and gid, or `None` if the account does not exist.
    pub(crate) fn ids(self) -> Option<(u32, u32)> {
        if self == Self::Root {
            return Some((0, 0));
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap();
        let line = passwd.lines().find(|line| line.split(':').next() == Some(ACCOUNT))?;
        let mut ids = line.split(':').skip(2);
        Some((ids.next()?.parse().ok()?, ids.next()?.parse().ok()?))
    }

    /// Returns a command that runs as this user, with a known environment.
    pub(crate) fn command(self, program: &Path) -> Command {
        let mut command =
            Command::new(if self == Self::Root { program } else { "/usr/bin/setpriv".as_ref() });
        let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/"), ("SECRET_OF_THE_CALLER", "1")];
        command.env_clear().envs(env).current_dir("/");
        if let (Self::User, Some((uid, gid))) = (self, self.ids()) {
            // With the groups of a login. The program keeps the pid of setpriv.
            command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).args(["--init-groups", "--"]);
            command.arg(program);
        }
        command
    }
}

/// A running sandbox and its processes.
pub(crate) struct Sandbox {
    launcher: Child,
    pub(crate) caller: Child,
    pub(crate) supervisor: i32,
    pub(crate) guest: i32,
    pub(crate) workload: i32,
    user: u32,
    outside: u32,
    id: String,
    program: PathBuf,
    code: String,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    terminal: Option<(OwnedFd, OwnedFd)>,
    _dir: tempfile::TempDir,
}

impl Sandbox {
    /// Starts `belljar run` with a Python program that prints `ready`, without the given walls.
    pub(crate) fn run(who: Who, without: &str, code: &str) -> Self {
        let words = ["run", "-l", "python", "-c", code];
        let mut sandbox = Self::start(who, without, &words, None);
        let mut line = String::new();
        sandbox.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        sandbox.find();
        sandbox
    }

    /// Starts `belljar shell` with a command that keeps running, on a terminal.
    pub(crate) fn shell(who: Who) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        let code = "import time\nprint('ready', flush=True)\ntime.sleep(1000)";
        let mut sandbox =
            Self::start(who, "", &["shell", "--", "python3", "-c", code], Some((master, slave)));
        let master = sandbox.terminal.as_ref().unwrap().0.try_clone().unwrap();
        let mut said = Vec::new();
        let mut master = std::fs::File::from(master);
        while !String::from_utf8_lossy(&said).contains("ready") {
            let mut some = [0; 256];
            let count = master.read(&mut some).unwrap();
            said.extend_from_slice(&some[..count]);
        }
        sandbox.find();
        sandbox
    }

    fn start(who: Who, without: &str, words: &[&str], terminal: Option<(OwnedFd, OwnedFd)>) -> Self {
        // A concurrent fork while the copy is written would keep it from being executed.
        let _guard = COPYING.lock();
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        // An ordinary user may not have access to the program's own directory.
        let program = dir.path().join("belljar");
        fs::copy(env!("CARGO_BIN_EXE_belljar-service"), &program).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_belljar-guest"), dir.path().join("belljar-guest")).unwrap();
        let mut caller = who.command(Path::new("/bin/sleep"));
        caller.arg("1000");
        let mut launcher = who.command(&program);
        // Set for the caller as well, so that the environments are alike.
        caller.env("BELLJAR_TEST_WITHOUT", without);
        launcher.env("BELLJAR_TEST_WITHOUT", without);
        launcher.args([words[0], "--quiet"]);
        if who == Who::User {
            launcher.args(["--limits", "watched"]);
        }
        launcher.args(&words[1..]);
        for command in [&mut caller, &mut launcher] {
            match &terminal {
                Some((_, slave)) => {
                    let copy = || Stdio::from(slave.try_clone().unwrap());
                    command.stdin(copy()).stdout(copy()).stderr(copy());
                }
                None => {
                    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                }
            }
        }
        let (caller, mut launcher) = (caller.spawn().unwrap(), launcher.spawn().unwrap());
        Self {
            user: who.ids().unwrap().0,
            stdin: launcher.stdin.take(),
            stdout: launcher.stdout.take().map(BufReader::new),
            launcher,
            caller,
            supervisor: 0,
            guest: 0,
            workload: 0,
            outside: 0,
            id: String::new(),
            program,
            terminal,
            code: (*words.last().unwrap()).to_owned(),
            _dir: dir,
        }
    }

    /// Finds the processes by their parents. Waits until the workload has executed its program.
    fn find(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        while !self.try_find() {
            assert!(Instant::now() < deadline, "the sandbox's processes are missing");
            std::thread::yield_now();
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.guest)).unwrap();
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
        self.outside = uid.split_whitespace().next().unwrap().parse().unwrap();
        let environment = fs::read(format!("/proc/{}/environ", self.workload)).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let id = environment.split('\0').find_map(|entry| entry.strip_prefix("BELLJAR_SANDBOX="));
        self.id = id.unwrap().to_owned();
    }

    fn try_find(&mut self) -> bool {
        let Some(supervisor) = children(self.launcher()).first().copied() else { return false };
        self.supervisor = supervisor;
        let born = children(supervisor);
        let Some(guest) = born.iter().copied().find(|pid| name(*pid) == "belljar-guest") else {
            return false;
        };
        self.guest = guest;
        let Some(workload) = children(guest).into_iter().find(|pid| name(*pid).starts_with("python3")) else {
            return false;
        };
        self.workload = workload;
        // The network helper exists for a moment only, and leaves nothing behind.
        born == [guest] && is_settled(workload)
    }

    /// The pid of `belljar` itself.
    pub(crate) fn launcher(&self) -> i32 {
        self.launcher.id().cast_signed()
    }

    /// Lets the program continue, and returns its output until `done`.
    pub(crate) fn resume(&mut self) -> Vec<String> {
        self.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
        let mut said = Vec::new();
        for line in self.stdout.as_mut().unwrap().lines() {
            let line = line.unwrap();
            if line == "done" {
                return said;
            }
            said.push(line);
        }
        panic!("the program has ended: {said:#?}");
    }

    /// Returns the owner of a process group or session.
    pub(crate) fn whose(&self, number: i64, process: i64) -> &'static str {
        let known = [
            (process, "its own"),
            (i64::from(self.workload), "the workload's"),
            (i64::from(self.guest), "the guest's"),
            (i64::from(self.supervisor), "the supervisor's"),
        ];
        known.iter().find(|(pid, _)| *pid == number).map_or("the caller's", |(_, whose)| whose)
    }

    /// Replaces everything in `text` that differs between runs.
    pub(crate) fn normal(&self, text: &str) -> String {
        let text = text
            .replace(&self.code, "CODE")
            .replace(&self.program.display().to_string(), "BELLJAR")
            .replace(&self.id, "ID");
        // The file of its user id's lock: there is one for 256 ids.
        let text = match self.outside.checked_sub(1_900_000_000) {
            Some(slot) => text.replace(&format!("/run/belljar/uids-{}", slot / 256), "/run/belljar/uids-N"),
            None => text,
        };
        let mut normal = String::new();
        let mut word = String::new();
        for letter in text.chars().chain(['\n']) {
            if letter.is_ascii_alphanumeric() {
                word.push(letter);
                continue;
            }
            match word.parse::<u32>() {
                Ok(number) if number == self.outside && self.user == 0 => normal.push_str("SANDBOX"),
                Ok(number) if number == self.user && number != 0 => normal.push_str("USER"),
                _ => normal.push_str(&word),
            }
            word.clear();
            normal.push(letter);
        }
        normal.pop();
        normal
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        for child in [&mut self.launcher, &mut self.caller] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn stat(pid: i32) -> Option<(String, String, i32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (left, right) = text.rsplit_once(") ")?;
    let mut rest = right.split(' ');
    let (state, parent) = (rest.next()?.to_owned(), rest.next()?.parse().ok()?);
    Some((left.split_once(" (")?.1.to_owned(), state, parent))
}

fn name(pid: i32) -> String {
    stat(pid).map(|(name, ..)| name).unwrap_or_default()
}

/// Reports whether all threads of a process sleep, and so have reached their wait.
fn is_settled(pid: i32) -> bool {
    threads(pid).into_iter().all(|tid| stat(tid).is_some_and(|(_, state, _)| state == "S"))
}

/// Returns the children of a process, the oldest first.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let mut all: Vec<i32> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|child| stat(*child).is_some_and(|(_, _, parent)| parent == pid))
        .collect();
    all.sort_unstable();
    all
}

/// Returns the threads of a process.
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    let mut all: Vec<i32> = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    all.sort_unstable();
    all
}
