//! Packing and unpacking, against `tarfile` and `zipfile` of Python inside.

use std::time::Duration;

use belljar_proto::{ErrorCode, v1};
use bytes::Bytes;

use super::case::{Capability, Case, Checked, cases, ensure, equal, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{check_usable, finish, py, python, sh, shell};
use crate::client::{GuestClient, GuestError};
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    packed_trees_are_read_by_others [],
    archives_of_others_are_unpacked [],
    pack_and_unpack_carry_a_tree_between_sandboxes [],
    files_changing_while_packed_are_counted [],
    packing_does_not_hang_or_follow_links [],
    packing_has_the_users_rights [],
    wide_directories_are_packed [],
    packing_is_bounded_by_the_host [],
    hostile_archives_are_refused [],
    archive_bombs_end_at_their_limit [],
    archive_that_fills_the_disk_leaves_nothing [DiskQuota],
    broken_archive_upload_leaves_nothing [],
];

/// Larger than any archive here, in bytes.
const MAX_ARCHIVE_BYTES: u64 = 256 << 20;

/// Timeout for packing and unpacking.
const ARCHIVE_TIMEOUT: Duration = Duration::from_secs(60);

fn bytes(text: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(text.as_ref())
}

async fn pack(guest: &GuestClient, request: v1::PackRequest) -> Checked<(Vec<u8>, v1::PackSummary)> {
    let packing = async {
        let mut archive = guest.pack(request, MAX_ARCHIVE_BYTES).await?;
        let mut data = Vec::new();
        while let Some(piece) = archive.next().await? {
            data.extend_from_slice(&piece);
        }
        Ok::<_, GuestError>((data, archive.summary().cloned().unwrap_or_default()))
    };
    Ok(within("packing", ARCHIVE_TIMEOUT, packing).await??)
}

async fn unpack(
    guest: &GuestClient,
    open: v1::UnpackOpen,
    data: Vec<u8>,
) -> Checked<Result<v1::UnpackResponse, GuestError>> {
    within("unpacking", ARCHIVE_TIMEOUT, guest.unpack(open, std::io::Cursor::new(data))).await
}

fn into(path: &str) -> v1::UnpackOpen {
    v1::UnpackOpen { path: bytes(path), ..Default::default() }
}

/// Prints the tree below its argument, for comparison.
const LIST_TREE: &str = "
import os, stat, sys, hashlib
root = os.fsencode(sys.argv[1])
for dir, dirs, files in sorted(os.walk(root)):
    for name in sorted(dirs + files):
        path = os.path.join(dir, name)
        s = os.lstat(path)
        line = [os.path.relpath(path, root), oct(s.st_mode)]
        if stat.S_ISLNK(s.st_mode):
            line = [line[0], os.readlink(path)]
        elif stat.S_ISREG(s.st_mode):
            line += [s.st_size, int(s.st_mtime), s.st_nlink]
            if s.st_size < 1 << 24:
                line.append(hashlib.sha256(open(path, 'rb').read()).hexdigest())
            else:
                line.append(s.st_blocks < 2048)
        elif stat.S_ISDIR(s.st_mode):
            line.append(int(s.st_mtime))
        print(line)
";

/// Creates `tree` with entries of all types.
const MAKE_TREE: &str = "
import os
os.makedirs('tree/dir/sub'); os.mkdir('tree/empty')
open('tree/file', 'w').write('content'); open('tree/none', 'w')
os.chmod('tree/file', 0o751)
open('tree/dir/large', 'wb').write(bytes(range(256)) * 5000)
os.link('tree/file', 'tree/dir/same')
os.symlink('../file', 'tree/dir/link'); os.symlink('t' * 200, 'tree/dangling')
for name in [b'new\\nline', b'\\xff\\xfe', b' space. ', b'-rf', b'\\x01\\x1b[31m', b'n' * 100, b'n' * 101, b'n' * 255]:
    open(b'tree/dir/sub/' + name, 'wb').write(name)
sparse = open('tree/sparse', 'wb')
for part in range(30):
    sparse.seek(part << 22)
    sparse.write(b'data')
