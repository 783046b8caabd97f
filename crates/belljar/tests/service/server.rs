//! A real server process on a free port, with a home of its own.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::client::Client;

const BELLJAR: &str = env!("CARGO_BIN_EXE_belljar");

/// Timeout for a server to become ready, also on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The directory of a server, which outlives its processes.
pub(crate) struct Home {
    dir: tempfile::TempDir,
    /// Flags of every server in it, besides its home and its address.
    pub(crate) flags: Vec<String>,
    /// The program to run.
    pub(crate) program: PathBuf,
    /// Disabled walls, in builds that support it.
    pub(crate) without: Option<&'static str>,
    /// Limit of the server's descriptors, if lower than the machine's.
    pub(crate) descriptors: Option<u32>,
    /// The first administrator's key, once a server has printed it.
    pub(crate) key: Option<String>,
}

impl Home {
    /// Creates an empty home, for servers with these settings.
    pub(crate) fn new(settings: &[&str]) -> Self {
        let dir =
            tempfile::Builder::new().prefix("belljar-service-").tempdir().expect("a directory can be made");
        for name in ["home", "tmp"] {
            std::fs::create_dir(dir.path().join(name)).expect("a directory can be made");
        }
        Self::at(dir, settings)
    }

    /// Creates a home in this directory, which contains the directories `home` and `tmp`.
    pub(crate) fn at(dir: tempfile::TempDir, settings: &[&str]) -> Self {
        let always = [
            "server.max_failed_attempts=1000000",
            "sandboxes.share_host_tree=true",
            "log.format=json",
            "server.drain=3s",
        ];
        let flags =
            always.iter().chain(settings).flat_map(|one| ["--set".to_owned(), (*one).to_owned()]).collect();
        Self { dir, flags, program: BELLJAR.into(), without: None, descriptors: None, key: None }
    }

