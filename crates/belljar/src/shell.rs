//! `belljar shell`: an interactive terminal in a sandbox.

use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

use belljar_engine::{
    CreateRequest, EngineError, ErrorCode, Execution, GuestClient, GuestError, ProcessEvent, STOP_GRACE,
    Sandbox, v1,
};
use belljar_model::{SandboxSpec, Timeout};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::termios::{OptionalActions, Termios};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::ShellArgs;
use crate::descriptor::Inherited;
use crate::message::{FAILED, Quit, chain, say};
use crate::output::write_failed;
use crate::progress::{Progress, STARTING};
use crate::run::{create, runtime, wait_for_creation};
use crate::signals::{self, Signals};
use crate::spec::{UncheckedSpec, weaker_grade};
use crate::stdin::Stdin;

/// Default timeout of a shell: the maximum lifetime of a sandbox.
const DEFAULT_TIMEOUT: Timeout = Timeout::MAX;

/// Default shells: the first that exists is used.
pub(crate) const SHELLS: [&str; 2] = ["bash", "sh"];

/// Size of a terminal that does not report its own, in rows and columns.
const DEFAULT_SIZE: (u16, u16) = (24, 80);

/// Time for the guest to report the end of the program after its time limit and grace period.
const REPORT_TIMEOUT: Duration = Duration::from_secs(4);

/// Runs `belljar shell`.
pub(crate) fn shell(args: &ShellArgs) -> Result<u8, Quit> {
    if !rustix::termios::isatty(rustix::stdio::stdin()) {
        return Err(Quit::Usage(
            "shell needs a terminal on standard input; without one use belljar run -l bash".to_owned(),
        ));
    }
    let mut unchecked = UncheckedSpec::from_args(&args.sandbox)?;
    unchecked.default_timeout(DEFAULT_TIMEOUT);
    unchecked.set_interactive();
    let checked = unchecked.resolve(None, args.sandbox.policy.as_deref())?;
    let engine = checked.engine();
    runtime()?.block_on(async {
        let mut signals = Signals::catch()?;
        let progress = Progress::new(STARTING, args.sandbox.quiet);
        let sandbox =
            wait_for_creation(create(&*engine, CreateRequest::run(&checked.spec)), &mut signals, &progress)
                .await;
        progress.clear();
        let sandbox = sandbox?;
        if let Some(warning) = weaker_grade(sandbox.isolation.grade).filter(|_| !args.sandbox.quiet) {
            say(warning);
        }
        let done = run_program(args, &checked.spec, &sandbox, &mut signals).await;
        let stopped = sandbox.stop().await;
        let status = done?;
        stopped?;
        Ok(status)
    })
}

/// Runs the program on the terminal, from its start to its end.
async fn run_program(
    args: &ShellArgs,
    spec: &SandboxSpec,
    sandbox: &Sandbox,
    signals: &mut Signals,
) -> Result<u8, Quit> {
    let guest = sandbox.guest();
    let mut resized = signal(SignalKind::window_change())?;
    let execution = match start(guest, args, spec).await {
        Ok(execution) => execution,
        Err(error) => return report_start_failure(error),
    };
    let id = execution.id;
    let _raw = RawMode::enter()?;
    let feeding = Stdin::open().map(|stdin| {
        let guest = guest.clone();
        tokio::spawn(async move { guest.feed(id, stdin, false).await })
    });
    let passing = forward_output(execution);
    tokio::pin!(passing);
    let deadline = tokio::time::sleep(spec.limits.timeout.duration() + STOP_GRACE + REPORT_TIMEOUT);
    tokio::pin!(deadline);
    let ended = loop {
        tokio::select! {
            ended = &mut passing => break ended,
            _ = resized.recv() => {
                let (rows, columns) = size();
                // The program may have just ended.
                let _ = guest.resize(id, rows, columns).await;
            }
            signal = signals.next() => break Err(Quit::Status(signals::status(signal))),
            () = &mut deadline => break Err(anyhow::anyhow!("the guest stopped answering").into()),
        }
    };
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    match ended? {
        Some(exited) => Ok(status(&exited, spec)),
        None => {
            let how = tokio::time::timeout(REPORT_TIMEOUT, sandbox.wait_ended()).await;
            let how = how.unwrap_or_else(|_| "the guest stopped answering".to_owned());
            Err(EngineError::Ended { how }.into())
        }
    }
}