sparse.truncate(200 << 20)
sparse.close()
os.mkdir('tree/closed', 0o500)
for dir, dirs, files in os.walk('tree', topdown=False):
    os.utime(dir, (1e9, 1e9))
";

async fn list_tree(sandbox: &Sandbox, path: &str) -> Checked<String> {
    let mut request = python(LIST_TREE);
    request.argv.push(bytes(path));
    Ok(finish(sandbox, request).await?.expect_success()?.text())
}

/// Returns all paths in the home directory.
async fn paths(sandbox: &Sandbox) -> Checked<Vec<Bytes>> {
    let (entries, _) = sandbox.guest().list(".".as_ref(), 64, 0, Bytes::new()).await?;
    Ok(entries.into_iter().map(|entry| entry.path).collect())
}

async fn packed_trees_are_read_by_others(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    py(&sandbox, MAKE_TREE).await?;
    let before = list_tree(&sandbox, "tree").await?;
    ensure!(before.lines().count() > 17, "there are {} names", before.lines().count());
    for (format, name) in [
        (v1::ArchiveFormat::ARCHIVE_FORMAT_TAR, "a.tar"),
        (v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP, "a.tar.gz"),
    ] {
        let request = v1::PackRequest { base: bytes("tree"), format: format.into(), ..Default::default() };
        let (data, summary) = pack(guest, request).await?;
        equal!((summary.skipped, summary.changed), (0, 0));
        equal!(summary.entries, before.lines().count() as u64);
        ensure!(data.len() < 4 << 20, "{} bytes: holes were filled", data.len());
        guest.write(name.as_ref(), 0o644, data.into()).await?;
        let code = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall('out')";
        let mut request = python(code);
        request.argv.push(bytes(name));
        finish(&sandbox, request).await?.expect_success()?;
        equal!(list_tree(&sandbox, "out").await?, before);
        sh(&sandbox, "rm -rf out").await?.expect_success()?;
    }
    context.stop(sandbox).await
}

async fn archives_of_others_are_unpacked(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    py(&sandbox, MAKE_TREE).await?;
    // Python writes holes as zeros, and a zip has neither hard links nor exact times.
    sh(
        &sandbox,
        "rm tree/sparse tree/dir/same; echo x > tree/other; touch -d @1000000000 tree tree/dir tree/other",
    )
    .await?
    .expect_success()?;
    let before = list_tree(&sandbox, "tree").await?;
    let code = "
import tarfile, zipfile, os, sys
for form, how in [(tarfile.GNU_FORMAT, 'gnu.tar'), (tarfile.PAX_FORMAT, 'pax.tar'), (tarfile.PAX_FORMAT, 'pax.tar.gz')]:
    with tarfile.open(how, 'w:gz' if how.endswith('gz') else 'w', format=form) as t:
        t.add('tree', '.')
names = [n for n in os.listdir('tree/dir/sub')]
for name in names:
    os.remove('tree/dir/sub/' + name)
os.remove('tree/dangling')
for how, method in [('stored.zip', zipfile.ZIP_STORED), ('deflated.zip', zipfile.ZIP_DEFLATED)]:
    with zipfile.ZipFile(how, 'w', method) as z:
        for dir, dirs, files in os.walk('tree'):
            for name in dirs + files:
                path = os.path.join(dir, name)
                if os.path.islink(path):
                    info = zipfile.ZipInfo(os.path.relpath(path, 'tree'))
                    info.create_system = 3
                    info.external_attr = 0o120777 << 16
                    z.writestr(info, os.readlink(path))
                else:
                    z.write(path, os.path.relpath(path, 'tree'))
with zipfile.ZipFile('streamed.zip', 'w', zipfile.ZIP_DEFLATED) as z:
    with z.open('big', 'w', force_zip64=True) as f:
        f.write(b'abc' * 100000)
";
    py(&sandbox, code).await?;
    let bare = list_tree(&sandbox, "tree").await?;
    // Times of a zip are in local time and even seconds, so they are not compared.
    let timeless = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(", 1").next().unwrap_or("").to_owned()).collect()
    };
    for name in ["gnu.tar", "pax.tar", "pax.tar.gz", "stored.zip", "deflated.zip"] {
        let data = guest.read_all(name.as_ref(), 64 << 20).await?.to_vec();
        unpack(guest, into("out/here"), data).await??;
        let after = list_tree(&sandbox, "out/here").await?;
        if name.ends_with("zip") {
            equal!(timeless(&after), timeless(&bare));
        } else {
            equal!(after, before);
        }
        sh(&sandbox, "rm -rf out").await?.expect_success()?;
    }
    let data = guest.read_all("streamed.zip".as_ref(), 1 << 20).await?.to_vec();
    equal!(unpack(guest, into("out"), data).await??.bytes, 300_000);
    context.stop(sandbox).await
}

