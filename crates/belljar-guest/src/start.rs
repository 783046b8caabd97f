//! Starts processes from requests, with the tasks that serve them.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_linux::{CStringArray, SpawnError, Spawned, User};
use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::io::unix::AsyncFd;

use crate::clock;
use crate::guest::Guest;
use crate::process::{NewProcess, Process, Stdin};
use crate::spawner::{Program, Start};
use crate::tree::{SIGKILL, SIGTERM};
use crate::users::{self, Account};

/// Maximum initial input in bytes: the capacity of a pipe.
const MAX_INITIAL_INPUT_BYTES: usize = 64 * 1024;

/// Size of the first read from a stream, in bytes.
const FIRST_READ_BYTES: usize = 4 * 1024;

/// Maximum size of one read from a stream, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// Capacity of an output pipe in bytes: a few reads.
const PIPE_BYTES: usize = 4 * READ_BYTES;

/// Chunks below this size are copied, so that a small chunk does not pin a large buffer.
const MAX_COPIED_BYTES: usize = READ_BYTES / 4;

/// Maximum number of bytes read from a stream after the process has ended: the content of a pipe. Later output of other
/// writers is not waited for.
pub(crate) const DRAIN_BYTES: usize = 1 << 20;

/// Search path for programs if the environment has none.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Starts the process that `request` describes.
pub(crate) fn start(guest: &Arc<Guest>, request: &v1::StartRequest) -> Result<Arc<Process>, ConnectError> {
    let command = Command::from_request(guest, request)?;
    let script = prepare_files(guest, request)?;
    let started = Instant::now();
    let streams = Streams::open(request)?;
    let spawned = spawn(guest, &command, streams.child, streams.terminal.is_some(), script)?;
    let process = guest.table.insert(NewProcess {
        pid: spawned.pid,
        pidfd: spawned.pidfd,
        argv: command.words,
        started,
        kill_rest: request.kill_rest,
        terminal: streams.terminal,
        stdin: streams.stdin,
        keep_bytes: request.keep_bytes,
        command: None,
    });
    for (index, reader) in streams.readers {
        tokio::spawn(pump(Arc::clone(&process), index, reader));
    }
    tokio::spawn(finish(Arc::clone(guest), Arc::clone(&process)));
    if request.timeout_ms > 0 && !guest.config.is_without("timeout") {
        let grace = grace(guest, request.grace_ms);
        let timeout = Duration::from_millis(request.timeout_ms);
        tokio::spawn(enforce_timeout(Arc::clone(guest), Arc::clone(&process), timeout, grace));
    }
    Ok(process)
}

/// Writes the files in the request. Returns the one from which its shell reads the command line, if that is too long for an argument.
pub(crate) fn prepare_files(
    guest: &Guest,
    request: &v1::StartRequest,
) -> Result<Option<OwnedFd>, ConnectError> {
    write_files(guest, request)?;
    is_long(&request.shell).then(|| script_file(&guest.config.home, &request.shell)).transpose()
}

/// Returns the time between SIGTERM and SIGKILL, where 0 means the sandbox's default.
pub(crate) fn grace(guest: &Guest, grace_ms: u64) -> Duration {
    if grace_ms > 0 { Duration::from_millis(grace_ms) } else { guest.config.grace() }
}

/// Spawns the process; all kinds of processes start here.
pub(crate) fn spawn(
    guest: &Guest,
    command: &Command,
    streams: [OwnedFd; 3],
    terminal: bool,
    control: Option<OwnedFd>,
) -> Result<Spawned, ConnectError> {
    let start = Start { program: Arc::clone(&command.program), streams, control, terminal };
    guest.spawner.spawn(start).map_err(|error| spawn_error(command, &error))
}

/// Maximum total size of files in a request, in bytes.
const MAX_INLINE_BYTES: usize = 1 << 20;

