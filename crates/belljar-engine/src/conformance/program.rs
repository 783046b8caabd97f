//! Running programs inside, and their results.

use std::time::{Duration, Instant};

use belljar_proto::v1;
use bytes::Bytes;

use super::case::{Checked, Stop, ensure, within};
use crate::client::{Execution, ProcessEvent};
use crate::engine::Sandbox;

/// Default timeout of a program in a case.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// Path of Python on every supported machine.
pub(super) const PYTHON: &str = "/usr/bin/python3";

/// A finished program with all its output.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) id: u64,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) terminal: Vec<u8>,
    pub(super) exited: v1::Exited,
    /// Time from the call to the last event.
    pub(super) took: Duration,
}

impl Finished {
    /// Returns the trimmed standard output.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }

    pub(super) fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim().to_owned()
    }

    pub(super) fn cause(&self) -> v1::Cause {
        self.exited.cause.as_known().unwrap_or_default()
    }

    /// Returns exit code and signal.
    pub(super) fn end(&self) -> (i32, i32) {
        (self.exited.code, self.exited.signal)
    }

    /// Returns the processor time of the program and of the children it waited for.
    pub(super) fn cpu(&self) -> Duration {
        Duration::from_micros(self.exited.user_us + self.exited.system_us)
    }

    /// Fails unless it exited with code 0.
    pub(super) fn expect_success(self) -> Checked<Self> {
        ensure!(
            self.end() == (0, 0),
            "the program ended with code {} and signal {}; it wrote:\n{}\n{}",
            self.exited.code,
            self.exited.signal,
            self.text(),
            self.errors()
        );
        Ok(self)
    }
}

/// Creates a request for a program with arguments.
pub(super) fn argv<I, T>(words: I) -> v1::StartRequest
where
    I: IntoIterator<Item = T>,
    T: AsRef<[u8]>,
{
    let argv = words.into_iter().map(|word| Bytes::copy_from_slice(word.as_ref())).collect();
    v1::StartRequest { argv, ..Default::default() }
}

/// Creates a request for a shell command line.
pub(super) fn shell(line: &str) -> v1::StartRequest {
    v1::StartRequest { shell: Bytes::copy_from_slice(line.as_bytes()), ..Default::default() }
}

/// Creates a request for a Python program that starts quickly.
pub(super) fn python(code: &str) -> v1::StartRequest {
    argv([PYTHON, "-I", "-S", "-c", code])
}

/// Adds a terminal of this size to a request.
pub(super) fn on_terminal(mut request: v1::StartRequest, rows: u32, columns: u32) -> v1::StartRequest {
    request.terminal = v1::Terminal { rows, columns, ..Default::default() }.into();
    request
}

/// Creates an environment variable of a request.
pub(super) fn variable(name: &str, value: &str) -> v1::EnvVar {
    v1::EnvVar {
        name: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        ..Default::default()
    }
}

/// Starts a program and waits for its end.
pub(super) async fn finish(sandbox: &Sandbox, request: v1::StartRequest) -> Checked<Finished> {
    let begin = Instant::now();
    let execution = sandbox.guest().start(request).await?;
    let mut finished = collect(execution).await?;
    finished.took = begin.elapsed();
    Ok(finished)
}

/// Runs a shell command line to its end.
pub(super) async fn sh(sandbox: &Sandbox, line: &str) -> Checked<Finished> {
    finish(sandbox, shell(line)).await
}

/// Runs a Python program that must exit with code 0.
pub(super) async fn py(sandbox: &Sandbox, code: &str) -> Checked<Finished> {
    finish(sandbox, python(code)).await?.expect_success()
}

/// Collects the output of a process until its end. Fails if bytes are missing or out of order.
pub(super) async fn collect(execution: Execution) -> Checked<Finished> {
    let (finished, gaps) = collect_with_gaps(execution, [0; 3]).await?;
    ensure!(gaps == 0, "{gaps} bytes of output are missing");
    Ok(finished)
}

/// Collects the output of a process from the given offsets until its end; also returns the number of bytes that were
/// not kept for this reader.
pub(super) async fn collect_with_gaps(
    mut execution: Execution,
    mut offsets: [u64; 3],
) -> Checked<(Finished, u64)> {
    let begin = Instant::now();
    let mut streams: [Vec<u8>; 3] = Default::default();
    let mut gaps = 0;
    loop {
        let event = within("the program", PROGRAM_TIMEOUT, execution.next()).await??;
        match event {
            Some(ProcessEvent::Started { .. }) => {}
            Some(ProcessEvent::Output { stream, offset, data }) => {
                let index = index_of(stream)?;
                ensure!(offset >= offsets[index], "output at {offset} came after {}", offsets[index]);
                gaps += offset - offsets[index];
                offsets[index] = offset + data.len() as u64;
                streams[index].extend_from_slice(&data);
            }
            Some(ProcessEvent::Exited(exited)) => {
                let after = execution.next().await?;
                ensure!(after.is_none(), "the process had another event after its end: {after:?}");
                let [stdout, stderr, terminal] = streams;
                let took = begin.elapsed();
                let id = execution.id;
                return Ok((Finished { id, stdout, stderr, terminal, exited, took }, gaps));
            }
            None => return Err(Stop::Failed("the events of a process ended without its exit".to_owned())),
        }
    }
}

/// Reads the output of a process until `expected` has appeared on any of its streams.
pub(super) async fn read_until(execution: &mut Execution, expected: &str) -> Checked<String> {
    let mut seen = Vec::new();
    loop {
        let event = within(&format!("waiting for {expected:?}"), PROGRAM_TIMEOUT, execution.next()).await??;
        match event {
            Some(ProcessEvent::Started { .. }) => {}
            Some(ProcessEvent::Output { data, .. }) => seen.extend_from_slice(&data),
            Some(ProcessEvent::Exited(exited)) => {
                return Err(Stop::Failed(format!(
                    "it ended ({} {}) before it wrote {expected:?}; it wrote {:?}",
                    exited.code,
                    exited.signal,
                    String::from_utf8_lossy(&seen)
                )));
            }
            None => return Err(Stop::Failed("the events of a process ended without its exit".to_owned())),
        }
        let text = String::from_utf8_lossy(&seen);
        if text.contains(expected) {
            return Ok(text.into_owned());
        }
    }
}

fn index_of(stream: v1::Stream) -> Checked<usize> {
    match stream {
        v1::Stream::STREAM_STDOUT => Ok(0),
        v1::Stream::STREAM_STDERR => Ok(1),
        v1::Stream::STREAM_TERMINAL => Ok(2),
        _ => Err(Stop::Failed("output without the name of its stream".to_owned())),
    }
}

/// Returns the number of running processes of user code.
pub(super) async fn count_processes(sandbox: &Sandbox) -> Checked<u32> {
    Ok(sandbox.guest().metrics().await?.processes)
}

/// Checks that the sandbox is usable: a program starts, writes and exits.
pub(super) async fn check_usable(sandbox: &Sandbox) -> Checked {
    let answer = finish(sandbox, argv(["/bin/echo", "still here"])).await?.expect_success()?;
    ensure!(answer.text() == "still here", "echo wrote {:?}", answer.text());
    Ok(())
}
