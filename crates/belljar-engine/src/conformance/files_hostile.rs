//! Hostile files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use belljar_proto::{ErrorCode, v1};
use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

use super::case::{Case, Checked, cases, ensure, equal, within};
use super::context::Context;
use super::files::read;
use super::processes::expect_refused;
use super::program::{check_usable, py, sh, shell};
use crate::client::GuestError;
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    links_are_refused_on_request [],
    links_do_not_leave_the_sandbox [OwnTree],
    rename_race_does_not_leave_the_sandbox [OwnTree],
    files_that_would_block_are_refused [],
    file_names_may_be_any_bytes [],
    broken_upload_leaves_nothing [],
    upload_follows_a_link_and_keeps_it [],
    file_service_has_the_users_rights [],
    system_cannot_be_written [OwnTree],
    deep_trees_are_handled [],
];

async fn links_are_refused_on_request(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    sh(&sandbox, "echo x > file; ln -s file link; ln -s loop loop").await?.expect_success()?;
    equal!(read(guest, "link", 0, 0).await?, b"x\n");
    let result = guest.read("link".as_ref(), 0, 0, true).await.map(|_| ());
    expect_refused(result, ErrorCode::FailedPrecondition, &["link", "symbolic"])?;
    guest.read("file".as_ref(), 0, 0, true).await?;
    let result = guest.read("loop".as_ref(), 0, 0, false).await.map(|_| ());
    expect_refused(result, ErrorCode::FailedPrecondition, &["loop"])?;
    context.stop(sandbox).await
}

async fn links_do_not_leave_the_sandbox(context: &Context) -> Checked {
    let canary = context.scratch().join("canary");
    std::fs::write(&canary, "of the host")?;
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    sh(
        &sandbox,
        "ln -s / root; ln -s ../../../../../.. up; ln -s /proc/1/root first; ln -s /proc/self/cwd cwd",
    )
    .await?;
    for prefix in ["root", "up", "first", "cwd/../../..", "..//../../..", "/proc/self/root", "/proc/1/root"] {
        let path = format!("{prefix}{}", canary.display());
        let Err(error) = guest.read(path.as_ref(), 0, 0, false).await else {
            return Err(super::Stop::Failed(format!("{path} leads out of the sandbox")));
        };
        ensure!(matches!(error, GuestError::Refused { .. }), "{path}: {error}");
    }
    descriptors_of_the_guest_lead_nowhere(&sandbox).await?;
    context.stop(sandbox).await
}

/// Paths of files and of working directories may name descriptors of the guest, which opens them.
async fn descriptors_of_the_guest_lead_nowhere(sandbox: &Sandbox) -> Checked {
    let guest = sandbox.guest();
    let is_read = async |path: String| guest.read(path.as_ref(), 0, 16, false).await.is_ok();
    for name in ["cmdline", "keys", "locks", "iomem", "kallsyms", "sys/kernel/ostype"] {
        let is_open = is_read(format!("/proc/{name}")).await;
        for number in 3..32 {
            let path = format!("/proc/self/fd/{number}/{name}");
            ensure!(is_open || !is_read(path.clone()).await, "{path} shows what /proc/{name} does not");
        }
    }
    for number in 3..32 {
        let cwd = format!("/proc/self/fd/{number}");
        let request = v1::StartRequest { cwd: cwd.clone().into(), ..shell("pwd; ls") };
        ensure!(matches!(guest.start(request).await, Err(GuestError::Refused { .. })), "{cwd} was entered");
    }
    Ok(())
}