/// Maximum length of a command line that is an argument of the shell, in bytes: MAX_ARG_STRLEN of execve(2) is 32 pages, with a NUL.
const MAX_LINE_BYTES: usize = 128 * 1024 - 1;

/// What the shell runs instead of a longer one: the file that is its descriptor 9 ([`Start::control`]).
const SCRIPT_LINE: &[u8] = b". /proc/self/fd/9";

/// Begin of that file: commands of the line do not inherit the descriptor. No line of its own, so that messages count lines as before.
const SCRIPT_BEGIN: &[u8] = b"exec 9<&-;";

fn is_long(line: &[u8]) -> bool {
    line.len() > MAX_LINE_BYTES
}

/// Creates a file without a name, in memory or, if only a watcher limits memory, in the home directory.
pub(crate) fn unnamed_file(label: &CStr, home: &Path, mode: Mode) -> Result<OwnedFd, Errno> {
    match rustix::fs::memfd_create(label, MemfdFlags::CLOEXEC) {
        // Memfds are forbidden then, as the watcher does not see their memory.
        Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => {
            rustix::fs::open(home, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode)
        }
        created => created,
    }
}

/// Writes a command line that is too long for an argument to a file without a name, from which the shell reads it.
fn script_file(home: &Path, line: &[u8]) -> Result<OwnedFd, ConnectError> {
    let written = || {
        // Other users of a machine read it by its descriptor alone.
        let file = unnamed_file(c"script", home, Mode::from_raw_mode(0o444))?;
        for mut rest in [SCRIPT_BEGIN, line] {
            while !rest.is_empty() {
                let count = rustix::io::write(&file, rest)?;
                rest = rest.get(count..).unwrap_or_default();
            }
        }
        Ok(file)
    };
    written().map_err(|errno: Errno| match errno {
        Errno::NOSPC | Errno::DQUOT => ConnectError::resource_exhausted("the disk of the sandbox is full"),
        errno => ConnectError::failed_precondition(format!("cannot store the command line: {errno}")),
    })
}

/// Writes the files in the request.
fn write_files(guest: &Guest, request: &v1::StartRequest) -> Result<(), ConnectError> {
    let bytes: usize = request.files.iter().map(|file| file.data.len()).sum();
    if bytes > MAX_INLINE_BYTES {
        return Err(invalid(format!(
            "files: too large for a request: {bytes} bytes > limit {MAX_INLINE_BYTES}"
        )));
    }
    for file in &request.files {
        let path = c_string("files", resolve_in(&guest.config.home, &file.path))?;
        let mode = Mode::from_raw_mode(if file.mode == 0 { 0o644 } else { file.mode & 0o7777 });
        write_file(&path, mode, &file.data).map_err(|errno| match errno {
            Errno::NOSPC | Errno::DQUOT => {
                ConnectError::resource_exhausted("the disk of the sandbox is full")
            }
            errno => {
                ConnectError::failed_precondition(format!("cannot write {}: {errno}", path.to_string_lossy()))
            }
        })?;
    }
    Ok(())
}

