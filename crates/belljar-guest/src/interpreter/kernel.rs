//! An interpreter's process, and how it is started.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use rustix::fs::{MemfdFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::AsyncWriteExt as _;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use super::frame::{Frames, Said, short};
use crate::guest::Guest;
use crate::process::{NewProcess, Process, Stdin};
use belljar_linux::Spawned;

use crate::start::{Command, DRAIN_BYTES, is_empty, non_blocking, output_pipe, read_some};
use crate::tree::SIGKILL;

/// How long an interpreter may take until it can take code.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How long an interpreter that is idle may take to read what it is to run.
const TAKES_WITHIN: Duration = Duration::from_secs(30);

/// How much of what a kernel writes before it is ready is kept for the error, in bytes.
const LAST_WORDS_BYTES: usize = 1024;

/// How long the end of a process that was killed is waited for.
const DIES_WITHIN: Duration = Duration::from_secs(10);

/// What contexts can be of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Language {
    Python,
    JavaScript,
    TypeScript,
    Bash,
    /// A Jupyter kernel, under its whole name: `jupyter:` and that of its kernelspec.
    Jupyter(String),
}

/// What the name of a language begins with that is a kernelspec's.
const JUPYTER: &str = "jupyter:";

/// The longest name of a kernelspec, in bytes.
const MAX_SPEC_BYTES: usize = 48;

impl Language {
    const ALL: [Self; 4] = [Self::Python, Self::JavaScript, Self::TypeScript, Self::Bash];

    /// Reads a name or an alias, as `belljar run` has them. Python when it is empty. R is there where its kernel is, in the tree
    /// or in the home directory.
    pub(super) fn named(name: &str, home: &Path) -> Result<Self, ConnectError> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "r" | "rscript" if is_installed("ir", home) => Self::Jupyter(format!("{JUPYTER}ir")),
            "r" | "rscript" => {
                return Err(ConnectError::invalid_argument(
                    "language: R keeps its state where its Jupyter kernel is installed, IRkernel (Debian: r-cran-irkernel)",
                ));
            }
            "" | "python" | "python3" | "py" => Self::Python,
            "javascript" | "js" | "node" | "nodejs" => Self::JavaScript,
            "typescript" | "ts" => Self::TypeScript,
            "bash" | "sh" | "shell" => Self::Bash,
            lower if lower.strip_prefix(JUPYTER).is_some_and(is_spec_name) => Self::Jupyter(lower.to_owned()),
            _ => {
                let known = Self::ALL.each_ref().map(Self::name).join(", ");
                let name = short(name.escape_debug().to_string(), 64);
                return Err(ConnectError::invalid_argument(format!(
                    "language: \"{name}\" has no interpreter that keeps its state; there are {known}, \
                     and jupyter:NAME for each installed kernelspec"
                )));
            }
        })
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Bash => "bash",
            Self::Jupyter(name) => name,
        }
    }

    /// The kernel's text.
    pub(super) const fn kernel(&self) -> &'static [u8] {
        match self {
            Self::Python => include_bytes!("../../../../kernels/python/kernel.py"),
            Self::JavaScript | Self::TypeScript => {
                include_bytes!("../../../../kernels/javascript/kernel.mjs")
            }
            Self::Jupyter(_) => include_bytes!("../../../../kernels/jupyter/bridge.py"),
            Self::Bash => b"",
        }
    }

    /// Whether environment and directory are those of the context, and an execution cannot have others.
    pub(super) const fn has_fixed_place(&self) -> bool {
        matches!(self, Self::Jupyter(_))
    }

    fn argv(&self, heap_mib: u64) -> Vec<Bytes> {
        match self {
            Self::Python | Self::Jupyter(_) => vec![Bytes::from_static(b"python3")],
            Self::JavaScript | Self::TypeScript => {
                let mut argv = vec![Bytes::from_static(b"node"), Bytes::from_static(b"--input-type=module")];
                if heap_mib > 0 {
                    argv.push(format!("--max-old-space-size={heap_mib}").into());
                }
                argv
            }
            Self::Bash => vec![Bytes::from_static(b"bash")],
        }
    }

    fn env(&self) -> Vec<v1::EnvVar> {
        let pairs: &[(&'static str, &'static str)] = match self {
            // No __pycache__ among the files that code made.
            Self::Python => &[("PYTHONDONTWRITEBYTECODE", "1")],
            _ => &[],
        };
        let fd = belljar_linux::CONTROL_FD.to_string();
        let own = [("BELLJAR_KERNEL_FD", fd.as_str()), ("BELLJAR_KERNEL_LANGUAGE", self.name())];
        pairs.iter().copied().chain(own).map(|(name, value)| variable(name, value)).collect()
    }
}

