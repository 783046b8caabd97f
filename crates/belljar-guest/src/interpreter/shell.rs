//! A context of bash: a session (`session.rs`), whose commands are executions.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::context::Order;
use super::execution::{Asked, event};
use super::outlet::{Delivered, Outlet, sleep_until};
use crate::guest::Guest;
use crate::process::Process;
use crate::service::events as process_events;
use crate::session::Session;
use crate::tree::{SIGINT, SIGKILL};

/// Time between an interrupt and the next.
const AGAIN: Duration = Duration::from_secs(1);

/// The name that holds what is put back after an execution with an environment of its own.
const KEPT: &str = "__belljar_kept";

/// A shell that keeps a context's state.
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
        Ok(Self { session: crate::session::open(guest, &request)? })
    }

    pub(super) fn process(&self) -> &Arc<Process> {
        self.session.shell()
    }

    /// Kills it with all that it has started, and waits for its end.
    pub(super) async fn end(&self, guest: &Guest) {
        let shell = self.session.shell();
        guest.proc.signal_tree(shell.pid, !shell.is_running(), SIGKILL);
        let mut changed = shell.watch();
        while shell.is_running() && changed.changed().await.is_ok() {}
    }

    pub(super) async fn run(
        &self,
        guest: &Arc<Guest>,
        asked: &Asked,
        outlet: &mut Outlet,
        mut orders: mpsc::Receiver<Order>,
    ) -> v1::CodeEnded {
        let begun = Instant::now();
        let shell = self.session.shell();
        let cpu_before = guest.proc.cpu_us(shell.pid);
        let ended = self.command(guest, asked, outlet, &mut orders).await;
        let mut ended = ended.unwrap_or_else(|error| {
            let lives = shell.is_running();
            let state = if lives { v1::Survival::SURVIVAL_PRESERVED } else { v1::Survival::SURVIVAL_LOST };
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
        ended.wall_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        ended
    }

    fn begin(
        &self,
        guest: &Guest,
        command: Bytes,
        timeout_ms: u64,
        grace_ms: u64,
    ) -> Result<Arc<Process>, ConnectError> {
        let id = self.session.id();
        let run = v1::SessionRun { id, command, timeout_ms, grace_ms, ..Default::default() };
        crate::session::begin(guest, &run)
    }

    async fn command(
        &self,
        guest: &Arc<Guest>,
        asked: &Asked,
        outlet: &mut Outlet,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Result<v1::CodeEnded, ConnectError> {
        let request = &asked.request;
        let code = surrounded(&asked.code, request, &guest.config.home).into();
        let process = self.begin(guest, code, request.timeout_ms, request.grace_ms)?;
        let mut stream = Box::pin(process_events(Arc::clone(&process), [0; 3]));
        let mut leash = Leash { interrupted: false, again: None, kill: None, ended_for: None };
        let exited = loop {
            tokio::select! {
                delivered = outlet.deliver() => {
                    if delivered == Delivered::Gone && asked.kills {
                        leash.interrupt(guest, &process, Instant::now().checked_add(asked.grace()));
                    }
                }
                next = stream.next(), if outlet.is_empty() => match next {
                    Some(Ok(v1::ProcessEvent { event: Some(found), .. })) => {
                        use v1::__buffa::oneof::process_event::Event;
                        match found {
                            Event::Output(output) => outlet.push(event(*output)),
                            Event::Exited(exited) => break *exited,
                            Event::Started(_) => {}
                        }
                    }
                    Some(Err(error)) => return Err(error),
                    Some(_) => {}
                    None => return Err(ConnectError::internal("the command's end was not seen")),
                },
                Some(order) = orders.recv() => match order {
                    Order::Interrupt => leash.interrupt(guest, &process, None),
                    Order::End(why) => {
                        leash.ended_for = Some(why);
                        outlet.hurry();
                        self.end(guest).await;
                    }
                    // Its input is empty.
                    Order::Answer(_) => {}
                },
                () = leash.next(), if leash.again.is_some() => {
                    if leash.kill.is_some_and(|kill| kill <= Instant::now()) {
                        leash.ended_for = Some("the code did not end when it was interrupted after its caller had gone");
                        leash.again = None;
                        self.end(guest).await;
                    } else {
                        leash.interrupt(guest, &process, None);
                    }
                },
            }
        };
        let ended = judged(&exited, &leash);
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
                Some(order) = orders.recv() => {
                    if matches!(order, Order::End(_)) {
                        outlet.hurry();
                    }
                }
            }
        }
        Ok(ended)
    }
}

/// How a command is being ended.
struct Leash {
    interrupted: bool,
    again: Option<Instant>,
    kill: Option<Instant>,
    ended_for: Option<&'static str>,
}

impl Leash {
    fn interrupt(&mut self, guest: &Guest, process: &Process, kill: Option<Instant>) {
        self.interrupted = true;
        self.kill = self.kill.or(kill);
        self.again = Instant::now().checked_add(AGAIN);
        if let Some(command) = &process.command {
            guest.proc.signal_below(process.pid, &command.spared, SIGINT);
        }
    }

    async fn next(&self) {
        let again = self.again.into_iter().chain(self.kill).min();
        sleep_until(again).await;
    }
}