/// Starts the program on a terminal of this one's size.
async fn start(guest: &GuestClient, args: &ShellArgs, spec: &SandboxSpec) -> Result<Execution, GuestError> {
    let (rows, columns) = size();
    let terminal = v1::Terminal { rows: rows.into(), columns: columns.into(), ..Default::default() };
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let request = |argv: Vec<Bytes>| v1::StartRequest {
        argv,
        env: terminal_type().into_iter().collect(),
        stdin_open: true,
        terminal: terminal.clone().into(),
        timeout_ms: millis(spec.limits.timeout.duration()),
        grace_ms: millis(STOP_GRACE),
        kill_rest: true,
        ..Default::default()
    };
    if !args.command.is_empty() {
        let argv = args.command.iter().map(|word| Bytes::from(word.clone().into_vec())).collect();
        return guest.start(request(argv)).await;
    }
    let [first, second] = SHELLS;
    match guest.start(request(vec![Bytes::from_static(first.as_bytes())])).await {
        Err(error) if error.is(ErrorCode::NotFound) => {
            guest.start(request(vec![Bytes::from_static(second.as_bytes())])).await
        }
        started => started,
    }
}

/// Returns this terminal's type, which the one inside gets as well.
pub(crate) fn terminal_type() -> Option<v1::EnvVar> {
    let term = std::env::var("TERM").ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    (!term.is_empty() && term.bytes().all(is_plain)).then(|| v1::EnvVar {
        name: Bytes::from_static(b"TERM"),
        value: Bytes::from(term),
        ..Default::default()
    })
}

/// Reports a program that is missing or refused, with the exit status that a shell has for it.
fn report_start_failure(error: GuestError) -> Result<u8, Quit> {
    let status = match &error {
        GuestError::Refused { code: ErrorCode::NotFound, .. } => 127,
        GuestError::Refused { code: ErrorCode::PermissionDenied | ErrorCode::FailedPrecondition, .. } => 126,
        _ => return Err(error.into()),
    };
    say(&chain(&error));
    Ok(status)
}

/// Forwards the output of the terminal inside, until the program ends.
pub(crate) async fn forward_output(mut execution: Execution) -> Result<Option<v1::Exited>, Quit> {
    let mut stdout = Inherited::stdout();
    while let Some(event) = execution.next().await? {
        match event {
            ProcessEvent::Started { .. } => {}
            ProcessEvent::Output { data, .. } => stdout.write_all(&data).await.map_err(write_failed)?,
            ProcessEvent::Exited(exited) => return Ok(Some(exited)),
        }
    }
    Ok(None)
}

fn status(exited: &v1::Exited, spec: &SandboxSpec) -> u8 {
    match exited.cause.as_known().unwrap_or_default() {
        v1::Cause::CAUSE_TIMED_OUT | v1::Cause::CAUSE_STOPPED => {
            say(&format!("the shell timed out after {}", spec.limits.timeout));
            124
        }
        v1::Cause::CAUSE_MEMORY => 137,
        _ if exited.signal > 0 => signals::status(exited.signal),
        _ => u8::try_from(exited.code).unwrap_or(FAILED),
    }
}

/// Returns the rows and columns of this terminal.
pub(crate) fn size() -> (u16, u16) {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdin());
    size.map(|size| (size.ws_row, size.ws_col))
        .ok()
        .filter(|(rows, columns)| *rows > 0 && *columns > 0)
        .unwrap_or(DEFAULT_SIZE)
}

/// The terminal's saved attributes; `None` once they are restored.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// Guard of raw mode, in which the terminal passes every key on unchanged. Dropping it, or a panic, restores the terminal.
pub(crate) struct RawMode;

impl RawMode {
    pub(crate) fn enter() -> Result<Self, Quit> {
        let stdin = rustix::stdio::stdin();
        let before = rustix::termios::tcgetattr(stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        *SAVED.lock() = Some(before);
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            usual(info);
        }));
        let guard = Self;
        rustix::termios::tcsetattr(stdin, OptionalActions::Drain, &raw)?;
        Ok(guard)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some(before) = SAVED.lock().take() {
        let _ = rustix::termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &before);
    }
}
