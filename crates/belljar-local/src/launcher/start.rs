//! Start of the launcher: of the process by a server, and within the process itself.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::io::AsyncReadExt as _;

use crate::doctor::OWN_GUEST;
use crate::forks::FORK_SERVER;
use crate::guest_program::GuestChoice;
use crate::launcher::ARGUMENT;
use crate::launcher::run_dir::RunDir;
use crate::orphans::watch_child;

/// Maximum time for a launcher to start listening.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Output of a launcher that is listening.
const READY: &str = "ready";
/// Output of a launcher that finds the lock held by another one.
const ALREADY_RUNNING: &str = "held";

/// Maximum length of the error read from a launcher that cannot start, in bytes.
const MAX_REASON: u64 = 4096;

/// Environment variables that it inherits. The server's secrets do not belong in a process that outlives it.
const INHERITED_VARIABLES: &[&str] = &[
    "TMPDIR",
    #[cfg(feature = "mutation")]
    "BELLJAR_TEST_WITHOUT",
];

/// Exit statuses: started by hand, and failed.
const STATUS_USAGE: i32 = 2;
const STATUS_FAILED: i32 = 125;

/// Settings for starting a launcher.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) program: Option<PathBuf>,
    pub(crate) run_dir: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) linger: Duration,
}

impl Start {
    /// Starts a launcher, and waits until it or another one listens.
    pub(crate) async fn start(&self) -> io::Result<()> {
        // In the new process this is still its own program: that of the server, even if its file has been replaced by a newer
        // one.
        let program = self.program.as_deref().unwrap_or(Path::new("/proc/self/exe"));
        let mut command = Command::new(program);
        command
            .arg(ARGUMENT)
            .arg(std::path::absolute(&self.run_dir)?)
            .arg(std::path::absolute(&self.log)?)
            .arg(self.linger.as_millis().to_string())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let variables = INHERITED_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
        command.envs(variables);
        let mut child = command.spawn()?;
        let output = child.stdout.take().map(OwnedFd::from).ok_or(io::ErrorKind::BrokenPipe)?;
        watch_child(child)?;
        let mut pipe = tokio::net::unix::pipe::Receiver::from_owned_fd(output)?.take(MAX_REASON);
        let mut output = String::new();
        let reading = tokio::time::timeout(START_TIMEOUT, pipe.read_to_string(&mut output));
        let _ = reading.await.map_err(|_| io::ErrorKind::TimedOut)??;
        match output.trim() {
            READY | ALREADY_RUNNING => Ok(()),
            "" => Err(io::Error::other("it exited without output; is it a program that can be a launcher?")),
            reason => Err(io::Error::other(reason.to_owned())),
        }
    }
}

/// Runs the launcher, and returns its exit status.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> i32 {
    let arguments: Vec<OsString> = arguments.collect();
    let [run_dir, log_file, linger] = arguments.as_slice() else { return usage() };
    let Some(linger) = linger.to_str().and_then(|text| text.parse().ok()).map(Duration::from_millis) else {
        return usage();
    };
    match run(Path::new(run_dir), Path::new(log_file), linger) {
        Ok(()) => 0,
        Err((what, error)) => {
            let text = format!("{what}: {error}");
            // The server that started it reads the output, and the log keeps it.
            let _ = writeln!(io::stdout(), "{text}");
            log(&text);
            STATUS_FAILED
        }
    }
}

/// Runs the fork server, and returns its exit status.
pub(crate) fn serve_forks() -> i32 {
    match run_fork_server() {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(
                io::stderr(),
                "belljar: {FORK_SERVER}: {error}; it is started by a launcher, not by hand"
            );
            STATUS_FAILED
        }
    }
}

fn run_fork_server() -> io::Result<()> {
    if !is_single_threaded() {
        return Err(io::Error::other("the process has more than one thread"));
    }
    let _ = rustix::thread::set_name(c"belljar-fork");
    // No supervisor may have it under a number that programs expect to be something else.
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    drop(null);
    Ok(belljar_linux::serve_forks(&socket)?)
}

fn usage() -> i32 {
    let _ = writeln!(io::stderr(), "belljar: {ARGUMENT} is started by a server, not by hand");
    STATUS_USAGE
}

type ContextError = (&'static str, io::Error);

fn with_context<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ContextError {
    move |error| (what, error.into())
}

fn run(run_dir: &Path, log_file: &Path, linger: Duration) -> Result<(), ContextError> {
    // It outlives the server and must not keep anything open that the server has inherited, such as a pipe of its shell.
    belljar_linux::close_from(3).map_err(with_context("cannot close inherited descriptors"))?;
    // Detaches it from the server's terminal. It may be the first of a session already.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"belljar-launch");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(log_file, flags, Mode::RUSR | Mode::WUSR)
        .map_err(with_context("cannot open its log"))?;
    rustix::stdio::dup2_stderr(&file).map_err(with_context("cannot write its log"))?;
    drop(file);
    let dir = RunDir::open(run_dir).map_err(with_context("cannot use its run directory"))?;
    let Some(_lock) = dir.lock().map_err(with_context("cannot lock its run directory"))? else {
        let _ = writeln!(io::stdout(), "{ALREADY_RUNNING}");
        return Ok(());
    };
    raise_open_files();
    let instance = random_instance().map_err(with_context("cannot get random bytes"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(with_context("cannot start its runtime"))?;
    if !is_single_threaded() {
        return Err(("cannot launch", io::Error::other("the process has more than one thread")));
    }
    let served = runtime.block_on(async {
        let listener = dir.listen().map_err(with_context("cannot listen"))?;
        let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(with_context("cannot open /dev/null"))?;
        log(&format!("version {} listens", env!("CARGO_PKG_VERSION")));
        // Opened now, as its file may be replaced by a newer one later.
        if let Err(why) = GuestChoice::beside().path() {
            log(&format!("the guest is {OWN_GUEST}: {why}"));
        }
        let _ = writeln!(io::stdout(), "{READY}");
        rustix::stdio::dup2_stdout(&null).map_err(with_context("cannot leave its standard output"))?;
        drop(null);
        crate::launcher::server::serve(listener, instance, linger).await.map_err(with_context("cannot serve"))
    });
    let _ = dir.remove_socket();
    log("exits");
    served
}

/// Raises the limit of open files, as each sandbox needs some; the soft limit is for programs that use select(2).
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Returns a unique name for this run.
fn random_instance() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(hex::encode(bytes))
}

/// Reports whether this process has one thread. A clone of a multi-threaded process could wait forever for a lock.
pub(crate) fn is_single_threaded() -> bool {
    // One directory per thread, besides `.` and `..`.
    rustix::fs::stat(c"/proc/self/task").is_ok_and(|stat| stat.st_nlink == 3)
}

/// Writes a line to the log.
pub(crate) fn log(text: &str) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (pid, seconds, millis) = (std::process::id(), now.as_secs(), now.subsec_millis());
    // Untrusted text must not look like another line.
    let text: String =
        text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect();
    let _ = writeln!(io::stderr(), "{seconds}.{millis:03} launcher[{pid}] {text}");
}
