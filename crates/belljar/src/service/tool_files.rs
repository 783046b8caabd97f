//! Files of a call of a tool: those that it gets, and those that it has written.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_keeper::MAX_TOOL_FILES;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::files::{checked_path, split_pair};
use crate::message::Quit;

/// Flags to open a directory below which files are written.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Reads the files of a call, by their paths in the sandbox, as a request has them.
pub(super) fn read(pairs: &[OsString]) -> Result<BTreeMap<String, Value>, Quit> {
    let (most, most_bytes) = MAX_TOOL_FILES;
    let mut files = BTreeMap::new();
    let mut left = most_bytes as u64;
    for pair in pairs {
        let (source, target) = split_pair(pair);
        let name = source.file_name().unwrap_or_default();
        let target = match target {
            Some(dir) if dir.as_os_str().as_encoded_bytes().ends_with(b"/") => dir.join(name),
            Some(target) => target,
            None => name.into(),
        };
        let target = checked_path(&target)?;
        let Some(path) = target.to_str() else {
            return Err(anyhow::anyhow!(
                "--file: {target:?} is not UTF-8; give it another name after a colon"
            )
            .into());
        };
        let found = std::fs::metadata(&source).with_context(|| format!("--file: cannot read {source:?}"))?;
        if !found.is_file() {
            return Err(anyhow::anyhow!(
                "--file: {source:?} is not a file; a call of a tool gets files alone"
            )
            .into());
        }
        let mut content = Vec::new();
        let file = std::fs::File::open(&source).with_context(|| format!("--file: cannot read {source:?}"))?;
        file.take(left + 1)
            .read_to_end(&mut content)
            .with_context(|| format!("--file: cannot read {source:?}"))?;
        left = left.checked_sub(content.len() as u64).ok_or_else(|| {
            anyhow::anyhow!(
                "--file: a call gets at most {} KiB in all; put larger files into a volume or a template",
                most_bytes >> 10
            )
        })?;
        if files.insert(path.to_owned(), json!({"base64": STANDARD.encode(content)})).is_some() {
            return Err(anyhow::anyhow!(
                "--file: {path:?} is given twice; give each file a place of its own"
            )
            .into());
        }
    }
    if files.len() > most {
        return Err(
            anyhow::anyhow!("--file: {} files are given; a call gets at most {most}", files.len()).into()
        );
    }
    Ok(files)
}

/// A file that a call has written, as the server sends it.
#[derive(Deserialize)]
pub(super) struct Written {
    /// Path below the sandbox's home directory.
    path: String,
    bytes: u64,
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(tag = "encoding", content = "data")]
enum Content {
    #[serde(rename = "utf-8")]
    Text(String),
    #[serde(rename = "base64")]
    Base64(String),
}

/// Writes files below a directory, which is created if it does not exist. Files that exist are not replaced, and links are not followed:
/// code in a sandbox has chosen the names.
pub(super) fn write(dir: &Path, files: &[Written]) -> Result<(), Quit> {
    std::fs::create_dir_all(dir).with_context(|| format!("--out: cannot create {dir:?}"))?;
    let base = rustix::fs::openat(CWD, dir, DIRECTORY, Mode::empty())
        .with_context(|| format!("--out: cannot open {dir:?}"))?;
    for Written { path, bytes, content } in files {
        let content = match content {
            Some(Content::Text(text)) => text.clone().into_bytes(),
            Some(Content::Base64(text)) => {
                STANDARD.decode(text).context("the server has sent a damaged file")?
            }
            None => {
                let text = format!(
                    "--out: {path:?} has {bytes} bytes, too many for a result; write less, or use a volume"
                );
                return Err(anyhow::anyhow!(text).into());
            }
        };
        let written = create(&base, Path::new(path))
            .and_then(|file| Ok(std::fs::File::from(file).write_all(&content)?));
        written.with_context(|| format!("--out: cannot write {path:?} below {dir:?}"))?;
    }
    Ok(())
}

/// Creates a file below a directory, and the directories on its way.
fn create(base: &OwnedFd, path: &Path) -> anyhow::Result<OwnedFd> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::CurDir => {}
            _ => anyhow::bail!("the path leads out of it"),
        }
    }
    let Some((name, dirs)) = parts.split_last() else { anyhow::bail!("the path is empty") };
    let mut dir = base.try_clone()?;
    for part in dirs {
        match rustix::fs::mkdirat(&dir, *part, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        dir = rustix::fs::openat(dir.as_fd(), *part, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&dir, *name, flags, Mode::from_raw_mode(0o666))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: &str) -> Vec<Written> {
        vec![Written { path: path.to_owned(), bytes: 2, content: Some(Content::Base64("aGk=".to_owned())) }]
    }

    #[test]
    fn files_stay_below_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        write(&out, &written("a/b")).ok().unwrap();
        assert_eq!(std::fs::read_to_string(out.join("a/b")).unwrap(), "hi");
        std::os::unix::fs::symlink(dir.path(), out.join("link")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("x"), out.join("file")).unwrap();
        for path in ["a/b", "../x", "/x", "a/../../x", "link/x", "file", ""] {
            assert!(write(&out, &written(path)).is_err(), "{path}");
        }
        assert!(!dir.path().join("x").exists());
    }
}
