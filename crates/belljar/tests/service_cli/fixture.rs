//! A home, and helpers to run commands in it.

use std::cell::RefCell;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) use belljar_testing::wait::{DEADLINE, eventually};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::Value;
use tempfile::TempDir;

/// A home. Dropping it ends its sandboxes, after which a background server ends by itself.
pub(crate) struct Home {
    pub(crate) dir: TempDir,
    /// Servers of the home, which are ended when it is dropped, even if the test fails.
    servers: RefCell<Vec<OwnedFd>>,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self::configured("[server]\nlinger = '1s'\n")
    }

    pub(crate) fn configured(text: &str) -> Self {
        use std::os::unix::fs::DirBuilderExt as _;
        let home = Self { dir: TempDir::new().unwrap(), servers: RefCell::default() };
        std::fs::DirBuilder::new().mode(0o700).create(home.path()).unwrap();
        std::fs::write(home.path().join("belljar.toml"), text).unwrap();
        home
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Returns the path of a file beside the home, in the working directory of commands.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.file(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap()
    }

    /// Returns the tool's command, without variables of the test's environment that would affect it.
    pub(crate) fn belljar(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("BELLJAR_") && name != "BELLJAR_CGROUP" {
                command.env_remove(name);
            }
        }
        command.env_remove("NOTIFY_SOCKET").env_remove("JOURNAL_STREAM").env("BELLJAR_HOME", self.path());
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command whose words are separated by spaces.
    pub(crate) fn run(&self, line: &str) -> Done {
        self.run_args(&line.split(' ').collect::<Vec<_>>())
    }

    pub(crate) fn run_args(&self, args: &[&str]) -> Done {
        Done::of(self.belljar(args).output().unwrap())
    }

    /// Runs a command that must succeed, and returns its output.
    #[track_caller]
    pub(crate) fn good(&self, line: &str) -> String {
        self.run(line).good()
    }

    /// Runs a command that must succeed and prints JSON, and returns its last value.
    #[track_caller]
    pub(crate) fn json(&self, line: &str) -> Value {
        let text = self.good(&format!("{line} --format json"));
        let last = text.lines().last().unwrap_or_else(|| panic!("{line} wrote nothing"));
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last}"))
    }

    /// Runs a command with this standard input.
    pub(crate) fn feed(&self, line: &str, input: &[u8]) -> Done {
        let args: Vec<_> = line.split(' ').collect();
        self.feed_command(self.belljar(&args), input)
    }

    /// Runs a prepared command with this standard input.
    pub(crate) fn feed_command(&self, mut command: Command, input: &[u8]) -> Done {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // The command may end without having read everything.
        let feeding = std::thread::spawn(move || {
            let _ = stdin.write_all(&input);
        });
        let done = Done::of(child.wait_with_output().unwrap());
        feeding.join().unwrap();
        done
    }

    /// Creates a sandbox, and returns its id.
    #[track_caller]
    pub(crate) fn create(&self, more: &str) -> String {
        self.good(format!("sandbox create {more}").trim()).trim().to_owned()
    }

    /// Runs a line in a sandbox's shell, and returns its output.
    #[track_caller]
    pub(crate) fn inside(&self, sandbox: &str, line: &str) -> String {
        self.run_args(&["sandbox", "exec", sandbox, "--", "sh", "-c", line]).good()
    }

    /// Returns the pid and the description of the server that holds the home.
    pub(crate) fn holder(&self) -> Option<(Pid, Value)> {
        let text = std::fs::read_to_string(self.path().join("serve.lock")).ok()?;
        let (pid, rest) = text.split_once('\n')?;
        Some((Pid::from_raw(pid.parse().ok()?)?, serde_json::from_str(rest).ok()?))
    }

    /// Reports whether a server holds the home.
    pub(crate) fn is_held(&self) -> bool {
        let lock = std::fs::File::open(self.path().join("serve.lock"));
        lock.is_ok_and(|lock| lock.try_lock_shared().is_err())
    }

    /// Starts a server in the foreground that keeps its sandboxes, and waits until it answers. Returns it and its output.
    pub(crate) fn serve(&self, more: &[&str]) -> (Child, String) {
        let out = self.file("serve.out");
        let args = [&["serve", "--listen", "127.0.0.1:0", "--pool", "0"], more].concat();
        let mut command = self.belljar(&args);
        command.stdout(std::fs::File::create(&out).unwrap());
        command.stderr(std::fs::File::create(self.file("serve.err")).unwrap());
        let mut child = command.spawn().unwrap();
        let said = eventually(|| {
            let (said, log) = (std::fs::read_to_string(&out).unwrap(), self.read("serve.err"));
            assert_eq!(child.try_wait().unwrap(), None, "{said} {log}");
            if said.contains("Belljar serves") && said.ends_with('\n') { Ok(said) } else { Err(log) }
        });
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        self.servers.borrow_mut().push(pidfd.unwrap());
        (child, said)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for server in self.servers.take() {
                let _ = rustix::process::pidfd_send_signal(&server, Signal::KILL);
            }
        }
        if !self.is_held() {
            return;
        }
        let ended = self.run("sandbox kill --all");
        let begin = Instant::now();
        while self.is_held() && begin.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.is_held() && !std::thread::panicking() {
            panic!("the server in the background does not end: {ended:?}");
        }
    }
}

impl Done {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn good(self) -> String {
        assert_eq!(self.status, Some(0), "{self:?}");
        self.stdout
    }

    /// Checks that the command failed with this status, and that standard error contains all of `words` and standard output is empty.
    #[track_caller]
    pub(crate) fn refused(&self, status: i32, words: &[&str]) {
        assert_eq!((self.status, self.stdout.as_str()), (Some(status), ""), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {:?}", self.stderr);
        }
    }
}

/// Ends a server that was started in the foreground.
pub(crate) fn stop(mut server: Child) {
    rustix::process::kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    let status =
        eventually(|| server.try_wait().unwrap().ok_or_else(|| "the server does not end".to_owned()));
    assert_eq!(status.code(), Some(0));
}
