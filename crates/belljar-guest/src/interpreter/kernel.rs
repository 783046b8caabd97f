//! The process of an interpreter: start, communication and end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_proto::{ConnectError, ErrorCode, v1};
use bytes::Bytes;
use rustix::fs::{Mode, SeekFrom};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use super::frame::{Frames, KernelMessage, truncate};
use super::marks::{MAX_MARK_REST, MarkedStream, Token, Until};
use super::outbox::Outbox;
use crate::guest::Guest;
use crate::process::{NewProcess, Process, Stdin};
use belljar_linux::Spawned;

use crate::start::{Command, DRAIN_BYTES, USER, non_blocking, output_pipe, read, read_buffer, read_some};
use crate::tree::SIGKILL;

/// Timeout for an interpreter to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum output of a kernel before it is ready that is kept for the error, in bytes.
const MAX_STARTUP_OUTPUT_BYTES: usize = 1024;

/// Timeout for the end of a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Language of a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Language {
    Python,
    JavaScript,
    TypeScript,
    Bash,
    /// A Jupyter kernel by its full name: `jupyter:` and the name of its kernelspec.
    Jupyter(String),
}

/// Prefix of language names that refer to a kernelspec.
const JUPYTER_PREFIX: &str = "jupyter:";

/// Maximum length of a kernelspec's name, in bytes.
const MAX_SPEC_BYTES: usize = 48;

impl Language {
    const ALL: [Self; 4] = [Self::Python, Self::JavaScript, Self::TypeScript, Self::Bash];

    /// Parses a name or an alias, as `belljar run` does; an empty name is Python. R requires its kernel in the tree or
    /// in the home directory.
    pub(super) fn parse(name: &str, home: &Path) -> Result<Self, ConnectError> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "r" | "rscript" if is_installed("ir", home) => Self::Jupyter(format!("{JUPYTER_PREFIX}ir")),
            "r" | "rscript" => {
                return Err(ConnectError::invalid_argument(
                    "language: a context of R needs its Jupyter kernel, IRkernel (Debian: r-cran-irkernel)",
                ));
            }
            "" | "python" | "python3" | "py" => Self::Python,
            "javascript" | "js" | "node" | "nodejs" => Self::JavaScript,
            "typescript" | "ts" => Self::TypeScript,
            "bash" | "sh" | "shell" => Self::Bash,
            lower if lower.strip_prefix(JUPYTER_PREFIX).is_some_and(is_spec_name) => {
                Self::Jupyter(lower.to_owned())
            }
            _ => {
                let known = Self::ALL.each_ref().map(Self::name).join(", ");
                let name = truncate(name.escape_debug().to_string(), 64);
                return Err(ConnectError::invalid_argument(format!(
                    "language: \"{name}\" has no interpreter with contexts; use {known}, \
                     or jupyter:NAME for an installed kernelspec"
                )));
            }
        })
    }

    /// Reports whether code of the language can call tools.
    pub(super) const fn has_tools(&self) -> bool {
        matches!(self, Self::Python | Self::JavaScript | Self::TypeScript)
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

    /// Returns the Debian packages of the interpreter.
    const fn package(&self) -> &'static str {
        match self {
            Self::Python => "python3 python3-ipython",
            Self::Jupyter(_) => "python3",
            Self::JavaScript | Self::TypeScript => "nodejs",
            Self::Bash => "bash",
        }
    }

    /// Returns the source code of the kernel.
    pub(super) const fn kernel_source(&self) -> &'static [u8] {
        match self {
            Self::Python => include_bytes!("../../../../kernels/python/kernel.py"),
            Self::JavaScript | Self::TypeScript => {
                include_bytes!("../../../../kernels/javascript/kernel.mjs")
            }
            Self::Jupyter(_) => include_bytes!("../../../../kernels/jupyter/bridge.py"),
            Self::Bash => b"",
        }
    }

    /// Reports whether executions always have the environment and directory of their context.
    pub(super) const fn has_fixed_environment(&self) -> bool {
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
            // No __pycache__ among the files of user code.
            Self::Python => &[("PYTHONDONTWRITEBYTECODE", "1")],
            _ => &[],
        };
        let fd = belljar_linux::CONTROL_FD.to_string();
        let own = [("BELLJAR_KERNEL_FD", fd.as_str()), ("BELLJAR_KERNEL_LANGUAGE", self.name())];
        pairs.iter().copied().chain(own).map(|(name, value)| variable(name, value)).collect()
    }
}