fn write_file(path: &CString, mode: Mode, data: &[u8]) -> Result<(), Errno> {
    // A FIFO created by user code must not block the guest, and a link must not redirect it.
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::TRUNC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let file = rustix::fs::open(path.as_c_str(), flags, mode)?;
    let mut rest = data;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// A command line, prepared for the kernel.
pub(crate) struct Command {
    pub(crate) words: Vec<Vec<u8>>,
    program: Arc<Program>,
}

impl Command {
    pub(crate) fn from_request(guest: &Guest, request: &v1::StartRequest) -> Result<Self, ConnectError> {
        let words = parse_words(request)?;
        let user = match request.user.as_str() {
            "" => guest.config.user.as_deref().unwrap_or(USER),
            named => named,
        };
        let other = other_user(guest, user)?;
        let mut env: BTreeMap<Vec<u8>, Vec<u8>> = guest
            .config
            .env
            .iter()
            .map(|(name, value)| (name.clone().into(), value.clone().into()))
            .collect();
        if let Some(account) = &other {
            let home = guest.config.home.as_os_str().as_encoded_bytes();
            if let Some(path) = env.get_mut(b"PATH".as_slice()) {
                // The user's own programs are not those of another user.
                let own = [home, b"/.local/bin:".as_slice()].concat();
                if path.starts_with(&own) {
                    path.drain(..own.len());
                }
            }
            let name = if account.user.uid == 0 { "root" } else { user };
            for (key, value) in
                [("HOME", &*account.home), ("USER", name), ("LOGNAME", name), ("SHELL", &account.shell)]
            {
                env.insert(key.into(), value.into());
            }
        }
        if request.terminal.is_set() {
            env.entry(b"TERM".to_vec()).or_insert_with(|| b"xterm-256color".to_vec());
        }
        for variable in &request.env {
            if variable.name.is_empty() || variable.name.contains(&b'=') {
                return Err(invalid("env: a name must not be empty or contain \"=\"".to_owned()));
            }
            env.insert(variable.name.to_vec(), variable.value.to_vec());
        }
        let path = env.get(b"PATH".as_slice()).map_or(DEFAULT_PATH.as_bytes(), Vec::as_slice);
        let cwd = match &other {
            Some(account) if request.cwd.is_empty() => account.directory(),
            _ => resolve_in(&guest.config.home, &request.cwd),
        };
        let candidates =
            candidates(&words[0], path).map(|path| c_string("argv", path)).collect::<Result<_, _>>()?;
        let argv = words.iter().map(|word| c_string("argv", word.clone())).collect::<Result<_, _>>()?;
        let envp = env
            .into_iter()
            .map(|(name, value)| c_string("env", [name, value].join(b"=".as_slice())))
            .collect::<Result<_, _>>()?;
        let program = Program {
            candidates,
            argv: CStringArray::new(argv),
            envp: CStringArray::new(envp),
            cwd: c_string("cwd", cwd)?,
            user: match (other, guest.config.machine) {
                (Some(account), _) => Some(account.user),
                (None, Some(own)) => Some(User { uid: own.uid, gid: own.gid, groups: vec![own.gid] }),
                (None, None) => None,
            },
        };
        Ok(Self { words, program: Arc::new(program) })
    }
}

impl Command {
    /// Returns the environment as `NAME=value`, and the working directory.
    pub(crate) fn env_and_cwd(&self) -> (Vec<&[u8]>, &[u8]) {
        let env = self.program.envp.iter().map(std::ffi::CStr::to_bytes).collect();
        (env, self.program.cwd.to_bytes())
    }
}

/// Name of the sandbox's user, who is the only one except in machines.
pub(crate) const USER: &str = "user";

/// Returns the user that a request names, if that is not the sandbox's own.
fn other_user(guest: &Guest, name: &str) -> Result<Option<Account>, ConnectError> {
    if name == USER {
        return Ok(None);
    }
    let Some(machine) = guest.config.machine.filter(|machine| machine.ids > 0) else {
        return Err(invalid(format!(
            "user: \"{name}\" does not exist in this sandbox; omit it or use \"{USER}\". A sandbox that is created as a machine has \
             root and the users of its tree"
        )));
    };
    users::find(name, machine.ids).map(Some).ok_or_else(|| {
        invalid(format!(
            "user: \"{name}\" is not in /etc/passwd of the sandbox; give one that is, such as root"
        ))
    })
}

fn parse_words(request: &v1::StartRequest) -> Result<Vec<Vec<u8>>, ConnectError> {
    match (request.argv.first(), request.shell.is_empty()) {
        (Some(program), true) if !program.is_empty() => {
            Ok(request.argv.iter().map(|word| word.to_vec()).collect())
        }
        (Some(_), true) => Err(invalid("argv: the program's name is empty".to_owned())),
        (None, false) => {
            let line = if is_long(&request.shell) { SCRIPT_LINE } else { &request.shell };
            Ok(vec![b"/bin/sh".to_vec(), b"-c".to_vec(), line.to_vec()])
        }
        (Some(_), false) => Err(invalid("argv and shell: give one of them, not both".to_owned())),
        (None, true) => Err(invalid("argv: give a program, or a command line as shell".to_owned())),
    }
}

/// Returns the paths to try for `program`, as execvp(3) does.
fn candidates(program: &[u8], path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let search: Vec<Vec<u8>> = if program.contains(&b'/') {
        vec![program.to_vec()]
    } else {
        let dirs = path.split(|byte| *byte == b':').filter(|dir| !dir.is_empty());
        dirs.map(|dir| [dir, program].join(b"/".as_slice())).collect()
    };
    search.into_iter()
}

fn resolve_in(home: &Path, path: &[u8]) -> Vec<u8> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    home.join(Path::new(std::ffi::OsStr::from_bytes(path))).into_os_string().into_vec()
}