/// A directory is continuously replaced by a link to a directory of the host and back, while files below it are read
/// and written.
async fn rename_race_does_not_leave_the_sandbox(context: &Context) -> Checked {
    const READS: u32 = 10_000;
    const RACE_TIME: Duration = Duration::from_secs(20);
    const WRITES: u32 = 500;
    let outside = context.scratch().join("outside");
    std::fs::create_dir_all(&outside)?;
    std::fs::write(outside.join("file"), "of the host")?;
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let code = format!(
        "
import os, shutil
os.mkdir('d')
open('d/file', 'w').write('own')
os.symlink({:?}, 'link')
open('ready', 'w').close()
def move(source, target):
    while True:
        try:
            return os.rename(source, target)
        except OSError:
            # A write has made the directory that it missed.
            shutil.rmtree(target, ignore_errors=True)
while True:
    move('d', 'directory')
    move('link', 'd')
    move('d', 'link')
    move('directory', 'd')
",
        outside.display().to_string()
    );
    let racer = guest.start(super::program::python(&code)).await?;
    super::case::eventually("the race begins", Duration::from_secs(5), async || {
        Ok(guest.stat("ready".as_ref(), false).await.is_ok())
    })
    .await?;
    let (mut succeeded, mut missing) = (0, 0);
    let begin = std::time::Instant::now();
    // On a busy machine the racer may not run often enough: then more reads follow.
    let mut number = 0;
    while number < READS || ((succeeded == 0 || missing == 0) && begin.elapsed() < RACE_TIME) {
        number += 1;
        match guest.read_all("d/file".as_ref(), 100).await {
            Ok(content) => {
                ensure!(*content == *b"own" || *content == *b"new", "a read gave {content:?}");
                succeeded += 1;
            }
            Err(GuestError::Refused { .. }) => missing += 1,
            Err(error) => return Err(error.into()),
        }
        if number % (READS / WRITES) == 0 {
            // It may be refused, or succeed in the current directory.
            let _ = guest.write("d/file".as_ref(), 0o644, Bytes::from_static(b"new")).await;
        }
    }
    ensure!(
        succeeded > 0 && missing > 0,
        "there was no race: {succeeded} reads succeeded, {missing} were refused"
    );
    guest.signal(racer.id, 9, false).await?;
    let names: Vec<_> = std::fs::read_dir(&outside)?.flatten().map(|entry| entry.file_name()).collect();
    equal!(names, ["file"]);
    equal!(std::fs::read(outside.join("file"))?, b"of the host");
    context.stop(sandbox).await
}

async fn files_that_would_block_are_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let code = "
import os, socket
os.mkfifo('fifo')
os.mkfifo('held')
os.symlink('fifo', 'link-to-fifo')
os.mkdir('directory')
";
    py(&sandbox, code).await?;
    // One FIFO has a writer that never writes.
    let writer = guest.start(super::program::shell("exec sleep 1000 3<> held")).await?;
    let names =
        ["fifo", "held", "link-to-fifo", "directory", "/dev/zero", "/dev/random", "/dev/tty", "/dev/ptmx"];
    for name in names {
        let reading = guest.read(name.as_ref(), 0, 0, false);
        let result = within(&format!("reading {name}"), Duration::from_secs(2), reading).await?.map(|_| ());
        expect_refused(result, ErrorCode::FailedPrecondition, &[name]).or_else(|stop| {
            if name.starts_with("/dev/t") || name == "/dev/ptmx" { Ok(()) } else { Err(stop) }
        })?;
        let append = v1::WriteOpen {
            path: Bytes::copy_from_slice(name.as_bytes()),
            append: true,
            ..Default::default()
        };
        let writing = guest.write_from(append, b"x".as_slice());
        let result = within(&format!("writing {name}"), Duration::from_secs(2), writing).await?;
        ensure!(result.is_err(), "{name} was written");
    }
    guest.signal(writer.id, 9, false).await?;
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn file_names_may_be_any_bytes(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let long = [b'n'; 255];
    let mut names: Vec<&[u8]> = vec![
        b"with\nnewline",
        b"invalid \xff\xfe utf-8",
        b"-rf",
        b" spaces ",
        b"trailing.",
        b"\x01\x1b[31m",
        b"a\\b",
        b"*",
        "\u{202e}rtl".as_bytes(),
        b"..x",
        &long,
    ];
    for (number, name) in names.iter().enumerate() {
        let content = Bytes::from(format!("content {number}"));
        guest.write(OsStr::from_bytes(name).as_ref(), 0o644, content).await?;
    }
    let code = "import os,sys; sys.stdout.buffer.write(b'\\0'.join(sorted(os.listdir(b'.'))))";
    names.sort_unstable();
    equal!(py(&sandbox, code).await?.stdout, names.join(b"\0".as_slice()));
    let (entries, _) = guest.list(".".as_ref(), 1, 0, Bytes::new()).await?;
    let listed: Vec<&[u8]> = entries.iter().map(|entry| entry.path.as_ref()).collect();
    equal!(listed, names);
    for name in names {
        let path = OsStr::from_bytes(name);
        ensure!(
            guest.read_all(path.as_ref(), 100).await?.starts_with(b"content "),
            "{path:?} has other content"
        );
        guest.rename(path.as_ref(), "plain".as_ref(), false).await?;
        guest.rename("plain".as_ref(), path.as_ref(), false).await?;
        guest.remove(path.as_ref(), false).await?;
    }
    let too_long = [b'n'; 256];
    let result = guest.write(OsStr::from_bytes(&too_long).as_ref(), 0o644, Bytes::new()).await;
    expect_refused(result, ErrorCode::InvalidArgument, &["too long"])?;
    context.stop(sandbox).await
}