/// Directories of kernelspecs besides the home directory: those of the system, and of a template on the machine's own tree.
const DATA_DIRECTORIES: [&str; 3] =
    ["/usr/local/share/jupyter", "/usr/share/jupyter", "/opt/template/share/jupyter"];

fn is_installed(spec: &str, home: &Path) -> bool {
    let own = home.join(".local/share/jupyter");
    let all = DATA_DIRECTORIES.iter().map(Path::new).chain([own.as_path()]);
    all.map(|data| data.join("kernels").join(spec).join("kernel.json")).any(|file| file.is_file())
}

fn is_spec_name(name: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=MAX_SPEC_BYTES).contains(&name.len()) && name.bytes().all(is_valid)
}

fn variable(name: &str, value: &str) -> v1::EnvVar {
    v1::EnvVar {
        name: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        ..Default::default()
    }
}

/// An interpreter that speaks the kernel protocol, started here or pre-warmed.
pub(super) struct Kernel {
    pub(super) process: Arc<Process>,
    pub(super) version: String,
    /// Kind of the start, and the reason why the interpreter is not pre-warmed if it should be.
    pub(super) start: (v1::KernelStart, String),
    socket: UnixStream,
    frames: Frames,
    outbox: Outbox,
    streams: [AsyncFd<OwnedFd>; 2],
    /// Memory for reading the streams.
    buffers: [Vec<u8>; 2],
    /// What was read of the streams and waits.
    marked: [MarkedStream; 2],
    /// Processor time at the end of the last execution, in microseconds.
    pub(super) cpu_us: Option<u64>,
    /// True while the stream has writers.
    open: [bool; 2],
    /// True while the control socket is open at the other side.
    control_open: bool,
}

impl Kernel {
    /// Takes a pre-warmed interpreter from the host, or starts one, and waits until it is ready.
    ///
    /// # Errors
    /// Fails if the interpreter cannot be started or reports a failure.
    pub(super) async fn start(
        guest: &Arc<Guest>,
        language: &Language,
        cwd: &Bytes,
        env: &[v1::EnvVar],
    ) -> Result<Self, ConnectError> {
        let mut note = String::new();
        if *language == Language::Python
            && let Some(spare) = guest.arrivals.take_spare(guest)
        {
            match super::warm::adopt(guest, spare, cwd, env).await {
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
        let mut kernel = Self::spawn(guest, language, cwd, env).map_err(|error| match error.code {
            ErrorCode::NotFound => ConnectError::failed_precondition(format!(
                "the {} interpreter cannot start: {}; use a template with it, such as code-interpreter, or install it with \
                 `apt-get install {}`",
                language.name(),
                error.message.unwrap_or_default(),
                language.package()
            )),
            _ => error,
        })?;
        match tokio::time::timeout(READY_TIMEOUT, kernel.wait_ready()).await {
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
                Err(format!("it was not ready within {} seconds", READY_TIMEOUT.as_secs()))
            }
        }
        .map_err(|why| {
            let advice = match language {
                Language::Python if why.contains("ModuleNotFoundError: ") => {
                    "; a part of Python's library is missing in the sandbox, as with python3-minimal: use an image or a template with \
                     all of it, or install it with `apt-get install python3`"
                }
                _ => "",
            };
            ConnectError::failed_precondition(format!(
                "the {} interpreter cannot start: {why}{advice}",
                language.name()
            ))
        })
    }

    /// Returns the command line of an interpreter for this language.
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
            // The files of a context are those of the sandbox's own user, whoever runs other programs.
            user: USER.to_owned(),
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
        let text =
            create_source_file(language.kernel_source(), &guest.config.home).map_err(|errno| fail(&errno))?;
        let (stdout, stdout_child) = output_pipe().map_err(|errno| fail(&errno))?;
        let (stderr, stderr_child) = output_pipe().map_err(|errno| fail(&errno))?;
        let pair =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (socket, socket_child) = pair.map_err(|errno| fail(&errno))?;
        let socket = crate::connections::into_stream(socket).map_err(|error| fail(&error))?;
        let reader = |fd| non_blocking(fd).map_err(|_| fail(&"the runtime accepts no more descriptors"));
        let streams = [reader(stdout)?, reader(stderr)?];
        let started = Instant::now();
        let child = [text, stdout_child, stderr_child];
        let spawned = crate::start::spawn(guest, &command, child, false, Some(socket_child))?;
        let socket = Channel { socket, frames: Frames::default(), streams };
        Ok(Self::from_process(guest, spawned, command, started, socket))
    }

