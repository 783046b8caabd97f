//! One run of code in any engine: upload files, compile, run, collect output and changed files, return the result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_model::{
    CommandTemplate, CommandValues, FileChange, HintReader, Language, LimitEvents, LimitKind, LimitsChange,
    Memory, Outcome, Phase, PhaseResult, RunResult, SandboxSpec, milliseconds, signal_name,
};
use belljar_proto::v1;
use bytes::Bytes;
use tokio::io::AsyncRead;

use crate::changes::Snapshot;
use crate::client::{Execution, GuestError, ProcessEvent};
use crate::collect::{Collector, LogFile};
use crate::engine::{First, Sandbox, Usage};
use crate::engine_error::EngineError;
use crate::judge::{judge, judge_lost};
use crate::log_dir::LogDir;

/// Time between SIGTERM and SIGKILL after a timeout. Held by `conformance::timeout_kills_after_grace`.
pub const STOP_GRACE: Duration = Duration::from_secs(2);

/// Time after a run's timeout at which the guest ends the sandbox if nothing else has: a compile phase precedes the run.
pub const DEADLINE_SLACK: Duration = Duration::from_secs(180);

/// Maximum size of a source that is sent within the start request, in bytes.
const MAX_INLINE_BYTES: usize = 1 << 20;

/// Length of the end of stderr that is searched for a hint, in bytes.
const HINT_BYTES: usize = 8 * 1024;

/// A run: a source in a language, and options.
#[must_use]
pub struct RunRequest<'a> {
    language: &'a Language,
    source_name: PathBuf,
    source: Bytes,
    args: Vec<String>,
    env: Vec<(String, String)>,
    stdin: Option<Box<dyn AsyncRead + Send + Unpin>>,
    input: Bytes,
    files: Vec<InputFile>,
    track_files: bool,
    log_dir: Option<PathBuf>,
    last: bool,
    hint_reader: HintReader,
}

impl<'a> RunRequest<'a> {
    /// Creates a run of `source` under the language's default file name, without arguments, input or files.
    pub fn new(language: &'a Language, source: impl Into<Bytes>) -> Self {
        Self {
            language,
            source_name: PathBuf::from(&language.file),
            source: source.into(),
            args: Vec::new(),
            env: Vec::new(),
            stdin: None,
            input: Bytes::new(),
            files: Vec::new(),
            track_files: false,
            log_dir: None,
            last: false,
            hint_reader: HintReader::default(),
        }
    }

    /// Sets the source's file name in the home directory.
    pub fn source_name(mut self, name: impl Into<PathBuf>) -> Self {
        self.source_name = name.into();
        self
    }

    /// Adds arguments of the program.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds variables to the program's environment, which replace those of the sandbox.
    pub fn env(mut self, env: impl IntoIterator<Item = (String, String)>) -> Self {
        self.env.extend(env);
        self
    }

    /// Sets the program's standard input, which is empty by default.
    pub fn stdin(mut self, stdin: impl AsyncRead + Send + Unpin + 'static) -> Self {
        self.stdin = Some(Box::new(stdin));
        self
    }

    /// Sets input that is sent with the start of the program, at most 64 KiB, in place of a stream.
    pub fn input(mut self, input: Bytes) -> Self {
        self.input = input;
        self
    }

    /// Adds files to upload before the program starts.
    pub fn files(mut self, files: impl IntoIterator<Item = InputFile>) -> Self {
        self.files.extend(files);
        self
    }

    /// Sets whether created and changed files are recorded in [`RunResult::files`].
    pub fn track_files(mut self, track: bool) -> Self {
        self.track_files = track;
        self
    }

    /// Sets the directory for full logs of streams that exceed the kept output.
    pub fn log_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.log_dir = Some(dir.into());
        self
    }

    /// Sets whether this is the last run in the sandbox: it is then killed together with the program, and only
    /// [`Sandbox::stop`] may follow.
    pub fn last(mut self, last: bool) -> Self {
        self.last = last;
        self
    }

    /// Sets how [`RunResult::hint`] names limits; by default as fields of a specification.
    pub fn hint_reader(mut self, reader: HintReader) -> Self {
        self.hint_reader = reader;
        self
    }
}

