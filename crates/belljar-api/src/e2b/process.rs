//! The service `Process` of E2B's daemon.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::{ErrorCode, Execution, ProcessEvent, v1};
use belljar_keeper::operation::{Feed, Opened};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connect;
use super::entry::{SandboxCall, absolute, stat};
use super::error::Refusal;
use super::tags::Tags;
use crate::guard::StreamSlot;

/// Default interval of keep-alive messages on a silent stream; the client may ask for another one.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(90);

/// Interval at which is looked whether a sandbox is still there in which a process has a deadline.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
pub(super) struct StartRequest {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

impl StartRequest {
    /// Converts the request for the guest, and returns the tag of the process.
    ///
    /// # Errors
    /// Fails if the tag is too long.
    pub(super) fn into_guest(self, sandbox: &str) -> Result<(v1::StartRequest, Option<String>), Refusal> {
        let Self { process, pty, tag, stdin } = self;
        let tag = tag.filter(|tag| !tag.is_empty());
        Tags::check(tag.as_deref().unwrap_or_default())?;
        let own = [("E2B_SANDBOX", "true"), ("E2B_SANDBOX_ID", sandbox)];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = own.chain(process.envs).map(|(name, value)| v1::EnvVar {
            name: name.into(),
            value: value.into(),
            ..Default::default()
        });
        let cwd = process.cwd.filter(|cwd| !cwd.is_empty()).map(|cwd| absolute(&cwd));
        let asked = v1::StartRequest {
            argv: std::iter::once(process.cmd).chain(process.args).map(Bytes::from).collect(),
            env: env.collect(),
            cwd: cwd.unwrap_or_default().into(),
            stdin_open: stdin.unwrap_or(true) || pty.is_some(),
            terminal: pty.map(|pty| pty.terminal()).into(),
            ..Default::default()
        };
        Ok((asked, tag))
    }
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Deserialize)]
struct Pty {
    size: Size,
}

