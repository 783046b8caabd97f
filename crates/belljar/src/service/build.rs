//! `belljar template build`, `export` and `import`.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use belljar_client::{Method, RestBody};
use belljar_image::{Base, Definition, StepKind};
use serde_json::{Value, json};

use super::link::Link;
use super::show::{bytes, print};
use crate::message::{Quit, say};

/// Maximum total size of the files that are sent with a build, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum length of a line of the response, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Builds a template, and shows the progress.
pub(crate) async fn build(
    link: &Link,
    file: &Path,
    mirror: Option<&Path>,
    name: Option<&str>,
    fresh: bool,
) -> Result<u8, Quit> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    // Errors in the definition are reported with the file's name, before anything is sent.
    let definition = Definition::parse(&text).with_context(|| file.display().to_string())?;
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let image = match &definition.base {
        Base::Oci { path, .. } => Some(absolute(&dir.join(path))?),
        _ => None,
    };
    let mirror = mirror.map(absolute).transpose()?;
    let files: Vec<Value> = files(&definition, dir)?
        .into_iter()
        .map(|(path, (mode, content))| {
            let content = base64::engine::general_purpose::STANDARD.encode(content);
            json!({"path": path, "mode": format!("{mode:04o}"), "content_base64": content})
        })
        .collect();
    let built = run(
        link,
        json!({
            "definition": text, "mirror": mirror, "image": image, "name": name, "fresh": fresh, "files": files,
        }),
    );
    show(link, &built.await?)
}

/// Sends a build, shows its progress, and returns the template.
pub(super) async fn run(link: &Link, body: Value) -> Result<Value, Quit> {
    let body = RestBody::Json(serde_json::to_vec(&body)?.into());
    let mut answer = link.client.rest(Method::POST, "/v1/templates", "text/event-stream", body).await?;
    let mut open = Vec::new();
    let mut name = String::new();
    let mut done = None;
    while let Some(piece) = answer.next().await? {
        for byte in piece {
            if byte != b'\n' {
                if open.len() < MAX_LINE_BYTES {
                    open.push(byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut open)).into_owned();
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                let value: Value = serde_json::from_str(data).unwrap_or_default();
                match name.as_str() {
                    "template" | "error" => done = Some((name.clone(), value)),
                    _ => report_progress(link, &name, &value),
                }
            }
        }
    }
    match done {
        Some((name, value)) if name == "template" => Ok(value),
        Some((_, value)) => {
            let detail = value.get("detail").and_then(Value::as_str).unwrap_or("the build failed").to_owned();
            Err(Quit::Error(anyhow::anyhow!(detail)))
        }
        None => Err(Quit::Error(anyhow::anyhow!(
            "the connection broke; the build continues: look for the template with belljar template ls"
        ))),
    }
}

fn report_progress(link: &Link, name: &str, value: &Value) {
    if link.quiet {
        return;
    }
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let number = |key: &str| value.get(key).and_then(Value::as_u64).unwrap_or_default();
    match name {
        "step" => {
            let cached = value.get("cached").and_then(Value::as_bool).unwrap_or_default();
            let note = if cached { " (cached)" } else { "" };
            say(&format!(
                "step {} of {}: {} {}{note}",
                number("number"),
                number("total"),
                text("kind"),
                text("summary")
            ));
        }
        "log" => say(&format!("  {}", text("line"))),
        "layer" => say(&format!("  layer {} ({})", text("digest"), bytes(number("bytes")))),
        _ => {}
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
    let mut found = BTreeMap::new();
    let mut left_bytes = MAX_FILE_BYTES;
    for step in &definition.steps {
        let StepKind::Copy(copy) = &step.kind else { continue };
        let mut left = vec![(copy.from.clone(), dir.join(&copy.from))];
        while let Some((name, path)) = left.pop() {
            let metadata = std::fs::symlink_metadata(&path)
                .with_context(|| format!("cannot copy {}", path.display()))?;
            if metadata.is_dir() {
                let entries =
                    std::fs::read_dir(&path).with_context(|| format!("cannot list {}", path.display()))?;
                for entry in entries {
                    let entry = entry?;
                    let below = entry.file_name().into_string().map_err(|name| {
                        Quit::Usage(format!("step {}: {} is not UTF-8", step.number, name.display()))
                    })?;
                    left.push((format!("{name}/{below}"), entry.path()));
                }
            } else if metadata.is_file() {
                use std::os::unix::fs::PermissionsExt as _;
                left_bytes = left_bytes.checked_sub(metadata.len()).ok_or_else(|| {
                    Quit::Usage(format!(
                        "step {}: more than 1 MiB of files would be sent; put them into the mirror",
                        step.number
                    ))
                })?;
                let content =
                    std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
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
    let path = format!("/v1/templates/{}/export", in_path(template));
    let mut answer =
        link.client.rest(Method::GET, &path, "application/octet-stream", RestBody::Empty).await?;
    let mut out: Box<dyn std::io::Write> = match file.to_str() {
        Some("-") => Box::new(std::io::stdout().lock()),
        _ => {
            let made = std::fs::OpenOptions::new().write(true).create_new(true).open(file);
            Box::new(made.with_context(|| format!("cannot create {}", file.display()))?)
        }
    };
    while let Some(piece) = answer.next().await? {
        out.write_all(&piece).with_context(|| format!("cannot write {}", file.display()))?;
    }
    out.flush()?;
    Ok(0)
}

/// Imports a template from a file.
pub(crate) async fn import(link: &Link, file: &Path, name: Option<&str>) -> Result<u8, Quit> {
    let source: Box<dyn std::io::Read + Send + Sync> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(file).with_context(|| format!("cannot open {}", file.display()))?),
    };
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
    let query = name.map_or_else(String::new, |name| format!("?name={}", in_path(name)));
    let path = format!("/v1/templates/import{query}");
    let body = RestBody::Stream(Box::pin(pieces));
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

/// Percent-encodes a name for a URL path of the server.
pub(super) fn in_path(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
