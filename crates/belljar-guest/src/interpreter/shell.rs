//! Bash contexts: sessions (`session.rs`) whose commands are executions.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::context::Control;
use super::execution::{Job, event};
use super::outlet::{Delivered, Outlet, sleep_until};
use crate::guest::Guest;
use crate::process::Process;
use crate::service::events as process_events;
use crate::session::Session;
use crate::start::USER;
use crate::tree::{SIGINT, SIGKILL};

/// Interval between interrupts.
const INTERRUPT_INTERVAL: Duration = Duration::from_secs(1);

/// Shell variable with the state to restore after an execution with an environment of its own.
const SAVED_VARIABLE: &str = "__belljar_kept";

/// A shell with a context's state.
pub(super) struct Shell {
    session: Arc<Session>,
}

impl Shell {
    pub(super) fn open(guest: &Arc<Guest>, cwd: &Bytes, env: &[v1::EnvVar]) -> Result<Self, ConnectError> {
        let request = v1::SessionOpen {
            cwd: cwd.clone(),
            env: env.to_vec(),
            shell: Bytes::from_static(b"bash"),
            ..Default::default()
        };
        Ok(Self { session: crate::session::open(guest, &request, USER)? })
    }

    pub(super) fn process(&self) -> &Arc<Process> {
        self.session.shell()
    }

    /// Kills the shell with all its descendants, and waits for its end.
    pub(super) async fn end(&self, guest: &Guest) {
        let shell = self.session.shell();
        guest.proc.signal_tree(shell.pid, !shell.is_running(), SIGKILL);
        let mut changed = shell.watch();
        while shell.is_running() && changed.changed().await.is_ok() {}
    }

    pub(super) async fn run(
        &self,
        guest: &Arc<Guest>,
        job: &Job,
        outlet: &mut Outlet,
        mut controls: mpsc::Receiver<Control>,
    ) -> v1::CodeEnded {
        let started_at = Instant::now();
        let shell = self.session.shell();
        let cpu_before = guest.proc.cpu_us(shell.pid);
        let ended = self.run_command(guest, job, outlet, &mut controls).await;
        let mut ended = ended.unwrap_or_else(|error| {
            let is_running = shell.is_running();
            let state =
                if is_running { v1::Survival::SURVIVAL_PRESERVED } else { v1::Survival::SURVIVAL_LOST };
            v1::CodeEnded {
                status: v1::CodeStatus::CODE_STATUS_ERROR.into(),
                state: state.into(),
                reason: error.message.unwrap_or_default(),
                ..Default::default()
            }
        });
        let cpu = match &shell.state().ended {
            Some(exit) => exit.user_us.saturating_add(exit.system_us),
            None => guest.proc.cpu_us(shell.pid),
        };
        ended.cpu_us = cpu.saturating_sub(cpu_before);
        ended.wall_us = u64::try_from(started_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        ended
    }

    fn start_command(
        &self,
        guest: &Guest,
        command: Bytes,
        timeout_ms: u64,
        grace_ms: u64,
    ) -> Result<Arc<Process>, ConnectError> {
        let id = self.session.id();
        let run = v1::SessionRun { id, command, timeout_ms, grace_ms, ..Default::default() };
        crate::session::start_command(guest, &run)
    }

    async fn run_command(
        &self,
        guest: &Arc<Guest>,
        job: &Job,
        outlet: &mut Outlet,
        controls: &mut mpsc::Receiver<Control>,
    ) -> Result<v1::CodeEnded, ConnectError> {
        let request = &job.request;
        let code = wrap_code(&job.code, request, &guest.config.home).into();
        let process = self.start_command(guest, code, request.timeout_ms, request.grace_ms)?;
        let mut stream = Box::pin(process_events(Arc::clone(&process), [0; 3]));
        let mut stop = Stop { interrupted: false, next_interrupt: None, kill_at: None, reason: None };
        let exited = loop {
            tokio::select! {
                delivered = outlet.deliver() => {
                    if delivered == Delivered::Gone && job.kill_on_disconnect {
                        stop.interrupt(guest, &self.session, &process, Instant::now().checked_add(job.grace()));
                    }
                }
                next = stream.next(), if outlet.is_empty() => match next {
                    Some(Ok(v1::ProcessEvent { event: Some(found), .. })) => {
                        use v1::__buffa::oneof::process_event::Event;
                        match found {
                            Event::Output(output) => outlet.push(event(*output)),
                            Event::Exited(exited) => break *exited,
                            Event::Started(_) | Event::Waiting(_) => {}
                        }
                    }
                    Some(Err(error)) => return Err(error),
                    Some(_) => {}
                    None => return Err(ConnectError::internal("the end of the command was missed")),
                },
                Some(control) = controls.recv() => match control {
                    Control::Interrupt => stop.interrupt(guest, &self.session, &process, None),
                    Control::End(why) => {
                        stop.reason = Some(why);
                        outlet.start_flush_timeout();
                        self.end(guest).await;
                    }
                    // The input of commands is empty, and they call no tools.
                    Control::Answer(_) | Control::ToolAnswer(..) => {}
                },
                () = stop.next(), if stop.next_interrupt.is_some() => {
                    if stop.kill_at.is_some_and(|kill_at| kill_at <= Instant::now()) {
                        stop.reason = Some("the code did not end when it was interrupted after its caller had gone");
                        stop.next_interrupt = None;
                        self.end(guest).await;
                    } else {
                        stop.interrupt(guest, &self.session, &process, None);
                    }
                },
            }
        };
        let ended = build_ended(&exited, &stop);
        if exited.code != 0 && ended.state == v1::Survival::SURVIVAL_PRESERVED {
            outlet.push(event(v1::CodeError {
                name: "CommandFailed".to_owned(),
                value: format!("exit status {}", exited.code),
                ..Default::default()
            }));
        }
        while !outlet.is_empty() {
            tokio::select! {
                _ = outlet.deliver() => {}
                Some(control) = controls.recv() => {
                    if matches!(control, Control::End(_)) {
                        outlet.start_flush_timeout();
                    }
                }
            }
        }
        Ok(ended)
    }
}

/// State of stopping a command.
struct Stop {
    interrupted: bool,
    next_interrupt: Option<Instant>,
    kill_at: Option<Instant>,
    reason: Option<&'static str>,
}

impl Stop {
    fn interrupt(&mut self, guest: &Guest, session: &Session, process: &Process, kill_at: Option<Instant>) {
        self.interrupted = true;
        session.abort();
        self.kill_at = self.kill_at.or(kill_at);
        self.next_interrupt = Instant::now().checked_add(INTERRUPT_INTERVAL);
        if let Some(command) = &process.command {
            guest.proc.signal_below(process.pid, &command.spared, SIGINT);
        }
    }

