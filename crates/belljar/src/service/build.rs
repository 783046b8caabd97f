//! `belljar template build`, `builds`, `attach`, `cancel`, `export` and `import`.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use belljar_client::{Method, RestBody, RestResponse};
use belljar_image::{Base, Definition, StepKind};
use belljar_keeper::MAX_BUILD_FILE_BYTES;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::build_display::ProgressStyle;
use super::build_display::{BuildDisplay, TICK_INTERVAL, label, queued};
use super::link::Link;
use super::show::{Table, away, print};
use crate::files::{names_in, open_below};
use crate::message::{Quit, one_line, say};
use crate::signals::{self, SIGINT, SIGTERM, Signals};
use crate::units::bytes;

/// Maximum total size of the files that are sent with a build, in bytes.
const MAX_FILE_BYTES: u64 = MAX_BUILD_FILE_BYTES as u64;
/// Maximum length of the reason of a failed build in the list, in characters.
const MAX_REASON: usize = 300;
/// Maximum length of a line of the response, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Files of templates that come with this program, by name. They need no other files.
const INCLUDED: [(&str, &str); 4] = [
    ("base", include_str!("../../../../templates/base.toml")),
    ("code-interpreter", include_str!("../../../../templates/code-interpreter.toml")),
    ("code-interpreter-light", include_str!("../../../../templates/code-interpreter-light.toml")),
    ("code-interpreter-full", include_str!("../../../../templates/code-interpreter-full.toml")),
];

/// Returns the advice for a template that does not exist, if its file comes with this program.
pub(super) fn advise_included(error: &str) -> Option<String> {
    let (name, _) =
        INCLUDED.iter().find(|(name, _)| error.contains(&format!("template {name:?} not found")))?;
    Some(format!("its file comes with Belljar: belljar template build {name} builds it"))
}

/// Returns the file that comes with this program under this name.
fn included(name: &Path) -> Option<&'static str> {
    INCLUDED.iter().find(|(included, _)| Path::new(included) == name).map(|(_, text)| *text)
}

/// Builds a template, and shows the progress.
pub(crate) async fn build(
    link: &Link,
    file: &Path,
    mirror: Option<&Path>,
    name: Option<&str>,
    fresh: bool,
    progress: ProgressStyle,
) -> Result<u8, Quit> {
    let text = match (std::fs::read_to_string(file), included(file)) {
        (Err(error), Some(text)) if error.kind() == std::io::ErrorKind::NotFound => text.to_owned(),
        (read, _) => read.with_context(|| {
            let names = INCLUDED.map(|(name, _)| name).join(", ");
            format!("cannot read {} (Belljar includes {names})", file.display())
        })?,
    };
    // Errors in the definition are reported with the file's name, before anything is sent.
    let definition = Definition::parse(&text).with_context(|| file.display().to_string())?;
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let image = match &definition.base {
        Base::Oci { path, .. } => Some(absolute(&dir.join(path))?),
        _ => None,
    };
    let mirror = mirror.map(absolute).transpose()?;
    let body = to_body(&text, mirror, image, name, fresh, files(&definition, dir)?);
    show(link, &run(link, &body, progress).await?)
}

/// Returns the request of a build, with files by their names.
pub(super) fn to_body(
    definition: &str,
    mirror: Option<PathBuf>,
    image: Option<PathBuf>,
    name: Option<&str>,
    fresh: bool,
    files: BTreeMap<String, (u32, Vec<u8>)>,
) -> Value {
    let file = |(path, (mode, content)): (String, (u32, Vec<u8>))| {
        let content = base64::engine::general_purpose::STANDARD.encode(content);
        json!({"path": path, "mode": format!("{mode:04o}"), "content_base64": content})
    };
    let files: Vec<Value> = files.into_iter().map(file).collect();
    json!({
        "definition": definition, "mirror": mirror, "image": image, "name": name, "fresh": fresh, "files": files,
    })
}

