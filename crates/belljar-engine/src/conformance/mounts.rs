//! Mounted directories of the host.

use belljar_model::{Mount, MountMode};

use super::case::{Case, Checked, cases, ensure, equal};
use super::context::Context;
use super::program::sh;
use crate::engine::CreateRequest;
use crate::engine_error::EngineError;

pub(super) const CASES: &[Case] = cases![
    mount_is_read_only_unless_asked[Mounts],
    mount_is_written_back[Mounts],
    mounts_that_are_not_allowed_are_refused[Mounts],
];

async fn mount_is_read_only_unless_asked(context: &Context) -> Checked {
    let dirs = context.host_dirs()?;
    std::fs::write(dirs.readable.join("data"), "of the host")?;
    let mut spec = context.spec();
    spec.mounts = vec![
        Mount::new(&dirs.readable, "/data", MountMode::ReadOnly)?,
        Mount::new(dirs.readable.join("data"), "/home/user/one-file", MountMode::ReadOnly)?,
    ];
    let sandbox = context.sandbox_with(&spec).await?;
    equal!(
        sh(&sandbox, "cat /data/data; cat one-file").await?.expect_success()?.text(),
        "of the hostof the host"
    );
    for line in
        ["echo x > /data/data", "echo x > /data/new", "rm /data/data", "chmod 777 /data", "echo x > one-file"]
    {
        let tried = sh(&sandbox, &format!("({line}) 2>&1")).await?;
        ensure!(tried.end() != (0, 0), "{line:?} worked on a read-only mount");
    }
    equal!(std::fs::read_to_string(dirs.readable.join("data"))?, "of the host");
    equal!(std::fs::read_dir(&dirs.readable)?.count(), 1);
    context.stop(sandbox).await
}

async fn mount_is_written_back(context: &Context) -> Checked {
    use std::os::unix::fs::MetadataExt;
    let dirs = context.host_dirs()?;
    let mut spec = context.spec();
    spec.mounts = vec![Mount::new(&dirs.writable, "/home/user/out", MountMode::ReadWrite)?];
    let sandbox = context.sandbox_with(&spec).await?;
    sh(&sandbox, "echo made > out/file && mkdir out/dir && echo two > out/dir/file")
        .await?
        .expect_success()?;
    equal!(std::fs::read_to_string(dirs.writable.join("file"))?, "made\n");
    equal!(std::fs::read_to_string(dirs.writable.join("dir/file"))?, "two\n");
    // Files created there belong to the owner of the directory.
    let owner = std::fs::metadata(&dirs.writable)?.uid();
    equal!(std::fs::metadata(dirs.writable.join("file"))?.uid(), owner);
    context.stop(sandbox).await?;
    // The file outlives the sandbox.
    equal!(std::fs::read_to_string(dirs.writable.join("file"))?, "made\n");
    Ok(())
}

async fn mounts_that_are_not_allowed_are_refused(context: &Context) -> Checked {
    let dirs = context.host_dirs()?;
    let link = dirs.readable.join("link");
    std::os::unix::fs::symlink(&dirs.closed, &link)?;
    let cases = [
        (dirs.closed.clone(), MountMode::ReadOnly),
        (dirs.readable.clone(), MountMode::ReadWrite),
        (dirs.readable.join("../closed"), MountMode::ReadOnly),
        (dirs.readable.join("missing"), MountMode::ReadOnly),
        (link, MountMode::ReadOnly),
        ("/".into(), MountMode::ReadOnly),
        ("/etc".into(), MountMode::ReadOnly),
        ("/proc".into(), MountMode::ReadOnly),
    ];
    for (source, mode) in cases {
        let mut spec = context.spec();
        // Some are refused when the mount is constructed.
        let Ok(mount) = Mount::new(&source, "/data", mode) else { continue };
        spec.mounts = vec![mount];
        let result = context.engine().create(CreateRequest::run(&spec)).await;
        let refused = matches!(result, Err(EngineError::Mount(_) | EngineError::MountSource { .. }));
        ensure!(refused, "{} as {mode}: got {result:?}", source.display());
    }
    Ok(())
}
