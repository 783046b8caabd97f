//! `belljar sandbox exec`: runs a command with this terminal's streams.

use std::os::unix::ffi::OsStrExt as _;

use belljar_client::v1;
use belljar_engine::{GuestClient, GuestError, ProcessEvent, STOP_GRACE};
use bytes::Bytes;

use super::args::ExecArgs;
use super::link::Link;
use super::show::print;
use super::values;
use crate::descriptor::Inherited;
use crate::message::{FAILED, Quit, chain, say, shell_quote};
use crate::output::write_failed;
use crate::signals::{self, Signals};
use crate::stdin::Stdin;
use crate::units::bytes;

/// Exit status of a command that was not found.
const NOT_FOUND: u8 = 127;

/// Exit status of a command that timed out.
const TIMED_OUT: u8 = 124;

/// Number of the signal `SIGKILL`.
const SIGKILL: i32 = 9;

/// Exit status of a command that was killed because memory ran out.
const OUT_OF_MEMORY: u8 = 137;

/// Runs a command, and returns its status.
pub(crate) async fn exec(link: &Link, args: &ExecArgs) -> Result<u8, Quit> {
    let env = values::variables("env", &args.env)?;
    let timeout = args.timeout.as_deref().map(|text| values::time("timeout", text)).transpose()?;
    if args.detach {
        return background(link, args, env).await;
    }
    let guest = link.guest(&args.sandbox)?;
    let variable = |(name, value): (String, String)| v1::EnvVar {
        name: name.into_bytes().into(),
        value: value.into_bytes().into(),
        ..Default::default()
    };
    let mut request = v1::StartRequest {
        env: env.into_iter().map(variable).collect(),
        cwd: args.cwd.as_ref().map(|dir| Bytes::copy_from_slice(dir.as_bytes())).unwrap_or_default(),
        user: args.user.clone().unwrap_or_default(),
        timeout_ms: timeout.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        grace_ms: u64::try_from(STOP_GRACE.as_millis()).unwrap_or(u64::MAX),
        ..Default::default()
    };
    (request.argv, request.shell) = command(args);
    let may_wait = link.may_wait().await?;
    foreground(link, args, &guest, request, may_wait).await
}

/// Runs the command with this terminal's streams, and waits for its end. Ctrl-C goes to the command. If it may have to wait for approval, its
/// input is sent with it.
async fn foreground(
    link: &Link,
    args: &ExecArgs,
    guest: &GuestClient,
    mut request: v1::StartRequest,
    may_wait: bool,
) -> Result<u8, Quit> {
    let mut signals = Signals::catch()?;
    let mut stdin = Stdin::open();
    if let Some(input) = stdin.take_if(|_| may_wait) {
        request.stdin = input.read_ahead().await?;
    }
    request.stdin_open = stdin.is_some();
    let (before, execution) = futures::join!(metrics(link, &args.sandbox), guest.start(request));
    let mut execution = match execution {
        Ok(execution) => execution,
        Err(error) => {
            let status = report_start_failure(error)?;
            if let Some(advice) = line_advice(args).filter(|_| status == NOT_FOUND && !link.quiet) {
                say(&advice);
            }
            return Ok(status);
        }
    };
    let id = execution.id;
    let feeding = stdin.map(|stdin| {
        let guest = guest.clone();
        tokio::spawn(async move { guest.feed(id, stdin, true).await })
    });
    let (mut stdout, mut stderr) = (Inherited::stdout(), Inherited::stderr());
    let status = loop {
        let event = tokio::select! {
            event = execution.next() => event?,
            signal = signals.next() => {
                // The command may have just ended.
                let _ = guest.signal(id, signal, true).await;
                continue;
            }
        };
        match event {
            Some(ProcessEvent::Started { .. }) => {}
            Some(ProcessEvent::Output { stream: v1::Stream::STREAM_STDERR, data, .. }) => {
                stderr.write_all(&data).await.map_err(write_failed)?;
            }
            Some(ProcessEvent::Output { data, .. }) => stdout.write_all(&data).await.map_err(write_failed)?,
            Some(ProcessEvent::Exited(exited)) => {
                report_killed(link, &args.sandbox, before, &exited).await;
                break status(&exited);
            }
            None => return Err(anyhow::anyhow!("the sandbox has ended, and the command with it").into()),
        }
    };
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    Ok(status)
}

/// Reports a program that is missing or refused, with the exit status that a shell has for it.
pub(super) fn report_start_failure(error: GuestError) -> Result<u8, Quit> {
    let problem = match &error {
        GuestError::Refused { problem, .. } => problem.as_deref(),
        _ => None,
    };
    let Some(status) = start_failure_status(problem) else { return Err(error.into()) };
    say(&chain(&error));
    Ok(status)
}