/// Sends a build, shows its progress, and returns the template.
pub(super) async fn run(link: &Link, body: &Value, progress: ProgressStyle) -> Result<Value, Quit> {
    send(link, "/v1/templates", RestBody::Json(serde_json::to_vec(body)?.into()), progress).await
}

/// Sends a request that begins a build, shows its progress, and returns the template.
pub(super) async fn send(
    link: &Link,
    path: &str,
    body: RestBody,
    progress: ProgressStyle,
) -> Result<Value, Quit> {
    let answer = link.client.rest(Method::POST, path, "text/event-stream", body).await?;
    follow(link, answer, BuildDisplay::new(link.quiet, progress), OnInterrupt::Cancel).await
}

/// Follows a build.
pub(crate) async fn attach(link: &Link, build: &str, progress: ProgressStyle) -> Result<u8, Quit> {
    let path = format!("/v1/builds/{}", in_path(build));
    let answer = link.client.rest(Method::GET, &path, "text/event-stream", RestBody::Empty).await?;
    let built = follow(link, answer, BuildDisplay::new(link.quiet, progress), OnInterrupt::Detach).await?;
    show(link, &built)
}

/// Cancels a build.
pub(crate) async fn cancel(link: &Link, build: &str) -> Result<u8, Quit> {
    let info = end(link, build).await?;
    if !link.json(&info)? {
        print(&format!("{}\n", info.id))?;
        if info.state != "cancelled" {
            link.remark(&format!("it had ended before: {}", info.state));
        }
    }
    Ok(0)
}

async fn end(link: &Link, build: &str) -> Result<BuildInfo, Quit> {
    let path = format!("/v1/builds/{}", in_path(build));
    Ok(link.client.value(Method::DELETE, &path, RestBody::Empty).await?)
}

/// A build, as the server shows it.
#[derive(Debug, Deserialize, Serialize)]
struct BuildInfo {
    id: String,
    name: String,
    state: String,
    #[serde(flatten)]
    more: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct Builds {
    builds: Vec<BuildInfo>,
}

/// Lists builds.
pub(crate) async fn list(link: &Link) -> Result<u8, Quit> {
    let Builds { builds } = link.client.fetch("/v1/builds").await?;
    let mut table = Table::new(&["ID", "NAME", "STATE", "CREATED", "DETAIL"]);
    for build in builds {
        if link.json(&build)? {
            continue;
        }
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let created = text(build.more.get("created_at")).parse().map_or_else(|_| "-".to_owned(), away);
        let step = |step: &Value| {
            format!("{} {} {}", label(step), text(step.get("kind")), text(step.get("summary")))
        };
        let error = build.more.get("error").filter(|_| build.state == "failed");
        let detail = match (build.more.get("ahead").and_then(Value::as_u64), error) {
            (Some(ahead), _) => queued(ahead),
            // It names the step.
            (None, Some(error)) => one_line(&text(Some(error)), MAX_REASON),
            (None, None) => build.more.get("step").map(step).unwrap_or_default(),
        };
        table.row(vec![build.id, build.name, build.state, created, detail]);
    }
    link.list(&table, 0)?;
    Ok(0)
}

/// What Ctrl-C does to a build that is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnInterrupt {
    /// Cancels it.
    Cancel,
    /// Leaves it running.
    Detach,
}

/// Shows the events of a build until its end.
async fn follow(
    link: &Link,
    mut answer: RestResponse,
    mut display: BuildDisplay,
    on_interrupt: OnInterrupt,
) -> Result<Value, Quit> {
    let mut signals = Signals::catch()?;
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    let mut events = Events::default();
    let mut build = String::new();
    let (name, value) = 'build: loop {
        let piece = tokio::select! {
            piece = answer.next() => piece,
            signal = signals.next() => {
                display.end(false);
                return Err(interrupted(link, &build, signal, on_interrupt, &mut signals).await);
            }
            _ = ticks.tick() => {
                display.tick();
                continue;
            }
        };
        let Some(piece) = piece.inspect_err(|_| display.end(false))? else {
            display.end(false);
            return Err(Quit::Error(anyhow::anyhow!(
                "the connection broke; the build continues: belljar template attach {build} follows it"
            )));
        };
        for (name, value) in events.take(&piece) {
            match name.as_str() {
                "template" | "error" => break 'build (name, value),
                "build" => build = value.get("id").and_then(Value::as_str).unwrap_or_default().to_owned(),
                _ => display.event(&name, &value),
            }
        }
    };
    display.end(name == "template");
    if name == "template" {
        return Ok(value);
    }
    let detail = value.get("detail").and_then(Value::as_str).unwrap_or("the build failed").to_owned();
    Err(Quit::Error(anyhow::anyhow!(detail)))
}

