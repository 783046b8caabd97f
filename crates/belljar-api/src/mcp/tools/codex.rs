//! The profile `codex`: tools whose names and arguments are those of Codex, which its models know.

use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::{ProcessEvent, v1};
use belljar_keeper::operation::Feed;
use belljar_keeper::{Caller, Command, ExecRequest, Keeper};
use belljar_model::{HintReader, LimitEvents, Outcome};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::claude::{PlacedOutput, placed, to_text};
use super::files::{check_picture, picture, read, write};
use super::patch::{self, Change};
use crate::mcp::call::{Call, Hints, Offsets, Place, Reply, Tool};
use crate::problem::{Code, Problem};
use crate::rest::types::check_path;

/// Time that a call waits for output, in milliseconds: the least, the most, that of a new command and that of input.
const YIELD_MS: (u64, u64, u64, u64) = (250, 30_000, 10_000, 1_000);

/// Output of a call in tokens, if it names no number.
const DEFAULT_TOKENS: u64 = 10_000;

/// Bytes that count as one token.
const TOKEN_BYTES: u64 = 4;

/// Maximum number of bytes that are kept of the output of one call.
const MAX_OUTPUT_BYTES: usize = 1 << 20;

/// Maximum length of a file that is patched, in bytes.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Maximum length of all files that a patch writes, in bytes: it is written when all of it fits, so they are held until then.
const MAX_PATCHED_BYTES: usize = 32 << 20;

const SIGKILL: i32 = 9;

/// Runs a command, which may go on in the background.
pub(crate) struct ExecCommand;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecCommandInput {
    /// The line for the shell.
    cmd: String,
    /// Working directory; the home directory if not given.
    workdir: Option<String>,
    /// The shell; bash if not given.
    shell: Option<String>,
    /// Whether the shell is a login shell; false if not given.
    login: Option<bool>,
    /// Whether the command runs on a terminal; false if not given.
    tty: Option<bool>,
    /// Milliseconds to wait for output before the command goes on in the background: 250 to 30000, 10000 if not given.
    yield_time_ms: Option<u64>,
    /// Maximum output in tokens; 10000 if not given.
    max_output_tokens: Option<u64>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

/// Output of a command.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SessionOutput {
    /// Id of the sandbox, to use in further calls.
    sandbox: String,
    /// Whether the sandbox was created for this call.
    sandbox_created: bool,
    /// Id of the command, if it is still running: for write_stdin.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<u64>,
    /// Exit code, if it has exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Number of the signal that has ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// Output since the last call, of both streams.
    output: String,
    /// What to do about a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Seconds that the call took.
    wall_time_seconds: f64,
}

impl Tool for ExecCommand {
    const NAME: &'static str = "exec_command";
    const TITLE: &'static str = "Run a command";
    const DESCRIPTION: &'static str = "Runs a command in a shell, and returns its output, or a session id if it is still running, for \
         write_stdin.";
    const HINTS: Hints = Hints::RUN;
    type Input = ExecCommandInput;
    type Output = SessionOutput;

    async fn run(call: &Call, input: ExecCommandInput) -> Result<Reply<SessionOutput>, Problem> {
        if input.cmd.is_empty() || input.cmd.contains('\0') {
            return Err(Problem::field("cmd", "it is empty or has a NUL byte; give a line for the shell"));
        }
        if let Some(workdir) = &input.workdir {
            check_path("workdir", workdir.as_bytes())?;
        }
        let flag = if input.login.unwrap_or(false) { "-lc" } else { "-c" };
        let command = match (input.shell, input.login) {
            (None, None | Some(false)) => Command::Shell(input.cmd.into()),
            (shell, _) => {
                let shell = shell.unwrap_or_else(|| "bash".to_owned());
                Command::Argv([shell, flag.to_owned(), input.cmd].map(Bytes::from).to_vec())
            }
        };
        const TERMINAL: (u16, u16) = (24, 80);
        let request = ExecRequest {
            command,
            cwd: input.workdir.map(Into::into),
            stdin_open: true,
            terminal: input.tty.unwrap_or(false).then_some(TERMINAL),
            ..ExecRequest::default()
        };
        let place = call.place_by_id(input.sandbox).await?;
        let process = call.shared.keeper.start(&call.caller, &place.id, request).await?.process;
        let mut guard = KillOnDrop::new(call, &place, process);
        let wait = wait_time(input.yield_time_ms, YIELD_MS.2);
        let reply = collect(
            call,
            &call.caller.begun(),
            &place,
            process,
            Offsets::default(),
            wait,
            input.max_output_tokens,
        )
        .await;
        guard.process = None;
        reply
    }
}