/// Returns the advice for a program that was not found, if its name is a line for a shell.
fn line_advice(args: &ExecArgs) -> Option<String> {
    let [line] = args.command.as_slice() else { return None };
    let line = line.to_str().filter(|line| line.contains(' ') && !args.shell)?;
    Some(format!("hint: give each word by itself, or a line for a shell: sh -c {}", shell_quote(line)))
}

/// Returns the exit status that a shell has for a program that is missing or refused, from the stable code of the error.
fn start_failure_status(problem: Option<&str>) -> Option<u8> {
    match problem? {
        "program_not_found" => Some(NOT_FOUND),
        "permission_denied" => Some(126),
        _ => None,
    }
}

/// Returns the exit status of a command, as a shell shows it.
pub(super) fn status(exited: &v1::Exited) -> u8 {
    match exited.cause.as_known().unwrap_or_default() {
        v1::Cause::CAUSE_TIMED_OUT | v1::Cause::CAUSE_STOPPED => {
            say("the command timed out");
            TIMED_OUT
        }
        v1::Cause::CAUSE_MEMORY => OUT_OF_MEMORY,
        _ if exited.signal > 0 => signals::status(exited.signal),
        _ => u8::try_from(exited.code).unwrap_or(FAILED),
    }
}

/// Returns the usage of a sandbox, or `None` if messages about it are not wanted.
async fn metrics(link: &Link, sandbox: &str) -> Option<v1::SandboxMetrics> {
    let request = v1::SandboxMetricsRequest { sandbox: sandbox.to_owned(), ..Default::default() };
    if link.quiet { None } else { link.client.metrics(request).await.ok() }
}

/// Reports that a command or some of its processes were killed, and whether memory is the reason, which the guest cannot tell.
async fn report_killed(link: &Link, sandbox: &str, before: Option<v1::SandboxMetrics>, exited: &v1::Exited) {
    let after = metrics(link, sandbox).await.unwrap_or_default();
    let kills = after.oom_kills.saturating_sub(before.map_or(after.oom_kills, |before| before.oom_kills));
    // The kernel counts what it kills; the watcher of the grade `watched` states why it does.
    let cause = exited.cause.as_known().unwrap_or_default();
    let was_killed = exited.signal == SIGKILL || cause == v1::Cause::CAUSE_MEMORY;
    let what = match (was_killed, kills) {
        _ if link.quiet => return,
        _ if cause == v1::Cause::CAUSE_PIDS => {
            return say(&format!(
                "the command was killed: the sandbox exceeded its limit of {} processes and threads; {}",
                after.pids_limit,
                link.raise(sandbox, "--pids NUMBER").await
            ));
        }
        (false, 0) => {
            if let Some(name) = belljar_model::crash_name(exited.signal) {
                say(&format!("the command was ended by signal {} ({name})", exited.signal));
            }
            return;
        }
        // Memory as the reason would only be a guess.
        (true, 0) if cause != v1::Cause::CAUSE_MEMORY => return say("the command was killed (SIGKILL)"),
        (true, _) => "the command was killed".to_owned(),
        (false, 1) => "1 process was killed".to_owned(),
        (false, _) => format!("{kills} processes were killed"),
    };
    say(&format!(
        "{what}: the sandbox exceeded its {} memory limit, against which its files count too; {}",
        bytes(after.memory_limit_bytes),
        link.raise(sandbox, "--memory SIZE").await
    ));
}

async fn background(
    link: &Link,
    args: &ExecArgs,
    env: std::collections::HashMap<String, String>,
) -> Result<u8, Quit> {
    if link.may_wait().await? {
        link.remark("the command may wait for another person: belljar approval ls shows calls that wait");
    }
    let (argv, command) = command(args);
    let request = v1::ExecRequest {
        sandbox: args.sandbox.clone(),
        argv,
        command,
        env: env.into_iter().collect(),
        cwd: args.cwd.as_ref().map(|dir| Bytes::copy_from_slice(dir.as_bytes())).unwrap_or_default(),
        user: args.user.clone().unwrap_or_default(),
        timeout: values::span("timeout", args.timeout.as_deref())?,
        ..Default::default()
    };
    let started = match link.client.start(request).await {
        Ok(started) => started,
        Err(error) => {
            let Some(status) = start_failure_status(error.code()) else { return Err(error.into()) };
            say(&chain(&error));
            return Ok(status);
        }
    };
    if !link.json(&started)? {
        print(&format!("{}\n", started.process))?;
        let (sandbox, process) = (&args.sandbox, started.process);
        link.remark(&format!("belljar sandbox process read {sandbox} {process} prints what it wrote"));
    }
    Ok(0)
}

/// Returns the words of the command, or its shell line.
fn command(args: &ExecArgs) -> (Vec<Bytes>, Bytes) {
    let words: Vec<Bytes> = args.command.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
    if args.shell { (Vec::new(), words.join(&b" "[..]).into()) } else { (words, Bytes::new()) }
}
