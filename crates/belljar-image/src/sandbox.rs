//! A sandbox of a build: running commands in it, and reading bounded output and layers from it.

use std::collections::VecDeque;
use std::error::Error as _;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use belljar_engine::{Archive, CreateRequest, Engine, EngineError, GuestError, ProcessEvent, Sandbox, v1};
use belljar_model::{
    Cpus, DiskSize, Inodes, LimitsFile, LimitsGrade, Memory, NetworkEvent, NetworkPolicy, NetworkReport,
    OpenFiles, Pids, SandboxSpec, ShownDir, TemplateStart, TemplateTree, Timeout, TmpSize, Tree, TreeBase,
    TreeBuild,
};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::io::StreamReader;

use crate::definition::sanitize;
use crate::error::BuildError;
use crate::layers::{Layer, Layers, NewLayer};

/// Default limits of build sandboxes, where the template sets none: compilers and package tools need space, and all of it
/// is memory.
const MEMORY_BYTES: u64 = 6 << 30;
const DISK_BYTES: u64 = 4 << 30;
const TMP_BYTES: u64 = 1 << 30;
const INODES: u64 = 1_000_000;
const PIDS: u32 = 512;
const TIMEOUT: Duration = Duration::from_secs(3600);
const OPEN_FILES: u64 = 16_384;

/// Number of last lines of output in the error of a failed step.
const MAX_LAST_LINES: usize = 20;
/// Limit of an output line, in characters.
const MAX_LINE_CHARS: usize = 500;
/// Limit of a step's output that is passed on, in bytes.
const MAX_LOG_BYTES: usize = 4 << 20;
/// Number of denied connections in the error of a failed step.
const MAX_DENIALS: usize = 4;
/// Size of a block of a tar, in bytes.
const TAR_BLOCK: usize = 512;
/// Size of the pieces in which a tree is written to disk.
const SPOOL_BYTES: usize = 256 << 10;
/// Limit of a tree, in bytes.
const MAX_TREE_BYTES: u64 = 64 << 30;

/// Returns the limits of build sandboxes: those of the template over the defaults.
pub(crate) fn limits(requested: &LimitsFile) -> LimitsFile {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    LimitsFile {
        memory: Memory::new(MEMORY_BYTES).ok(),
        cpus: Some(
            u32::try_from(cpus * 1000).ok().and_then(|millis| Cpus::new(millis).ok()).unwrap_or(Cpus::MAX),
        ),
        timeout: Timeout::new(TIMEOUT).ok(),
        pids: Pids::new(PIDS).ok(),
        tmp: TmpSize::new(TMP_BYTES).ok(),
        disk: DiskSize::new(DISK_BYTES).ok(),
        inodes: Inodes::new(INODES).ok(),
        open_files: OpenFiles::new(OPEN_FILES).ok(),
        ..LimitsFile::default()
    }
    .merge(requested.clone())
}

/// Parameters of a build sandbox.
pub(crate) struct BuildSandboxParams<'a> {
    pub(crate) base: TreeBase,
    /// The layers below, the lowest first.
    pub(crate) below: &'a [Layer],
    pub(crate) owner: &'a str,
    pub(crate) grade: LimitsGrade,
    pub(crate) shown: Vec<ShownDir>,
    pub(crate) limits: &'a LimitsFile,
    /// The initial network policy. A sandbox created without a network cannot get one later.
    pub(crate) network: NetworkPolicy,
}

/// A sandbox of a build.
pub(crate) struct BuildSandbox {
    pub(crate) sandbox: Sandbox,
}

/// One command.
pub(crate) struct Job<'a> {
    pub(crate) script: &'a str,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: &'a str,
}

/// The result of a command.
pub(crate) struct CommandResult {
    pub(crate) code: Option<i32>,
    pub(crate) how: String,
    pub(crate) last_lines: Vec<String>,
}