    /// Registers a spawned process as an interpreter.
    pub(super) fn from_process(
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
        // The output of the interpreter belongs to its executions.
        process.change(|state| state.logs.iter_mut().for_each(crate::output::OutputLog::close));
        tokio::spawn(crate::start::finish(Arc::clone(guest), Arc::clone(&process)));
        let Channel { socket, frames, streams } = channel;
        let token = Token::random();
        Self {
            process,
            version: String::new(),
            start: (v1::KernelStart::KERNEL_START_PLAIN, String::new()),
            socket,
            frames,
            outbox: Outbox::default(),
            streams,
            buffers: [read_buffer(), read_buffer()],
            marked: [MarkedStream::new(token), MarkedStream::new(token)],
            cpu_us: None,
            open: [true; 2],
            control_open: true,
        }
    }

    /// Waits until the interpreter is ready; returns the version of its language.
    pub(super) async fn wait_ready(&mut self) -> Result<String, String> {
        let mut output: VecDeque<u8> = VecDeque::new();
        loop {
            while let Some(message) = self.frames.next()? {
                match message {
                    KernelMessage::Ready { version } => return Ok(version),
                    KernelMessage::Failed { message } => return Err(message),
                    _ => {}
                }
            }
            match self.next(true).await {
                KernelEvent::Output(_, data) => {
                    output.extend(data);
                    output.drain(..output.len().saturating_sub(MAX_STARTUP_OUTPUT_BYTES));
                }
                KernelEvent::Frames | KernelEvent::Nothing => {}
                KernelEvent::Ended => {
                    self.read_available();
                    while let Ok(Some(last)) = self.frames.next() {
                        if let KernelMessage::Failed { message } = last {
                            return Err(message);
                        }
                    }
                    for data in self.drain(Until::End) {
                        output.extend(data.1);
                    }
                    output.drain(..output.len().saturating_sub(MAX_STARTUP_OUTPUT_BYTES));
                    let said = last_words(&String::from_utf8_lossy(output.make_contiguous()));
                    let how = self.describe_exit();
                    return Err(if said.is_empty() { how } else { format!("{how}: {said}") });
                }
            }
        }
    }

    /// Waits for one event, and sends meanwhile what is to be sent, which is all that it does unless it `reads`. Cancel-safe.
    pub(super) async fn next(&mut self, reads: bool) -> KernelEvent {
        if !reads {
            self.outbox.write(&self.socket).await;
            return KernelEvent::Nothing;
        }
        if !self.process.is_running() {
            return KernelEvent::Ended;
        }
        let mut changed = self.process.watch();
        if !self.process.is_running() {
            return KernelEvent::Ended;
        }
        for (index, marked) in self.marked.iter_mut().enumerate() {
            if let Some(data) = marked.take(Until::Mark) {
                return KernelEvent::Output(index, data);
            }
        }
        let is_open = [0, 1].map(|index| self.open[index] && !self.marked[index].is_waiting());
        let [first, second] = &mut self.buffers;
        tokio::select! {
            data = read(&self.streams[0], first), if is_open[0] => self.output_event(0, data),
            data = read(&self.streams[1], second), if is_open[1] => self.output_event(1, data),
            more = receive(&self.socket, &mut self.frames), if self.control_open => {
                // User code has closed it: the end of the execution will never be reported.
                self.control_open = more;
                KernelEvent::Frames
            }
            () = self.outbox.write(&self.socket), if !self.outbox.is_empty() => KernelEvent::Nothing,
            _ = changed.changed() => if self.process.is_running() { KernelEvent::Nothing } else { KernelEvent::Ended },
        }
    }

    fn output_event(&mut self, index: usize, data: Option<Bytes>) -> KernelEvent {
        let Some(data) = data else {
            self.open[index] = false;
            return KernelEvent::Nothing;
        };
        self.marked[index].push(data);
        let output = self.marked[index].take(Until::Mark);
        output.map_or(KernelEvent::Nothing, |data| KernelEvent::Output(index, data))
    }

    /// Reports whether the interpreter has closed its control socket.
    pub(super) fn is_control_closed(&self) -> bool {
        !self.control_open || self.outbox.is_broken()
    }

    /// Returns the next message, if a complete one has arrived.
    pub(super) fn next_message(&mut self) -> Result<Option<KernelMessage>, String> {
        self.frames.next()
    }