fn judged(exited: &v1::Exited, leash: &Leash) -> v1::CodeEnded {
    let lost = exited.session_state == v1::SessionState::SESSION_STATE_LOST;
    let timed_out = exited.cause == v1::Cause::CAUSE_TIMED_OUT;
    let status = match (timed_out, lost, leash.interrupted || leash.ended_for.is_some(), exited.code) {
        (true, ..) => v1::CodeStatus::CODE_STATUS_TIMED_OUT,
        (_, _, true, code) if lost || code != 0 => v1::CodeStatus::CODE_STATUS_INTERRUPTED,
        (_, true, ..) => v1::CodeStatus::CODE_STATUS_DIED,
        (.., 0) => v1::CodeStatus::CODE_STATUS_OK,
        _ => v1::CodeStatus::CODE_STATUS_ERROR,
    };
    let reason = match (lost, leash.ended_for, exited.signal) {
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

/// Code with an environment or a directory of its own, and what puts things back after it. It is one command of the session,
/// so that it is heard, timed and interrupted as a whole. Code in a directory that is not there does not run. No
/// reserved words: bash does not know them for a while after an unmatched quote in an `eval`.
fn surrounded(code: &str, request: &v1::ExecuteCodeRequest, home: &Path) -> String {
    let is_name = |name: &[u8]| {
        name.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
            && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    };
    // What is no name to a shell cannot be one of its variables.
    let env: Vec<_> = request.env.iter().filter(|variable| is_name(&variable.name)).collect();
    if env.is_empty() && request.cwd.is_empty() {
        return code.to_owned();
    }
    let (mut before, mut after) = (String::new(), String::new());
    if !env.is_empty() {
        let names: Vec<_> = env.iter().map(|variable| String::from_utf8_lossy(&variable.name)).collect();
        let names = names.join(" ");
        before.push_str(&format!("{KEPT}=$(declare -p {names} 2>/dev/null) || :\n"));
        for variable in &env {
            let (name, value) =
                (String::from_utf8_lossy(&variable.name), String::from_utf8_lossy(&variable.value));
            before.push_str(&format!("export {name}={}\n", quoted(&value)));
        }
        after.push_str(&format!("unset -v {names} || :\ncommand eval \"${KEPT}\" || :\n"));
    }
    if !request.cwd.is_empty() {
        let cwd = home.join(&*String::from_utf8_lossy(&request.cwd));
        before.push_str(&format!("{KEPT}_cwd=$PWD\ncommand cd -- {} && ", quoted(&cwd.to_string_lossy())));
        after.push_str(&format!("command cd -- \"${KEPT}_cwd\" || :\n"));
    }
    let code = quoted(code);
    let status = format!("{KEPT}_status");
    format!(
        "{before}command eval {code}\n{status}=$?\n{after}command eval \"unset -v {KEPT} {KEPT}_cwd {status}; (exit ${status})\"\n"
    )
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &'static str, value: &'static str) -> v1::EnvVar {
        v1::EnvVar { name: name.into(), value: value.into(), ..Default::default() }
    }

    /// What bash prints when it is given a text, then code with surroundings, then another text.
    fn said(first: &str, code: &str, request: &v1::ExecuteCodeRequest, last: &str) -> String {
        use std::io::Write as _;
        use std::process::{Command, Stdio};

        let code = quoted(&surrounded(code, request, "/usr".as_ref()));
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
    fn surroundings_are_put_back() {
        let request = v1::ExecuteCodeRequest {
            env: vec![variable("A", "it's"), variable("x;reboot", "1"), variable("B_2", "")],
            cwd: "lib".into(),
            ..Default::default()
        };
        let (first, look) = ("A=old", "declare -p A; echo ${B_2-none}; pwd; compgen -v __belljar");
        let old = "declare -- A=\"old\"|none|/|";
        for (code, out) in [
            ("echo \"$A\" \"${B_2-none}\"; pwd; (exit 3)", "it's |/usr/lib|status 3|"),
            ("", "status 0|"),
            ("A=new; cd /tmp; false", "status 1|"),
            ("echo 'unmatched", "status 2|"),
            ("if true; then", "status 2|"),
            ("echo it\\'s ) x", "status 2|"),
        ] {
            let said = said(first, code, &request, look);
            assert_eq!(said, format!("{out}{old}"), "{code}");
        }
        assert_eq!(said("set -e; A=old", "true", &request, look), format!("status 0|{old}"));
        // What ends the shell ends it: there is nothing to put back.
        assert_eq!(said("set -e; A=old", "false; echo on", &request, look), "");
        assert_eq!(said("", "set -u; echo $nothing_is_here; echo on", &request, look), "");
        // Functions of these names are not called.
        let traps = "cd() { echo cd; }; eval() { echo eval; }; A=old";
        assert_eq!(said(traps, "pwd", &request, look), format!("/usr/lib|status 0|{old}"));
    }

    #[test]
    fn code_does_not_run_where_it_was_not_meant_to() {
        let request = v1::ExecuteCodeRequest { cwd: "no/where".into(), ..Default::default() };
        assert_eq!(said("", "echo ran", &request, "pwd"), "status 1|/|");
        // With `set -e` the shell ends, as it does after any `cd` that fails.
        assert_eq!(said("set -e", "echo ran", &request, "pwd"), "");
        assert_eq!(surrounded("x", &Default::default(), "/usr".as_ref()), "x");
    }
}
