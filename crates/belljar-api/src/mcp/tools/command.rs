//! `run_command`: a line for the shell.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_keeper::{Command, ExecEvent, ExecRequest, ExecResult, KeeperError, RunEvent};
use belljar_model::{Outcome, StreamOutput};
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::code::{join_lines, report};
use crate::mcp::call::{Call, HINT_READER, Hints, MAX_OUTPUT_BYTES, Place, Reply, Tool, output_text};
use crate::problem::Problem;
use crate::rest::types::{UniqueMap, check_path, parse_env};
use crate::stream::Pieces;

/// Runs a command.
pub(crate) struct RunCommand;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommandInput {
    /// A line for bash, such as `ls -l | head`.
    command: String,
    /// Working directory: absolute, or below the home directory, which it is if not given.
    cwd: Option<String>,
    /// Environment variables for this command.
    env: Option<BTreeMap<String, String>>,
    /// Text for its standard input, at most 1 MiB.
    stdin: Option<String>,
    /// Seconds after which it is stopped; the sandbox's own limit if not given.
    #[schemars(range(min = 1))]
    timeout: Option<u32>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

/// Result of a command.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CommandOutput {
    /// Id of the sandbox, to use in further calls.
    sandbox: String,
    /// Whether the sandbox was created for this call.
    sandbox_created: bool,
    /// `exited`, `signalled`, `timed_out`, `out_of_memory`, or another outcome.
    outcome: String,
    /// Exit code, if it exited by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Number of the signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// Standard output.
    stdout: String,
    /// Standard error.
    stderr: String,
    /// What to do about a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Time it took, in milliseconds.
    wall_ms: f64,
}

impl Tool for RunCommand {
    const NAME: &'static str = "run_command";
    const TITLE: &'static str = "Run a command";
    const DESCRIPTION: &'static str =
        "Runs a line in the shell of a sandbox, waits for its end, and returns its output and exit code.";
    const HINTS: Hints = Hints::RUN;
    type Input = RunCommandInput;
    type Output = CommandOutput;

    async fn run(call: &Call, input: RunCommandInput) -> Result<Reply<CommandOutput>, Problem> {
        if input.command.is_empty() || input.command.contains('\0') {
            return Err(Problem::field(
                "command",
                "it is empty or has a NUL byte; give a line for the shell",
            ));
        }
        if let Some(cwd) = &input.cwd {
            check_path("cwd", cwd.as_bytes())?;
        }
        let request = ExecRequest {
            command: Command::Shell(input.command.into()),
            cwd: input.cwd.map(Into::into),
            env: parse_env(input.env.map(UniqueMap))?,
            stdin: input.stdin.unwrap_or_default().into(),
            timeout: input.timeout.map(|seconds| Duration::from_secs(seconds.max(1).into())),
            hint_reader: HINT_READER,
            ..ExecRequest::default()
        };
        let place = call.place(input.sandbox).await?;
        let done = run_command(call, &place.id, request).await?;
        Ok(to_reply(&place, done))
    }
}

/// Runs a command, and reports its output. It is killed if the caller goes.
pub(super) async fn run_command(
    call: &Call,
    sandbox: &str,
    request: ExecRequest,
) -> Result<ExecResult<StreamOutput>, KeeperError> {
    let request = ExecRequest { keep_bytes: Some(MAX_OUTPUT_BYTES), ..request };
    if !call.has_reader() {
        let done = call.shared.keeper.exec(&call.caller, sandbox, request).await?;
        return Ok(done.truncate(MAX_OUTPUT_BYTES));
    }
    let mut run = call.shared.keeper.stream_exec(&call.caller, sandbox, request);
    let mut pieces = Pieces::default();
    while let Some(event) = run.next().await {
        match event {
            RunEvent::Progress(ExecEvent::Output { stream, offset, data }) => {
                report(call, &mut pieces, stream, offset, &data).await;
            }
            RunEvent::Waiting(waiting) => call.report_waiting(waiting).await,
            RunEvent::Queued | RunEvent::Progress(_) => {}
            RunEvent::Ended(done) => return Ok(done?.truncate(MAX_OUTPUT_BYTES)),
        }
    }
    Err(KeeperError::ShuttingDown)
}

fn to_reply(place: &Place, done: ExecResult<StreamOutput>) -> Reply<CommandOutput> {
    let (stdout, stderr) = (output_text(&done.stdout), output_text(&done.stderr));
    let is_error = done.outcome != Outcome::Exited { code: 0 };
    let ended = match done.exit_code {
        Some(code) => format!("[exit code {code}]"),
        None => format!("[{}]", done.outcome.as_str()),
    };
    let shown = [
        Some(stdout.as_str()),
        Some(stderr.as_str()),
        Some(ended.as_str()).filter(|_| is_error || (stdout.is_empty() && stderr.is_empty())),
        done.hint.as_deref(),
    ];
    let mut content = vec![ContentBlock::text(join_lines(shown.into_iter().flatten()))];
    content.extend(place.note());
    let output = CommandOutput {
        sandbox: place.id.clone(),
        sandbox_created: place.created,
        outcome: done.outcome.as_str().to_owned(),
        exit_code: done.exit_code,
        signal: done.signal,
        stdout,
        stderr,
        hint: done.hint,
        wall_ms: done.wall.as_secs_f64() * 1000.0,
    };
    Reply { output, content, is_error }
}
