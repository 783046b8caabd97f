//! The tool under test, and helpers to run it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// Timeout for anything that a test waits for.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// An empty directory to work in, and the tool.
pub(crate) struct Host {
    pub(crate) dir: TempDir,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path().join(name), content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path().join(name)).unwrap()
    }

    /// Returns the sorted names in the directory.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns a command that runs the tool in the directory, with an empty standard input.
    pub(crate) fn belljar<A: AsRef<OsStr>>(&self, args: &[A]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        for name in ["BELLJAR_ENGINE", "CODE_EXEC_SANDBOX", "BELLJAR_LIMITS", "BELLJAR_POLICY", "COLUMNS"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs the tool, and waits for its end.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, args: &[A]) -> Done {
        Done::of(&mut self.belljar(args))
    }

    /// Runs the tool with this standard input.
    pub(crate) fn run_with_stdin(&self, args: &[&str], stdin: &[u8]) -> Done {
        let mut command = self.belljar(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let stdin = stdin.to_vec();
        // A program may end without having read everything.
        let writer = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        Done::from(output)
    }
}

impl Done {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::from(command.output().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks the status, standard output and standard error.
    #[track_caller]
    pub(crate) fn check(&self, status: i32, stdout: &str, stderr: &str) {
        assert_eq!((self.status, self.text(), self.stderr.as_str()), (status, stdout, stderr));
    }
}

impl From<std::process::Output> for Done {
    fn from(output: std::process::Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Waits for the end of `child`, and returns its status.
#[track_caller]
pub(crate) fn status_of(child: &mut Child) -> i32 {
    let mut status = None;
    wait_for("the end of the command", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code().unwrap_or(-1)
}

pub(crate) fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Reads from `source` until `expected` has been read.
#[track_caller]
pub(crate) fn read_until(source: &mut impl std::io::Read, expected: &str) -> String {
    let mut seen = Vec::new();
    let mut byte = [0; 1];
    while !String::from_utf8_lossy(&seen).contains(expected) {
        assert_eq!(source.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&byte);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

/// Reports whether any process has this text in its command line.
pub(crate) fn is_running(marker: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let mut line = Vec::new();
        let read = File::open(entry.path().join("cmdline")).and_then(|mut file| file.read_to_end(&mut line));
        read.is_ok() && String::from_utf8_lossy(&line).contains(marker)
    })
}

/// Returns a text that no other process has in its command line.
pub(crate) fn marker(test: &str) -> String {
    format!("marker-{test}-{}", std::process::id())
}
