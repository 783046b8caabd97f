//! A simulated internet beyond a gateway, and the tool under test in it.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// A public address of the machine itself.
const MACHINE: Ipv4Addr = Ipv4Addr::new(93, 184, 200, 1);

/// Timeout for anything that a test waits for.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Helper functions at the start of programs in sandboxes.
pub(crate) const PRELUDE: &str = r#"
import socket, ssl, sys, os, struct, threading
def ask(request, host, port=80, connect=None):
    """The answer of a host to these bytes, or the name of the error."""
    try:
        with socket.create_connection((connect or host, port), timeout=20) as s:
            s.sendall(request); s.shutdown(socket.SHUT_WR)
            got = b''
            while (some := s.recv(65536)): got += some
            return got.decode()
    except OSError as error:
        return type(error).__name__
def get(host, path='/', port=80, connect=None, asked=None):
    return ask(f'GET {path} HTTP/1.1\r\nHost: {asked or host}\r\nConnection: close\r\n\r\n'.encode(), host, port, connect)
def tls(host, asked=None, port=443):
    """The answer of a host over TLS, or the reason why there is none."""
    context = ssl.create_default_context(cafile='ca.pem')
    context.check_hostname = False
    try:
        with socket.create_connection((host, port), timeout=20) as raw:
            with context.wrap_socket(raw, server_hostname=asked or host) as s:
                s.sendall(b'GET / HTTP/1.1\r\n\r\n')
                return s.recv(65536).decode()
    except ssl.SSLError as error:
        return error.reason or 'SSLError'
    except OSError as error:
        return type(error).__name__
def talk(host, port=5432, said=b'hello'):
    """The greeting of a host that speaks first, and its answer."""
    try:
        with socket.create_connection((host, port), timeout=20) as s:
            first = s.recv(100)
            s.sendall(said); s.shutdown(socket.SHUT_WR)
            got = b''
            while (some := s.recv(65536)): got += some
            return first.decode() + got.decode()
    except OSError as error:
        return type(error).__name__
"#;

/// An engine whose networks are tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tested {
    Local,
    Docker,
    Gvisor,
}

/// That of this process, which runs one test.
static ENGINE: std::sync::OnceLock<Tested> = std::sync::OnceLock::new();

impl Tested {
    /// Returns the engine of this test.
    pub(crate) fn current() -> Self {
        *ENGINE.get_or_init(|| Self::Local)
    }

    /// Makes this the engine of this test.
    ///
    /// # Errors
    /// The reason why it cannot be used here.
    pub(crate) fn select(self) -> Result<(), String> {
        match self {
            Self::Local => {}
            Self::Docker => {
                let reason = std::env::var("BELLJAR_TEST_DOCKER_LACKS");
                let reason = reason.unwrap_or_else(|_| "run it by tests/docker/with-daemon.sh".to_owned());
                self.variables().map(drop).ok_or(format!("the engine docker: {reason}"))?;
            }
            Self::Gvisor => {
                let report =
                    Command::new(env!("CARGO_BIN_EXE_belljar")).args(["engine", "ls", "--json"]).output();
                let report: Value = serde_json::from_slice(&report.unwrap().stdout).unwrap();
                let engine =
                    report.as_array().unwrap().iter().find(|one| one["name"] == self.name()).unwrap();
                if let Some(obstacle) = engine["obstacles"].get(0) {
                    return Err(format!("the engine gvisor: {}", obstacle["detail"].as_str().unwrap()));
                }
            }
        }
        assert_eq!(*ENGINE.get_or_init(|| self), self, "each test has a process of its own");
        Ok(())
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Docker => "docker",
            Self::Gvisor => "gvisor",
        }
    }

    /// Returns the variables with which commands use the engine.
    fn variables(self) -> Option<Vec<(&'static str, String)>> {
        let mut all = vec![("BELLJAR_ENGINE", self.name().to_owned())];
        if self == Self::Docker {
            all.push(("BELLJAR_ENGINES_DOCKER_HOST", std::env::var("BELLJAR_TEST_DOCKER").ok()?));
            all.push(("BELLJAR_ENGINES_DOCKER_IMAGE", std::env::var("BELLJAR_TEST_IMAGE").ok()?));
        }
        Some(all)
    }

    /// Returns the settings with which a server uses the engine: the section of sandboxes, and others before it.
    pub(crate) fn settings(self) -> String {
        let own = match self {
            Self::Local => return String::new(),
            Self::Docker => {
                let [host, image] =
                    ["BELLJAR_TEST_DOCKER", "BELLJAR_TEST_IMAGE"].map(|name| std::env::var(name).unwrap());
                format!("[engines.docker]\nhost = '{host}'\nimage = '{image}'\n")
            }
            Self::Gvisor => String::new(),
        };
        format!("{own}[sandboxes]\nengine = '{}'\npool = 0\ntemplate_pool = 0\n", self.name())
    }
}

/// Moves this process to a network namespace in which it can use every address.
pub(crate) fn enter() -> Result<(), String> {
    belljar_local::enter_test_network(&[MACHINE]).map_err(|error| format!("cannot make a network: {error}"))
}

/// The simulated internet of one test.
pub(crate) struct Fixture {
    dir: TempDir,
    process: Child,
    lines: Receiver<Value>,
    said: RefCell<Vec<Value>>,
}

