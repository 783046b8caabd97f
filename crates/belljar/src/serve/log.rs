//! The server's log: lines for people or JSON objects, to standard error or to a file that may be moved away.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_config::{LogConfig, LogFormat, LogLevel};
use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, reload};

/// Spans of the steps of a request, which only traces show.
pub(crate) const STEPS: &str = "belljar_steps";

/// Why nothing can be logged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The file cannot be opened.
    #[error("log.file: cannot open {path:?}")]
    File { path: PathBuf, source: io::Error },
    /// Something logs in this process already.
    #[error("cannot set up the log")]
    SetUp(#[from] tracing_subscriber::util::TryInitError),
}

/// A layer that gets what is logged, too.
pub(crate) type More = Box<dyn Layer<Registry> + Send + Sync>;

/// The log, to be changed while the server runs.
pub(crate) struct Log {
    level: reload::Handle<Targets, Registry>,
    sink: Sink,
}

impl Log {
    /// Begins to log.
    pub(crate) fn start(config: &LogConfig, more: Vec<More>) -> Result<Self, LogError> {
        let sink = Sink::open(config.file.as_deref())?;
        let (filter, level) = reload::Layer::new(targets(config.level));
        let layer = tracing_subscriber::fmt::layer().with_writer(sink.clone());
        let lines: More = match config.format {
            LogFormat::Json => {
                let layer = layer.json().flatten_event(true).with_current_span(true).with_span_list(false);
                layer.with_filter(filter).boxed()
            }
            LogFormat::Text => layer.with_ansi(false).with_filter(filter).boxed(),
        };
        let layers: Vec<More> = std::iter::once(lines).chain(more).collect();
        tracing_subscriber::registry().with(layers).try_init()?;
        Ok(Self { level, sink })
    }

    /// Takes a new level and a new file, and opens the file again, which may have been moved away.
    pub(crate) fn change(&self, config: &LogConfig) -> Result<(), LogError> {
        self.sink.reopen(config.file.as_deref())?;
        // It fails only when nothing is logged any more.
        let _ = self.level.reload(targets(config.level));
        Ok(())
    }
}

/// What is written: ours as asked for, that of others from warnings on.
fn targets(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
    };
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("belljar", level)
        .with_target(STEPS, LevelFilter::OFF)
}

/// Where lines go. Clones share it.
#[derive(Clone)]
struct Sink {
    file: Arc<Mutex<Option<File>>>,
}

impl Sink {
    fn open(path: Option<&Path>) -> Result<Self, LogError> {
        Ok(Self { file: Arc::new(Mutex::new(open(path)?)) })
    }

    fn reopen(&self, path: Option<&Path>) -> Result<(), LogError> {
        let file = open(path)?;
        *self.file.lock() = file;
        Ok(())
    }
}

fn open(path: Option<&Path>) -> Result<Option<File>, LogError> {
    let open = |path: &Path| {
        let opened = OpenOptions::new().append(true).create(true).mode(0o640).open(path);
        opened.map_err(|source| LogError::File { path: path.to_owned(), source })
    };
    path.map(open).transpose()
}

impl Write for &Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.file.lock().as_mut() {
            Some(file) => file.write(bytes),
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_heard_when_they_warn() {
        let on = |level, target: &str, at: tracing::Level| targets(level).would_enable(target, &at);
        assert!(on(LogLevel::Info, "belljar_api::access", tracing::Level::INFO));
        assert!(on(LogLevel::Info, "hyper::proto", tracing::Level::WARN));
        assert!(!on(LogLevel::Info, "hyper::proto", tracing::Level::INFO));
        assert!(!on(LogLevel::Warn, "belljar_api::access", tracing::Level::INFO));
        assert!(!on(LogLevel::Error, "hyper", tracing::Level::WARN));
        assert!(!on(LogLevel::Info, STEPS, tracing::Level::INFO));
    }

    #[test]
    fn a_file_that_was_moved_away_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let sink = Sink::open(Some(&path)).unwrap();
        (&sink).write_all(b"one\n").unwrap();
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        (&sink).write_all(b"two\n").unwrap();
        sink.reopen(Some(&path)).unwrap();
        (&sink).write_all(b"three\n").unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("old")).unwrap(), "one\ntwo\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        assert!(sink.reopen(Some(&dir.path().join("none/log"))).is_err());
        (&sink).write_all(b"four\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\nfour\n");
    }
}