/// Returns some bytes and then fails.
pub(super) struct FailingReader(pub(super) bool);

impl AsyncRead for FailingReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(Err(std::io::Error::other("the source broke")));
        }
        buffer.put_slice(b"half");
        Poll::Ready(Ok(()))
    }
}

async fn broken_upload_leaves_nothing(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    guest.write("kept".as_ref(), 0o644, Bytes::from_static(b"before")).await?;
    for name in ["kept", "new"] {
        let open = v1::WriteOpen { path: Bytes::copy_from_slice(name.as_bytes()), ..Default::default() };
        let Err(error) = guest.write_from(open, FailingReader(false)).await else {
            return Err(super::Stop::Failed("a failed upload was accepted as complete".to_owned()));
        };
        ensure!(matches!(error, GuestError::Source(_)), "a failed upload is reported as {error:?}");
    }
    super::case::eventually("a failed upload has no leftovers", Duration::from_secs(5), async || {
        let (entries, _) = guest.list(".".as_ref(), 1, 0, Bytes::new()).await?;
        let names: Vec<&[u8]> = entries.iter().map(|entry| entry.path.as_ref()).collect();
        Ok(names == [b"kept".as_slice()])
    })
    .await?;
    equal!(read(guest, "kept", 0, 0).await?, b"before");
    context.stop(sandbox).await
}

async fn upload_follows_a_link_and_keeps_it(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    sh(&sandbox, "mkdir target; echo old > target/file; ln -s target/file link").await?.expect_success()?;
    guest.write("link".as_ref(), 0o644, Bytes::from_static(b"new")).await?;
    equal!(read(guest, "target/file", 0, 0).await?, b"new");
    equal!(guest.stat("link".as_ref(), false).await?.kind.as_known(), Some(v1::FileKind::FILE_KIND_SYMLINK));
    let (entries, _) = guest.list("target".as_ref(), 1, 0, Bytes::new()).await?;
    equal!(entries.len(), 1);
    context.stop(sandbox).await
}

async fn file_service_has_the_users_rights(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    for path in ["/usr/bin/forged", "/proc/sys/kernel/hostname", "/forged"] {
        let result = guest.write(path.as_ref(), 0o644, Bytes::from_static(b"x")).await;
        let Err(error) = result else {
            return Err(super::Stop::Failed(format!("{path} was written")));
        };
        ensure!(matches!(error, GuestError::Refused { .. }), "{path}: {error}");
    }
    sh(&sandbox, "mkdir locked; echo x > locked/file; chmod 000 locked").await?.expect_success()?;
    let result = guest.read("locked/file".as_ref(), 0, 0, false).await.map(|_| ());
    expect_refused(result, ErrorCode::PermissionDenied, &["locked/file"])?;
    sh(&sandbox, "chmod 700 locked").await?.expect_success()?;
    context.stop(sandbox).await
}

async fn system_cannot_be_written(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    for path in
        ["/etc/passwd", "/usr/bin/sh", "/etc/new", "/bin/new", "/dev/new", "/new", "/proc/new", "/run/new"]
    {
        let result = sandbox.guest().write(path.as_ref(), 0o644, Bytes::from_static(b"x")).await;
        ensure!(matches!(result, Err(GuestError::Refused { .. })), "{path}: {result:?}");
        let line = format!("(echo x > {path}) 2>/dev/null && echo wrote; rm -f {path} 2>/dev/null");
        equal!(sh(&sandbox, &line).await?.text(), "");
    }
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn deep_trees_are_handled(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let code = "
import os
os.mkdir('deep')
os.chdir('deep')
for level in range(1000):
    os.mkdir('directory-with-a-name')
    os.chdir('directory-with-a-name')
open('bottom', 'w').close()
";
    py(&sandbox, code).await?;
    let listing = guest.list("deep".as_ref(), 64, 0, Bytes::new());
    let (entries, _) = within("listing a deep tree", Duration::from_secs(10), listing).await??;
    equal!(entries.len(), 64);
    let removing = guest.remove("deep".as_ref(), true);
    within("removing a deep tree", Duration::from_secs(20), removing).await??;
    expect_refused(guest.stat("deep".as_ref(), false).await, ErrorCode::NotFound, &["deep"])?;
    context.stop(sandbox).await
}