impl CommandResult {
    pub(crate) fn is_success(&self) -> bool {
        self.code == Some(0)
    }
}

/// Receives lines of output.
pub(crate) type Log<'a> = &'a mut (dyn FnMut(&str) + Send);

/// Starts a sandbox with a finished tree, and ends it. Returns why none can be started.
pub(crate) async fn check_starts(
    engine: &dyn Engine,
    tree: TemplateTree,
    grade: LimitsGrade,
) -> Result<(), BuildError> {
    let spec = SandboxSpec { grade, tree: Tree::Template(Box::new(tree)), ..SandboxSpec::default() };
    match engine.create(CreateRequest::run(&spec)).await {
        Ok(sandbox) => Ok(sandbox.stop().await?),
        Err(error) => {
            let (mut reason, mut source) = (error.to_string(), error.source());
            while let Some(cause) = source {
                reason = format!("{reason}: {cause}");
                source = cause.source();
            }
            let reason = format!("no sandbox can start in its tree: {}", sanitize(&reason, 1000));
            Err(BuildError::Bundle { reason })
        }
    }
}

impl BuildSandbox {
    pub(crate) async fn open(
        engine: &dyn Engine,
        layers: &Layers,
        params: BuildSandboxParams<'_>,
    ) -> Result<Self, BuildError> {
        let limits = limits(params.limits).resolve();
        let shown = params.shown.first().map(|dir| dir.name.clone());
        let tree = TemplateTree {
            base: params.base,
            layers: layers.tree(params.below),
            owner: params.owner.to_owned(),
            build: Some(TreeBuild { shown: params.shown }),
            warm: Vec::new(),
            start: TemplateStart::default(),
        };
        tree.check().map_err(|error| BuildError::input("template", error.to_string()))?;
        let spec = SandboxSpec {
            limits,
            grade: params.grade,
            tree: Tree::Template(Box::new(tree)),
            network: params.network,
            ..SandboxSpec::default()
        };
        let created = engine.create(CreateRequest::run(&spec)).await;
        Ok(Self { sandbox: created.map_err(|error| refused_input(error, shown))? })
    }

    /// Runs a command line and waits for its end.
    pub(crate) async fn run(&self, job: Job<'_>, log: Log<'_>) -> Result<CommandResult, BuildError> {
        let to_error = || BuildError::guest("running a command");
        let variable = |(name, value): (String, String)| v1::EnvVar {
            name: name.into_bytes().into(),
            value: value.into_bytes().into(),
            ..Default::default()
        };
        let request = v1::StartRequest {
            shell: Bytes::copy_from_slice(job.script.as_bytes()),
            env: job.env.into_iter().map(variable).collect(),
            cwd: Bytes::copy_from_slice(job.cwd.as_bytes()),
            kill_rest: true,
            on_disconnect: v1::OnDisconnect::ON_DISCONNECT_KILL.into(),
            ..Default::default()
        };
        let mut execution = match self.sandbox.guest().start(request).await {
            Ok(execution) => execution,
            Err(error) => return Err(self.explain(error, "running a command").await),
        };
        let mut lines = Lines::default();
        loop {
            match execution.next().await {
                Ok(Some(ProcessEvent::Output { stream, data, .. })) => lines.take(stream, &data, log),
                Ok(Some(ProcessEvent::Exited(exited))) => {
                    lines.end(log);
                    return Ok(self.to_result(&exited, lines).await);
                }
                Ok(Some(ProcessEvent::Started { .. })) => {}
                Ok(None) => {
                    return Err(to_error()(GuestError::Protocol {
                        what: "a command ended without an exit status",
                    }));
                }
                Err(error) => return Err(self.explain(error, "running a command").await),
            }
        }
    }

    /// Makes a directory, with those above it, if there is none.
    pub(crate) async fn make_dir(&self, path: &str) -> Result<(), BuildError> {
        let made = self.sandbox.guest().make_dir(Path::new(path), true).await;
        made.map(drop).map_err(BuildError::guest("making a directory"))
    }