/// Ends or leaves a build after a signal. Returns how this command ends then.
async fn interrupted(
    link: &Link,
    build: &str,
    signal: i32,
    on_interrupt: OnInterrupt,
    signals: &mut Signals,
) -> Quit {
    // A terminal that is closed is no wish to end the build.
    if on_interrupt == OnInterrupt::Detach || !matches!(signal, SIGINT | SIGTERM) || build.is_empty() {
        say(&format!(
            "the build continues: belljar template attach {build} follows it, belljar template cancel {build} ends it"
        ));
        return Quit::Status(signals::status(signal));
    }
    say(&format!("cancelling the build {build}; Ctrl-C again leaves it to the server"));
    let ended = tokio::select! {
        ended = end(link, build) => ended,
        _ = signals.next() => return Quit::Status(signals::status(signal)),
    };
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => return error,
    };
    say(match ended.state.as_str() {
        "cancelled" => "cancelled; steps that had ended stay cached",
        _ => "the build had ended before",
    });
    Quit::Status(signals::status(signal))
}

/// Splits a stream of server-sent events into their names and data.
#[derive(Default)]
struct Events {
    line: Vec<u8>,
    name: String,
}

impl Events {
    fn take(&mut self, piece: &[u8]) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        for byte in piece {
            if *byte != b'\n' {
                if self.line.len() < MAX_LINE_BYTES {
                    self.line.push(*byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
            if let Some(event) = line.strip_prefix("event: ") {
                event.clone_into(&mut self.name);
            } else if let Some(data) = line.strip_prefix("data: ") {
                found.push((self.name.clone(), serde_json::from_str(data).unwrap_or_default()));
            }
        }
        found
    }
}

pub(super) fn show(link: &Link, value: &Value) -> Result<u8, Quit> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    if link.format == super::args::Format::Table {
        print(&format!("{}\n", text("id")))?;
    } else {
        print(&format!("{value}\n"))?;
    }
    Ok(0)
}

/// Returns the absolute path for the server, which may run in another directory.
fn absolute(path: &Path) -> Result<PathBuf, Quit> {
    Ok(std::fs::canonicalize(path).with_context(|| format!("cannot use {}", path.display()))?)
}

/// Reads the files of the `copy` steps. Links are not followed: only files beside the template's file are sent.
fn files(definition: &Definition, dir: &Path) -> Result<BTreeMap<String, (u32, Vec<u8>)>, Quit> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut found = BTreeMap::new();
    let mut left_bytes = MAX_FILE_BYTES;
    for step in &definition.steps {
        let StepKind::Copy(copy) = &step.kind else { continue };
        let mut left = vec![copy.from.clone()];
        while let Some(name) = left.pop() {
            let path = dir.join(&name);
            let failed = || format!("cannot copy {}", path.display());
            let mut file = open_below(dir, &name).with_context(failed)?;
            let metadata = file.metadata().with_context(failed)?;
            if metadata.is_dir() {
                for below in names_in(&file).with_context(failed)? {
                    left.push(if name == "." { below } else { format!("{name}/{below}") });
                }
            } else if metadata.is_file() {
                left_bytes = left_bytes.checked_sub(metadata.len()).ok_or_else(|| {
                    Quit::Usage(format!(
                        "step {}: more than 8 MiB of files would be sent; put them into the mirror",
                        step.number
                    ))
                })?;
                let mut content = Vec::new();
                file.read_to_end(&mut content).with_context(failed)?;
                found.insert(name, (metadata.permissions().mode() & 0o777, content));
            } else {
                let reason =
                    format!("step {}: {} is neither a file nor a directory", step.number, path.display());
                return Err(Quit::Usage(reason));
            }
        }
    }
    Ok(found)
}

