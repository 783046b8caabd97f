//! `belljar sandbox cp` and `belljar volume cp`: files and directories in and out. One of the two places is `SANDBOX:PATH` or
//! `VOLUME:PATH`.
//!
//! | from | to | result |
//! |---|---|---|
//! | a file | an existing directory, or a name with a slash at its end | the file, in it |
//! | a file | anything else | the file, under that name |
//! | a directory | an existing directory | the directory, in it |
//! | a directory | an unused name | the directory, under that name |
//! | `DIR/.` | a directory | its content |
//! | `-` | an existing directory, or a name with a slash at its end | standard input, an archive, unpacked there |
//! | `-` | anything else | standard input, as a file |
//! | a file | `-` | its content, on standard output |
//! | a directory | `-` | a tar archive of its content, on standard output |

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use belljar_client::v1;
use belljar_engine::{ErrorCode, GuestClient, GuestError};
use bytes::Bytes;
use tokio::io::AsyncRead;

use super::args::CopyArgs;
use super::create::upload;
use super::link::Link;
use super::long::{ByteCounter, Counted};
use super::{tree, volume};
use crate::copy_out::Outputs;
use crate::descriptor::Inherited;
use crate::files::Inputs;
use crate::message::{Quit, chain};
use crate::output::write_failed;
use crate::stdin::Stdin;
use crate::units::bytes;

/// Maximum bytes to copy out of a sandbox whose disk size is not known: 1 TiB.
const MAX_BYTES: u64 = 1 << 40;

/// Progress message of a copy.
const COPYING: &str = "copying";

/// Kind of the remote side of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemoteKind {
    Sandbox,
    Volume,
}

/// A path in a sandbox or a volume.
pub(crate) struct RemotePath<'a> {
    pub(crate) guest: GuestClient,
    /// As given; the home directory or the volume's root if empty.
    pub(crate) path: &'a OsStr,
    /// Sandbox or volume, and path, for messages.
    pub(crate) shown: String,
}

/// Error from copying.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    /// The source does not exist.
    #[error("{place} not found")]
    Missing { place: String },
    /// The metadata cannot be read.
    #[error("cannot open {place}")]
    Stat { place: String, source: GuestError },
    /// The sandbox's file cannot be read or written.
    #[error("cannot copy {place}")]
    Guest { place: String, source: GuestError },
    /// The local file cannot be read.
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: std::io::Error },
    /// An archive would go to a terminal.
    #[error("{place} is a directory, of which - gets an archive; send standard output to a file or a pipe")]
    Terminal { place: String },
}

/// Copies `from` to `to`.
pub(crate) async fn copy(link: &Link, args: &CopyArgs, kind: RemoteKind) -> Result<u8, Quit> {
    match (split_remote(&args.from), split_remote(&args.to)) {
        (None, Some((name, path))) => {
            find(link, &name, kind).await?;
            let copied = copy_in(link, &args.from, place(link, &name, path, kind)?).await;
            match copied {
                Err(quit) if kind == RemoteKind::Sandbox => {
                    Err(explain_memory(link, &name, explain_owner(&name, quit)).await)
                }
                copied => copied,
            }
        }
        (Some((name, path)), None) => {
            let most = find(link, &name, kind).await?;
            copy_out(link, place(link, &name, path, kind)?, args, most).await
        }
        _ => {
            let place = if kind == RemoteKind::Volume { "VOLUME:PATH" } else { "SANDBOX:PATH" };
            Err(Quit::Usage(format!(
                "one of the two places must be {place}, and the other a file or directory here, or -; write ./a:b for a \
                 file here with a colon in its name"
            )))
        }
    }
}

/// Adds to an error for a place in which the sandbox's own user may not write who may.
fn explain_owner(name: &str, quit: Quit) -> Quit {
    let Quit::Error(error) = quit else { return quit };
    let is_refused = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<GuestError>())
        .any(|error| error.is(ErrorCode::PermissionDenied) && error.to_string().contains("cannot write"));
    if !is_refused {
        return error.into();
    }
    anyhow::anyhow!(
        "{}: files are put in as the sandbox's own user; in a machine, belljar sandbox exec -u root -i {name} -- sh -c 'cat > PATH' \
         writes its standard input as root",
        chain(error.as_ref())
    )
    .into()
}

