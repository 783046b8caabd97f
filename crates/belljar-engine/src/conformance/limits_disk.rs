//! Disk limits: bytes and inodes. A full disk is only an error inside.

use belljar_proto::ErrorCode;
use bytes::Bytes;

use super::case::{Case, Checked, cases, ensure, equal};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{check_usable, py};
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    full_disk_is_an_error_inside[DiskQuota],
    full_tmp_is_an_error_inside[DiskQuota],
    full_inodes_are_an_error_inside[DiskQuota],
    large_sparse_files_take_no_space[DiskQuota],
    full_disk_refuses_uploads[DiskQuota],
];

/// Fills a directory; returns the error and the number of MiB that fit.
async fn fill(sandbox: &Sandbox, dir: &str) -> Checked<String> {
    let code = format!(
        "
import errno, os
os.chdir({dir:?})
written = 0
file = os.open('full', os.O_WRONLY | os.O_CREAT, 0o644)
try:
    while written < 64 << 20: written += os.write(file, b'x' * 65536)
    print('endless')
except OSError as error:
    print(errno.errorcode[error.errno], (written + (1 << 19)) >> 20)
os.close(file)
os.unlink('full')
open('small', 'w').write('fits again')
os.unlink('small')
"
    );
    Ok(py(sandbox, &code).await?.text())
}

async fn full_disk_is_an_error_inside(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.disk = "8m".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let home = sandbox.home.display().to_string();
    equal!(fill(&sandbox, &home).await?, "ENOSPC 8");
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn full_tmp_is_an_error_inside(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.tmp = "4m".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    for dir in ["/tmp", "/var/tmp", "/dev/shm"] {
        equal!(fill(&sandbox, dir).await?, "ENOSPC 4");
    }
    // The home directory is not affected.
    check_usable(&sandbox).await?;
    sandbox.guest().write("fine".as_ref(), 0o644, Bytes::from(vec![0; 6 << 20])).await?;
    context.stop(sandbox).await
}

async fn full_inodes_are_an_error_inside(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.inodes = "100".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import errno, os
for dir in (os.environ['HOME'], '/tmp'):
    made = 0
    try:
        for made in range(1000): open(f'{dir}/{made}', 'w').close()
        print('endless')
    except OSError as error: print(errno.errorcode[error.errno], made)
    for number in range(made): os.unlink(f'{dir}/{number}')
    open(f'{dir}/again', 'w').close()
";
    let text = py(&sandbox, code).await?.text();
    for line in text.lines() {
        let made = line.strip_prefix("ENOSPC ").and_then(|made| made.parse::<u32>().ok());
        ensure!(made.is_some_and(|made| (90..=100).contains(&made)), "100 inodes ended in {line:?}");
    }
    equal!(text.lines().count(), 2);
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn large_sparse_files_take_no_space(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.disk = "8m".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import errno, os
file = os.open('giant', os.O_RDWR | os.O_CREAT, 0o644)
try: os.posix_fallocate(file, 0, 1 << 40)
except OSError as error: print(errno.errorcode[error.errno])
os.ftruncate(file, 1 << 40)
print(os.fstat(file).st_blocks)
";
    let text = py(&sandbox, code).await?.text();
    let lines: Vec<&str> = text.lines().collect();
    ensure!(matches!(lines[..], ["ENOSPC" | "EFBIG", "0"]), "it wrote {text:?}");
    // A range is read without the rest.
    let mut download = sandbox.guest().read("giant".as_ref(), (1 << 40) - 5, 0, false).await?;
    let mut got = 0;
    while let Some(piece) = download.next().await? {
        got += piece.len();
    }
    equal!(got, 5);
    context.stop(sandbox).await
}

async fn full_disk_refuses_uploads(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.disk = "8m".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let guest = sandbox.guest();
    let too_much = guest.write("big".as_ref(), 0o644, Bytes::from(vec![1; 9 << 20])).await;
    expect_refused(too_much, ErrorCode::ResourceExhausted, &["big"])?;
    let (entries, _) = guest.list(".".as_ref(), 1, 0, Bytes::new()).await?;
    ensure!(entries.is_empty(), "a refused upload left {entries:?}");
    guest.write("small".as_ref(), 0o644, Bytes::from(vec![1; 4 << 20])).await?;
    context.stop(sandbox).await
}