/// Where kernelspecs are, besides the home directory: those of the system, and of a template on the machine's own tree.
const DATA_DIRECTORIES: [&str; 3] =
    ["/usr/local/share/jupyter", "/usr/share/jupyter", "/opt/template/share/jupyter"];

fn is_installed(spec: &str, home: &Path) -> bool {
    let own = home.join(".local/share/jupyter");
    let all = DATA_DIRECTORIES.iter().map(Path::new).chain([own.as_path()]);
    all.map(|data| data.join("kernels").join(spec).join("kernel.json")).any(|file| file.is_file())
}

fn is_spec_name(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=MAX_SPEC_BYTES).contains(&name.len()) && name.bytes().all(is_fit)
}

fn variable(name: &str, value: &str) -> v1::EnvVar {
    v1::EnvVar {
        name: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        ..Default::default()
    }
}

/// An interpreter that speaks the kernels' protocol, wherever it came from.
pub(super) struct Kernel {
    pub(super) process: Arc<Process>,
    pub(super) version: String,
    /// How it came to be, and why it is not warm if it was to be.
    pub(super) start: (v1::KernelStart, String),
    socket: UnixStream,
    frames: Frames,
    streams: [AsyncFd<OwnedFd>; 2],
    /// Whether anybody can still write to the streams.
    open: [bool; 2],
    /// Whether the control socket is still open at the other side.
    hears: bool,
}

impl Kernel {
    /// Takes an interpreter that the host has made ready, or starts one, and waits until it can take code.
    ///
    /// # Errors
    /// It cannot be started, or says that it cannot work.
    pub(super) async fn start(
        guest: &Arc<Guest>,
        language: &Language,
        cwd: &Bytes,
        env: &[v1::EnvVar],
    ) -> Result<Self, ConnectError> {
        let mut note = String::new();
        if *language == Language::Python
            && let Some(spare) = guest.arrivals.spare()
        {
            match super::warm::take(guest, spare, cwd, env).await {
                Ok(kernel) => return Ok(kernel),
                Err(why) => note = why,
            }
        }
        let mut kernel = Self::start_plain(guest, language, cwd, env).await?;
        kernel.start.1 = note;
        Ok(kernel)
    }

    async fn start_plain(
        guest: &Arc<Guest>,
        language: &Language,
        cwd: &Bytes,
        env: &[v1::EnvVar],
    ) -> Result<Self, ConnectError> {
        let mut kernel = Self::spawn(guest, language, cwd, env)?;
        match tokio::time::timeout(READY_WITHIN, kernel.until_ready()).await {
            Ok(Ok(version)) => {
                kernel.version = version;
                return Ok(kernel);
            }
            Ok(Err(why)) => {
                kernel.end(guest).await;
                Err(why)
            }
            Err(_) => {
                kernel.end(guest).await;
                Err(format!("it was not ready within {} seconds", READY_WITHIN.as_secs()))
            }
        }
        .map_err(|why| {
            ConnectError::failed_precondition(format!(
                "the {} interpreter cannot start: {why}",
                language.name()
            ))
        })
    }

    /// What an interpreter of this language is started as.
    pub(super) fn command(
        guest: &Guest,
        language: &Language,
        cwd: &Bytes,
        env: &[v1::EnvVar],
    ) -> Result<Command, ConnectError> {
        let mut all = env.to_vec();
        all.extend(language.env());
        let start = v1::StartRequest {
            argv: language.argv(guest.config.heap_mib),
            cwd: cwd.clone(),
            env: all,
            ..Default::default()
        };
        Command::from_request(guest, &start)
    }