    /// Returns the server's own directory.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Returns the directory of its temporary files.
    pub(crate) fn tmp(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    /// Returns the log of all servers in it.
    pub(crate) fn log(&self) -> String {
        let read =
            |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        read(&self.dir.path().join("log")) + &read(&self.path().join("launcher/launcher.log"))
    }

    /// Starts a server without waiting for it.
    pub(crate) fn spawn(&self) -> Child {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.path().join("log"));
        let mut command = match self.descriptors {
            None => Command::new(&self.program),
            Some(most) => {
                let mut command = Command::new("prlimit");
                command.arg(format!("--nofile={most}:{most}")).arg(&self.program);
                command
            }
        };
        command
            .arg("serve")
            .arg("--home")
            .arg(self.path())
            .args(["--listen", "127.0.0.1:0"])
            .args(&self.flags)
            .env("TMPDIR", self.tmp())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("the log can be written"));
        if let Some(wall) = self.without {
            command.env("BELLJAR_TEST_WITHOUT", wall);
        }
        command.spawn().expect("belljar starts")
    }

    /// Starts a server, and waits until it listens.
    pub(crate) fn start(&mut self) -> Server {
        self.try_start().unwrap_or_else(|why| panic!("the server does not start: {why}\n{}", self.log()))
    }

    /// Like [`Home::start`], but returns the reason if the server does not start.
    pub(crate) fn try_start(&mut self) -> Result<Server, String> {
        let mut child = self.spawn();
        let output = child.stdout.take().expect("it is piped");
        let (send, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let mut server = Server { child, address: ([127, 0, 0, 1], 0).into(), key: String::new() };
        let first = lines
            .recv_timeout(START_TIMEOUT)
            .map_err(|_| format!("it says nothing, and {:?}", server.child.try_wait()))?;
        let address = first.rsplit_once("http://").and_then(|(_, address)| address.parse().ok());
        server.address = address.ok_or_else(|| format!("it says {first:?}"))?;
        if self.key.is_none() {
            let second = lines.recv_timeout(START_TIMEOUT).map_err(|_| "it prints no key".to_owned())?;
            let key = second.split(['=', ' ']).find(|word| word.starts_with("bj_"));
            self.key = Some(key.ok_or_else(|| format!("it says {second:?}"))?.to_owned());
        }
        server.key = self.key.clone().unwrap_or_default();
        Ok(server)
    }

    /// Returns the launcher of this home, if it runs: its pidfd and pid.
    pub(crate) fn launcher(&self) -> Option<(OwnedFd, u32)> {
        let run_dir = self.path().join("launcher");
        let is_it = |pid: u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.get(1) == Some(&b"launcher".as_slice())
                && words.get(2) == Some(&run_dir.as_os_str().as_encoded_bytes())
        };
        // Its supervisors are forks with the same name until they set their own.
        let pid = processes().filter(|pid| is_it(*pid)).min_by_key(|pid| depth(*pid))?;
        let fd = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        // The pid may have been reused before the descriptor was opened, but not if it still runs the same command.
        is_it(pid).then_some((fd, pid))
    }

    /// Kills the launcher, waits for its end, and reports whether there was one.
    pub(crate) fn kill_launcher(&self) -> bool {
        let Some((launcher, pid)) = self.launcher() else { return false };
        let _ = pidfd_send_signal(launcher, Signal::KILL);
        let begin = Instant::now();
        while self.launcher().is_some_and(|(_, other)| other == pid) {
            assert!(begin.elapsed() < START_TIMEOUT, "the launcher does not die");
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Returns the sandboxes of this home that have processes, according to the launcher's descendants.
    pub(crate) fn alive(&self) -> std::collections::BTreeSet<String> {
        let Some((_, launcher)) = self.launcher() else { return std::collections::BTreeSet::new() };
        descendants(launcher).flat_map(sandboxes_of).collect()
    }

    /// Waits until the launcher is idle and has exited.
    pub(crate) fn wait_for_launcher_exit(&self) {
        let begin = Instant::now();
        while self.launcher().is_some() {
            assert!(begin.elapsed() < START_TIMEOUT * 2, "the launcher stays, with {:?}", self.alive());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A listening server.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The first administrator's key.
    pub(crate) key: String,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a client with the first key.
    pub(crate) fn admin(&self) -> Client {
        Client::new(self.address, Some(&self.key)).keep_alive()
    }

    /// Returns a client without a key.
    pub(crate) fn stranger(&self) -> Client {
        Client::new(self.address, None).keep_alive()
    }

    /// Waits until the server reports that it is ready.
    pub(crate) async fn ready(&self) {
        let stranger = self.stranger();
        let begin = Instant::now();
        loop {
            let asked =
                tokio::time::timeout(Duration::from_secs(5), stranger.try_call("GET", "/ready")).await;
            if matches!(&asked, Ok(Ok(answer)) if answer.status == 200) {
                return;
            }
            assert!(begin.elapsed() < START_TIMEOUT, "the server does not become ready: {asked:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Shuts down the server's ends of all connections to guests, which `launcher` has made. Returns their number.
    pub(crate) fn break_guest_connections(&self, launcher: u32) -> usize {
        use rustix::net::sockopt::{socket_domain, socket_peercred, socket_type};
        use rustix::net::{AddressFamily, Shutdown, SocketType, shutdown};
        use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("it is a pid");
        let server = pidfd_open(pid, PidfdFlags::empty()).expect("the server runs");
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the server runs");
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_to_guest = |socket: &OwnedFd| {
            socket_domain(socket) == Ok(AddressFamily::UNIX)
                && socket_type(socket) == Ok(SocketType::STREAM)
                && socket_peercred(socket).is_ok_and(|peer| peer.pid.as_raw_nonzero().get() == launcher.cast_signed())
                // That to the launcher itself has its name.
                && rustix::net::getpeername(socket).is_ok_and(|name| {
                    name.is_none_or(|name| {
                        rustix::net::SocketAddrUnix::try_from(name).is_ok_and(|name| name.path_bytes().is_none_or(<[u8]>::is_empty))
                    })
                })
        };
        let sockets =
            numbers.filter_map(|number| pidfd_getfd(&server, number, PidfdGetfdFlags::empty()).ok());
        sockets.filter(|socket| is_to_guest(socket) && shutdown(socket, Shutdown::Both).is_ok()).count()
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Stops the server with SIGTERM, and waits for its end.
    pub(crate) fn stop(mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("it is a pid");
        // The process has not been waited for, so the pid is still its own.
        rustix::process::kill_process(pid, Signal::TERM).expect("it can be signalled");
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(begin.elapsed() < START_TIMEOUT, "the server does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing may be left after a failure. The library does not signal a process that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Its sandboxes end with it.
        self.kill_launcher();
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Returns the ancestors of a process, the nearest first.
fn ancestors(pid: u32) -> Vec<u32> {
    let mut above = Vec::new();
    let mut at = pid;
    while let Some(next) = parent(at).filter(|next| *next > 1 && above.len() < 64) {
        above.push(next);
        at = next;
    }
    above
}

/// Returns the descendants of a process.
pub(crate) fn descendants(of: u32) -> impl Iterator<Item = u32> {
    processes().filter(move |pid| ancestors(*pid).contains(&of))
}

fn depth(pid: u32) -> usize {
    ancestors(pid).len()
}

/// Returns the sandboxes whose control groups contain a process.
fn sandboxes_of(pid: u32) -> Vec<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let names = groups.lines().filter_map(|line| line.rsplit_once("belljar-"));
    names.map(|(_, id)| id.chars().take_while(char::is_ascii_alphanumeric).collect()).collect()
}

/// Returns the ids of all sandboxes with a control group on this machine, including those of other homes.
pub(crate) fn groups() -> std::collections::BTreeSet<String> {
    let mut found = std::collections::BTreeSet::new();
    let mut dirs = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match entry.file_name().to_string_lossy().strip_prefix("belljar-") {
                Some(id) => drop(found.insert(id.to_owned())),
                None if dir.components().count() < 8 => dirs.push(entry.path()),
                None => {}
            }
        }
    }
    found
}

/// Returns the ids of the sandboxes of this home with a scratch directory.
pub(crate) fn scratch(home: &Home) -> std::collections::BTreeSet<String> {
    let entries = std::fs::read_dir(home.tmp()).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| name.strip_prefix("belljar-").map(str::to_owned)).collect()
}

/// Returns the content of a file of the sandbox's control group, by its names in both versions.
pub(crate) fn group_file(id: &str, names: &[&str]) -> Option<String> {
    let mut dirs = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name() == format!("belljar-{id}").as_str() {
                let read =
                    names.iter().find_map(|name| std::fs::read_to_string(entry.path().join(name)).ok());
                if let Some(text) = read {
                    return Some(text.trim().to_owned());
                }
            } else if dir.components().count() < 8 {
                dirs.push(entry.path());
            }
        }
    }
    None
}
