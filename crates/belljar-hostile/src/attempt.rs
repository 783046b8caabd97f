//! A single run of a case: the program in a sandbox, or its script on the host.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde_json::Value;

use crate::canary::Canaries;
use crate::case::Case;
use crate::disable_walls::disable_walls;
use crate::error::HarnessError;
use crate::judge::{Answers, Fault, judge_result};

/// The host's Python, which runs `expect.py`.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// Time that a `belljar run` may need beyond the case's budget, to start and to clean up.
const SLACK: Duration = Duration::from_secs(10);

/// Maximum output of a process on the host that is kept, in bytes.
const MAX_OUTPUT_BYTES: usize = 16 << 20;

/// A binary that runs sandboxes, and its flags on this machine.
#[derive(Debug, Clone)]
pub struct Binary {
    /// Path of the binary.
    pub program: PathBuf,
    /// Flags for every run, such as those for an ordinary user.
    pub flags: Vec<String>,
}

/// Result of one run.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) answers: Answers,
    pub(crate) faults: Vec<Fault>,
    /// The reason, if the case was skipped.
    pub(crate) skipped: Option<String>,
    /// All output, to search it for tokens and for messages.
    pub(crate) output: String,
}

/// Runs the case once, with the walls `without` disabled, and judges its answers.
pub(crate) fn attempt(
    case: &Case,
    binary: &Binary,
    lib: &Path,
    canaries: &Canaries,
    without: &[String],
) -> Result<Attempt, HarnessError> {
    let mut command = match case.expect_script() {
        Some(script) => host_command(case, binary, lib, &script),
        None => sandbox_command(case, binary, lib, canaries),
    };
    command.env("TMPDIR", canaries.scratch()).envs(canaries.variables());
    disable_walls(&mut command, without);
    let done = finish(&mut command, case.budget + SLACK)?;
    let output = format!("{}{}", done.stdout, done.stderr);
    if done.status.is_none() {
        let faults = vec![Fault::Budget(case.budget.as_millis())];
        return Ok(Attempt { answers: Answers::default(), faults, skipped: None, output });
    }
    if case.expect_script().is_some() {
        judge_script(case, done, output)
    } else {
        judge_run(case, binary, &done)
    }
}

fn sandbox_command(case: &Case, binary: &Binary, lib: &Path, canaries: &Canaries) -> Command {
    let mut command = Command::new(&binary.program);
    command.args(["run", "--json", "--quiet"]).args(&binary.flags).current_dir(&case.dir);
    if !case.flags.iter().any(|flag| flag.starts_with("--timeout")) {
        command.args(["--timeout", &format!("{}ms", case.budget.as_millis())]);
    }
    command.args(&case.flags);
    for (name, value) in canaries.variables() {
        let mut variable = OsString::from(format!("{name}="));
        variable.push(value);
        command.arg("--env").arg(variable);
    }
    if case.language.as_deref() == Some("python") {
        let mut file = lib.join("probe.py").into_os_string();
        file.push(":probe.py");
        command.arg("-f").arg(file);
    }
    for file in &case.files {
        command.args(["-f", file]);
    }
    command.args(["-l", case.language.as_deref().unwrap_or_default()]);
    command.arg(case.program.as_deref().unwrap_or_default()).args(&case.args);
    command
}

fn host_command(case: &Case, binary: &Binary, lib: &Path, script: &Path) -> Command {
    let mut command = Command::new(PYTHON);
    let flags: Vec<&String> = binary.flags.iter().chain(&case.flags).collect();
    command
        .arg(script)
        .current_dir(&case.dir)
        .env("BELLJAR", &binary.program)
        .env("CASE", &case.dir)
        .env("BELLJAR_FLAGS", serde_json::json!(flags).to_string())
        .env("PYTHONPATH", lib)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("BUDGET_MS", case.budget.as_millis().to_string());
    command
}