async fn pack_and_unpack_carry_a_tree_between_sandboxes(context: &Context) -> Checked {
    let first = context.sandbox().await?;
    py(&first, MAKE_TREE).await?;
    let before = list_tree(&first, "tree").await?;
    let exclude = ["*.pyc", "**/.cache"].map(bytes).to_vec();
    sh(&first, "mkdir -p tree/dir/.cache; echo x > tree/dir/.cache/x; echo x > tree/x.pyc")
        .await?
        .expect_success()?;
    sh(&first, "ln -s /usr/bin/env tree/env; touch -d @1000000000 tree/dir tree").await?.expect_success()?;
    let request = v1::PackRequest {
        paths: vec![bytes("tree")],
        format: v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP.into(),
        exclude,
        ..Default::default()
    };
    let (data, _) = pack(first.guest(), request).await?;
    context.stop(first).await?;
    let second = context.sandbox().await?;
    let result = unpack(second.guest(), into("."), data.clone()).await?;
    expect_refused(result, ErrorCode::InvalidArgument, &["env", "is absolute"])?;
    let open = v1::UnpackOpen { links_may_lead_out: true, ..into(".") };
    unpack(second.guest(), open, data).await??;
    sh(&second, "test -x tree/env && rm tree/env && touch -d @1000000000 tree").await?.expect_success()?;
    equal!(list_tree(&second, "tree").await?, before);
    context.stop(second).await
}

/// Files are truncated, extended and replaced continuously while they are packed: each archive is complete, and no file
/// is longer or shorter than announced.
async fn files_changing_while_packed_are_counted(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let code = "
import os
os.mkdir('tree')
data = b'x' * (3 << 20)
open('tree/file', 'wb').write(data); open('tree/other', 'wb').write(data)
open('ready', 'w').close()
while True:
    os.truncate('tree/file', 100)
    open('tree/file', 'wb').write(data)
    open('tree/next', 'wb').write(data)
    os.rename('tree/next', 'tree/other')
    open('tree/file', 'ab').write(b'more')
";
    let racer = guest.start(python(code)).await?;
    super::case::eventually("the race begins", Duration::from_secs(10), async || {
        Ok(guest.stat("ready".as_ref(), false).await.is_ok())
    })
    .await?;
    let mut changed = 0;
    for _ in 0..20 {
        let (data, summary) =
            pack(guest, v1::PackRequest { base: bytes("tree"), ..Default::default() }).await?;
        changed += summary.changed;
        let response = unpack(guest, into("copy"), data).await??;
        equal!((response.entries, response.bytes), (summary.entries, summary.bytes));
        guest.remove("copy".as_ref(), true).await?;
    }
    ensure!(changed > 0, "nothing changed while it was packed");
    guest.signal(racer.id, 9, false).await?;
    context.stop(sandbox).await
}