/// Adds to an error for a file that does not fit into the memory how much there is, and how to get more.
async fn explain_memory(link: &Link, name: &str, quit: Quit) -> Quit {
    let Quit::Error(error) = quit else { return quit };
    let is_full = error.chain().filter_map(|cause| cause.downcast_ref::<GuestError>()).any(|error| {
        error.is(ErrorCode::ResourceExhausted) && error.to_string().contains("against its limit memory")
    });
    let request = v1::SandboxMetricsRequest { sandbox: name.to_owned(), ..Default::default() };
    match link.client.metrics(request).await {
        Ok(metrics) if is_full => {
            let used = metrics.memory_bytes.map(|used| format!(", of which {} are in use", bytes(used)));
            anyhow::anyhow!(
                "{}: it has {}{}; {}",
                chain(error.as_ref()),
                bytes(metrics.memory_limit_bytes),
                used.unwrap_or_default(),
                link.raise(name, "--memory SIZE").await,
            )
            .into()
        }
        _ => error.into(),
    }
}

/// Returns the maximum size of a copy out. Fails if the sandbox or volume does not exist: the guest cannot distinguish that from a
/// missing file.
async fn find(link: &Link, name: &str, kind: RemoteKind) -> Result<u64, Quit> {
    if kind == RemoteKind::Volume {
        return Ok(volume::find(link, name).await?.bytes);
    }
    let request = v1::GetSandboxRequest { sandbox: name.to_owned(), ..Default::default() };
    let info = link.client.get(request).await?;
    Ok(most_bytes(&info))
}

/// Returns the maximum size of what comes out of a sandbox, in bytes.
pub(crate) fn most_bytes(info: &v1::SandboxInfo) -> u64 {
    let most = |limits: &v1::SandboxLimits| limits.disk_bytes.max(limits.tmp_bytes);
    info.limits.as_option().and_then(most).unwrap_or(MAX_BYTES)
}

fn place<'a>(link: &Link, name: &str, path: &'a OsStr, kind: RemoteKind) -> Result<RemotePath<'a>, Quit> {
    let shown = format!("{name}:{}", Path::new(path).display());
    let guest = match kind {
        RemoteKind::Sandbox => link.client.guest(name)?,
        RemoteKind::Volume => link.client.volume(name)?,
    };
    Ok(RemotePath { guest, path, shown })
}

impl RemotePath<'_> {
    /// Returns the metadata of `path`, if it exists.
    pub(super) async fn stat(&self, path: &OsStr, follow: bool) -> Result<Option<v1::Entry>, CopyError> {
        match self.guest.stat(Path::new(path), follow).await {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if error.is(ErrorCode::NotFound) => Ok(None),
            Err(source) => Err(CopyError::Stat { place: self.shown.clone(), source }),
        }
    }

    async fn is_dir(&self) -> Result<bool, CopyError> {
        Ok(self.stat(self.path, true).await?.is_some_and(|entry| is_dir(&entry)))
    }

    pub(super) fn failed(&self, source: GuestError) -> CopyError {
        CopyError::Guest { place: self.shown.clone(), source }
    }
}

pub(crate) fn is_dir(entry: &v1::Entry) -> bool {
    entry.kind.as_known() == Some(v1::FileKind::FILE_KIND_DIRECTORY)
}

async fn copy_in(link: &Link, from: &OsStr, to: RemotePath<'_>) -> Result<u8, Quit> {
    let moved = ByteCounter::default();
    let into_dir = to.path.as_bytes().ends_with(b"/") || to.is_dir().await?;
    if from == "-" {
        let source = Counted::new(input(), &moved);
        let copied =
            async { if into_dir { tree::unpack(&to, source).await } else { write(&to, source).await } };
        link.with_byte_progress(COPYING, &moved, copied).await?;
        return Ok(0);
    }
    let path = Path::new(from);
    let read = |source| CopyError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(read)?.is_dir() {
        return link.with_byte_progress(COPYING, &moved, tree::copy_in(path, &to, &moved)).await;
    }
    let target = if into_dir { joined(to.path, from) } else { to.path.to_owned() };
    let files = Inputs::find(&[pair(from, &target)], None)?;
    link.with_byte_progress(COPYING, &moved, upload(&to.guest, files, &moved)).await?;
    Ok(0)
}

