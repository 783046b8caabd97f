//! A server under test.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

pub(crate) use belljar_testing::wait::{DEADLINE, eventually};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::http::{Answer, send};

/// The tool under test.
pub(crate) const BELLJAR: &str = env!("CARGO_BIN_EXE_belljar");

/// A home for consecutive servers.
pub(crate) struct Home {
    pub(crate) dir: TempDir,
}

/// A running server. It ends when dropped, as do its sandboxes unless configured otherwise.
pub(crate) struct Server {
    child: Option<Child>,
    /// Address such as `127.0.0.1:8787`; empty if it listens only on its socket.
    pub(crate) address: String,
    /// The first key, if printed.
    pub(crate) key: String,
    /// Standard output so far.
    pub(crate) said: String,
    stderr: PathBuf,
}

/// A server that did not start.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path().join("belljar.sock")
    }

    /// Writes the configuration.
    pub(crate) fn configure(&self, text: &str) {
        std::fs::create_dir_all(self.path()).unwrap();
        std::fs::write(self.path().join("belljar.toml"), text).unwrap();
    }

    /// Returns the tool's command, without variables of the test's environment that would affect it.
    pub(crate) fn belljar(&self, args: &[&str]) -> Command {
        let mut command = self.isolated_command(Path::new(BELLJAR));
        command.args(args);
        command
    }

    /// Returns the command of another program that runs the tool.
    pub(crate) fn isolated_command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("BELLJAR_") && name != "BELLJAR_CGROUP" {
                command.env_remove(name);
            }
        }
        command.env_remove("NOTIFY_SOCKET").env_remove("JOURNAL_STREAM").env("BELLJAR_HOME", self.path());
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Starts a server on a free port, whose sandboxes end with it.
    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        let all = ["serve", "--listen", "127.0.0.1:0", "--on-exit", "end", "--pool", "0"];
        self.start(&[&all, args].concat()).unwrap_or_else(|refused| panic!("{refused:?}"))
    }

    /// Starts a server with exactly these arguments.
    pub(crate) fn start(&self, args: &[&str]) -> Result<Server, Refused> {
        self.spawn(&mut self.belljar(args))
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> Result<Server, Refused> {
        let stderr =
            self.dir.path().join(format!("stderr-{}", std::fs::read_dir(self.dir.path()).unwrap().count()));
        command.stdout(Stdio::piped()).stderr(std::fs::File::create(&stderr).unwrap());
        let mut child = command.spawn().unwrap();
        let (sender, pieces) = mpsc::channel();
        let mut stdout = child.stdout.take().unwrap();
        // The server writes its message in one piece, so the key arrives together with the address.
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = stdout.read(&mut piece) {
                let _ = sender.send(String::from_utf8_lossy(&piece[..length]).into_owned());
            }
        });
        let mut server = Server {
            child: Some(child),
            address: String::new(),
            key: String::new(),
            said: String::new(),
            stderr,
        };
        let begin = Instant::now();
        loop {
            if let Ok(piece) = pieces.recv_timeout(Duration::from_millis(20)) {
                server.said.push_str(&piece);
            }
            if let Some(status) = server.child.as_mut().unwrap().try_wait().unwrap() {
                server.child = None;
                server.said.extend(pieces.iter());
                let stdout = std::mem::take(&mut server.said);
                return Err(Refused { status: status.code(), stdout, stderr: server.log() });
            }
            if server.log().contains("serving") && server.said.contains("Belljar serves") {
                break;
            }
            assert!(begin.elapsed() < DEADLINE, "not there in time: {} {}", server.said, server.log());
        }
        let word = |begin: &str, end: char| {
            let rest = server.said.split_once(begin).map(|(_, rest)| rest).unwrap_or_default();
            rest.split(end).next().unwrap_or_default().trim().to_owned()
        };
        (server.address, server.key) = (word("://", '\n'), word("BELLJAR_API_KEY=", ' '));
        Ok(server)
    }
}

impl Server {
    /// Returns standard error so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Waits until the log contains `text`.
    #[track_caller]
    pub(crate) fn await_log(&self, text: &str) {
        eventually(|| {
            self.log().contains(text).then_some(()).ok_or_else(|| format!("{text}: {}", self.log()))
        });
    }

    /// Sends a request with the first key.
    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        send(&self.address, method, path, &[("X-API-Key", &self.key)], body)
    }

    /// Creates a sandbox, and returns its id.
    pub(crate) fn create(&self, body: &str) -> String {
        let answer = self.call("POST", "/v1/sandboxes", body);
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// Runs a command in a sandbox, and returns its output.
    pub(crate) fn exec(&self, id: &str, command: &str) -> String {
        let body = serde_json::json!({ "command": command }).to_string();
        let answer = self.call("POST", &format!("/v1/sandboxes/{id}/exec"), &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["stdout"]["data"].as_str().unwrap().to_owned()
    }

    /// Returns the value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> Option<String> {
        let metrics = self.call("GET", "/metrics", "").body;
        metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Ends the server, and returns its exit status.
    pub(crate) fn stop(mut self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        let status = eventually(|| {
            child.try_wait().unwrap().ok_or_else(|| format!("it does not end: {}", self.log()))
        });
        status.code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = rustix::process::kill_process(Pid::from_child(&child), Signal::TERM);
        let begin = Instant::now();
        while begin.elapsed() < DEADLINE {
            if let Ok(Some(_)) = child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Returns the repository's root.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}
