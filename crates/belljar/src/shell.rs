//! `belljar shell`: an interactive terminal in a sandbox.

use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

use belljar_engine::{
    CreateRequest, Engine as _, EngineError, ErrorCode, Execution, GuestClient, GuestError, ProcessEvent,
    STOP_GRACE, Sandbox, v1,
};
use belljar_model::SandboxSpec;
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::termios::{OptionalActions, Termios};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::ShellArgs;
use crate::descriptor::Inherited;
use crate::message::{FAILED, Quit, chain, say};
use crate::output::write_failed;
use crate::progress::{Progress, STARTING};
use crate::run::{made, runtime};
use crate::signals::{self, Signals};
use crate::spec::{Asked, weaker_grade};
use crate::stdin::Stdin;

/// A shell is there for as long as a sandbox can be, unless somebody says otherwise.
const DEFAULT_TIMEOUT: &str = "24h";

/// What is run when nothing is named: the first of these that is there.
pub(crate) const SHELLS: [&str; 2] = ["bash", "sh"];

/// The size of a terminal that does not know its own.
const DEFAULT_SIZE: (u16, u16) = (24, 80);

/// How long the guest may take to say that the program, which its time limit should have ended, has ended.
const PATIENCE: Duration = Duration::from_secs(4);

/// Opens the terminal that `args` ask for.
pub(crate) fn shell(args: &ShellArgs) -> Result<u8, Quit> {
    if !rustix::termios::isatty(rustix::stdio::stdin()) {
        return Err(Quit::Usage(
            "shell needs a terminal on standard input; without one use belljar run -l bash".to_owned(),
        ));
    }
    let mut asked = Asked::from_args(&args.sandbox)?;
    asked.default_timeout(DEFAULT_TIMEOUT);
    asked.set_interactive();
    let sandboxed = asked.resolve(None, args.sandbox.policy.as_deref())?;
    let engine = sandboxed.engine();
    runtime()?.block_on(async {
        let mut signals = Signals::catch()?;
        let progress = Progress::new(STARTING, args.sandbox.quiet);
        let sandbox = made(engine.create(CreateRequest::run(&sandboxed.spec)), &mut signals, &progress).await;
        progress.clear();
        let sandbox = sandbox?;
        if let Some(warning) = weaker_grade(sandbox.isolation.grade).filter(|_| !args.sandbox.quiet) {
            say(warning);
        }
        let done = attend(args, &sandboxed.spec, &sandbox, &mut signals).await;
        let stopped = sandbox.stop().await;
        let status = done?;
        stopped?;
        Ok(status)
    })
}

/// Everything between the start of the program and its end.
async fn attend(
    args: &ShellArgs,
    spec: &SandboxSpec,
    sandbox: &Sandbox,
    signals: &mut Signals,
) -> Result<u8, Quit> {
    let guest = sandbox.guest();
    let mut resized = signal(SignalKind::window_change())?;
    let execution = match start(guest, args, spec).await {
        Ok(execution) => execution,
        Err(error) => return could_not_start(error),
    };
    let id = execution.id;
    let _raw = RawMode::enter()?;
    let feeding = Stdin::open().map(|stdin| {
        let guest = guest.clone();
        tokio::spawn(async move { guest.feed(id, stdin, false).await })
    });
    let passing = pass(execution);
    tokio::pin!(passing);
    let patience = tokio::time::sleep(spec.limits.timeout.duration() + STOP_GRACE + PATIENCE);
    tokio::pin!(patience);
    let ended = loop {
        tokio::select! {
            ended = &mut passing => break ended,
            _ = resized.recv() => {
                let (rows, columns) = size();
                // A program that has just ended has no size.
                let _ = guest.resize(id, rows, columns).await;
            }
            signal = signals.next() => break Err(Quit::Status(signals::status(signal))),
            () = &mut patience => break Err(anyhow::anyhow!("the guest stopped answering").into()),
        }
    };
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    match ended? {
        Some(exited) => Ok(status(&exited, spec)),
        None => {
            let how = tokio::time::timeout(PATIENCE, sandbox.wait_ended()).await;
            let how = how.unwrap_or_else(|_| "the guest stopped answering".to_owned());
            Err(EngineError::Ended { how }.into())
        }
    }
}

/// Starts what was asked for on a terminal as large as this one.
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

/// The kind of this terminal, which is the kind of the one inside as well.
pub(crate) fn terminal_type() -> Option<v1::EnvVar> {
    let term = std::env::var("TERM").ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    (!term.is_empty() && term.bytes().all(is_plain)).then(|| v1::EnvVar {
        name: Bytes::from_static(b"TERM"),
        value: Bytes::from(term),
        ..Default::default()
    })
}

/// A program that is missing or refused is told as a shell tells it.
fn could_not_start(error: GuestError) -> Result<u8, Quit> {
    let status = match &error {
        GuestError::Refused { code: ErrorCode::NotFound, .. } => 127,
        GuestError::Refused { code: ErrorCode::PermissionDenied | ErrorCode::FailedPrecondition, .. } => 126,
        _ => return Err(error.into()),
    };
    say(&chain(&error));
    Ok(status)
}

/// Passes on what the terminal inside shows, until the program ends.
pub(crate) async fn pass(mut execution: Execution) -> Result<Option<v1::Exited>, Quit> {
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

/// Rows and columns of this terminal.
pub(crate) fn size() -> (u16, u16) {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdin());
    size.map(|size| (size.ws_row, size.ws_col))
        .ok()
        .filter(|(rows, columns)| *rows > 0 && *columns > 0)
        .unwrap_or(DEFAULT_SIZE)
}

/// How the terminal was before; taken when it is as it was again.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal passes every key on as it is, until this is dropped. A panic restores it as well.
pub(crate) struct RawMode;

impl RawMode {
    pub(crate) fn enter() -> Result<Self, Quit> {
        let stdin = rustix::stdio::stdin();
        let before = rustix::termios::tcgetattr(stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock() = Some(before);
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
    if let Some(before) = BEFORE.lock().take() {
        let _ = rustix::termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &before);
    }
}