    /// Changes the network policy.
    pub(crate) async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), BuildError> {
        Ok(self.sandbox.set_network(policy).await?)
    }

    /// Returns the reasons of connections denied so far, without duplicates and at most [`MAX_DENIALS`].
    pub(crate) async fn denials(&self) -> Result<Vec<String>, BuildError> {
        let mut records = self.sandbox.network_log(0, false).await?;
        let mut denials: Vec<String> = Vec::new();
        while let Some(report) = records.next().await {
            let report = report.map_err(|source| EngineError::Launch {
                step: "read the network's log".to_owned(),
                source,
            })?;
            let NetworkReport::Record(record) = report else { continue };
            let reason = match record.event {
                NetworkEvent::Lookup { reason, .. } => reason,
                NetworkEvent::Connection { allowed: false, reason, .. } => reason,
                NetworkEvent::Connection { .. } | NetworkEvent::Ended { .. } => continue,
            };
            if denials.len() < MAX_DENIALS && !denials.contains(&reason) {
                denials.push(sanitize(&reason, MAX_LINE_CHARS));
            }
        }
        Ok(denials)
    }

    /// Replaces an error by the reason of the sandbox's end, if the sandbox has ended.
    async fn explain(&self, error: GuestError, doing: &'static str) -> BuildError {
        match self.sandbox.explain(error.into()).await {
            belljar_engine::EngineError::Guest(source) => BuildError::Guest { doing, source },
            other => BuildError::Engine(other),
        }
    }

    async fn to_result(&self, exited: &v1::Exited, lines: Lines) -> CommandResult {
        let last_lines: Vec<String> = lines.last.into();
        let code = (exited.signal == 0).then_some(exited.code);
        let mut how = match code {
            Some(code) => format!("it ended with exit code {code}"),
            None => format!("it was ended by signal {}", exited.signal),
        };
        if code != Some(0) {
            let disk_full = ["No space left on device", "ENOSPC", "Disk quota exceeded"];
            if last_lines.iter().any(|line| disk_full.iter().any(|text| line.contains(text))) {
                how.push_str("; the disk of the build is full: give it more with [build] disk = \"8g\"");
            }
            if self.sandbox.usage().await.oom_kills > 0 {
                how.push_str(
                    "; memory ran out, and files count as memory: give more with [build] memory = \"8g\"",
                );
            }
        }
        CommandResult { code, how, last_lines }
    }

    /// Runs a command with a stream of bytes as its input, and waits for its end.
    pub(crate) async fn feed<R>(
        &self,
        script: &str,
        source: R,
        log: Log<'_>,
    ) -> Result<CommandResult, BuildError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        let to_error = || BuildError::guest("feeding a command");
        let request = v1::StartRequest {
            shell: Bytes::copy_from_slice(script.as_bytes()),
            stdin_open: true,
            kill_rest: true,
            on_disconnect: v1::OnDisconnect::ON_DISCONNECT_KILL.into(),
            ..Default::default()
        };
        let mut execution = self.sandbox.guest().start(request).await.map_err(to_error())?;
        let feeding = self.sandbox.guest().feed(execution.id, source, true);
        let mut lines = Lines::default();
        let ending = async {
            loop {
                match execution.next().await {
                    Ok(Some(ProcessEvent::Output { stream, data, .. })) => lines.take(stream, &data, log),
                    Ok(Some(ProcessEvent::Exited(exited))) => {
                        lines.end(log);
                        return Ok(exited);
                    }
                    Ok(Some(ProcessEvent::Started { .. })) => {}
                    Ok(None) => {
                        return Err(GuestError::Protocol { what: "a command ended without an exit status" });
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let (fed, exited) = futures::join!(feeding, ending);
        let exited = match exited {
            Ok(exited) => exited,
            Err(error) => return Err(self.explain(error, "feeding a command").await),
        };
        let result = self.to_result(&exited, lines).await;
        // A command that stopped reading reports the reason itself.
        if let (Err(error), true) = (fed, result.is_success()) {
            return Err(self.explain(error, "feeding a command").await);
        }
        Ok(result)
    }

    /// Stores a file of the sandbox as a layer.
    pub(crate) async fn save_layer(&self, path: &str, layers: &Layers) -> Result<Layer, BuildError> {
        let to_error = || BuildError::guest("reading the layer");
        let mut new = layers.begin().await?;
        let mut download = self.sandbox.guest().read(Path::new(path), 0, 0, true).await.map_err(to_error())?;
        let mut left = MAX_TREE_BYTES;
        while let Some(piece) = download.next().await.map_err(to_error())? {
            left = left
                .checked_sub(piece.len() as u64)
                .ok_or_else(|| BuildError::input("template", "its layer is larger than 64 GiB"))?;
            new.write(&piece).await?;
        }
        layers.finish(new).await
    }

    /// Packs a tree; with `lower`, what an overlay has changed in it, of which `base` has the changes. Returns `None` if there is nothing to
    /// pack.
    pub(crate) async fn pack(
        &self,
        base: &str,
        lower: Option<&str>,
        exclude: &[&str],
    ) -> Result<Option<TarReader>, BuildError> {
        let request = v1::PackRequest {
            base: Bytes::copy_from_slice(base.as_bytes()),
            format: v1::ArchiveFormat::ARCHIVE_FORMAT_TAR.into(),
            exclude: exclude.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect(),
            lower: Bytes::copy_from_slice(lower.unwrap_or_default().as_bytes()),
            ..Default::default()
        };
        let archive = self.sandbox.guest().pack(request, MAX_TREE_BYTES).await;
        let archive = archive.map_err(BuildError::guest("packing the tree"))?;
        let mut chunks = chunks(archive);
        // An empty tar begins with the mark of its end, which is all zeros.
        let first = chunks.next().await.transpose().map_err(|source| BuildError::File {
            action: "read the changes in",
            path: base.into(),
            source,
        })?;
        let Some(first) = first.filter(|first| first.iter().take(TAR_BLOCK).any(|byte| *byte != 0)) else {
            return Ok(None);
        };
        let whole = futures::stream::iter([Ok(first)]).chain(chunks);
        Ok(Some(StreamReader::new(Box::pin(whole))))
    }

    /// Writes a tar of a tree to disk, so that this sandbox, which holds the tree in memory, can be closed before another one has it.
    pub(crate) async fn spool(&self, base: &str, mut file: NewLayer) -> Result<NewLayer, BuildError> {
        let mut tar = self.pack(base, None, &[]).await?;
        let mut buffer = vec![0u8; SPOOL_BYTES];
        while let Some(tar) = &mut tar {
            let read = tar.read(&mut buffer).await.map_err(|source| BuildError::File {
                action: "read the tree in",
                path: base.into(),
                source,
            })?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
            file.write(piece).await?;
        }
        file.flush().await?;
        Ok(file)
    }

    pub(crate) async fn close(self) -> Result<(), BuildError> {
        Ok(self.sandbox.stop().await?)
    }
}

/// Names the input that may not be shown in a sandbox, which has the name of its directory there.
fn refused_input(error: EngineError, shown: Option<String>) -> BuildError {
    match (&error, shown) {
        (EngineError::Mount(refusal), Some(field)) => BuildError::input(field, refusal.to_string()),
        (EngineError::MountSource { path, source }, Some(field)) => {
            BuildError::input(field, format!("cannot use {}: {source}", path.display()))
        }
        _ => error.into(),
    }
}

/// A tar stream from a sandbox.
pub(crate) type TarReader =
    StreamReader<Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send + 'static>>, Bytes>;

fn chunks(archive: Archive) -> Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send + 'static>> {
    Box::pin(futures::stream::try_unfold(archive, |mut archive| async move {
        let piece = archive.next().await.map_err(std::io::Error::other)?;
        Ok(piece.map(|piece| (piece, archive)))
    }))
}

/// Splits output into lines, without control characters and bounded in length and number.
#[derive(Default)]
pub struct Lines {
    /// The incomplete line of each stream: a shell writes one message in several pieces.
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    last: VecDeque<String>,
    passed_bytes: usize,
}

impl Lines {
    /// Adds output, and passes on the lines that it completes.
    pub fn take(&mut self, stream: v1::Stream, data: &[u8], log: &mut (dyn FnMut(&str) + Send)) {
        for byte in data {
            let open = self.open(stream);
            match byte {
                b'\n' | b'\r' => self.flush(stream, log),
                _ if open.len() < MAX_LINE_CHARS * 4 => open.push(*byte),
                _ => {}
            }
        }
    }

    fn open(&mut self, stream: v1::Stream) -> &mut Vec<u8> {
        if stream == v1::Stream::STREAM_STDERR { &mut self.stderr } else { &mut self.stdout }
    }

    /// Returns the last lines, at most 20.
    #[must_use]
    pub fn into_last(self) -> Vec<String> {
        self.last.into()
    }

    /// Passes on the incomplete lines at the end of the output.
    pub fn end(&mut self, log: &mut (dyn FnMut(&str) + Send)) {
        self.flush(v1::Stream::STREAM_STDOUT, log);
        self.flush(v1::Stream::STREAM_STDERR, log);
    }

    fn flush(&mut self, stream: v1::Stream, log: Log<'_>) {
        let open = std::mem::take(self.open(stream));
        if open.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&open).into_owned();
        let visible = |character: char| match character {
            '\t' => ' ',
            _ if character.is_control() => '\u{fffd}',
            _ => character,
        };
        let line: String = text.chars().take(MAX_LINE_CHARS).map(visible).collect();
        if self.passed_bytes <= MAX_LOG_BYTES {
            self.passed_bytes += line.len();
            log(if self.passed_bytes > MAX_LOG_BYTES { "(the rest of the log is left out)" } else { &line });
        }
        if self.last.len() == MAX_LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: v1::Stream = v1::Stream::STREAM_STDOUT;

    #[test]
    fn output_lines_are_cleaned_and_bounded() {
        let mut logged = Vec::new();
        let mut log = |line: &str| logged.push(line.to_owned());
        let mut lines = Lines::default();
        lines.take(OUT, b"one\ntw", &mut log);
        lines.take(OUT, b"o\x1b[31m\r\n\n", &mut log);
        lines.take(OUT, &[b'x'; 10_000], &mut log);
        lines.end(&mut log);
        assert_eq!(logged[0], "one");
        assert_eq!(logged[1], "two\u{fffd}[31m");
        assert_eq!(logged[2].len(), MAX_LINE_CHARS);
        assert_eq!(logged.len(), 3);
        let mut count = 0;
        let mut log = |_: &str| count += 1;
        let mut lines = Lines::default();
        for _ in 0..20_000 {
            lines.take(OUT, &[b'y'; MAX_LINE_CHARS], &mut log);
            lines.take(OUT, b"\n", &mut log);
        }
        assert!(count < 9000, "{count}");
        assert_eq!(lines.last.len(), MAX_LAST_LINES);
    }

    #[test]
    fn lines_of_streams_are_not_mixed() {
        let mut logged = Vec::new();
        let mut log = |line: &str| logged.push(line.to_owned());
        let mut lines = Lines::default();
        lines.take(v1::Stream::STREAM_STDERR, b"sh: 12: ", &mut log);
        lines.take(OUT, b"fine\nnot ended", &mut log);
        lines.take(v1::Stream::STREAM_STDERR, b"no such file\n", &mut log);
        lines.end(&mut log);
        assert_eq!(logged, ["fine", "sh: 12: no such file", "not ended"]);
    }
}