    fn spawn(
        guest: &Arc<Guest>,
        language: &Language,
        cwd: &Bytes,
        env: &[v1::EnvVar],
    ) -> Result<Self, ConnectError> {
        let command = Self::command(guest, language, cwd, env)?;
        let fail = |error: &dyn std::fmt::Display| {
            ConnectError::resource_exhausted(format!("cannot open the interpreter's streams: {error}"))
        };
        let text = program_text(language.kernel(), &guest.config.home).map_err(|errno| fail(&errno))?;
        let (stdout, stdout_child) = output_pipe().map_err(|errno| fail(&errno))?;
        let (stderr, stderr_child) = output_pipe().map_err(|errno| fail(&errno))?;
        let pair =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (socket, socket_child) = pair.map_err(|errno| fail(&errno))?;
        let socket = crate::connections::stream(socket).map_err(|error| fail(&error))?;
        let reader = |fd| non_blocking(fd).map_err(|_| fail(&"the runtime takes no more descriptors"));
        let streams = [reader(stdout)?, reader(stderr)?];
        let started = Instant::now();
        let child = [text, stdout_child, stderr_child];
        let spawned = crate::start::spawn(guest, &command, child, false, Some(socket_child))?;
        let socket = Channel { socket, frames: Frames::default(), streams };
        Ok(Self::of(guest, spawned, command, started, socket))
    }

    /// The interpreter that is this process.
    pub(super) fn of(
        guest: &Arc<Guest>,
        spawned: Spawned,
        command: Command,
        started: Instant,
        channel: Channel,
    ) -> Self {
        let process = guest.table.insert(NewProcess {
            pid: spawned.pid,
            pidfd: spawned.pidfd,
            argv: command.words,
            started,
            kill_rest: false,
            terminal: None,
            stdin: Stdin::Closed,
            keep_bytes: 0,
            command: None,
        });
        // What it writes is its executions' output.
        process.change(|state| state.logs.iter_mut().for_each(crate::output::OutputLog::close));
        tokio::spawn(crate::start::finish(Arc::clone(guest), Arc::clone(&process)));
        let Channel { socket, frames, streams } = channel;
        Self {
            process,
            version: String::new(),
            start: (v1::KernelStart::KERNEL_START_PLAIN, String::new()),
            socket,
            frames,
            streams,
            open: [true; 2],
            hears: true,
        }
    }

    /// Waits for the word that it can take code: the version of its language.
    pub(super) async fn until_ready(&mut self) -> Result<String, String> {
        let mut words: VecDeque<u8> = VecDeque::new();
        let mut buffers = [Vec::new(), Vec::new()];
        loop {
            while let Some(said) = self.frames.next()? {
                match said {
                    Said::Ready { version } => return Ok(version),
                    Said::Failed { message } => return Err(message),
                    _ => {}
                }
            }
            match self.next(&mut buffers).await {
                Heard::Output(_, data) => {
                    words.extend(data);
                    words.drain(..words.len().saturating_sub(LAST_WORDS_BYTES));
                }
                Heard::Frames | Heard::Nothing => {}
                Heard::Ended => {
                    self.take_what_is_there();
                    while let Ok(Some(said)) = self.frames.next() {
                        if let Said::Failed { message } = said {
                            return Err(message);
                        }
                    }
                    for data in self.drain() {
                        words.extend(data.1);
                    }
                    words.drain(..words.len().saturating_sub(LAST_WORDS_BYTES));
                    let words = String::from_utf8_lossy(words.make_contiguous()).trim().to_owned();
                    let how = self.how_it_ended();
                    return Err(if words.is_empty() { how } else { format!("{how}: {words}") });
                }
            }
        }
    }