/// Exports a built template to a file.
pub(crate) async fn export(link: &Link, template: &str, file: &Path) -> Result<u8, Quit> {
    download(link, &format!("/v1/templates/{}/export", in_path(template)), file).await
}

/// Writes what the server sends to a new file, or to standard output.
pub(super) async fn download(link: &Link, path: &str, file: &Path) -> Result<u8, Quit> {
    let mut answer = link.client.rest(Method::GET, path, "application/octet-stream", RestBody::Empty).await?;
    let mut out: Box<dyn std::io::Write> = match file.to_str() {
        Some("-") => Box::new(std::io::stdout().lock()),
        _ => {
            let made = std::fs::OpenOptions::new().write(true).create_new(true).open(file);
            if made.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::AlreadyExists) {
                let text = format!("{} already exists; give the name of a new file", file.display());
                return Err(Quit::Usage(text));
            }
            Box::new(made.with_context(|| format!("cannot create {}", file.display()))?)
        }
    };
    let mut written = 0;
    while let Some(piece) = answer.next().await? {
        out.write_all(&piece).with_context(|| format!("cannot write {}", file.display()))?;
        written += piece.len() as u64;
    }
    out.flush()?;
    link.remark(&format!("wrote {} to {}", bytes(written), place(file)));
    Ok(0)
}

/// Names a file to which something was written.
fn place(file: &Path) -> String {
    if file.as_os_str() == "-" { "standard output".to_owned() } else { file.display().to_string() }
}

/// Imports a template from a file.
pub(crate) async fn import(link: &Link, file: &Path, name: Option<&str>) -> Result<u8, Quit> {
    let query = name.map_or_else(String::new, |name| format!("?name={}", in_path(name)));
    let path = format!("/v1/templates/import{query}");
    let body = file_body(file)?;
    let mut answer = link.client.rest(Method::POST, &path, "application/json", body).await?;
    let mut text = Vec::new();
    while let Some(piece) = answer.next().await? {
        text.extend_from_slice(&piece);
        if text.len() > MAX_LINE_BYTES {
            return Err(Quit::Error(anyhow::anyhow!("the server's answer is too long")));
        }
    }
    show(link, &serde_json::from_slice(&text)?)
}

/// Returns a file, or standard input, as the body of a request.
pub(super) fn file_body(file: &Path) -> Result<RestBody, Quit> {
    let source: Box<dyn std::io::Read + Send + Sync> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(file).with_context(|| format!("cannot open {}", file.display()))?),
    };
    Ok(pieces(source))
}

/// Returns what a source gives as the body of a request.
pub(super) fn pieces(source: Box<dyn std::io::Read + Send + Sync>) -> RestBody {
    let pieces = futures::stream::unfold(Some(source), |source| async move {
        let mut source = source?;
        let mut buffer = vec![0u8; 256 << 10];
        match source.read(&mut buffer) {
            Ok(0) => None,
            Ok(read) => {
                buffer.truncate(read);
                Some((Ok(buffer.into()), Some(source)))
            }
            Err(error) => Some((Err(error), None)),
        }
    });
    RestBody::Stream(Box::pin(pieces))
}

/// Percent-encodes a name for a URL path of the server.
pub(super) fn in_path(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn included_files_are_complete() {
        for (name, text) in INCLUDED {
            let definition = Definition::parse(text).unwrap();
            assert_eq!(definition.name, name);
            assert!(files(&definition, Path::new("/nonexistent")).unwrap().is_empty(), "{name}");
            assert_eq!(included(Path::new(name)), Some(text));
        }
        assert_eq!(included(Path::new("./base")), None);
    }
}