/// A file to upload.
pub struct InputFile {
    /// Target path; relative to the home directory, or absolute.
    pub target: PathBuf,
    /// Permission bits.
    pub mode: u32,
    /// Content.
    pub content: Box<dyn AsyncRead + Send + Unpin>,
}

/// Receives the events of a run as they happen. A slow sink throttles the program; nothing is lost.
pub trait Sink: Send {
    /// Called when a phase begins: `compile` or `run`. `id` is the id of the process in the guest.
    fn phase(&mut self, phase: &'static str, id: u64) -> impl Future<Output = ()> + Send;
    /// Called with bytes of a stream.
    fn output(&mut self, stream: OutputStream, offset: u64, data: &[u8]) -> impl Future<Output = ()> + Send;
}

/// A stream that a program writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A sink that discards everything.
pub struct Silent;

impl Sink for Silent {
    async fn phase(&mut self, _: &'static str, _: u64) {}
    async fn output(&mut self, _: OutputStream, _: u64, _: &[u8]) {}
}

/// Runs `request` in `sandbox`, which should be new.
///
/// # Errors
/// Fails only for reasons other than the code itself, whose outcome is in the result.
pub async fn run<S: Sink>(
    sandbox: &Sandbox,
    spec: &SandboxSpec,
    request: RunRequest<'_>,
    sink: &mut S,
) -> Result<RunResult, EngineError> {
    match run_in(sandbox, spec, request, sink).await {
        Err(error) => Err(sandbox.explain(error).await),
        done => done,
    }
}

async fn run_in<S: Sink>(
    sandbox: &Sandbox,
    spec: &SandboxSpec,
    request: RunRequest<'_>,
    sink: &mut S,
) -> Result<RunResult, EngineError> {
    let begin = Instant::now();
    let mut timings: BTreeMap<String, f64> = BTreeMap::new();
    let guest = sandbox.guest();
    for file in request.files {
        let open = v1::WriteOpen {
            path: path_bytes(&file.target),
            mode: file.mode,
            make_parents: true,
            ..Default::default()
        };
        guest.write_from(open, file.content).await?;
    }
    let source_path = sandbox.home.join(&request.source_name);
    let mut inline = None;
    if is_inline(request.language, &request.source, request.track_files) {
        inline = Some(v1::InlineFile {
            path: path_bytes(&source_path),
            data: request.source,
            ..Default::default()
        });
    } else {
        guest.write(&source_path, 0o644, request.source).await?;
    }
    timings.insert("upload".to_owned(), milliseconds(begin.elapsed()));

    let runner = Runner {
        sandbox,
        spec,
        source_path: &source_path,
        language: request.language,
        // If it cannot be created, there is no log, as with a log that cannot be written.
        log_dir: request.log_dir.as_deref().and_then(|dir| LogDir::find(dir).ok()),
        last: request.last,
    };
    let mut compile = None;
    // A new sandbox has not used anything yet.
    let mut compiled_usage = Usage::default();
    if let Some(template) = &request.language.compile {
        let time = Instant::now();
        let memory = runner.compile_memory();
        let command = runner.command(template, memory, &[]);
        set_memory(sandbox, memory).await?;
        let phase =
            runner.phase("compile", command, runner.compile_timeout(), None, Usage::default(), sink).await?;
        set_memory(sandbox, spec.limits.memory).await?;
        timings.insert("compile".to_owned(), milliseconds(time.elapsed()));
        compiled_usage = phase.usage;
        compile = Some(phase.into_phase_result(Phase::Compile));
    }
    // Files created by the compiler are not attributed to the program.
    let before = if request.track_files { Some(Snapshot::take(guest, &sandbox.home).await?) } else { None };
    let compiled = compile.as_ref().is_none_or(|phase| phase.outcome == Outcome::Exited { code: 0 });
    let phase = if compiled {
        let mut command = runner.command(&request.language.run, spec.limits.memory, &request.args);
        command.files.extend(inline);
        command.stdin = request.input;
        command.env.extend(request.env.into_iter().map(|(name, value)| v1::EnvVar {
            name: name.into(),
            value: value.into(),
            ..Default::default()
        }));
        let timeout = spec.limits.timeout.duration();
        let phase = runner.phase("run", command, timeout, request.stdin, compiled_usage, sink).await?;
        timings.insert("run".to_owned(), milliseconds(phase.wall));
        phase
    } else {
        // The program did not run: the result is that of the compiler.
        let outcome = compile.as_ref().map_or(Outcome::Exited { code: 1 }, |phase| phase.outcome.clone());
        let limit_events = compiled_usage.limit_events_since(&Usage::default());
        PhaseRun { usage: compiled_usage, limit_events, ..PhaseRun::not_run(outcome) }
    };
    let (files, files_truncated) = match before {
        Some(before) if !phase.gone => find_changes(sandbox, &before).await,
        _ => (Vec::new(), false),
    };
    timings.insert("total".to_owned(), milliseconds(begin.elapsed()));
    timings.extend(sandbox.timings().into_iter().map(|(name, time)| (name.to_owned(), milliseconds(time))));
    let hint_text = if compiled {
        phase.stderr.last(HINT_BYTES)
    } else {
        compile.as_ref().map(compiler_stderr).unwrap_or_default()
    };
    let usage = phase.usage;
    Ok(RunResult {
        schema: belljar_model::RESULT_SCHEMA,
        id: sandbox.id.clone(),
        language: request.language.name.clone(),
        exit_code: phase.exit_code,
        signal: phase
            .signal
            .map(|signal| signal_name(signal).map_or_else(|| format!("SIG{signal}"), str::to_owned)),
        exit_status: phase.outcome.exit_status_with(phase.exit_code),
        hint: belljar_model::hint(&phase.outcome, phase.limit_events, &hint_text, spec, &request.hint_reader),
        outcome: phase.outcome.clone(),
        wall_ms: milliseconds(phase.wall),
        cpu_ms: usage.cpu.map(milliseconds).or_else(|| phase.cpu.map(milliseconds)),
        peak_memory_bytes: usage.peak_memory_bytes.or(phase.max_rss),
        stdout: phase.stdout.finish(),
        stderr: phase.stderr.finish(),
        compile,
        files,
        files_truncated,
        isolation: sandbox.isolation.clone(),
        timings: Some(timings),
    })
}

/// Returns what a run without input files begins with in a sandbox that is created for it.
#[must_use]
pub fn first(language: &Language, source: &[u8], track_files: bool) -> First {
    if is_inline(language, source, track_files) { First::Start } else { First::Call }
}

/// Reports whether the source goes with the start of the program. If files are tracked, it must exist before the first snapshot.
fn is_inline(language: &Language, source: &[u8], track_files: bool) -> bool {
    source.len() <= MAX_INLINE_BYTES && language.compile.is_none() && !track_files
}

/// Changes the memory limit if it is enforced from outside. Otherwise the guest enforces the limit that it was started
/// with.
async fn set_memory(sandbox: &Sandbox, memory: Memory) -> Result<(), EngineError> {
    match sandbox.set_limits(&LimitsChange::memory(memory)).await {
        Err(EngineError::Unsupported { .. }) => Ok(()),
        other => other,
    }
}

fn compiler_stderr(phase: &PhaseResult) -> Vec<u8> {
    phase.stderr.decode().unwrap_or_default()
}

async fn find_changes(sandbox: &Sandbox, before: &Snapshot) -> (Vec<FileChange>, bool) {
    // Failing to list files, as in a sandbox that is gone or full, does not affect the outcome.
    match Snapshot::take(sandbox.guest(), &sandbox.home).await {
        Ok(after) => before.changes(&after),
        Err(_) => (Vec::new(), true),
    }
}

fn path_bytes(path: &Path) -> Bytes {
    use std::os::unix::ffi::OsStrExt;
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

struct Runner<'a> {
    sandbox: &'a Sandbox,
    spec: &'a SandboxSpec,
    source_path: &'a Path,
    language: &'a Language,
    log_dir: Option<LogDir>,
    last: bool,
}

impl Runner<'_> {
    fn command(&self, template: &CommandTemplate, memory: Memory, args: &[String]) -> v1::StartRequest {
        let values = CommandValues {
            file: &self.source_path.to_string_lossy(),
            dir: &self.sandbox.home.to_string_lossy(),
            stem: &self.source_path.file_stem().unwrap_or_default().to_string_lossy(),
            memory,
        };
        let argv = template.render(&values, args);
        let env = self.language.env.iter().map(|(name, value)| v1::EnvVar {
            name: Bytes::copy_from_slice(name.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
            ..Default::default()
        });
        v1::StartRequest {
            argv: argv.into_iter().map(Bytes::from).collect(),
            env: env.collect(),
            kill_rest: true,
            keep_bytes: 0,
            grace_ms: u64::try_from(STOP_GRACE.as_millis()).unwrap_or(u64::MAX),
            ..Default::default()
        }
    }

    /// Returns the memory limit of the compiler, which may need more than the program.
    fn compile_memory(&self) -> Memory {
        let own = self.spec.limits.memory;
        self.language.limits.compile_memory.map_or(own, |minimum| own.max(minimum))
    }

    /// Returns the timeout of the compiler: that of the language, or else that of the run.
    fn compile_timeout(&self) -> Duration {
        let own = self.language.limits.compile_timeout.map(belljar_model::Timeout::duration);
        own.unwrap_or_else(|| self.spec.limits.timeout.duration())
    }

    async fn phase<S: Sink>(
        &self,
        name: &'static str,
        mut command: v1::StartRequest,
        timeout: Duration,
        stdin: Option<Box<dyn AsyncRead + Send + Unpin>>,
        before: Usage,
        sink: &mut S,
    ) -> Result<PhaseRun, EngineError> {
        command.timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1);
        command.stdin_open = stdin.is_some();
        let mut phase = PhaseRun::new(self.spec, self.log_dir.as_ref().map(|dir| (dir, name)));
        let guest = self.sandbox.guest().clone();
        let started = guest.start(command).await;
        self.sandbox.record_first_answer();
        let begin = Instant::now();
        let mut execution = match started {
            Ok(execution) => execution,
            Err(error) => return phase.finish_failed_start(error),
        };
        sink.phase(name, execution.id).await;
        let id = execution.id;
        let feeding = stdin.map(|stdin| tokio::spawn(async move { guest.feed(id, stdin, true).await }));
        // The guest enforces the timeout; if user code found a way to stop the guest, the host does.
        let host_timeout = timeout + STOP_GRACE + HOST_GRACE;
        let collected = tokio::time::timeout(host_timeout, phase.collect(&mut execution, sink)).await;
        if let Some(feeding) = feeding {
            feeding.abort();
        }
        phase.wall = begin.elapsed();
        match collected {
            Ok(Ok(Some(exited))) => {
                if self.last && name == "run" {
                    // It is killed while its usage is read.
                    self.sandbox.kill();
                }
                phase.set_ended(&exited, &before, self.sandbox.usage().await);
            }
            Ok(Ok(None) | Err(_)) => {
                phase.gone = true;
                (phase.outcome, phase.usage) = judge_lost(self.sandbox, &before, HOST_GRACE).await;
            }
            Err(_) => {
                phase.gone = true;
                phase.usage = self.sandbox.usage().await;
                phase.outcome = Outcome::TimedOut;
            }
        }
        phase.limit_events = phase.usage.limit_events_since(&before);
        Ok(phase)
    }
}

/// Extra time that the host waits for the guest to report the end of a run.
const HOST_GRACE: Duration = Duration::from_secs(2);

/// State of a running phase.
struct PhaseRun {
    stdout: Collector,
    stderr: Collector,
    outcome: Outcome,
    exit_code: Option<i32>,
    signal: Option<i32>,
    wall: Duration,
    cpu: Option<Duration>,
    max_rss: Option<u64>,
    /// Resource usage of the sandbox at the end.
    usage: Usage,
    /// Limits hit during the phase.
    limit_events: LimitEvents,
    /// True if the sandbox is no longer reachable.
    gone: bool,
}

impl PhaseRun {
    fn new(spec: &SandboxSpec, log: Option<(&LogDir, &str)>) -> Self {
        let keep = spec.limits.output.bytes();
        let limit = spec.limits.log.bytes();
        let log = |stream: &str| {
            log.map(|(dir, phase)| (LogFile { dir: dir.clone(), name: format!("{phase}.{stream}") }, limit))
        };
        Self {
            stdout: Collector::new(keep, log("stdout")),
            stderr: Collector::new(keep, log("stderr")),
            outcome: Outcome::Infrastructure { cause: "nothing has run".to_owned() },
            exit_code: None,
            signal: None,
            wall: Duration::ZERO,
            cpu: None,
            max_rss: None,
            usage: Usage::default(),
            limit_events: LimitEvents::default(),
            gone: false,
        }
    }