fn judge_script(case: &Case, done: Done, output: String) -> Result<Attempt, HarnessError> {
    let answers = Answers::read(&done.stdout);
    match done.status {
        Some(status) if !status.success() => {
            Err(HarnessError::Expect { status: status.to_string(), said: end_of(&output).to_owned() })
        }
        _ => {
            let skipped = answers.skipped.clone();
            let faults = if skipped.is_some() { Vec::new() } else { answers.judge(case) };
            Ok(Attempt { answers, faults, skipped, output })
        }
    }
}

fn judge_run(case: &Case, binary: &Binary, done: &Done) -> Result<Attempt, HarnessError> {
    let code = done.status.and_then(|status| status.code());
    if code == Some(125) {
        return Err(HarnessError::NothingRan { said: end_of(&done.stderr).to_owned() });
    }
    let result: Value = serde_json::from_str(&done.stdout).map_err(|_| HarnessError::NoResult {
        program: binary.program.clone(),
        said: format!("{code:?} {}{}", end_of(&done.stdout), end_of(&done.stderr)),
    })?;
    let hint = result.get("hint").and_then(Value::as_str).unwrap_or_default();
    let (stdout, stderr) = (stream(&result, "stdout"), stream(&result, "stderr"));
    // Decoded streams and the raw text, so that tokens are found in either.
    let output = format!("{stdout}{stderr}{}{}", done.stderr, done.stdout);
    if code == Some(127) && hint.contains("is not installed here") {
        let skipped = Some(hint.to_owned());
        return Ok(Attempt { answers: Answers::default(), faults: Vec::new(), skipped, output });
    }
    let mut answers = Answers::read(&stdout);
    // A program in the sandbox may not decide that it is not judged.
    if let Some(reason) = answers.skipped.take() {
        answers.other.push(format!("SKIPPED: {reason}"));
    }
    let mut faults = answers.judge(case);
    faults.extend(judge_result(case, &result));
    Ok(Attempt { answers, faults, skipped: None, output })
}

/// Returns a stream of a result, decoded.
fn stream(result: &Value, name: &str) -> String {
    let field = |key: &str| result.get(name).and_then(|stream| stream.get(key)).and_then(Value::as_str);
    let data = field("data").unwrap_or_default();
    if field("encoding") == Some("base64") {
        return String::from_utf8_lossy(&STANDARD.decode(data).unwrap_or_default()).into_owned();
    }
    data.to_owned()
}

/// Returns the end of a text, for an error message.
pub(crate) fn end_of(text: &str) -> &str {
    const MAX_BYTES: usize = 2_000;
    let text = text.trim_end();
    let mut begin = text.len().saturating_sub(MAX_BYTES);
    while !text.is_char_boundary(begin) {
        begin += 1;
    }
    text.get(begin..).unwrap_or(text)
}

/// Output and status of a process on the host; no status if it timed out.
struct Done {
    status: Option<ExitStatus>,
    stdout: String,
    stderr: String,
}

fn finish(command: &mut Command, limit: Duration) -> Result<Done, HarnessError> {
    let name = command.get_program().display().to_string();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(HarnessError::step(format!("start {name}")))?;
    let stdout = child.stdout.take().map(read_all);
    let stderr = child.stderr.take().map(read_all);
    let is_done = wait(&child, limit).map_err(HarnessError::step(format!("wait for {name}")))?;
    if !is_done {
        let group = Pid::from_child(&child);
        // The process may have ended in the meantime.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().map_err(HarnessError::step(format!("wait for {name}")))?;
    let text = |thread: Option<JoinHandle<Vec<u8>>>| {
        let bytes = thread.and_then(|thread| thread.join().ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Done { status: is_done.then_some(status), stdout: text(stdout), stderr: text(stderr) })
}

/// Waits for a process to end. Reports whether it did within `limit`.
pub(crate) fn wait(child: &Child, limit: Duration) -> std::io::Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(std::io::Error::other)?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)) {
            Ok(count) => return Ok(count == 1),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Reads a stream to its end, and keeps its beginning.
fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut piece = vec![0_u8; 64 << 10];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return kept,
                Ok(count) => {
                    let room = MAX_OUTPUT_BYTES.saturating_sub(kept.len()).min(count);
                    kept.extend_from_slice(piece.get(..room).unwrap_or_default());
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return kept,
            }
        }
    })
}