#[derive(Deserialize)]
struct Size {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

impl Pty {
    fn terminal(&self) -> v1::Terminal {
        v1::Terminal { rows: self.size.rows, columns: self.size.cols, ..Default::default() }
    }
}

/// Selects a process.
#[derive(Default, Deserialize)]
struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

#[derive(Deserialize)]
struct SelectedProcess {
    #[serde(default)]
    process: Selector,
}

#[derive(Deserialize)]
struct UpdateRequest {
    #[serde(default)]
    process: Selector,
    pty: Option<Pty>,
}

#[derive(Default, Deserialize)]
pub(super) struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

impl Input {
    pub(super) fn data(self) -> Result<Bytes, Refusal> {
        let text = self.stdin.or(self.pty).unwrap_or_default();
        let data = STANDARD.decode(text).map_err(|_| Refusal::invalid("the input is not base64"))?;
        Ok(data.into())
    }
}

#[derive(Deserialize)]
pub(super) struct InputRequest {
    #[serde(default)]
    process: Selector,
    #[serde(default)]
    pub(super) input: Input,
}

#[derive(Deserialize)]
struct StreamInputRequest {
    start: Option<SelectedProcess>,
    data: Option<InputData>,
}

#[derive(Deserialize)]
struct InputData {
    #[serde(default)]
    input: Input,
}

#[derive(Deserialize)]
pub(super) struct SignalRequest {
    #[serde(default)]
    process: Selector,
    #[serde(default)]
    signal: Value,
}

impl SignalRequest {
    /// Returns the signal's number.
    ///
    /// # Errors
    /// Fails for any signal but the two that clients can send.
    pub(super) fn number(&self) -> Result<i32, Refusal> {
        match (self.signal.as_str(), self.signal.as_i64()) {
            (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => Ok(15),
            (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => Ok(9),
            _ => Err(Refusal::invalid("signal: give SIGNAL_SIGTERM or SIGNAL_SIGKILL")),
        }
    }
}

/// Answers a call.
pub(super) async fn answer(
    call: &SandboxCall<'_>,
    procedure: &str,
    request: Request,
) -> Result<Response, Refusal> {
    let is_stream = connect::is_stream(request.headers());
    let answer = match procedure {
        "Start" => return start(call, request).await,
        "Connect" => return attach(call, request).await,
        "StreamInput" => stream_input(call, request).await?,
        "List" => list(call).await?,
        "Update" => update(call, connect::message(request).await?).await?,
        "SendInput" => {
            let InputRequest { process, input } = connect::message(request).await?;
            let id = find(call, &process).await?.id;
            feed(call, v1::InputRequest { id, data: input.data()?, ..Default::default() }).await?
        }
        "CloseStdin" => {
            let SelectedProcess { process } = connect::message(request).await?;
            let id = find(call, &process).await?.id;
            feed(call, v1::InputRequest { id, close: true, ..Default::default() }).await?
        }
        "SendSignal" => signal(call, connect::message(request).await?).await?,
        _ => {
            return Err(Refusal::new(ErrorCode::Unimplemented, format!("unknown procedure {procedure:?}")));
        }
    };
    Ok(connect::unary(&answer, is_stream))
}

/// Finds the process by its tag or its pid: the latest one, since the kernel reuses pids.
async fn find(call: &SandboxCall<'_>, selector: &Selector) -> Result<v1::ProcessInfo, Refusal> {
    let all = list_processes(call).await?;
    let (tags, sandbox) = (&call.shared.0.tags, call.entered.id());
    let pid = selector.pid.unwrap_or(0);
    let matches = |process: &v1::ProcessInfo| match &selector.tag {
        Some(tag) => tags.get(sandbox, process.id).as_ref() == Some(tag),
        None => process.pid == pid,
    };
    let found = all.into_iter().filter(matches).max_by_key(|process| process.id);
    found.ok_or_else(|| {
        let what = selector.tag.as_ref().map_or_else(|| format!("pid {pid}"), |tag| format!("tag {tag:?}"));
        Refusal::new(ErrorCode::NotFound, format!("process with {what} not found"))
    })
}

/// Returns all processes that the guest lists.
async fn list_processes(call: &SandboxCall<'_>) -> Result<Vec<v1::ProcessInfo>, Refusal> {
    let all = call.perform(v1::ListProcessesRequest::default()).await?;
    call.shared.0.tags.retain(call.entered.id(), &all);
    Ok(all)
}

async fn list(call: &SandboxCall<'_>) -> Result<Value, Refusal> {
    let all = list_processes(call).await?;
    let text = |argument: &Bytes| String::from_utf8_lossy(argument).into_owned();
    let processes = all.iter().filter(|process| process.running).map(|process| {
        let mut argv = process.argv.iter().map(text);
        let cmd = argv.next().unwrap_or_default();
        let mut entry = json!({"config": {"cmd": cmd, "args": argv.collect::<Vec<_>>()}, "pid": process.pid});
        if let Some(tag) = call.shared.0.tags.get(call.entered.id(), process.id) {
            entry["tag"] = json!(tag);
        }
        entry
    });
    Ok(json!({ "processes": processes.collect::<Vec<_>>() }))
}

async fn update(call: &SandboxCall<'_>, request: UpdateRequest) -> Result<Value, Refusal> {
    let id = find(call, &request.process).await?.id;
    if let Some(pty) = request.pty {
        call.perform(v1::ResizeRequest { id, terminal: pty.terminal().into(), ..Default::default() }).await?;
    }
    Ok(json!({}))
}

async fn feed(call: &SandboxCall<'_>, input: v1::InputRequest) -> Result<Value, Refusal> {
    let length = input.data.len();
    let taken = call.perform(Feed(futures::stream::iter([Ok(input)]).boxed())).await?;
    if usize::try_from(taken).is_ok_and(|taken| taken < length) {
        return Err(Refusal::new(ErrorCode::Internal, "the process takes no input: its stdin is not open"));
    }
    Ok(json!({}))
}

async fn signal(call: &SandboxCall<'_>, request: SignalRequest) -> Result<Value, Refusal> {
    let signal = request.number()?;
    let process = find(call, &request.process).await?;
    let request = v1::SignalRequest { id: process.id, signal, ..Default::default() };
    if call.perform(request).await? == 0 {
        let message = format!("process with pid {} not found", process.pid);
        return Err(Refusal::new(ErrorCode::NotFound, message));
    }
    Ok(json!({}))
}

/// `StreamInput`: the first message selects the process, each of the others has input for it.
async fn stream_input(call: &SandboxCall<'_>, request: Request) -> Result<Value, Refusal> {
    let _slot = call.shared.streams.take(call.caller)?;
    let mut messages = Box::pin(connect::messages::<StreamInputRequest>(request).await?);
    let first = messages.next().await.transpose()?.and_then(|message| message.start);
    let selected = first.ok_or_else(|| Refusal::invalid("the first message has to name the process"))?;
    let id = find(call, &selected.process).await?.id;
    let named = v1::InputRequest { id, ..Default::default() };
    let (failed, mut failure) = tokio::sync::oneshot::channel();
    let mut failed = Some(failed);
    let rest = messages.map(move |message| {
        let data =
            message.and_then(|message| message.data.map_or(Ok(Bytes::new()), |data| data.input.data()));
        data.map(|data| v1::InputRequest { data, ..Default::default() }).map_err(|refusal| {
            let text = refusal.parts().1.to_owned();
            failed.take().map(|failed| failed.send(refusal));
            io::Error::other(text)
        })
    });
    let input = futures::stream::iter([Ok(named)]).chain(rest).boxed();
    match call.perform(Feed(input)).await {
        Ok(_) => Ok(json!({})),
        // An error in the client's own input takes precedence.
        Err(refused) => Err(failure.try_recv().unwrap_or(refused)),
    }
}

/// `Start`: starts a process, and streams its events.
async fn start(call: &SandboxCall<'_>, request: Request) -> Result<Response, Refusal> {
    let deadline = deadline(request.headers());
    let keep_alive = KeepAlive::from_headers(request.headers(), &json!({"event": {"keepalive": {}}}));
    let user = super::access::user(request.headers()).unwrap_or_default();
    let message: StartRequest = connect::message(request).await?;
    let (mut asked, tag) = message.into_guest(call.entered.id().as_str())?;
    asked.user = user;
    if asked.cwd.is_empty()
        && let Some(tree) = call.entered.spec().tree.template()
    {
        asked.cwd = tree.start.workdir.clone().unwrap_or_default().into_bytes().into();
    }
    if !asked.cwd.is_empty() {
        let cwd = String::from_utf8_lossy(&asked.cwd);
        let is_directory = match call.perform(stat(&cwd, true)).await {
            Ok(found) => found.kind.as_known() == Some(v1::FileKind::FILE_KIND_DIRECTORY),
            Err(Refusal::Error(ErrorCode::NotFound, _)) => false,
            Err(refused) => return Err(refused),
        };
        if !is_directory {
            return Err(Refusal::invalid(format!("cwd '{cwd}' does not exist")));
        }
    }
    let slot = call.shared.streams.take(call.caller)?;
    // While it waits for approval nothing is sent: clients take the first event for the start.
    let opened = call.shared.keeper.start_process(call.caller, call.entered, asked).await;
    let opened = opened.map_err(|error| call.refusal(error))?;
    let pid = opened.get().pid;
    if let Some(tag) = tag
        && call.shared.0.tags.set(call.shared, call.entered.id(), opened.get().id, tag)
    {
        // Those of processes that have ended go first. If the guest does not answer, that is left to the next start.
        let _ = list_processes(call).await;
    }
    let exited = CancellationToken::new();
    if let Some(deadline) = deadline {
        kill_at(call, opened.get().id, deadline, exited.clone());
    }
    Ok(connect::streaming(with_keep_alive(events(opened, pid, deadline, exited), keep_alive, slot)))
}

/// `Connect`: streams the events of a process from now on.
async fn attach(call: &SandboxCall<'_>, request: Request) -> Result<Response, Refusal> {
    let deadline = deadline(request.headers());
    let keep_alive = KeepAlive::from_headers(request.headers(), &json!({"event": {"keepalive": {}}}));
    let SelectedProcess { process } = connect::message(request).await?;
    let found = find(call, &process).await?;
    let slot = call.shared.streams.take(call.caller)?;
    let asked = v1::AttachRequest {
        id: found.id,
        stdout_offset: found.stdout_bytes,
        stderr_offset: found.stderr_bytes,
        terminal_offset: found.terminal_bytes,
        ..Default::default()
    };
    let opened = call.shared.keeper.begin_in(call.caller, call.entered, asked).await;
    let opened = opened.map_err(|error| call.refusal(error))?;
    Ok(connect::streaming(with_keep_alive(
        events(opened, found.pid, deadline, CancellationToken::new()),
        keep_alive,
        slot,
    )))
}

/// Returns the client's deadline.
fn deadline(headers: &HeaderMap) -> Option<Instant> {
    let text = headers.get("connect-timeout-ms")?.to_str().ok()?;
    Instant::now().checked_add(Duration::from_millis(text.parse().ok()?))
}

/// Kills a process at its deadline, even if its client has disconnected before, unless it has `exited`. Its children are not killed.
fn kill_at(call: &SandboxCall<'_>, id: u64, deadline: Instant, exited: CancellationToken) {
    let (keeper, caller) = (call.shared.keeper.clone(), call.caller.begun());
    let sandbox = call.entered.id().clone();
    let stopping = call.shared.stopping.clone();
    tokio::spawn(async move {
        while Instant::now() < deadline {
            tokio::select! {
                () = tokio::time::sleep_until(deadline.min(Instant::now() + LOOK_INTERVAL)) => {}
                () = exited.cancelled() => return,
                () = stopping.cancelled() => return,
            }
            if !keeper.may_run(&sandbox, id).await {
                return;
            }
        }
        let sandbox = sandbox.to_string();
        // The process or the sandbox may have ended meanwhile.
        let request = v1::ListProcessesRequest { id, ..Default::default() };
        let Ok(found) = keeper.perform(&caller, &sandbox, request).await else { return };
        if found.iter().any(|process| process.id == id && process.running) {
            let request = v1::SignalRequest { id, signal: 9, ..Default::default() };
            let _ = keeper.perform(&caller, &sandbox, request).await;
        }
    });
}

/// Returns the events of a process, as frames.
fn events(
    mut opened: Opened<Execution>,
    pid: u32,
    deadline: Option<Instant>,
    exited: CancellationToken,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let event = |event: Value| connect::frame(&json!({ "event": event }));
    async_stream::stream! {
        yield event(json!({"start": {"pid": pid}}));
        loop {
            let next = tokio::select! {
                biased;
                next = opened.next() => next,
                () = sleep_until_deadline(deadline) => {
                    let late = Refusal::new(ErrorCode::DeadlineExceeded, "context deadline exceeded");
                    yield connect::end(Some(&late));
                    return;
                }
            };
            match next {
                Ok(Some(ProcessEvent::Started { .. })) => {}
                Ok(Some(ProcessEvent::Output { stream, data, .. })) => {
                    let name = match stream {
                        v1::Stream::STREAM_STDERR => "stderr",
                        v1::Stream::STREAM_TERMINAL => "pty",
                        v1::Stream::STREAM_UNSPECIFIED | v1::Stream::STREAM_STDOUT => "stdout",
                    };
                    yield event(json!({"data": {name: STANDARD.encode(data)}}));
                }
                Ok(Some(ProcessEvent::Exited(end))) => {
                    exited.cancel();
                    yield event(json!({"end": to_end_event(&end)}));
                    break;
                }
                Ok(None) => break,
                Err(error) => {
                    yield connect::end(Some(&Refusal::ended(opened.sandbox().id().as_str(), error)));
                    return;
                }
            }
        }
        yield connect::end(None);
    }
}

async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Describes the end of a process, in the words of Go's standard library.
fn to_end_event(exited: &v1::Exited) -> Value {
    if exited.signal != 0 {
        let status = format!("signal: {}", signal_name(exited.signal));
        return json!({"exitCode": -1, "exited": false, "status": status, "error": status});
    }
    let status = format!("exit status {}", exited.code);
    let mut end = json!({"exitCode": exited.code, "exited": true, "status": status});
    if exited.code != 0 {
        end["error"] = json!(status);
    }
    end
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

/// Interval and message of keep-alives on a silent stream.
#[derive(Debug, Clone)]
pub(super) struct KeepAlive {
    interval: Duration,
    frame: Bytes,
}

impl KeepAlive {
    /// Uses the interval that the client requests. `message` is the keep-alive message.
    pub(super) fn from_headers(headers: &HeaderMap, message: &Value) -> Self {
        let asked =
            headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok()?.parse().ok());
        let asked = asked.filter(|seconds| (1..=3600).contains(seconds));
        Self {
            interval: asked.map_or(KEEP_ALIVE_INTERVAL, Duration::from_secs),
            frame: connect::frame(message),
        }
    }
}

/// Returns the same frames, with keep-alive messages between them, until the key is revoked or the server stops.
pub(super) fn with_keep_alive(
    frames: impl Stream<Item = Bytes> + Send + 'static,
    alive: KeepAlive,
    slot: StreamSlot,
) -> impl Stream<Item = Bytes> + Send + 'static {
    async_stream::stream! {
        let mut frames = std::pin::pin!(frames);
        loop {
            tokio::select! {
                biased;
                frame = slot.next(&mut frames) => match frame {
                    Ok(Some(frame)) => yield frame,
                    Ok(None) => return,
                    Err(problem) => {
                        yield connect::end(Some(&problem.into()));
                        return;
                    }
                },
                () = tokio::time::sleep(alive.interval) => yield alive.frame.clone(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_status_is_described_like_in_go() {
        let exited = |code, signal| to_end_event(&v1::Exited { code, signal, ..Default::default() });
        assert_eq!(exited(0, 0), json!({"exitCode": 0, "exited": true, "status": "exit status 0"}));
        assert_eq!(exited(3, 0)["error"], "exit status 3");
        assert_eq!(exited(0, 9)["status"], "signal: killed");
        assert_eq!(exited(0, 9)["exitCode"], -1);
    }
}
