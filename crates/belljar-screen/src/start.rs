//! The process in which code is read: jailed before it reads anything, and ended after one screening.

use std::io::{Read as _, Write as _};

use belljar_linux::Reach;

use crate::rules::RuleSet;
use crate::screen::{MAX_CODE_BYTES, MAX_TIME, Modules, Request, screen_by};
use crate::{Language, Report};

/// First argument of a process that is started to screen code. Its standard input is the request, its standard output the answer.
pub const ARGUMENT: &str = "screener";

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
    if std::env::args_os().nth(1).as_deref() != Some(std::ffi::OsStr::new(ARGUMENT)) {
        return;
    }
    let answer: Result<Report, String> = run();
    let answer = serde_json::to_vec(&answer).unwrap_or_default();
    // The host may be gone.
    let written = std::io::stdout().write_all(&answer);
    std::process::exit(i32::from(written.is_err()));
}

fn run() -> Result<Report, String> {
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"belljar-screen");
    belljar_linux::close_from(3).map_err(|errno| format!("cannot close descriptors: {errno}"))?;
    let user = rustix::process::geteuid().is_root().then_some(USER);
    belljar_linux::enter_jail(user, Reach::Nothing).map_err(|error| error.to_string())?;
    // It may have been started before there is a request.
    let rules = RuleSet::builtin().map_err(|error| error.to_string())?;
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
    screen_by(&rules, &request, MAX_TIME).map_err(|error| error.to_string())
}
