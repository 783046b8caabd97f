//! The process in which code is read: jailed before it reads anything, and ended after one screening. Another one forks such processes and
//! reads nothing: a fork takes a tenth of the time that it takes to start this program.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use belljar_linux::{Reach, Received, receive_with, send_with};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions};

use crate::rules::RuleSet;
use crate::screen::{MAX_CODE_BYTES, MAX_TIME, Modules, Request, screen_by};
use crate::{Language, Report};

/// First argument of a process that is started to screen code. Its standard input is the request, its standard output the answer.
pub const ARGUMENT: &str = "screener";

/// Second argument of one that forks a process for each socket that it receives over its standard input, and answers with its pidfd.
pub(crate) const FORKS: &str = "forks";

/// Largest beginning of a request, before the code, in bytes: lists of modules.
pub(crate) const MAX_HEAD_BYTES: usize = 1 << 20;

/// User of the process, if root starts it: nobody. It can open no file and reach no other process, whoever owns them.
const USER: u32 = 65_534;

/// Beginning of a request, on a line of its own. The code follows.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct Head {
    pub(crate) language: Language,
    pub(crate) modules: Modules,
}

/// Screens code and never returns, if this process was started for that. Must be called at the very beginning of `main`.
pub fn enter_screener() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() != Some(std::ffi::OsStr::new(ARGUMENT)) {
        return;
    }
    let is_of_forks = arguments.next().is_some();
    let ready = begin();
    let is_child = !is_of_forks || (ready.is_ok() && serve_forks());
    if !is_child {
        std::process::exit(0);
    }
    let answer: Result<Report, String> = ready.and_then(|rules| run(&rules));
    let answer = serde_json::to_vec(&answer).unwrap_or_default();
    // The host may be gone.
    let written = std::io::stdout().write_all(&answer);
    std::process::exit(i32::from(written.is_err()));
}

fn begin() -> Result<RuleSet, String> {
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"belljar-screen");
    belljar_linux::close_from(3).map_err(|errno| format!("cannot close descriptors: {errno}"))?;
    RuleSet::builtin().map_err(|error| error.to_string())
}

/// Forks a process for each socket that comes, until the other end of standard input is closed. Returns `true` in a fork, whose standard
/// input and output are that socket.
fn serve_forks() -> bool {
    // Those that have ended are reaped, and their pidfds are valid until then.
    let mut children: Vec<OwnedFd> = Vec::new();
    loop {
        let input = rustix::stdio::stdin();
        let mut polls = vec![PollFd::new(&input, PollFlags::IN)];
        polls.extend(children.iter().map(|child| PollFd::new(child, PollFlags::IN)));
        match rustix::event::poll(&mut polls, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        let has_request = polls.first().is_some_and(|poll| !poll.revents().is_empty());
        children.retain(|child| {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            !matches!(rustix::process::waitid(WaitId::PidFd(child.as_fd()), options), Ok(Some(_)))
        });
        if !has_request {
            continue;
        }
        let Ok(Received { length: 1, descriptors, .. }) = receive_with(input, &mut [0; 1]) else {
            return false;
        };
        let [socket] = descriptors.as_slice() else { return false };
        let forked = match belljar_linux::fork_alone() {
            Ok(None) => {
                let is_connected =
                    rustix::stdio::dup2_stdin(socket).is_ok() && rustix::stdio::dup2_stdout(socket).is_ok();
                drop((children, descriptors));
                if !is_connected {
                    std::process::exit(1);
                }
                return true;
            }
            Ok(Some(pid)) => rustix::process::pidfd_open(pid, PidfdFlags::empty()),
            Err(errno) => Err(errno),
        };
        // Without a descriptor it says that there is no process.
        let answered = match &forked {
            Ok(pidfd) => send_with(input, &[1], &[pidfd.as_fd()]),
            Err(_) => send_with(input, &[0], &[]),
        };
        children.extend(forked);
        if answered.is_err() {
            return false;
        }
    }
}

fn run(rules: &RuleSet) -> Result<Report, String> {
    let user = rustix::process::geteuid().is_root().then_some(USER);
    belljar_linux::enter_jail(user, Reach::Nothing).map_err(|error| error.to_string())?;
    let mut request = Vec::new();
    let limit = u64::try_from(MAX_HEAD_BYTES + MAX_CODE_BYTES + 1).unwrap_or(u64::MAX);
    std::io::stdin()
        .take(limit)
        .read_to_end(&mut request)
        .map_err(|error| format!("cannot read the code: {error}"))?;
    let text = String::from_utf8(request).map_err(|error| error.to_string())?;
    let (head, code) = text.split_once('\n').ok_or("the request has no code")?;
    let Head { language, modules } = serde_json::from_str(head).map_err(|error| error.to_string())?;
    let request = Request { language, code: code.to_owned(), modules };
    screen_by(rules, &request, MAX_TIME).map_err(|error| error.to_string())
}
