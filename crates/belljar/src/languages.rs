//! `belljar languages`: the supported languages, with their installed versions.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_engine::{CreateRequest, ErrorCode, GuestClient, GuestError, ProcessEvent, v1};
use belljar_model::{Language, Languages};
use bytes::Bytes;
use futures::StreamExt as _;

use crate::cli::{LanguagesArgs, SandboxArgs};
use crate::limits::RunLimits;
use crate::message::{Quit, one_line};
use crate::output::write_failed;
use crate::progress::Progress;
use crate::run::{create, runtime, wait_for_creation};
use crate::signals::{self, Signals};
use crate::spec::UncheckedSpec;

/// Maximum number of concurrent version probes.
const MAX_CONCURRENT_PROBES: usize = 4;

/// Timeout of a version probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of a probe's output that is kept, in bytes.
const MAX_ANSWER_BYTES: usize = 16 * 1024;

/// Maximum length of a version that is shown, in characters.
const MAX_VERSION_CHARS: usize = 60;

/// Directories in which programs are looked up in a sandbox.
const PATH: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// A language, and whether it is installed.
#[derive(Debug, serde::Serialize)]
struct Row {
    name: &'static str,
    aliases: &'static [String],
    extensions: &'static [String],
    is_installed: bool,
    version: Option<String>,
    /// Why there is no version although it is installed.
    problem: Option<String>,
    package: &'static str,
}

/// Lists the languages that `belljar run` knows, as a sandbox sees them.
pub(crate) fn languages(args: &LanguagesArgs) -> Result<u8, Quit> {
    let flags = SandboxArgs {
        // Enough for several of the most demanding languages at once.
        resources: RunLimits::new(|limit| match limit.name {
            "memory" => Some("2g".to_owned()),
            "pids" => Some("512".to_owned()),
            "cpus" => Some("4".to_owned()),
            _ => None,
        }),
        ..SandboxArgs::default()
    };
    let checked = UncheckedSpec::from_args(&flags)?.resolve(None, None)?;
    let engine = checked.engine();
    let rows = runtime()?.block_on(async {
        let mut signals = Signals::catch()?;
        let progress = Progress::new("asking each language for its version", false);
        let sandbox =
            wait_for_creation(create(&*engine, CreateRequest::run(&checked.spec)), &mut signals, &progress)
                .await?;
        let guest = sandbox.guest();
        let probes = futures::stream::iter(Languages::builtin().iter())
            .map(|language| probe(guest, language))
            .buffered(MAX_CONCURRENT_PROBES)
            .collect::<Vec<Result<Row, GuestError>>>();
        let probed = tokio::select! {
            rows = probes => Ok(rows),
            signal = signals.next() => Err(Quit::Status(signals::status(signal))),
            never = progress.keep_moving() => match never {},
        };
        progress.clear();
        sandbox.stop().await?;
        Ok::<_, Quit>(probed?.into_iter().collect::<Result<Vec<Row>, GuestError>>()?)
    })?;
    let text = if args.format.is_json() { serde_json::to_string_pretty(&rows)? + "\n" } else { table(&rows) };
    std::io::stdout().write_all(text.as_bytes()).map_err(write_failed)?;
    Ok(0)
}

async fn probe(guest: &GuestClient, language: &'static Language) -> Result<Row, GuestError> {
    let mut row = Row {
        name: &language.name,
        aliases: &language.aliases,
        extensions: &language.extensions,
        is_installed: true,
        version: None,
        problem: None,
        package: &language.package,
    };
    for program in language.programs() {
        if !program_exists(guest, program).await? {
            row.is_installed = false;
            return Ok(row);
        }
    }
    match tokio::time::timeout(PROBE_TIMEOUT, version(guest, &language.version, &language.env)).await {
        Ok(Ok(Ok(version))) => row.version = Some(version),
        Ok(Ok(Err(problem))) => row.problem = Some(problem),
        Ok(Err(GuestError::Refused { message, .. })) => {
            row.problem = Some(one_line(&message, MAX_VERSION_CHARS))
        }
        Ok(Err(error)) => return Err(error),
        Err(_) => row.problem = Some("timed out asking for its version".to_owned()),
    }
    Ok(row)
}

/// Reports whether a program exists, by its name or its absolute path.
async fn program_exists(guest: &GuestClient, program: &str) -> Result<bool, GuestError> {
    // Joining an absolute path gives that path.
    let mut places: Vec<PathBuf> = PATH.iter().map(|dir| Path::new(dir).join(program)).collect();
    places.dedup();
    for place in places {
        match guest.stat(&place, true).await {
            Ok(_) => return Ok(true),
            Err(error) if error.is(ErrorCode::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Returns the first line of a language's version output, or the reason why there is none.
async fn version(
    guest: &GuestClient,
    argv: &[String],
    env: &BTreeMap<String, String>,
) -> Result<Result<String, String>, GuestError> {
    let env = env.iter().map(|(name, value)| v1::EnvVar {
        name: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        ..Default::default()
    });
    let request = v1::StartRequest {
        argv: argv.iter().map(|argument| Bytes::copy_from_slice(argument.as_bytes())).collect(),
        env: env.collect(),
        timeout_ms: u64::try_from(PROBE_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
        kill_rest: true,
        ..Default::default()
    };
    let mut execution = guest.start(request).await?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = execution.next().await? {
        match event {
            ProcessEvent::Started { .. } => {}
            ProcessEvent::Output { stream, data, .. } => {
                let answer = if stream == v1::Stream::STREAM_STDERR { &mut stderr } else { &mut stdout };
                let room = MAX_ANSWER_BYTES.saturating_sub(answer.len());
                answer.extend_from_slice(&data[..data.len().min(room)]);
            }
            ProcessEvent::Exited(exited) => {
                // Some write it to standard error, Java among them.
                let answer = if stdout.trim_ascii().is_empty() { stderr } else { stdout };
                let line = one_line(&String::from_utf8_lossy(&answer), MAX_VERSION_CHARS);
                return Ok(match (exited.code, exited.signal) {
                    (0, 0) => Ok(line),
                    (code, 0) => Err(format!("exit code {code}: {line}")),
                    (_, signal) => Err(format!("signal {signal}: {line}")),
                });
            }
        }
    }
    Err(GuestError::Protocol { what: "a process stream ended without an exit event" })
}

fn table(rows: &[Row]) -> String {
    let width = |cell: fn(&Row) -> usize| rows.iter().map(cell).max().unwrap_or(0);
    let names = width(|row| row.name.len());
    let extensions = width(|row| endings(row).len());
    let mut text = String::new();
    for row in rows {
        let state = match (&row.version, &row.problem) {
            (Some(version), _) => version.clone(),
            (None, Some(problem)) => format!("installed, but: {problem}"),
            (None, None) => format!("not installed: apt-get install {}", row.package),
        };
        let line = format!("{:<names$}  {:<extensions$}  {state}", row.name, endings(row));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn endings(row: &Row) -> String {
    let endings: Vec<String> = row.extensions.iter().map(|extension| format!(".{extension}")).collect();
    endings.join(" ")
}