async fn packing_does_not_hang_or_follow_links(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let code = "
import os, stat
os.mkdir('tree')
os.mkfifo('tree/fifo'); os.mkfifo('tree/held'); os.mknod('tree/socket', stat.S_IFSOCK | 0o600)
os.symlink('/', 'tree/root'); os.symlink('fifo', 'tree/link'); os.symlink('.', 'tree/round')
";
    py(&sandbox, code).await?;
    let writer = guest.start(shell("exec sleep 1000 3<> tree/held")).await?;
    let (_, summary) = pack(guest, v1::PackRequest { base: bytes("tree"), ..Default::default() }).await?;
    equal!((summary.entries, summary.skipped), (3, 3));
    if context.has(Capability::OwnTree) {
        let request = v1::PackRequest { base: bytes("/dev"), one_file_system: true, ..Default::default() };
        pack(guest, request).await?;
    }
    guest.signal(writer.id, 9, false).await?;
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn packing_has_the_users_rights(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    sh(&sandbox, "mkdir -p t/closed; echo x > t/closed/x; echo x > t/locked; echo x > t/open; chmod 0 t/closed t/locked")
        .await?
        .expect_success()?;
    let (_, summary) = pack(guest, v1::PackRequest { base: bytes("t"), ..Default::default() }).await?;
    equal!((summary.entries, summary.skipped), (2, 2));
    sh(&sandbox, "chmod 700 t/closed t/locked").await?.expect_success()?;
    for path in ["/usr/forged", "/proc/sys/forged"] {
        let result = unpack(guest, into(path), vec![0; 1024]).await?;
        ensure!(matches!(result, Err(GuestError::Refused { .. })), "{path}: {result:?}");
    }
    context.stop(sandbox).await
}

async fn wide_directories_are_packed(context: &Context) -> Checked {
    const COUNT: u64 = 4_000;
    let mut spec = context.spec();
    spec.limits.inodes = "200000".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let guest = sandbox.guest();
    let code = format!(
        "
import os
os.mkdir('wide')
for n in range({COUNT} // 2):
    os.close(os.open(f'wide/{{n}}', os.O_CREAT))
    os.mkdir(f'wide/d{{n}}')
"
    );
    py(&sandbox, &code).await?;
    let request = v1::PackRequest {
        base: bytes("wide"),
        format: v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP.into(),
        ..Default::default()
    };
    let (data, summary) = pack(guest, request).await?;
    equal!(summary.entries, COUNT);
    let limits = v1::UnpackLimits { max_ratio: 10_000, ..Default::default() };
    let open = v1::UnpackOpen { limits: limits.into(), ..into("copy") };
    equal!(unpack(guest, open, data).await??.entries, COUNT);
    context.stop(sandbox).await
}

async fn packing_is_bounded_by_the_host(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    py(&sandbox, "open('file', 'wb').write(b'x' * 3000000)").await?;
    let mut archive = guest.pack(v1::PackRequest::default(), 1_000_000).await?;
    let mut received = 0;
    let error = loop {
        match archive.next().await {
            Ok(Some(piece)) => received += piece.len(),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    ensure!(received <= 1_000_000, "{received} bytes were received");
    ensure!(error.as_ref().is_some_and(|error| error.is(ErrorCode::OutOfRange)), "it ended with {error:?}");
    drop(archive);
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

/// Creates `a.tar` with Python code that may use the names `t`, `file` and `link`.
async fn make_archive(sandbox: &Sandbox, code: &str) -> Checked<Vec<u8>> {
    let code = format!(
        "
import io, tarfile, sys, os, gzip, zipfile
t = tarfile.open('a.tar', 'w')
def file(name, content=b'x', **more):
    info = tarfile.TarInfo(name); info.size = len(content)
    for key, value in more.items(): setattr(info, key, value)
    t.addfile(info, io.BytesIO(content))
def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name); info.type = kind; info.linkname = target
    t.addfile(info)
{code}
t.close()
"
    );
    py(sandbox, &code).await?;
    Ok(sandbox.guest().read_all("a.tar".as_ref(), 64 << 20).await?.to_vec())
}

async fn hostile_archives_are_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    sh(&sandbox, "mkdir -p t outside; echo kept > outside/kept; ln -s ../outside t/out")
        .await?
        .expect_success()?;
    let before = paths(&sandbox).await?;
    let cases = [
        ("file('../up')", "leads upwards"),
        ("file('/tmp/up')", "absolute"),
        ("link('l', '/etc')", "absolute"),
        ("link('l', '../outside')", "leads out"),
        ("link('d', 'out'); file('d/x')", "as something else"),
        ("file('out/kept')", "not a directory"),
        ("link('h', '../outside/kept', tarfile.LNKTYPE)", "leads upwards"),
        ("link('h', 'out/kept', tarfile.LNKTYPE)", "not an earlier file"),
        ("link('null', '', tarfile.BLKTYPE)", "device"),
        ("file('x', pax_headers={'path': '/abs'})", "absolute"),
        ("file('x', pax_headers={'size': '4096'})", "is both"),
    ];
    for (code, why) in cases {
        let data = make_archive(&sandbox, code).await?;
        guest.remove("a.tar".as_ref(), false).await?;
        let result = unpack(guest, into("t"), data).await?;
        let code =
            if why == "not a directory" { ErrorCode::FailedPrecondition } else { ErrorCode::InvalidArgument };
        expect_refused(result, code, &[why])?;
        equal!(paths(&sandbox).await?, before);
    }
    let data = make_archive(&sandbox, "file('x', b'#!/bin/sh', mode=0o6755)").await?;
    unpack(guest, into("t"), data).await??;
    equal!(guest.stat("t/x".as_ref(), false).await?.mode, 0o755);
    for (data, name) in [(b"\x28\xb5\x2f\xfd....".to_vec(), "zstd"), (b"\xfd7zXZ\0..".to_vec(), "xz")] {
        expect_refused(unpack(guest, into("t"), data).await?, ErrorCode::InvalidArgument, &[name])?;
    }
    context.stop(sandbox).await
}

async fn archive_bombs_end_at_their_limit(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let code = "
t.close(); out = gzip.open('a.tar', 'wb'); t = tarfile.open(fileobj=out, mode='w')
class Zeros:
    def read(self, n): return bytes(n)
info = tarfile.TarInfo('zeros'); info.size = 128 << 20
t.addfile(info, Zeros())
t.close(); out.close()
";
    let gzip = make_archive(&sandbox, code).await?;
    let code = "
t.close()
with zipfile.ZipFile('a.tar', 'w', zipfile.ZIP_DEFLATED) as z:
    for n in range(40): z.writestr(f'{n}', bytes(1 << 20))
";
    let zip = make_archive(&sandbox, code).await?;
    guest.remove("a.tar".as_ref(), false).await?;
    for (data, limits, word) in [
        (gzip.clone(), v1::UnpackLimits::default(), "max_ratio"),
        (zip.clone(), v1::UnpackLimits::default(), "max_ratio"),
        (gzip, v1::UnpackLimits { max_bytes: 1 << 20, max_ratio: 5000, ..Default::default() }, "max_bytes"),
        (zip, v1::UnpackLimits { max_entries: 10, max_ratio: 5000, ..Default::default() }, "max_entries"),
    ] {
        let open = v1::UnpackOpen { limits: limits.into(), ..into("new") };
        expect_refused(unpack(guest, open, data).await?, ErrorCode::ResourceExhausted, &[word])?;
        equal!(list_tree(&sandbox, ".").await?, "");
    }
    context.stop(sandbox).await
}

async fn archive_that_fills_the_disk_leaves_nothing(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.disk = "8m".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let guest = sandbox.guest();
    let code = "
import sys, tarfile, io
t = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')
for n in range(20):
    info = tarfile.TarInfo(f'{n}'); info.size = 1 << 20
    t.addfile(info, io.BytesIO(bytes(1 << 20)))
t.close()
";
    let data = py(&sandbox, code).await?.stdout;
    expect_refused(unpack(guest, into("new"), data).await?, ErrorCode::ResourceExhausted, &["disk", "full"])?;
    equal!(list_tree(&sandbox, ".").await?, "");
    guest.write("fits".as_ref(), 0o644, vec![0; 6 << 20].into()).await?;
    context.stop(sandbox).await
}

async fn broken_archive_upload_leaves_nothing(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let Err(error) = guest.unpack(into("new/place"), super::files_hostile::FailingReader(false)).await else {
        return Err(super::Stop::Failed("a failed upload was accepted as complete".to_owned()));
    };
    ensure!(matches!(error, GuestError::Source(_)), "a failed upload is reported as {error:?}");
    super::case::eventually("a failed upload has no leftovers", Duration::from_secs(5), async || {
        Ok(list_tree(&sandbox, ".").await?.is_empty())
    })
    .await?;
    context.stop(sandbox).await
}