fn c_string(field: &str, bytes: Vec<u8>) -> Result<CString, ConnectError> {
    CString::new(bytes).map_err(|_| invalid(format!("{field}: a NUL byte is not allowed")))
}

fn invalid(message: String) -> ConnectError {
    ConnectError::invalid_argument(message)
}

fn spawn_error(command: &Command, error: &SpawnError) -> ConnectError {
    let program = String::from_utf8_lossy(&command.words[0]).into_owned();
    match error {
        SpawnError::NotFound => ConnectError::not_found(format!("{program}: no such program in the sandbox")),
        SpawnError::WorkingDirectory(source) => ConnectError::failed_precondition(format!(
            "cwd: cannot enter {}: {source}",
            command.program.cwd.to_string_lossy()
        )),
        SpawnError::Refused(source) => match source.raw_os_error() {
            Some(libc_errno::EACCES) => {
                ConnectError::permission_denied(format!("{program}: permission denied: not executable"))
            }
            Some(libc_errno::EAGAIN) => {
                ConnectError::resource_exhausted(
                    "the sandbox has reached its limit of processes and threads, the limit pids; end some, or raise it".to_owned(),
                )
            }
            // The latter from gVisor, for one that is too long.
            Some(libc_errno::E2BIG | libc_errno::ENAMETOOLONG) => invalid(format!(
                "{program}: its arguments and environment are too long; one has at most 128 KiB, and all have 2 MiB; write long \
                 ones to a file, or to standard input"
            )),
            Some(libc_errno::ENOEXEC) => ConnectError::failed_precondition(format!(
                "{program}: not an executable for this machine; a script needs a #! line"
            )),
            _ => ConnectError::failed_precondition(format!("{program}: cannot start it: {source}")),
        },
    }
}

/// Error numbers with messages of their own (errno(3)).
mod libc_errno {
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const EACCES: i32 = 13;
    pub(super) const ENOEXEC: i32 = 8;
    pub(super) const E2BIG: i32 = 7;
    pub(super) const ENAMETOOLONG: i32 = 36;
}

/// Both ends of a new process's streams.
struct Streams {
    child: [OwnedFd; 3],
    readers: Vec<(usize, AsyncFd<OwnedFd>)>,
    stdin: Stdin,
    terminal: Option<OwnedFd>,
}

impl Streams {
    fn open(request: &v1::StartRequest) -> Result<Self, ConnectError> {
        if request.stdin.len() > MAX_INITIAL_INPUT_BYTES {
            return Err(invalid(format!(
                "stdin: at most {MAX_INITIAL_INPUT_BYTES} bytes fit into a request; feed the rest"
            )));
        }
        let streams = match request.terminal.as_option() {
            Some(size) => Self::on_terminal(size, request),
            None => Self::on_pipes(request),
        };
        streams.map_err(|error| match error {
            StreamError::Invalid(message) => invalid(message),
            StreamError::Io(source) => {
                ConnectError::resource_exhausted(format!("cannot open the process's streams: {source}"))
            }
        })
    }