    /// Waits for one thing. Nothing is lost if this is dropped.
    pub(super) async fn next(&mut self, buffers: &mut [Vec<u8>; 2]) -> Heard {
        if !self.process.is_running() {
            return Heard::Ended;
        }
        let mut changed = self.process.watch();
        if !self.process.is_running() {
            return Heard::Ended;
        }
        let [first, second] = buffers;
        tokio::select! {
            data = read(&self.streams[0], first), if self.open[0] => self.heard(0, data),
            data = read(&self.streams[1], second), if self.open[1] => self.heard(1, data),
            more = receive(&self.socket, &mut self.frames), if self.hears => {
                // User code has closed it: whatever runs will never be told done.
                self.hears = more;
                Heard::Frames
            }
            _ = changed.changed() => if self.process.is_running() { Heard::Nothing } else { Heard::Ended },
        }
    }

    fn heard(&mut self, index: usize, data: Option<Bytes>) -> Heard {
        match data {
            Some(data) => Heard::Output(index, data),
            None => {
                self.open[index] = false;
                Heard::Nothing
            }
        }
    }

    /// Whether nothing can be heard of it any more although it lives.
    pub(super) fn is_deaf(&self) -> bool {
        !self.hears
    }

    /// The next thing that it has said.
    pub(super) fn said(&mut self) -> Result<Option<Said>, String> {
        self.frames.next()
    }

    /// Reads what is in the control socket already.
    pub(super) fn take_what_is_there(&mut self) {
        let mut buffer = vec![0; 64 * 1024];
        let mut taken = 0;
        while taken < DRAIN_BYTES * 32 {
            match self.socket.try_read(&mut buffer) {
                Ok(length @ 1..) => {
                    self.frames.push(&buffer[..length]);
                    taken += length;
                }
                _ => return,
            }
        }
    }

    /// Reads what is in the pipes now.
    pub(super) fn drain(&mut self) -> Vec<(usize, Bytes)> {
        let mut all = Vec::new();
        let mut buffer = Vec::new();
        for index in [0, 1] {
            let there = rustix::io::ioctl_fionread(&self.streams[index]).unwrap_or(0);
            let mut left = usize::try_from(there).unwrap_or(0);
            while left > 0 && self.open[index] {
                match read_some(self.streams[index].get_ref(), &mut buffer) {
                    Ok(Some(data)) => {
                        left = left.saturating_sub(data.len());
                        all.push((index, data));
                    }
                    Err(Errno::INTR) => {}
                    Ok(None) => self.open[index] = false,
                    Err(_) => break,
                }
            }
        }
        all
    }

    /// Hands it something to read.
    ///
    /// # Errors
    /// It does not take it, so that nothing can be done with it any more.
    pub(super) async fn tell(&mut self, frame: &[u8]) -> Result<(), String> {
        let mut changed = self.process.watch();
        let write = async {
            tokio::select! {
                written = self.socket.write_all(frame) => written.map_err(|_| "it has closed its control socket".to_owned()),
                () = async { while self.process.is_running() && changed.changed().await.is_ok() {} } => Ok(()),
            }
        };
        match tokio::time::timeout(TAKES_WITHIN, write).await {
            Ok(written) => written,
            Err(_) => {
                Err(format!("it did not read what it was given for {} seconds", TAKES_WITHIN.as_secs()))
            }
        }
    }

    /// Kills it with all that it has started.
    pub(super) fn kill(&self, guest: &Guest) {
        guest.proc.signal_tree(self.process.pid, !self.process.is_running(), SIGKILL);
    }

