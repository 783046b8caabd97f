//! A sandbox of a build: what runs in it, and what comes out of it, within bounds.

use std::collections::VecDeque;
use std::path::Path;
use std::pin::Pin;

use belljar_engine::{Archive, CreateRequest, Engine, EngineError, GuestError, ProcessEvent, Sandbox, v1};
use belljar_model::{
    LimitsFile, NetworkEvent, NetworkPolicy, SandboxSpec, ShownDir, TemplateStart, TemplateTree, Tree,
    TreeBase, TreeBuild, TreeLayer,
};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use crate::definition::shown;
use crate::error::BuildError;
use crate::layers::{Layer, Layers};

/// What is said about sandboxes of builds where the template says nothing: compilers and package tools need room, and all of it
/// is memory.
const MEMORY: &str = "6g";
const DISK: &str = "4g";
const TMP: &str = "1g";
const INODES: &str = "1000000";
const PIDS: &str = "512";
const TIMEOUT: &str = "1h";
const OPEN_FILES: &str = "16384";

/// How many lines of a failed step are told.
const LAST_LINES: usize = 20;
/// The longest line that is told, in characters.
const LINE_CHARS: usize = 500;
/// The most bytes of a step's output that are passed on.
const MAX_LOG_BYTES: usize = 4 << 20;
/// How many denied connections of a failed step are told.
const MAX_DENIALS: usize = 4;
/// The most bytes of a tree.
const MAX_TREE_BYTES: u64 = 64 << 30;

/// The limits of a build's sandboxes.
pub(crate) fn limits(asked: &LimitsFile) -> LimitsFile {
    let text = |text: &str| Some(text.to_owned());
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    LimitsFile {
        memory: text(MEMORY),
        cpus: Some(cpus.to_string()),
        timeout: text(TIMEOUT),
        pids: text(PIDS),
        tmp: text(TMP),
        disk: text(DISK),
        inodes: text(INODES),
        open_files: text(OPEN_FILES),
        ..LimitsFile::default()
    }
    .merge(asked.clone())
}

/// What a sandbox of a build is to be.
pub(crate) struct Wanted<'a> {
    pub(crate) base: TreeBase,
    pub(crate) layer: Option<&'a Layer>,
    pub(crate) owner: &'a str,
    pub(crate) shown: Vec<ShownDir>,
    pub(crate) limits: &'a LimitsFile,
    /// What it reaches to begin with. One that begins with nothing at all has no way to a network later.
    pub(crate) network: NetworkPolicy,
}

/// A sandbox of a build.
pub(crate) struct Room {
    pub(crate) sandbox: Sandbox,
}

/// One command.
pub(crate) struct Job<'a> {
    pub(crate) script: &'a str,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: &'a str,
}

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) how: String,
    pub(crate) last_lines: Vec<String>,
}

impl Ended {
    pub(crate) fn is_good(&self) -> bool {
        self.code == Some(0)
    }
}

/// Takes lines of output.
pub(crate) type Log<'a> = &'a mut (dyn FnMut(&str) + Send);

impl Room {
    pub(crate) async fn open(
        engine: &dyn Engine,
        layers: &Layers,
        wanted: Wanted<'_>,
    ) -> Result<Self, BuildError> {
        let limits =
            limits(wanted.limits).resolve().map_err(|error| BuildError::input("build", error.to_string()))?;
        let layer = wanted
            .layer
            .map(|layer| TreeLayer { path: layers.path(&layer.digest), digest: layer.digest.clone() });
        let tree = TemplateTree {
            base: wanted.base,
            layer,
            owner: wanted.owner.to_owned(),
            build: Some(TreeBuild { shown: wanted.shown }),
            warm: Vec::new(),
            start: TemplateStart::default(),
        };
        tree.check().map_err(|error| BuildError::input("template", error.to_string()))?;
        let spec = SandboxSpec {
            limits,
            tree: Tree::Template(Box::new(tree)),
            network: wanted.network,
            ..SandboxSpec::default()
        };
        Ok(Self { sandbox: engine.create(CreateRequest::run(&spec)).await? })
    }

    /// Runs a command line to its end.
    pub(crate) async fn run(&self, job: Job<'_>, log: Log<'_>) -> Result<Ended, BuildError> {
        let failed = || BuildError::guest("running a command");
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
        let mut execution = self.sandbox.guest().start(request).await.map_err(failed())?;
        let mut lines = Lines::default();
        loop {
            match execution.next().await {
                Ok(Some(ProcessEvent::Output { stream, data, .. })) => lines.take(stream, &data, log),
                Ok(Some(ProcessEvent::Exited(exited))) => {
                    lines.end(log);
                    return Ok(self.ended(&exited, lines).await);
                }
                Ok(Some(ProcessEvent::Started { .. })) => {}
                Ok(None) => {
                    return Err(failed()(GuestError::Protocol { what: "a command has no end" }));
                }
                Err(error) => return Err(self.explain(error, "running a command").await),
            }
        }
    }