    async fn next(&self) {
        let next = self.next_interrupt.into_iter().chain(self.kill_at).min();
        sleep_until(next).await;
    }
}

fn build_ended(exited: &v1::Exited, stop: &Stop) -> v1::CodeEnded {
    let lost = exited.session_state == v1::SessionState::SESSION_STATE_LOST;
    let timed_out = exited.cause == v1::Cause::CAUSE_TIMED_OUT;
    let status = match (timed_out, lost, stop.interrupted || stop.reason.is_some(), exited.code) {
        (true, ..) => v1::CodeStatus::CODE_STATUS_TIMED_OUT,
        (_, _, true, code) if lost || code != 0 => v1::CodeStatus::CODE_STATUS_INTERRUPTED,
        (_, true, ..) => v1::CodeStatus::CODE_STATUS_DIED,
        (.., 0) => v1::CodeStatus::CODE_STATUS_OK,
        _ => v1::CodeStatus::CODE_STATUS_ERROR,
    };
    let reason = match (lost, stop.reason, exited.signal) {
        (false, ..) => String::new(),
        (_, Some(why), _) => why.to_owned(),
        (_, _, 0) => format!("the shell exited with code {}", exited.code),
        (_, _, signal) => format!("the shell was ended by signal {signal}"),
    };
    let state = if lost { v1::Survival::SURVIVAL_LOST } else { v1::Survival::SURVIVAL_PRESERVED };
    v1::CodeEnded {
        status: status.into(),
        state: state.into(),
        reason,
        cause: exited.cause,
        exit_code: exited.code,
        signal: exited.signal,
        stdout_bytes: exited.stdout_bytes,
        stderr_bytes: exited.stderr_bytes,
        ..Default::default()
    }
}

/// Wraps code with an environment or a directory of its own, and restores the shell's own afterwards. The result is one
/// command of the session, so that its output, timeout and interrupts apply to the whole. The code does not run if the
/// directory does not exist. Uses no reserved words: bash ignores them for a while after an unmatched quote in an
/// `eval`.
fn wrap_code(code: &str, request: &v1::ExecuteCodeRequest, home: &Path) -> String {
    let is_name = |name: &[u8]| {
        name.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
            && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    };
    // Names that are invalid in a shell cannot be shell variables.
    let env: Vec<_> = request.env.iter().filter(|variable| is_name(&variable.name)).collect();
    if env.is_empty() && request.cwd.is_empty() {
        return code.to_owned();
    }
    let (mut before, mut after) = (String::new(), String::new());
    if !env.is_empty() {
        let names: Vec<_> = env.iter().map(|variable| String::from_utf8_lossy(&variable.name)).collect();
        let names = names.join(" ");
        before.push_str(&format!("{SAVED_VARIABLE}=$(declare -p {names} 2>/dev/null) || :\n"));
        for variable in &env {
            let (name, value) =
                (String::from_utf8_lossy(&variable.name), String::from_utf8_lossy(&variable.value));
            before.push_str(&format!("export {name}={}\n", quote(&value)));
        }
        after.push_str(&format!("unset -v {names} || :\ncommand eval \"${SAVED_VARIABLE}\" || :\n"));
    }
    if !request.cwd.is_empty() {
        let cwd = home.join(&*String::from_utf8_lossy(&request.cwd));
        before.push_str(&format!(
            "{SAVED_VARIABLE}_cwd=$PWD\ncommand cd -- {} && ",
            quote(&cwd.to_string_lossy())
        ));
        after.push_str(&format!("command cd -- \"${SAVED_VARIABLE}_cwd\" || :\n"));
    }
    let code = quote(code);
    let status = format!("{SAVED_VARIABLE}_status");
    format!(
        "{before}command eval {code}\n{status}=$?\n{after}command eval \"unset -v {SAVED_VARIABLE} {SAVED_VARIABLE}_cwd {status}; (exit ${status})\"\n"
    )
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &'static str, value: &'static str) -> v1::EnvVar {
        v1::EnvVar { name: name.into(), value: value.into(), ..Default::default() }
    }