/// Kills a command whose call was cancelled.
struct KillOnDrop {
    keeper: Keeper,
    caller: Caller,
    sandbox: String,
    process: Option<u64>,
}

impl KillOnDrop {
    fn new(call: &Call, place: &Place, process: u64) -> Self {
        let (keeper, caller) = (call.shared.keeper.clone(), call.caller.begun());
        Self { keeper, caller, sandbox: place.id.clone(), process: Some(process) }
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let Some(id) = self.process else { return };
        let (keeper, caller, sandbox) = (self.keeper.clone(), self.caller.clone(), self.sandbox.clone());
        tokio::spawn(async move {
            let request = v1::SignalRequest { id, signal: SIGKILL, tree: true, ..Default::default() };
            // It may have ended meanwhile, with its sandbox.
            let _ = keeper.perform(&caller, &sandbox, request).await;
        });
    }
}

fn wait_time(given: Option<u64>, default: u64) -> Duration {
    Duration::from_millis(given.unwrap_or(default).clamp(YIELD_MS.0, YIELD_MS.1))
}

/// Waits for output, until the command ends or the time is over.
async fn collect(
    call: &Call,
    caller: &Caller,
    place: &Place,
    process: u64,
    mut offsets: Offsets,
    wait: Duration,
    max_tokens: Option<u64>,
) -> Result<Reply<SessionOutput>, Problem> {
    let begin = Instant::now();
    let [stdout_offset, stderr_offset, terminal_offset] = offsets;
    let request = v1::AttachRequest {
        id: process,
        stdout_offset,
        stderr_offset,
        terminal_offset,
        ..Default::default()
    };
    let mut attached = call.shared.keeper.begin(caller, &place.id, request).await?;
    let mut output = Output::default();
    let mut exited = None;
    while let Ok(event) = timeout_at(begin + wait, attached.next()).await {
        match event? {
            Some(ProcessEvent::Output { stream, offset, data }) => {
                let index = match stream {
                    v1::Stream::STREAM_STDERR => 1,
                    v1::Stream::STREAM_TERMINAL => 2,
                    v1::Stream::STREAM_UNSPECIFIED | v1::Stream::STREAM_STDOUT => 0,
                };
                if let Some(reached) = offsets.get_mut(index) {
                    *reached = offset.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
                }
                call.report(&String::from_utf8_lossy(&data)).await;
                output.push(&data);
            }
            Some(ProcessEvent::Exited(end)) => {
                exited = Some(call.shared.keeper.judge(&end));
                break;
            }
            Some(ProcessEvent::Started { .. }) => {}
            None => break,
        }
    }
    call.sessions.set(&place.id, process, exited.is_none().then_some(offsets));
    let hint = match &exited {
        Some(end) if !end.outcome.is_success() => hint(call, place, &end.outcome, &output.bytes).await,
        _ => None,
    };
    let max = max_tokens.unwrap_or(DEFAULT_TOKENS).saturating_mul(TOKEN_BYTES);
    let output = output.text(usize::try_from(max).unwrap_or(usize::MAX));
    let wall_time_seconds = begin.elapsed().as_secs_f64();
    let is_error = exited.as_ref().is_some_and(|end| end.exit_code != Some(0));
    let mut text = format!("Wall time: {wall_time_seconds:.4} seconds\n");
    // Writing to a string cannot fail.
    let _ = match exited.as_ref().map(|end| (end.exit_code, end.signal)) {
        None => writeln!(text, "Process running with session ID {process}"),
        Some((Some(code), _)) => writeln!(text, "Process exited with code {code}"),
        Some((None, signal)) => writeln!(text, "Process ended by signal {}", signal.unwrap_or_default()),
    };
    let _ = write!(text, "Output:\n{output}");
    if let Some(hint) = &hint {
        let gap = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
        let _ = write!(text, "{gap}{hint}");
    }
    let mut content = vec![ContentBlock::text(text)];
    content.extend(place.note());
    let output = SessionOutput {
        sandbox: place.id.clone(),
        sandbox_created: place.created,
        session_id: exited.is_none().then_some(process),
        exit_code: exited.as_ref().and_then(|end| end.exit_code),
        signal: exited.as_ref().and_then(|end| end.signal),
        output,
        hint,
        wall_time_seconds,
    };
    Ok(Reply { output, content, is_error })
}

