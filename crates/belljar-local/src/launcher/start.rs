//! The launcher's start: of the process by a server, and in the process itself.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::io::AsyncReadExt as _;

use crate::doctor::OWN_GUEST;
use crate::guest_program::GuestChoice;
use crate::launcher::ARGUMENT;
use crate::launcher::place::Place;

/// How long a launcher may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// What it writes to its standard output when it listens.
const READY: &str = "ready";
/// What it writes when another one has the lock.
const HELD: &str = "held";

/// The longest reason that is read of one that cannot start, in bytes.
const MAX_REASON: u64 = 4096;

/// Variables that it keeps of its server's environment, whose secrets are no affair of a process that lives longer.
const KEPT_VARIABLES: &[&str] = &[
    "TMPDIR",
    #[cfg(feature = "mutation")]
    "BELLJAR_TEST_WITHOUT",
];

/// Exit statuses: it was started by hand, or something was in the way.
const STATUS_USAGE: i32 = 2;
const STATUS_FAILED: i32 = 125;

/// How a launcher is started.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) program: Option<PathBuf>,
    pub(crate) run_dir: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) linger: Duration,
}

impl Start {
    /// Starts a launcher, and waits until it listens, or finds that another one does.
    pub(crate) async fn start(&self) -> io::Result<()> {
        // In the new process this is its own program still: that of the server, also when a newer one lies in its place.
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
        let variables = KEPT_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
        command.envs(variables);
        let mut child = command.spawn()?;
        let output = child.stdout.take().map(OwnedFd::from).ok_or(io::ErrorKind::BrokenPipe)?;
        crate::gateway::watched(child)?;
        let mut output = tokio::net::unix::pipe::Receiver::from_owned_fd(output)?.take(MAX_REASON);
        let mut said = String::new();
        let reading = tokio::time::timeout(START_TIMEOUT, output.read_to_string(&mut said));
        let _ = reading.await.map_err(|_| io::ErrorKind::TimedOut)??;
        match said.trim() {
            READY | HELD => Ok(()),
            "" => {
                Err(io::Error::other("it ended without a word; is the program one that can be a launcher?"))
            }
            reason => Err(io::Error::other(reason.to_owned())),
        }
    }
}

/// The launcher's `main`; hands back its exit status.
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
            // Whoever has started it reads that, and it stays in the log.
            let _ = writeln!(io::stdout(), "{text}");
            log(&text);
            STATUS_FAILED
        }
    }
}

fn usage() -> i32 {
    let _ = writeln!(io::stderr(), "belljar: {ARGUMENT} is started by a server, not by hand");
    STATUS_USAGE
}

type Failed = (&'static str, io::Error);

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Failed {
    move |error| (what, error.into())
}

fn run(run_dir: &Path, log_file: &Path, linger: Duration) -> Result<(), Failed> {
    // No terminal of the server's may reach it. It may be the first of a session already.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"belljar-launch");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(log_file, flags, Mode::RUSR | Mode::WUSR).map_err(failed("cannot open its log"))?;
    rustix::stdio::dup2_stderr(&file).map_err(failed("cannot write its log"))?;
    drop(file);
    let place = Place::open(run_dir).map_err(failed("cannot use its run directory"))?;
    let Some(_lock) = place.lock().map_err(failed("cannot lock its run directory"))? else {
        let _ = writeln!(io::stdout(), "{HELD}");
        return Ok(());
    };
    raise_open_files();
    let instance = instance().map_err(failed("cannot get random bytes"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed("cannot start its runtime"))?;
    if !is_single_threaded() {
        return Err(("cannot launch", io::Error::other("it has more than one thread")));
    }
    let served = runtime.block_on(async {
        let listener = place.listen().map_err(failed("cannot listen"))?;
        let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed("cannot open /dev/null"))?;
        log(&format!("version {} listens", env!("CARGO_PKG_VERSION")));
        // Opened now, as a newer one may lie in its place when it is needed.
        if let Err(why) = GuestChoice::beside().path() {
            log(&format!("the guest is {OWN_GUEST}: {why}"));
        }
        let _ = writeln!(io::stdout(), "{READY}");
        rustix::stdio::dup2_stdout(&null).map_err(failed("cannot leave its standard output"))?;
        drop(null);
        crate::launcher::server::serve(listener, instance, linger).await.map_err(failed("cannot serve"))
    });
    let _ = place.remove_socket();
    log("ends");
    served
}

/// Each sandbox takes some descriptors, and the soft limit is for programs that use select(2).
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// A name for this start that no other one has.
fn instance() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(hex::encode(bytes))
}

/// Whether this process has one thread. What a process with several clones may wait for ever for a lock.
pub(crate) fn is_single_threaded() -> bool {
    // A directory for each thread, besides `.` and `..`.
    rustix::fs::stat(c"/proc/self/task").is_ok_and(|stat| stat.st_nlink == 3)
}

/// Writes a line to the log.
pub(crate) fn log(text: &str) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (pid, seconds, millis) = (std::process::id(), now.as_secs(), now.subsec_millis());
    // Text from elsewhere must not look like another line.
    let text: String =
        text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect();
    let _ = writeln!(io::stderr(), "{seconds}.{millis:03} launcher[{pid}] {text}");
}