    /// Reads the data available in the control socket.
    pub(super) fn read_available(&mut self) {
        let mut total = 0;
        while total < DRAIN_BYTES * 32 {
            match self.socket.try_read_buf(self.frames.spare()) {
                Ok(length @ 1..) => total += length,
                _ => return,
            }
        }
    }

    /// Returns what the kernel's marks in its streams contain.
    pub(super) const fn token(&self) -> &Token {
        self.marked[0].token()
    }

    /// Releases the output that waits for a result, as if that had arrived.
    pub(super) fn stop_waiting(&mut self) {
        self.marked.iter_mut().for_each(MarkedStream::stop_waiting);
    }

    /// Releases the output that waits for a result, which has now arrived.
    pub(super) fn release(&mut self, number: u32) {
        self.marked.iter_mut().for_each(|marked| marked.release(number));
    }

    /// Reads the data available in the pipes, and returns the output. The time is bounded, whatever is written meanwhile.
    pub(super) fn drain(&mut self, until: Until) -> Vec<(usize, Bytes)> {
        let mut all = Vec::new();
        let mut buffer = read_buffer();
        for (index, marked) in self.marked.iter_mut().enumerate() {
            all.extend(std::iter::from_fn(|| marked.take(until)).map(|data| (index, data)));
            let available = rustix::io::ioctl_fionread(&self.streams[index]).unwrap_or(0);
            let mut left = usize::try_from(available).unwrap_or(0);
            // Of what comes meanwhile, only the rest of a mark, which is in the pipe as a whole: code may write without end.
            let mut missing = MAX_MARK_REST;
            while self.open[index] && !marked.is_waiting() {
                let stream = self.streams[index].get_ref();
                let read = match left {
                    0 if marked.is_within_mark() && missing > 0 => read_at_most(stream, missing),
                    0 => break,
                    _ => read_some(stream, &mut buffer),
                };
                match read {
                    Ok(Some(data)) => {
                        missing -= if left == 0 { data.len() } else { 0 };
                        left = left.saturating_sub(data.len());
                        marked.push(data);
                        all.extend(std::iter::from_fn(|| marked.take(until)).map(|data| (index, data)));
                    }
                    Err(Errno::INTR) => {}
                    Ok(None) => self.open[index] = false,
                    Err(_) => break,
                }
            }
            if until == Until::End {
                all.extend(marked.take_rest().map(|data| (index, data)));
            }
        }
        all
    }

    /// Sends a frame to the interpreter, which may take it later, while [`Self::next`] waits.
    ///
    /// # Errors
    /// Fails if the interpreter does not read what it is sent and is therefore unusable.
    pub(super) fn send(&mut self, frame: Vec<u8>) -> Result<(), String> {
        self.outbox.push(frame, &self.socket)
    }

    /// Drops what an execution that has ended has not read.
    pub(super) fn forget_unread(&mut self) {
        self.outbox.forget();
    }

    /// Kills the interpreter with all its descendants.
    pub(super) fn kill(&self, guest: &Guest) {
        guest.proc.signal_tree(self.process.pid, !self.process.is_running(), SIGKILL);
    }

    /// Kills the interpreter with all its descendants, and waits for its end.
    pub(super) async fn end(&self, guest: &Guest) {
        self.kill(guest);
        let mut changed = self.process.watch();
        let ended = async { while self.process.is_running() && changed.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(KILL_TIMEOUT, ended).await;
        // Processes that were started meanwhile.
        guest.proc.signal_tree(self.process.pid, true, SIGKILL);
    }

    /// Describes how the interpreter ended, as the end of a sentence.
    pub(super) fn describe_exit(&self) -> String {
        let state = self.process.state();
        match (&state.ended, state.cause) {
            (None, _) => "it was abandoned".to_owned(),
            (_, v1::Cause::CAUSE_MEMORY) => "it exceeded the memory limit of the sandbox".to_owned(),
            (_, v1::Cause::CAUSE_PIDS) => "the sandbox exceeded its limit of processes".to_owned(),
            (_, v1::Cause::CAUSE_STOPPED) => "it was stopped".to_owned(),
            (Some(ended), _) if ended.signal == SIGKILL => "it was killed (signal 9)".to_owned(),
            (Some(ended), _) if ended.signal != 0 => format!("it was ended by signal {}", ended.signal),
            (Some(ended), _) => format!("it exited with code {}", ended.code),
        }
    }
}

/// Returns what an interpreter that did not start wrote last, in one line: of Python's traceback the error alone.
fn last_words(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let is_error = |line: &&&str| {
        line.split_once(": ").is_some_and(|(name, _)| {
            name.ends_with("Error")
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte))
        })
    };
    match lines.last().filter(is_error) {
        Some(line) => (*line).to_owned(),
        None => lines.join(" / "),
    }
}