    /// Returns the output of bash for `first`, then the wrapped code, then `last`.
    fn run_bash(first: &str, code: &str, request: &v1::ExecuteCodeRequest, last: &str) -> String {
        use std::io::Write as _;
        use std::process::{Command, Stdio};

        let code = quote(&wrap_code(code, request, "/usr".as_ref()));
        let mut bash = Command::new("bash")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let text = format!("{first}\ncommand eval {code}\necho status $?\n{last}\n");
        bash.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        String::from_utf8(bash.wait_with_output().unwrap().stdout).unwrap().replace('\n', "|")
    }

    #[test]
    fn environment_and_directory_are_restored() {
        let request = v1::ExecuteCodeRequest {
            env: vec![variable("A", "it's"), variable("x;reboot", "1"), variable("B_2", "")],
            cwd: "lib".into(),
            ..Default::default()
        };
        let (first, inspect) = ("A=old", "declare -p A; echo ${B_2-none}; pwd; compgen -v __belljar");
        let old = "declare -- A=\"old\"|none|/|";
        for (code, expected) in [
            ("echo \"$A\" \"${B_2-none}\"; pwd; (exit 3)", "it's |/usr/lib|status 3|"),
            ("", "status 0|"),
            ("A=new; cd /tmp; false", "status 1|"),
            ("echo 'unmatched", "status 2|"),
            ("if true; then", "status 2|"),
            ("echo it\\'s ) x", "status 2|"),
        ] {
            let output = run_bash(first, code, &request, inspect);
            assert_eq!(output, format!("{expected}{old}"), "{code}");
        }
        assert_eq!(run_bash("set -e; A=old", "true", &request, inspect), format!("status 0|{old}"));
        // When the shell exits, nothing is restored.
        assert_eq!(run_bash("set -e; A=old", "false; echo on", &request, inspect), "");
        assert_eq!(run_bash("", "set -u; echo $nothing_is_here; echo on", &request, inspect), "");
        // Functions with the names of builtins are not called.
        let traps = "cd() { echo cd; }; eval() { echo eval; }; A=old";
        assert_eq!(run_bash(traps, "pwd", &request, inspect), format!("/usr/lib|status 0|{old}"));
    }

    #[test]
    fn what_is_restored_is_not_skipped() {
        let restored = wrap_code(
            "x",
            &v1::ExecuteCodeRequest { cwd: "lib".into(), ..Default::default() },
            "/usr".as_ref(),
        );
        let line = format!("\n{SAVED_VARIABLE}_status=$?\n");
        assert!(restored.contains(&line), "{restored}");
        assert!(crate::session::run::BASH_SETUP.contains(&format!("|{SAVED_VARIABLE}_status=\\$\\?)")));
    }

    #[test]
    fn code_does_not_run_if_its_directory_is_missing() {
        let request = v1::ExecuteCodeRequest { cwd: "no/where".into(), ..Default::default() };
        assert_eq!(run_bash("", "echo ran", &request, "pwd"), "status 1|/|");
        // With `set -e` the shell exits, as after any `cd` that fails.
        assert_eq!(run_bash("set -e", "echo ran", &request, "pwd"), "");
        assert_eq!(wrap_code("x", &Default::default(), "/usr".as_ref()), "x");
    }
}
