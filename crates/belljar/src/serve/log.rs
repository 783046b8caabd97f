//! The server's log: text lines or JSON objects, to standard error or to a file that may be rotated.

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

/// Target of the spans of a request's steps, which only traces show.
pub(crate) const STEPS: &str = "belljar_steps";

/// Error from setting up the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The file cannot be opened.
    #[error("log.file: cannot open {path:?}")]
    File { path: PathBuf, source: io::Error },
    /// A log is already set up in this process.
    #[error("cannot set up the log")]
    SetUp(#[from] tracing_subscriber::util::TryInitError),
}

/// An additional subscriber layer.
pub(crate) type ExtraLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The log, which can be reconfigured while the server runs.
pub(crate) struct Log {
    level: reload::Handle<Targets, Registry>,
    sink: Sink,
}

impl Log {
    /// Starts to log.
    pub(crate) fn start(config: &LogConfig, extra: Vec<ExtraLayer>) -> Result<Self, LogError> {
        let sink = Sink::open(config.file.as_deref(), config.rotate_bytes)?;
        let (filter, level) = reload::Layer::new(targets(config.level));
        let layer = tracing_subscriber::fmt::layer().with_writer(sink.clone());
        let lines: ExtraLayer = match config.format {
            LogFormat::Json => {
                let layer = layer.json().flatten_event(true).with_current_span(true).with_span_list(false);
                layer.with_filter(filter).boxed()
            }
            LogFormat::Text => layer.with_ansi(false).with_filter(filter).boxed(),
        };
        let layers: Vec<ExtraLayer> = std::iter::once(lines).chain(extra).collect();
        tracing_subscriber::registry().with(layers).try_init()?;
        Ok(Self { level, sink })
    }

    /// Applies a new level and file, and reopens the file, which may have been rotated.
    pub(crate) fn change(&self, config: &LogConfig) -> Result<(), LogError> {
        self.sink.reopen(config.file.as_deref(), config.rotate_bytes)?;
        // Fails only if the subscriber is gone.
        let _ = self.level.reload(targets(config.level));
        Ok(())
    }
}

/// Returns the filter: Belljar's own messages at `level`, those of dependencies from warnings on. The library of MCP repeats what its
/// callers send, in any length.
fn targets(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
    };
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("belljar", level)
        .with_target("rmcp", LevelFilter::OFF)
        .with_target(STEPS, LevelFilter::OFF)
}

/// Destination of log lines. Clones share it.
#[derive(Clone)]
struct Sink {
    file: Arc<Mutex<Option<LogFile>>>,
}

impl Sink {
    fn open(path: Option<&Path>, rotate_bytes: u64) -> Result<Self, LogError> {
        Ok(Self { file: Arc::new(Mutex::new(LogFile::open(path, rotate_bytes)?)) })
    }

    fn reopen(&self, path: Option<&Path>, rotate_bytes: u64) -> Result<(), LogError> {
        let file = LogFile::open(path, rotate_bytes)?;
        *self.file.lock() = file;
        Ok(())
    }
}

/// A log file of bounded size: whoever sends requests, even refused ones, makes it grow.
struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    rotate_bytes: u64,
}

impl LogFile {
    fn open(path: Option<&Path>, rotate_bytes: u64) -> Result<Option<Self>, LogError> {
        let open = |path: &Path| {
            let opened = open_file(path).and_then(|file| Ok((file.metadata()?.len(), file)));
            let (bytes, file) = opened.map_err(|source| LogError::File { path: path.to_owned(), source })?;
            Ok(Self { path: path.to_owned(), file, bytes, rotate_bytes })
        };
        path.map(open).transpose()
    }

    /// Writes a line. A full file becomes the old one, in place of an earlier one.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.bytes >= self.rotate_bytes {
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            std::fs::rename(&self.path, &old)?;
            self.file = open_file(&self.path)?;
            self.bytes = 0;
        }
        let written = self.file.write(line)?;
        self.bytes += written as u64;
        Ok(written)
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
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
    fn dependencies_are_logged_from_warnings_on() {
        let on = |level, target: &str, at: tracing::Level| targets(level).would_enable(target, &at);
        assert!(on(LogLevel::Info, "belljar_api::access", tracing::Level::INFO));
        assert!(on(LogLevel::Info, "hyper::proto", tracing::Level::WARN));
        assert!(!on(LogLevel::Info, "hyper::proto", tracing::Level::INFO));
        assert!(!on(LogLevel::Warn, "belljar_api::access", tracing::Level::INFO));
        assert!(!on(LogLevel::Error, "hyper", tracing::Level::WARN));
        assert!(!on(LogLevel::Info, STEPS, tracing::Level::INFO));
    }

    #[test]
    fn rotated_file_is_reopened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let sink = Sink::open(Some(&path), 1 << 20).unwrap();
        (&sink).write_all(b"one\n").unwrap();
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        (&sink).write_all(b"two\n").unwrap();
        sink.reopen(Some(&path), 1 << 20).unwrap();
        (&sink).write_all(b"three\n").unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("old")).unwrap(), "one\ntwo\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        assert!(sink.reopen(Some(&dir.path().join("none/log")), 1 << 20).is_err());
        (&sink).write_all(b"four\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\nfour\n");
    }

    #[test]
    fn full_file_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "0\n").unwrap();
        let sink = Sink::open(Some(&path), 4).unwrap();
        for line in 1..8 {
            (&sink).write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!((read("log.1"), read("log")), ("4\n5\n".to_owned(), "6\n7\n".to_owned()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