/// Output of a program.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) stdout: String,
    #[expect(dead_code, reason = "shown where a test fails")]
    stderr: String,
}

impl Fixture {
    pub(crate) fn start() -> Self {
        let dir = TempDir::new().unwrap();
        certificates(dir.path());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/network/internet.py");
        let mut process = Command::new("python3")
            .arg(script)
            .args(["cert.pem", "key.pem"])
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str::<Value>(&line).unwrap());
            }
        });
        let fixture = Self { dir, process, lines, said: RefCell::default() };
        fixture.policy("");
        fixture.until(|said| said["ready"] == true);
        fixture
    }

    /// Writes the operator's policy: the simulated resolver, and `more`.
    pub(crate) fn policy(&self, more: &str) {
        let text = format!("[network]\nresolvers = [\"9.9.9.9:53\"]\n{more}\n");
        std::fs::write(self.dir.path().join("policy.toml"), text).unwrap();
    }

    /// Runs the tool with these flags, separated by spaces, and a program in Python.
    pub(crate) fn run(&self, flags: &str, code: &str) -> Done {
        self.run_without("", flags, code)
    }

    /// Like [`Fixture::run`], without a wall.
    pub(crate) fn run_without(&self, wall: &str, flags: &str, code: &str) -> Done {
        let mut command = self.command(flags, code);
        command.env("BELLJAR_TEST_WITHOUT", wall);
        Self::done(command)
    }

    /// Runs the tool with these flags, and a program in Bash.
    pub(crate) fn run_bash(&self, flags: &str, code: &str) -> Done {
        Self::done(self.command_in("bash", flags, code))
    }

    fn done(mut command: Command) -> Done {
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let done = Done { stdout: text(output.stdout), stderr: text(output.stderr) };
        assert!(output.status.success(), "{done:?}");
        done
    }

    pub(crate) fn command(&self, flags: &str, code: &str) -> Command {
        self.command_in("python", flags, &format!("{PRELUDE}\n{code}"))
    }

    fn command_in(&self, language: &str, flags: &str, code: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["run", "--policy", "policy.toml", "-f", "ca.pem"]).args(flags.split_whitespace());
        command.args(["-l", language, "-c", code]);
        command.current_dir(&self.dir).stdin(Stdio::null()).envs(Tested::current().variables().unwrap());
        command
    }

    /// Waits for an event that matches.
    pub(crate) fn until(&self, is_it: impl Fn(&Value) -> bool) {
        while !self.said.borrow().iter().any(&is_it) {
            let line = self.lines.recv_timeout(DEADLINE).expect("the event arrives in time");
            self.said.borrow_mut().push(line);
        }
    }

    /// Returns the tool's working directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the certificate of the servers' authority, in PEM.
    pub(crate) fn certificate(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("ca.pem")).unwrap()
    }

    /// Returns all events so far: those before the echo of a word that is sent now.
    pub(crate) fn said(&self) -> Vec<Value> {
        let mut stdin = self.process.stdin.as_ref().unwrap();
        writeln!(stdin, "now").unwrap();
        let is_echo = |said: &Value| said["echo"] == "now";
        self.until(is_echo);
        self.said.borrow_mut().retain(|said| !is_echo(said));
        self.said.borrow().clone()
    }

    /// Reports whether a connection to this address was made.
    pub(crate) fn was_reached(&self, address: &str) -> bool {
        self.said().iter().any(|said| said["connected"] == address)
    }

    /// Reports whether the resolver was queried for a name.
    pub(crate) fn was_asked(&self, name: &str) -> bool {
        self.said().iter().any(|said| said["query"] == name)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // The process, and those that it started, end at the end of their input.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Creates an authority (`ca.pem`), its certificate for the names under `example` (`cert.pem`), a self-signed one (`impostor.pem`),
/// and the key of both.
fn certificates(dir: &Path) {
    const NAMES: &str = "subjectAltName=DNS:good.example,DNS:other.example,DNS:sub.good.example,DNS:example.org,\
         DNS:impostor.example,DNS:http2.example,DNS:git.example,DNS:alias.example,DNS:pypi.org,DNS:files.pythonhosted.org";
    let openssl = |words: &str| {
        let made = Command::new("openssl").args(words.split(' ')).current_dir(dir).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    };
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(&format!("{new} -keyout ca.key -out ca.pem -subj /CN=world"));
    openssl(&format!("{new} -keyout key.pem -out impostor.pem -subj /CN=impostor -addext {NAMES}"));
    openssl(&format!(
        "req -x509 -key key.pem -CA ca.pem -CAkey ca.key -days 2 -out cert.pem -subj /CN=host -addext {NAMES} \
         -addext basicConstraints=critical,CA:FALSE"
    ));
}

/// Returns the gateways of this test's network namespace.
pub(crate) fn gateways() -> Vec<Pid> {
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let is_gateway = |dir: &Path| {
        let name = std::fs::read_to_string(dir.join("comm")).unwrap_or_default();
        // Only root can inspect a gateway's namespaces.
        let namespace = std::fs::read_link(dir.join("ns/net"));
        name == "belljar-gate\n" && namespace.is_ok_and(|namespace| namespace == own)
    };
    let found = entries.filter(|entry| is_gateway(&entry.path()));
    found.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}
