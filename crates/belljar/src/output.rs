//! Output of a run, passed on byte for byte, or as JSON.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_engine::{OutputStream, Sink};
use belljar_model::{Chunk, Chunks, Event, Phase};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::Notify;

use crate::descriptor::Inherited;
use crate::message::{BROKEN_PIPE, Quit, without_controls};
use crate::progress::Progress;

/// Format of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The program's own output.
    Plain,
    /// One JSON result at the end.
    Json,
    /// One JSON event a line.
    Events,
}

/// State of the output, shared with the task that supervises the run.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Id of the running process in the guest; 0 is none.
    process: AtomicU64,
    failure: Mutex<Option<io::Error>>,
    failed: Notify,
}

impl Watch {
    /// Returns the id of the running process in the guest, if there is one.
    pub(crate) fn process(&self) -> Option<u64> {
        Some(self.process.load(Ordering::Relaxed)).filter(|id| *id != 0)
    }

    /// Waits until writing standard output fails, and returns how the command ends then.
    pub(crate) async fn failed(&self) -> Quit {
        self.failed.notified().await;
        match self.failure.lock().take() {
            Some(error) => write_failed(error),
            None => Quit::Status(BROKEN_PIPE),
        }
    }
}

/// Returns how a command ends that cannot write its output.
pub(crate) fn write_failed(error: io::Error) -> Quit {
    if error.raw_os_error() == Some(Errno::PIPE.raw_os_error()) {
        return Quit::Status(BROKEN_PIPE);
    }
    anyhow::Error::new(error).context("cannot write to standard output").into()
}

/// Receives the output of a run.
#[derive(Debug)]
pub(crate) struct Output {
    form: Form,
    stdout: Inherited,
    stderr: Inherited,
    /// Whether standard error can still be written.
    has_stderr: bool,
    /// The last phase that was started.
    phase: Option<Phase>,
    /// Standard output and standard error of the phase, for events.
    chunks: [Chunks; 2],
    progress: Arc<Progress>,
    watch: Arc<Watch>,
}

impl Output {
    /// Creates an output in this format.
    pub(crate) fn new(form: Form, progress: Arc<Progress>) -> Self {
        Self {
            form,
            stdout: Inherited::stdout(),
            stderr: Inherited::stderr(),
            has_stderr: true,
            phase: None,
            chunks: Default::default(),
            progress,
            watch: Arc::new(Watch::default()),
        }
    }

    /// Returns the shared state.
    pub(crate) fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// Returns the progress that is shown on a terminal until there is output.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Returns the last phase that was started.
    pub(crate) fn last_phase(&self) -> Option<Phase> {
        self.phase
    }

    /// Writes an event if the format is [`Form::Events`].
    pub(crate) async fn event(&mut self, event: &Event) -> io::Result<()> {
        if self.form != Form::Events {
            return Ok(());
        }
        self.progress.clear();
        self.line(event).await
    }

    /// Writes the rest of a phase's output as events.
    pub(crate) async fn end_of_phase(&mut self) -> io::Result<()> {
        let rest = self.chunks.each_mut().map(Chunks::finish);
        for (stream, chunk) in [OutputStream::Stdout, OutputStream::Stderr].into_iter().zip(rest) {
            self.chunks(stream, chunk).await?;
        }
        Ok(())
    }

    async fn chunks(
        &mut self,
        stream: OutputStream,
        chunks: impl IntoIterator<Item = Chunk>,
    ) -> io::Result<()> {
        for (offset, data) in chunks {
            let event = match stream {
                OutputStream::Stderr => Event::stderr(offset, &data),
                OutputStream::Stdout => Event::stdout(offset, &data),
            };
            self.event(&event).await?;
        }
        Ok(())
    }

    /// Writes one value as a line of JSON.
    pub(crate) async fn line(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        let mut line = without_controls(&serde_json::to_string(value)?);
        line.push('\n');
        self.stdout.write_all(line.as_bytes()).await
    }

    async fn pass(&mut self, stream: OutputStream, data: &[u8]) -> io::Result<()> {
        // The compiler's output is not output of the program.
        if stream == OutputStream::Stdout && self.phase == Some(Phase::Run) {
            return self.stdout.write_all(data).await;
        }
        if self.has_stderr && self.stderr.write_all(data).await.is_err() {
            self.has_stderr = false;
        }
        Ok(())
    }

    /// Never returns if the write failed: the supervising task ends the run.
    async fn check_written(&self, written: io::Result<()>) {
        if let Err(error) = written {
            *self.watch.failure.lock() = Some(error);
            self.watch.failed.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

impl Sink for Output {
    async fn phase(&mut self, phase: &'static str, id: u64) {
        let phase = if phase == "compile" { Phase::Compile } else { Phase::Run };
        self.phase = Some(phase);
        self.watch.process.store(id, Ordering::Relaxed);
        match phase {
            Phase::Compile => self.progress.message("compiling"),
            Phase::Run => self.progress.clear(),
        }
        let mut written = self.end_of_phase().await;
        if written.is_ok() {
            written = self.event(&Event::Phase { phase }).await;
        }
        self.check_written(written).await;
    }

    async fn output(&mut self, stream: OutputStream, offset: u64, data: &[u8]) {
        let written = match self.form {
            Form::Json => return,
            Form::Plain => {
                self.progress.clear();
                self.pass(stream, data).await
            }
            Form::Events => {
                let [stdout, stderr] = &mut self.chunks;
                let chunks = if stream == OutputStream::Stderr { stderr } else { stdout }.push(offset, data);
                self.chunks(stream, chunks).await
            }
        };
        self.check_written(written).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let quit = write_failed(Errno::PIPE.into());
        assert!(matches!(quit, Quit::Status(BROKEN_PIPE)), "{quit:?}");
        let quit = write_failed(Errno::NOSPC.into());
        assert!(matches!(quit, Quit::Error(_)), "{quit:?}");
    }
}