    /// Changes what it reaches.
    pub(crate) async fn reach(&self, policy: &NetworkPolicy) -> Result<(), BuildError> {
        Ok(self.sandbox.set_network(policy).await?)
    }

    /// What its policy has denied so far, each sentence once and at most [`MAX_DENIALS`] of them.
    pub(crate) async fn denials(&self) -> Result<Vec<String>, BuildError> {
        let mut records = self.sandbox.network_log(0, false).await?;
        let mut denials: Vec<String> = Vec::new();
        while let Some(record) = records.next().await {
            let record = record.map_err(|source| EngineError::Launch {
                step: "read the network's log".to_owned(),
                source,
            })?;
            let reason = match record.event {
                NetworkEvent::Lookup { reason, .. } => reason,
                NetworkEvent::Connection { allowed: false, reason, .. } => reason,
                NetworkEvent::Connection { .. } | NetworkEvent::Ended { .. } => continue,
            };
            if denials.len() < MAX_DENIALS && !denials.contains(&reason) {
                denials.push(shown(&reason, LINE_CHARS));
            }
        }
        Ok(denials)
    }

    /// The better reason, where the sandbox has ended.
    async fn explain(&self, error: GuestError, doing: &'static str) -> BuildError {
        match self.sandbox.explain(error.into()).await {
            belljar_engine::EngineError::Guest(source) => BuildError::Guest { doing, source },
            other => BuildError::Engine(other),
        }
    }

    async fn ended(&self, exited: &v1::Exited, lines: Lines) -> Ended {
        let last_lines: Vec<String> = lines.last.into();
        let code = (exited.signal == 0).then_some(exited.code);
        let mut how = match code {
            Some(code) => format!("it ended with exit code {code}"),
            None => format!("it was ended by signal {}", exited.signal),
        };
        if code != Some(0) {
            let full = ["No space left on device", "ENOSPC", "Disk quota exceeded"];
            if last_lines.iter().any(|line| full.iter().any(|text| line.contains(text))) {
                how.push_str("; the disk of the build is full: give it more with [build] disk = \"8g\"");
            }
            if self.sandbox.usage().await.oom_kills > 0 {
                how.push_str(
                    "; memory ran out, and files count as memory: give more with [build] memory = \"8g\"",
                );
            }
        }
        Ended { code, how, last_lines }
    }

    /// Feeds a command from a stream of bytes, and waits for its end.
    pub(crate) async fn feed<R>(&self, script: &str, source: R, log: Log<'_>) -> Result<Ended, BuildError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        let failed = || BuildError::guest("feeding a command");
        let request = v1::StartRequest {
            shell: Bytes::copy_from_slice(script.as_bytes()),
            stdin_open: true,
            kill_rest: true,
            on_disconnect: v1::OnDisconnect::ON_DISCONNECT_KILL.into(),
            ..Default::default()
        };
        let mut execution = self.sandbox.guest().start(request).await.map_err(failed())?;
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
                    Ok(None) => return Err(GuestError::Protocol { what: "a command has no end" }),
                    Err(error) => return Err(error),
                }
            }
        };
        let (fed, exited) = futures::join!(feeding, ending);
        let exited = match exited {
            Ok(exited) => exited,
            Err(error) => return Err(self.explain(error, "feeding a command").await),
        };
        let ended = self.ended(&exited, lines).await;
        // A command that took no more says why itself.
        if let (Err(error), true) = (fed, ended.is_good()) {
            return Err(self.explain(error, "feeding a command").await);
        }
        Ok(ended)
    }

    /// Reads a file of the sandbox into a layer's place.
    pub(crate) async fn take(&self, path: &str, layers: &Layers) -> Result<Layer, BuildError> {
        let failed = || BuildError::guest("reading the layer");
        let mut new = layers.begin().await?;
        let mut download = self.sandbox.guest().read(Path::new(path), 0, 0, true).await.map_err(failed())?;
        let mut left = MAX_TREE_BYTES;
        while let Some(piece) = download.next().await.map_err(failed())? {
            left = left
                .checked_sub(piece.len() as u64)
                .ok_or_else(|| BuildError::input("template", "its layer is larger than 64 GiB"))?;
            new.write(&piece).await?;
        }
        layers.finish(new).await
    }

    /// The sandbox's tree below `base` as a tar, but for what `exclude` names.
    pub(crate) async fn pack(&self, base: &str, exclude: &[&str]) -> Result<Pieces, BuildError> {
        let request = v1::PackRequest {
            base: Bytes::copy_from_slice(base.as_bytes()),
            format: v1::ArchiveFormat::ARCHIVE_FORMAT_TAR.into(),
            exclude: exclude.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect(),
            ..Default::default()
        };
        let archive = self.sandbox.guest().pack(request, MAX_TREE_BYTES).await;
        let archive = archive.map_err(BuildError::guest("packing the tree"))?;
        Ok(StreamReader::new(Box::pin(pieces(archive))))
    }

    pub(crate) async fn close(self) -> Result<(), BuildError> {
        Ok(self.sandbox.stop().await?)
    }
}