    fn not_run(outcome: Outcome) -> Self {
        let exit_code = match &outcome {
            Outcome::Exited { code } => Some(*code),
            _ => None,
        };
        Self {
            stdout: Collector::new(0, None),
            stderr: Collector::new(0, None),
            outcome,
            exit_code,
            signal: None,
            wall: Duration::ZERO,
            cpu: None,
            max_rss: None,
            usage: Usage::default(),
            limit_events: LimitEvents::default(),
            gone: false,
        }
    }

    /// Reports a missing or refused program as a shell does; any other failure is an error.
    fn finish_failed_start(mut self, error: GuestError) -> Result<Self, EngineError> {
        use belljar_proto::ErrorCode;
        let code = match &error {
            GuestError::Refused { code: ErrorCode::NotFound, .. } => 127,
            GuestError::Refused {
                code: ErrorCode::PermissionDenied | ErrorCode::FailedPrecondition, ..
            } => 126,
            GuestError::Refused { code: ErrorCode::ResourceExhausted, .. } => {
                self.outcome = Outcome::Limit { limit: LimitKind::Pids };
                return Ok(self);
            }
            _ => return Err(error.into()),
        };
        self.stderr.push(&Bytes::from(format!("{error}\n")));
        self.exit_code = Some(code);
        self.outcome = Outcome::Exited { code };
        Ok(self)
    }