/// Returns what to do about the failure of a command with this output, if something is known.
async fn hint(call: &Call, place: &Place, outcome: &Outcome, output: &[u8]) -> Option<String> {
    // The sandbox may have ended with the command.
    let info = call.shared.keeper.get(&call.caller, &place.id).await.ok()?;
    let reader = HintReader::Model { timeout: "yield_time_ms", create: None };
    belljar_model::hint(outcome, LimitEvents::default(), output, &info.spec, &reader)
}

/// Output of both streams, of which the end is kept.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    omitted: usize,
}

impl Output {
    fn push(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
        let excess = self.bytes.len().saturating_sub(MAX_OUTPUT_BYTES);
        if excess > 0 {
            self.bytes.drain(..excess);
            self.omitted += excess;
        }
    }

    /// Returns head and tail of at most `max` bytes together, with the number of omitted bytes in between.
    fn text(&self, max: usize) -> String {
        let length = self.bytes.len();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if length <= max && self.omitted == 0 {
            return text(&self.bytes);
        }
        // Where the beginning is gone, only the end is of use.
        let head = if self.omitted == 0 { max / 2 } else { 0 };
        let tail = (max - head).min(length);
        let omitted = self.omitted + length - head - tail;
        let (head, tail) =
            (self.bytes.get(..head).unwrap_or_default(), self.bytes.get(length - tail..).unwrap_or_default());
        format!("{}\n[{omitted} bytes left out]\n{}", text(head), text(tail))
    }
}

/// Writes to a command that is still running, or waits for its output.
pub(crate) struct WriteStdin;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteStdinInput {
    /// Id of the command, of an answer of exec_command.
    session_id: u64,
    /// Input for it; none to wait for its output only.
    chars: Option<String>,
    /// Milliseconds to wait for output: 250 to 30000, 1000 if not given.
    yield_time_ms: Option<u64>,
    /// Maximum output in tokens; 10000 if not given.
    max_output_tokens: Option<u64>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

impl Tool for WriteStdin {
    const NAME: &'static str = "write_stdin";
    const TITLE: &'static str = "Write to a command";
    const DESCRIPTION: &'static str = "Writes to the standard input of a command that is still running, and returns its output since the last call.";
    const HINTS: Hints = Hints::RUN;
    type Input = WriteStdinInput;
    type Output = SessionOutput;

    async fn run(call: &Call, input: WriteStdinInput) -> Result<Reply<SessionOutput>, Problem> {
        let place = call.place_by_id(input.sandbox).await?;
        let id = input.session_id;
        if let Some(chars) = input.chars.filter(|chars| !chars.is_empty()) {
            let message = v1::InputRequest { id, data: chars.into(), ..Default::default() };
            let feed = Feed(stream::iter([Ok(message)]).boxed());
            call.shared.keeper.perform(&call.caller, &place.id, feed).await?;
        }
        let wait = wait_time(input.yield_time_ms, YIELD_MS.3);
        let offsets = call.sessions.get(&place.id, id);
        collect(call, &call.caller, &place, id, offsets, wait, input.max_output_tokens).await
    }
}

/// Applies a patch.
pub(crate) struct ApplyPatch;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyPatchInput {
    /// The patch, from `*** Begin Patch` to `*** End Patch`.
    input: String,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

impl Tool for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    const TITLE: &'static str = "Apply a patch";
    const DESCRIPTION: &'static str = "Adds, changes, moves and removes files by a patch between *** Begin Patch and *** End Patch. Nothing is \
         written unless all of it fits.";
    const HINTS: Hints = Hints { repeats: false, ..Hints::WRITE };
    type Input = ApplyPatchInput;
    type Output = PlacedOutput;