    fn on_pipes(request: &v1::StartRequest) -> Result<Self, StreamError> {
        let (stdin_child, stdin) = if request.stdin_open || !request.stdin.is_empty() {
            let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            if !request.stdin.is_empty() {
                rustix::io::write(&writer, &request.stdin)?;
            }
            let stdin = if request.stdin_open {
                rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK)?;
                Stdin::Pipe(tokio::net::unix::pipe::Sender::from_owned_fd(writer)?)
            } else {
                Stdin::Closed
            };
            (reader, stdin)
        } else {
            (rustix::fs::open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?, Stdin::Closed)
        };
        let (out_reader, out) = output_pipe()?;
        let (err_reader, err) = output_pipe()?;
        let readers = vec![(0, non_blocking(out_reader)?), (1, non_blocking(err_reader)?)];
        Ok(Self { child: [stdin_child, out, err], readers, stdin, terminal: None })
    }

    fn on_terminal(size: &v1::Terminal, request: &v1::StartRequest) -> Result<Self, StreamError> {
        let size = window_size(size).map_err(StreamError::Invalid)?;
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::pty::unlockpt(&master)?;
        // By descriptor, not by name: what `/dev/pts` holds by then does not matter (CVE-2025-52565).
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = match rustix::pty::ioctl_tiocgptpeer(&master, flags) {
            // gVisor lacks the call. Nothing can be mounted over its `/dev/pts`.
            Err(Errno::NOTTY) => {
                let name = rustix::pty::ptsname(&master, Vec::new())?;
                rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?
            }
            slave => slave?,
        };
        rustix::termios::tcsetwinsize(&slave, size)?;
        if !request.stdin.is_empty() {
            rustix::io::write(&master, &request.stdin)?;
        }
        let child = [slave.try_clone()?, slave.try_clone()?, slave];
        let readers = vec![(2, non_blocking(master.try_clone()?)?)];
        let stdin = Stdin::Terminal(async_fd(master.try_clone()?, tokio::io::Interest::WRITABLE)?);
        Ok(Self { child, readers, stdin, terminal: Some(master) })
    }
}

/// Creates a pipe with more capacity than the default, to reduce context switches between a fast writer and the guest.
/// Falls back to the default if the kernel refuses.
pub(crate) fn output_pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let _ = rustix::pipe::fcntl_setpipe_size(&reader, PIPE_BYTES);
    Ok((reader, writer))
}

pub(crate) enum StreamError {
    Invalid(String),
    Io(io::Error),
}

impl From<Errno> for StreamError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Converts a terminal size; fails if it is out of range.
pub(crate) fn window_size(size: &v1::Terminal) -> Result<Winsize, String> {
    let side = |field: &str, value: u32| match u16::try_from(value) {
        Ok(value @ 1..) => Ok(value),
        _ => Err(format!("terminal.{field}: {value} is not allowed; give 1 to 65535")),
    };
    Ok(Winsize {
        ws_row: side("rows", size.rows)?,
        ws_col: side("columns", size.columns)?,
        ws_xpixel: 0,
        ws_ypixel: 0,
    })
}

/// Registers a descriptor with tokio.
#[expect(
    deprecated,
    reason = "unsound only for types that can change their descriptor, which OwnedFd cannot"
)]
fn async_fd(fd: OwnedFd, interest: tokio::io::Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}

pub(crate) fn non_blocking(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, StreamError> {
    rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK)?;
    Ok(async_fd(fd, tokio::io::Interest::READABLE)?)
}