    async fn collect<S: Sink>(
        &mut self,
        execution: &mut Execution,
        sink: &mut S,
    ) -> Result<Option<v1::Exited>, GuestError> {
        while let Some(event) = execution.next().await? {
            match event {
                ProcessEvent::Started { .. } => {}
                ProcessEvent::Output { stream, offset, data } => {
                    let stream = match stream {
                        v1::Stream::STREAM_STDERR => OutputStream::Stderr,
                        _ => OutputStream::Stdout,
                    };
                    match stream {
                        OutputStream::Stdout => self.stdout.push(&data),
                        OutputStream::Stderr => self.stderr.push(&data),
                    }
                    sink.output(stream, offset, &data).await;
                }
                ProcessEvent::Exited(exited) => return Ok(Some(exited)),
            }
        }
        Ok(None)
    }

    fn set_ended(&mut self, exited: &v1::Exited, before: &Usage, after: Usage) {
        self.usage = after;
        let judgement = judge(exited, before, &after);
        self.outcome = judgement.outcome;
        self.exit_code = judgement.exit_code;
        self.signal = judgement.signal;
        if self.exit_code.is_some() || self.signal.is_some() {
            self.cpu = Some(Duration::from_micros(exited.user_us.saturating_add(exited.system_us)));
            self.max_rss = Some(exited.max_rss);
        }
    }

    fn into_phase_result(self, name: Phase) -> PhaseResult {
        PhaseResult {
            phase: name,
            outcome: self.outcome,
            wall_ms: milliseconds(self.wall),
            cpu_ms: self.cpu.map(milliseconds),
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
        }
    }
}