    /// Kills it with all that it has started, and waits for its end.
    pub(super) async fn end(&self, guest: &Guest) {
        self.kill(guest);
        let mut changed = self.process.watch();
        let ended = async { while self.process.is_running() && changed.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(DIES_WITHIN, ended).await;
        // Those that were started while it died.
        guest.proc.signal_tree(self.process.pid, true, SIGKILL);
    }

    /// How it ended, as the end of a sentence.
    pub(super) fn how_it_ended(&self) -> String {
        let state = self.process.state();
        match (&state.ended, state.cause) {
            (None, _) => "it was given up".to_owned(),
            (_, v1::Cause::CAUSE_MEMORY) => "it used more memory than the sandbox has".to_owned(),
            (_, v1::Cause::CAUSE_PIDS) => "the sandbox had more processes than are allowed".to_owned(),
            (_, v1::Cause::CAUSE_STOPPED) => "it was stopped".to_owned(),
            (Some(ended), _) if ended.signal == SIGKILL => "it was killed (signal 9)".to_owned(),
            (Some(ended), _) if ended.signal != 0 => format!("it was ended by signal {}", ended.signal),
            (Some(ended), _) => format!("it exited with code {}", ended.code),
        }
    }
}

/// What a kernel is heard by.
pub(super) struct Channel {
    pub(super) socket: UnixStream,
    pub(super) frames: Frames,
    pub(super) streams: [AsyncFd<OwnedFd>; 2],
}

/// What has come from a kernel.
pub(super) enum Heard {
    /// Output of a stream, by its index.
    Output(usize, Bytes),
    /// Something on the control socket, which may be a whole frame by now.
    Frames,
    /// The process has ended.
    Ended,
    /// Something that is looked at again.
    Nothing,
}

/// A file without a name that holds the kernel's text.
pub(super) fn program_text(text: &[u8], home: &Path) -> Result<OwnedFd, Errno> {
    let file = match rustix::fs::memfd_create(c"kernel", MemfdFlags::CLOEXEC) {
        // Where nothing but a watcher limits memory, files that it cannot see are not to be had.
        Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            rustix::fs::open(home, flags, Mode::RUSR | Mode::WUSR)?
        }
        made => made?,
    };
    let mut rest = text;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    rustix::fs::seek(&file, SeekFrom::Start(0))?;
    Ok(file)
}

/// The next bytes of a pipe; `None` at its end. Nothing is read before it is handed back.
async fn read(pipe: &AsyncFd<OwnedFd>, buffer: &mut Vec<u8>) -> Option<Bytes> {
    loop {
        match read_some(pipe.get_ref(), buffer) {
            Ok(data) => return data,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut ready = pipe.readable().await.ok()?;
                if is_empty(pipe.get_ref()) {
                    ready.clear_ready();
                }
            }
            Err(_) => return None,
        }
    }
}

/// Adds to the frames what is there, once something is; false when the other side has closed.
pub(super) async fn receive(socket: &UnixStream, frames: &mut Frames) -> bool {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if socket.readable().await.is_err() {
            return false;
        }
        match socket.try_read(&mut buffer) {
            Ok(0) => return false,
            Ok(length) => {
                frames.push(&buffer[..length]);
                return true;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_have_aliases() {
        let home = tempfile::tempdir().unwrap();
        let named = |name: &str| Language::named(name, home.path());
        assert_eq!(named("").unwrap(), Language::Python);
        assert_eq!(named("JS").unwrap(), Language::JavaScript);
        assert_eq!(named("ts").unwrap().name(), "typescript");
        for language in &Language::ALL {
            assert_eq!(named(language.name()).unwrap(), *language);
        }
        assert_eq!(named("Jupyter:IR").unwrap(), Language::Jupyter("jupyter:ir".to_owned()));
        for wrong in ["jupyter:", "jupyter:../x", "jupyter:a b"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
        let kernel = home.path().join(".local/share/jupyter/kernels/ir");
        std::fs::create_dir_all(&kernel).unwrap();
        std::fs::write(kernel.join("kernel.json"), "{}").unwrap();
        assert_eq!(named("R").unwrap().name(), "jupyter:ir");
        let error = named("co\u{1b}bol").unwrap_err();
        let said = error.message.unwrap();
        assert!(said.starts_with("language: \"co\\u{1b}bol\" has no interpreter"), "{said}");
    }

    #[test]
    fn a_program_text_is_read_from_its_beginning() {
        let file = program_text(b"print(1)", "/tmp".as_ref()).unwrap();
        let mut buffer = [0; 16];
        let length = rustix::io::read(&file, &mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"print(1)");
    }
}