/// Connection to a kernel.
pub(super) struct Channel {
    pub(super) socket: UnixStream,
    pub(super) frames: Frames,
    pub(super) streams: [AsyncFd<OwnedFd>; 2],
}

/// Event of a kernel.
pub(super) enum KernelEvent {
    /// Output of a stream, by its index.
    Output(usize, Bytes),
    /// Data on the control socket, which may complete a frame.
    Frames,
    /// The process has ended.
    Ended,
    /// Nothing; the state is checked again.
    Nothing,
}

/// Creates an unnamed file with the kernel's source code.
pub(super) fn create_source_file(text: &[u8], home: &Path) -> Result<OwnedFd, Errno> {
    let file = crate::start::unnamed_file(c"kernel", home, Mode::RUSR | Mode::WUSR)?;
    let mut rest = text;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    rustix::fs::seek(&file, SeekFrom::Start(0))?;
    Ok(file)
}

/// Waits for data and adds it to the frames; returns false if the other side has closed.
pub(super) async fn receive(socket: &UnixStream, frames: &mut Frames) -> bool {
    loop {
        if socket.readable().await.is_err() {
            return false;
        }
        match socket.try_read_buf(frames.spare()) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return false,
        }
    }
}

/// Reads at most `most` bytes, of a mark; `None` at the end of the stream.
fn read_at_most(fd: &OwnedFd, most: usize) -> Result<Option<Bytes>, Errno> {
    let mut buffer = [0; MAX_MARK_REST];
    let buffer = buffer.get_mut(..most).unwrap_or_default();
    let length = rustix::io::read(fd, &mut *buffer)?;
    Ok(buffer.get(..length).filter(|read| !read.is_empty()).map(Bytes::copy_from_slice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_have_aliases() {
        let home = tempfile::tempdir().unwrap();
        let parse = |name: &str| Language::parse(name, home.path());
        assert_eq!(parse("").unwrap(), Language::Python);
        assert_eq!(parse("JS").unwrap(), Language::JavaScript);
        assert_eq!(parse("ts").unwrap().name(), "typescript");
        for language in &Language::ALL {
            assert_eq!(parse(language.name()).unwrap(), *language);
        }
        assert_eq!(parse("Jupyter:IR").unwrap(), Language::Jupyter("jupyter:ir".to_owned()));
        for invalid in ["jupyter:", "jupyter:../x", "jupyter:a b"] {
            assert!(parse(invalid).is_err(), "{invalid}");
        }
        let kernel = home.path().join(".local/share/jupyter/kernels/ir");
        std::fs::create_dir_all(&kernel).unwrap();
        std::fs::write(kernel.join("kernel.json"), "{}").unwrap();
        assert_eq!(parse("R").unwrap().name(), "jupyter:ir");
        let error = parse("co\u{1b}bol").unwrap_err();
        let message = error.message.unwrap();
        assert!(message.starts_with("language: \"co\\u{1b}bol\" has no interpreter"), "{message}");
    }

    #[test]
    fn interpreters_that_do_not_start_say_why_in_one_line() {
        for (output, expected) in [
            ("", ""),
            ("  \n", ""),
            (
                "Traceback (most recent call last):\n  File \"<stdin>\", line 3\nModuleNotFoundError: No module named 'shlex'\n",
                "ModuleNotFoundError: No module named 'shlex'",
            ),
            ("x\nzmq.error.ZMQError: Address in use", "zmq.error.ZMQError: Address in use"),
            ("Exception in thread main\n\tat A.b\n", "Exception in thread main / at A.b"),
            ("sh: 1: node: not found\n", "sh: 1: node: not found"),
        ] {
            assert_eq!(last_words(output), expected);
        }
    }

    #[test]
    fn source_file_is_read_from_its_start() {
        let file = create_source_file(b"print(1)", "/tmp".as_ref()).unwrap();
        let mut buffer = [0; 16];
        let length = rustix::io::read(&file, &mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"print(1)");
    }
}