    async fn run(call: &Call, input: ApplyPatchInput) -> Result<Reply<PlacedOutput>, Problem> {
        let changes = patch::parse(&input.input).map_err(|why| Problem::field("input", why))?;
        let place = call.place(input.sandbox).await?;
        let (mut steps, mut held) = (Vec::new(), Vec::new());
        let mut left = MAX_PATCHED_BYTES;
        for change in changes {
            let step = prepare(call, &place, change, left).await?;
            let length = step.content.as_ref().map_or(0, String::len);
            left = left
                .checked_sub(length)
                .ok_or_else(|| Problem::field("input", patch::too_long(MAX_PATCHED_BYTES)))?;
            held.push(call.hold(length)?);
            steps.push(step);
        }
        let mut text = "Success. Updated the following files:\n".to_owned();
        for Step { letter, path, content, removed } in steps {
            if let Some(content) = content {
                write(call, &place.id, &path, content.into(), false).await?;
            }
            if let Some(removed) = removed {
                let request = v1::RemoveRequest { path: removed.into(), ..Default::default() };
                call.shared.keeper.perform(&call.caller, &place.id, request).await?;
            }
            let _ = writeln!(text, "{letter} {path}");
        }
        Ok(placed(&place, vec![ContentBlock::text(text)], false))
    }
}

/// One file of a patch, as it will be.
struct Step {
    letter: char,
    path: String,
    content: Option<String>,
    removed: Option<String>,
}

/// Reads what a change is about, and makes its result, of at most `most` bytes.
async fn prepare(call: &Call, place: &Place, change: Change, most: usize) -> Result<Step, Problem> {
    let checked = |path: String| check_path("input", path.as_bytes()).map(|()| path);
    Ok(match change {
        Change::Add { path, content } => {
            Step { letter: 'A', path: checked(path)?, content: Some(content), removed: None }
        }
        Change::Delete { path } => {
            let path = checked(path)?;
            let request = v1::StatRequest { path: path.clone().into(), ..Default::default() };
            call.shared.keeper.perform(&call.caller, &place.id, request).await?;
            Step { letter: 'D', path: path.clone(), content: None, removed: Some(path) }
        }
        Change::Update { path, to, hunks } => {
            let path = checked(path)?;
            let mut read = read(call, &place.id, &path, 0, MAX_TEXT_BYTES).await?;
            let text = to_text(&path, &mut read)?;
            // A search can take a second.
            let applied = tokio::task::spawn_blocking(move || patch::apply(&text, &hunks, most)).await;
            let text = applied
                .map_err(|_| Problem::new(Code::Internal, "the patch was not applied"))?
                .map_err(|why| Problem::new(Code::InvalidField, format!("input: {path}: {why}")))?;
            let to = to.map(checked).transpose()?.filter(|to| *to != path);
            let removed = to.is_some().then(|| path.clone());
            Step { letter: 'M', path: to.unwrap_or(path), content: Some(text), removed }
        }
    })
}

/// Shows a picture.
pub(crate) struct ViewImage;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ViewImageInput {
    /// The picture: PNG, JPEG, GIF or WebP, of at most 5 MiB.
    path: String,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

impl Tool for ViewImage {
    const NAME: &'static str = "view_image";
    const TITLE: &'static str = "View a picture";
    const DESCRIPTION: &'static str = "Shows a picture that is a file of the sandbox.";
    const HINTS: Hints = Hints::READ;
    type Input = ViewImageInput;
    type Output = PlacedOutput;

    async fn run(call: &Call, input: ViewImageInput) -> Result<Reply<PlacedOutput>, Problem> {
        let place = call.place(input.sandbox).await?;
        let content = read(call, &place.id, &input.path, 0, MAX_TEXT_BYTES).await?;
        check_picture("path", content.bytes.len())?;
        let Some(mime) = picture(&content.bytes) else {
            return Err(Problem::field("path", "it is no picture in PNG, JPEG, GIF or WebP"));
        };
        let block = ContentBlock::image(STANDARD.encode(&content.bytes), mime);
        Ok(placed(&place, vec![block], false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_keeps_head_and_tail() {
        let mut output = Output::default();
        output.push(b"0123456789");
        assert_eq!(output.text(10), "0123456789");
        assert_eq!(output.text(4), "01\n[6 bytes left out]\n89");
        output.push(&vec![b'x'; MAX_OUTPUT_BYTES]);
        assert_eq!(output.text(4), format!("\n[{} bytes left out]\nxxxx", MAX_OUTPUT_BYTES + 6));
    }

    #[test]
    fn waiting_is_bounded() {
        assert_eq!(wait_time(None, 1_000), Duration::from_secs(1));
        assert_eq!(wait_time(Some(0), 1_000), Duration::from_millis(250));
        assert_eq!(wait_time(Some(u64::MAX), 1_000), Duration::from_secs(30));
    }
}