/// A tar on its way.
pub(crate) type Pieces =
    StreamReader<Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send + 'static>>, Bytes>;

fn pieces(archive: Archive) -> Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send + 'static>> {
    Box::pin(futures::stream::try_unfold(archive, |mut archive| async move {
        let piece = archive.next().await.map_err(std::io::Error::other)?;
        Ok(piece.map(|piece| (piece, archive)))
    }))
}

/// Output as lines, without control characters and within bounds.
#[derive(Default)]
pub struct Lines {
    /// What has no end yet, of each stream: a shell writes one message in several pieces.
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    last: VecDeque<String>,
    told: usize,
}

impl Lines {
    /// Takes output, and passes on the lines that it ends.
    pub fn take(&mut self, stream: v1::Stream, data: &[u8], log: &mut (dyn FnMut(&str) + Send)) {
        for byte in data {
            let open = self.open(stream);
            match byte {
                b'\n' | b'\r' => self.tell(stream, log),
                _ if open.len() < LINE_CHARS * 4 => open.push(*byte),
                _ => {}
            }
        }
    }

    fn open(&mut self, stream: v1::Stream) -> &mut Vec<u8> {
        if stream == v1::Stream::STREAM_STDERR { &mut self.stderr } else { &mut self.stdout }
    }

    /// The last lines, of which there are at most 20.
    #[must_use]
    pub fn into_last(self) -> Vec<String> {
        self.last.into()
    }

    /// Passes on what had no end.
    pub fn end(&mut self, log: &mut (dyn FnMut(&str) + Send)) {
        self.tell(v1::Stream::STREAM_STDOUT, log);
        self.tell(v1::Stream::STREAM_STDERR, log);
    }

    fn tell(&mut self, stream: v1::Stream, log: Log<'_>) {
        let open = std::mem::take(self.open(stream));
        if open.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&open).into_owned();
        let shown = |character: char| match character {
            '\t' => ' ',
            _ if character.is_control() => '\u{fffd}',
            _ => character,
        };
        let line: String = text.chars().take(LINE_CHARS).map(shown).collect();
        if self.told <= MAX_LOG_BYTES {
            self.told += line.len();
            log(if self.told > MAX_LOG_BYTES { "(the rest of the log is left out)" } else { &line });
        }
        if self.last.len() == LAST_LINES {
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
    fn output_is_told_in_lines_within_bounds() {
        let mut told = Vec::new();
        let mut log = |line: &str| told.push(line.to_owned());
        let mut lines = Lines::default();
        lines.take(OUT, b"one\ntw", &mut log);
        lines.take(OUT, b"o\x1b[31m\r\n\n", &mut log);
        lines.take(OUT, &[b'x'; 10_000], &mut log);
        lines.end(&mut log);
        assert_eq!(told[0], "one");
        assert_eq!(told[1], "two\u{fffd}[31m");
        assert_eq!(told[2].len(), LINE_CHARS);
        assert_eq!(told.len(), 3);
        let mut count = 0;
        let mut log = |_: &str| count += 1;
        let mut lines = Lines::default();
        for _ in 0..20_000 {
            lines.take(OUT, &[b'y'; LINE_CHARS], &mut log);
            lines.take(OUT, b"\n", &mut log);
        }
        assert!(count < 9000, "{count}");
        assert_eq!(lines.last.len(), LAST_LINES);
    }

    #[test]
    fn a_line_is_of_one_stream() {
        let mut told = Vec::new();
        let mut log = |line: &str| told.push(line.to_owned());
        let mut lines = Lines::default();
        lines.take(v1::Stream::STREAM_STDERR, b"sh: 12: ", &mut log);
        lines.take(OUT, b"fine\nnot ended", &mut log);
        lines.take(v1::Stream::STREAM_STDERR, b"no such file\n", &mut log);
        lines.end(&mut log);
        assert_eq!(told, ["fine", "sh: 12: no such file", "not ended"]);
    }
}