/// Copies one stream from its pipe or terminal into the log, until the end of the stream or of the process.
async fn pump(process: Arc<Process>, index: usize, stream: AsyncFd<OwnedFd>) {
    let mut changed = process.watch();
    let mut buffer = read_buffer();
    let mut drained = 0;
    loop {
        let (must_wait, ended) = {
            let state = process.state();
            (state.logs[index].must_wait(), state.ended.is_some())
        };
        if must_wait {
            if changed.changed().await.is_err() {
                break;
            }
            continue;
        }
        match read_some(stream.get_ref(), &mut buffer) {
            Ok(Some(data)) => {
                if ended {
                    drained += data.len();
                }
                process.change(|state| state.logs[index].append(data));
                if drained >= DRAIN_BYTES {
                    break;
                }
            }
            Ok(None) => break,
            Err(Errno::AGAIN) if ended => break,
            Err(Errno::AGAIN) => {
                tokio::select! {
                    ready = stream.readable() => match ready {
                        // The next read finds out whether there really is data.
                        Ok(mut guard) => { if is_empty(stream.get_ref()) { guard.clear_ready(); } }
                        Err(_) => break,
                    },
                    result = changed.changed() => if result.is_err() { break },
                }
            }
            Err(Errno::INTR) => {}
            // Reading a terminal whose other side is closed fails with EIO.
            Err(_) => break,
        }
    }
    process.change(|state| state.logs[index].close());
}

/// Polls a descriptor and reports whether it has nothing to read.
fn is_empty(fd: &OwnedFd) -> bool {
    let mut polls = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut polls, Some(&now)), Ok(0))
}

/// Returns a buffer for [`read_some`]. Most streams have little to read.
pub(crate) fn read_buffer() -> Vec<u8> {
    Vec::with_capacity(FIRST_READ_BYTES)
}

/// Waits for the next bytes of a pipe and returns them; `None` at its end. Cancel-safe.
pub(crate) async fn read(pipe: &AsyncFd<OwnedFd>, buffer: &mut Vec<u8>) -> Option<Bytes> {
    loop {
        let mut ready = pipe.readable().await.ok()?;
        match read_some(pipe.get_ref(), buffer) {
            Ok(data) => return data,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(_) => return None,
        }
    }
}

/// Reads the next bytes of a stream; `None` at its end. `buffer` is that of the last call, if there was one: a read that has filled
/// it is followed by larger ones.
pub(crate) fn read_some(fd: &OwnedFd, buffer: &mut Vec<u8>) -> Result<Option<Bytes>, Errno> {
    let is_full = buffer.len() == buffer.capacity();
    buffer.clear();
    buffer.reserve(if is_full { READ_BYTES } else { buffer.capacity() });
    let length = rustix::io::read(fd, rustix::buffer::spare_capacity(buffer))?;
    if length == 0 {
        return Ok(None);
    }
    Ok(Some(if length < MAX_COPIED_BYTES {
        Bytes::copy_from_slice(buffer)
    } else {
        Bytes::from(std::mem::take(buffer))
    }))
}