async fn copy_out(link: &Link, from: RemotePath<'_>, args: &CopyArgs, most: u64) -> Result<u8, Quit> {
    let entry = from.stat(from.path, false).await?;
    let entry = entry.ok_or_else(|| CopyError::Missing { place: from.shown.clone() })?;
    let moved = ByteCounter::default();
    if args.to != "-" {
        if is_dir(&entry) {
            let hint = "; with --outward-links such links are made, too";
            let rules = tree::Rules { most, outward_links: args.outward_links, hint };
            let copied = tree::copy_out(&from, Path::new(&args.to), &entry, rules, &moved);
            return link.with_byte_progress(COPYING, &moved, copied).await;
        }
        let outputs = Outputs::find(&[pair(from.path, &args.to)])?;
        let copied = outputs.copy_all(&from.guest, most);
        return match link.with_progress(COPYING, copied).await.into_iter().next() {
            Some(error) => Err(error.into()),
            None => Ok(0),
        };
    }
    if is_dir(&entry) {
        if rustix::termios::isatty(rustix::stdio::stdout()) {
            return Err(CopyError::Terminal { place: from.shown }.into());
        }
        link.with_byte_progress(COPYING, &moved, tree::pack(&from, &moved)).await?;
    } else {
        link.with_byte_progress(COPYING, &moved, read(&from, &moved)).await?;
    }
    Ok(0)
}

/// Opens standard input.
fn input() -> Box<dyn AsyncRead + Send + Unpin> {
    match Stdin::open() {
        Some(stdin) => Box::new(stdin),
        None => Box::new(tokio::io::empty()),
    }
}

/// Writes a file in the sandbox.
async fn write(to: &RemotePath<'_>, source: impl AsyncRead + Send + Unpin + 'static) -> Result<(), Quit> {
    let path = crate::files::checked_path(Path::new(to.path))?;
    let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
    let open = v1::WriteOpen { path, make_parents: true, ..Default::default() };
    to.guest.write_from(open, source).await.map_err(|error| to.failed(error))?;
    Ok(())
}

/// Reads a file to standard output.
async fn read(from: &RemotePath<'_>, moved: &ByteCounter) -> Result<(), Quit> {
    let mut stdout = Inherited::stdout();
    let download = from.guest.read(Path::new(from.path), 0, 0, true).await;
    let mut download = download.map_err(|error| from.failed(error))?;
    while let Some(piece) = download.next().await.map_err(|error| from.failed(error))? {
        stdout.write_all(&piece).await.map_err(write_failed)?;
        moved.add(piece.len());
    }
    Ok(())
}

/// Splits `SANDBOX:PATH`. Text with a slash or a dot before its first colon is a local path.
fn split_remote(place: &OsStr) -> Option<(String, &OsStr)> {
    let bytes = place.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let (sandbox, path) = (&bytes[..colon], &bytes[colon + 1..]);
    if sandbox.is_empty() || sandbox.contains(&b'/') || sandbox.contains(&b'.') {
        return None;
    }
    let path = if path.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(path) };
    Some((std::str::from_utf8(sandbox).ok()?.to_owned(), path))
}

/// Joins a directory and a file's own name.
pub(super) fn joined(dir: &OsStr, file: &OsStr) -> OsString {
    let name = Path::new(file).file_name().unwrap_or(file);
    match dir.as_bytes() {
        b"." => name.to_owned(),
        bytes if bytes.ends_with(b"/") => OsString::from_vec([bytes, name.as_bytes()].concat()),
        bytes => OsString::from_vec([bytes, b"/", name.as_bytes()].concat()),
    }
}

/// Formats `SRC:DEST` as `belljar run` takes it. A colon in the source is kept.
fn pair(source: &OsStr, target: &OsStr) -> OsString {
    OsString::from_vec([source.as_bytes(), b":", target.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_paths_and_local_paths_are_distinguished() {
        let split = |text: &'static str| {
            split_remote(OsStr::new(text))
                .map(|(sandbox, path)| (sandbox, path.to_string_lossy().into_owned()))
        };
        let id = "abcdefghij0123456789";
        assert_eq!(
            split("abcdefghij0123456789:/home/user/"),
            Some((id.to_owned(), "/home/user/".to_owned()))
        );
        assert_eq!(split("work:a:b"), Some(("work".to_owned(), "a:b".to_owned())));
        assert_eq!(split("work:"), Some(("work".to_owned(), ".".to_owned())));
        for here in ["a.csv", "./a:b", "/tmp/a:b", ":a", "a.b:c", "-"] {
            assert_eq!(split(here), None, "{here}");
        }
    }

    #[test]
    fn joined_path_keeps_the_file_name() {
        let name =
            |path: &str| joined(OsStr::new(path), OsStr::new("dir/a.csv")).to_string_lossy().into_owned();
        assert_eq!(name("."), "a.csv");
        assert_eq!(name("/home/user/"), "/home/user/a.csv");
        assert_eq!(name("sub"), "sub/a.csv");
    }
}