/// Waits for the end of the process, kills its leftovers if requested, and marks it as finished.
pub(crate) async fn finish(guest: Arc<Guest>, process: Arc<Process>) {
    let mut changed = process.watch();
    while process.is_running() {
        if changed.changed().await.is_err() {
            return;
        }
    }
    while process.state().stopping {
        if changed.changed().await.is_err() {
            return;
        }
    }
    if process.kill_rest {
        let left_behind = kill_leftovers(&guest, &process);
        process.change(|state| state.left_behind = state.left_behind.saturating_add(left_behind));
    }
    loop {
        if process.state().logs.iter().all(crate::output::OutputLog::is_closed) {
            process.change(|state| state.finished = true);
            return;
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Kills the leftover processes; returns their number.
fn kill_leftovers(guest: &Guest, process: &Process) -> u32 {
    if guest.table.running().is_empty() {
        return kill_all_others(guest);
    }
    // The process was reaped, so its pid must not be signalled any more: only its session is.
    guest.proc.signal_tree(process.pid, true, SIGKILL)
}

/// Kills all processes except the guest, and returns their number.
pub(crate) fn kill_all_others(guest: &Guest) -> u32 {
    if guest.proc.whole_namespace && belljar_linux::kill_all(0).is_err() {
        return 0;
    }
    let leftovers = guest.proc.count_running();
    guest.proc.signal_all(SIGKILL);
    leftovers
}

async fn enforce_timeout(guest: Arc<Guest>, process: Arc<Process>, timeout: Duration, grace: Duration) {
    let mut changed = process.watch();
    let ended = async {
        while process.is_running() {
            if changed.changed().await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = ended => return,
        () = clock::sleep(timeout) => {}
    }
    process.set_cause(v1::Cause::CAUSE_TIMED_OUT);
    stop(&guest, &process, grace).await;
}

/// Interval at which a tree that is being stopped is looked at after its leader has ended.
const TREE_INTERVAL: Duration = Duration::from_millis(20);

/// Sends SIGTERM to the process tree, waits until all of it has ended, `grace` at most, and then sends SIGKILL to what is left. What
/// outlives the leader for that long is counted as left behind.
pub(crate) async fn stop(guest: &Guest, process: &Process, grace: Duration) {
    if process.change(|state| std::mem::replace(&mut state.stopping, true)) {
        // Somebody else stops it.
        return;
    }
    let _stopping = Stopping(process);
    // Known before the first signal: children of a leader that ends are adopted, and no longer below it.
    let mut members = HashSet::new();
    guest.proc.extend(process.pid, !process.is_running(), &mut members);
    signal(guest, process, &mut members, SIGTERM);
    let mut changed = process.watch();
    let ended = async {
        while process.is_running() {
            if changed.changed().await.is_err() {
                return;
            }
        }
        while !guest.proc.extend(process.pid, true, &mut members).is_empty() {
            tokio::time::sleep(TREE_INTERVAL).await;
        }
    };
    let is_late = tokio::select! {
        () = ended => false,
        () = clock::sleep(grace) => true,
    };
    if is_late {
        let is_reaped = !process.is_running();
        let alive = guest.proc.extend(process.pid, is_reaped, &mut members);
        let rest = alive.iter().filter(|pid| **pid != process.pid).count();
        signal(guest, process, &mut members, SIGKILL);
        process.change(|state| state.left_behind = u32::try_from(rest).unwrap_or(u32::MAX));
    }
}

/// A process whose tree is being stopped, until this is dropped.
struct Stopping<'p>(&'p Process);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.stopping = false);
    }
}

fn signal(guest: &Guest, process: &Process, members: &mut HashSet<(i32, u64)>, signal: i32) {
    let only_one = guest.table.running().len() == 1;
    if only_one && process.kill_rest && guest.proc.whole_namespace {
        guest.proc.signal_all(signal);
    } else {
        // At once, as listing all processes takes a while.
        let _ = process.signal(signal);
        guest.proc.signal_members(process.pid, !process.is_running(), members, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_lookup_matches_execvp() {
        let lookup = |program: &str, path: &str| {
            candidates(program.as_bytes(), path.as_bytes())
                .map(|path| String::from_utf8(path).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(lookup("ls", "/a:/b"), ["/a/ls", "/b/ls"]);
        assert_eq!(lookup("./ls", "/a:/b"), ["./ls"]);
        assert_eq!(lookup("/x/ls", "/a"), ["/x/ls"]);
        assert_eq!(lookup("ls", ":/a:"), ["/a/ls"], "an empty entry is not the current directory");
    }

    #[test]
    fn terminal_sizes_are_checked() {
        assert!(window_size(&v1::Terminal { rows: 24, columns: 80, ..Default::default() }).is_ok());
        let error = window_size(&v1::Terminal { rows: 0, columns: 80, ..Default::default() }).unwrap_err();
        assert_eq!(error, "terminal.rows: 0 is not allowed; give 1 to 65535");
        assert!(window_size(&v1::Terminal { rows: 24, columns: 65536, ..Default::default() }).is_err());
    }
}
