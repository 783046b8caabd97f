//! `belljar sandbox create`.

use belljar_client::v1;
use belljar_engine::GuestClient;
use belljar_engine::v1::WriteOpen;
use belljar_model::{ModelError, VolumeFile};

use super::args::CreateArgs;
use super::link::Link;
use super::long::{Counted, Moved};
use super::sandbox::shown;
use super::words;
use crate::files::Inputs;
use crate::message::Quit;

/// Makes a sandbox and puts its files in. If that fails, nothing is left of it.
pub(crate) async fn create(link: &Link, args: &CreateArgs) -> Result<(), Quit> {
    // Everything here is checked before the server is asked for anything.
    let files = Inputs::find(&args.files, None)?;
    let request = request(args)?;
    let made = link.client.create(request, None).await?;
    let info = made.sandbox.into_option().unwrap_or_default();
    let moved = Moved::default();
    let put = async {
        if let Some(memory) = info.limits.as_option().and_then(|limits| limits.memory_bytes) {
            files.check_size(memory)?;
        }
        put(&link.client.guest(&info.id)?, files, &moved).await
    };
    if let Err(error) = link.long_move("putting files in", &moved, put).await {
        if !made.existing {
            let request = v1::KillSandboxRequest { sandbox: info.id, ..Default::default() };
            link.client.kill(request).await?;
        }
        return Err(error);
    }
    shown(link, &info)
}

fn request(args: &CreateArgs) -> Result<v1::CreateSandboxRequest, Quit> {
    let limits = v1::SandboxLimits {
        memory_bytes: words::size("memory", args.memory.as_deref())?,
        cpus: words::cpus(args.cpus.as_deref())?,
        pids: words::number("pids", args.pids.as_deref())?,
        disk_bytes: words::size("disk", args.disk.as_deref())?,
        tmp_bytes: words::size("tmp", args.tmp.as_deref())?,
        timeout: words::span("exec-timeout", args.exec_timeout.as_deref())?,
        ..Default::default()
    };
    Ok(v1::CreateSandboxRequest {
        template: args.template.clone().unwrap_or_default(),
        name: args.name.clone().unwrap_or_default(),
        return_existing: args.or_get,
        timeout: words::span("timeout", args.timeout.as_deref())?,
        idle_timeout: words::span("idle-timeout", args.idle_timeout.as_deref())?,
        on_timeout: words::on_timeout(args.on_timeout.as_deref())?.into(),
        auto_resume: args.no_auto_resume.then_some(false),
        labels: words::labels(&args.label)?.into_iter().collect(),
        env: words::variables(&args.env)?.into_iter().collect(),
        limits: if limits == v1::SandboxLimits::default() { Default::default() } else { limits.into() },
        network_policy: args.net.message()?.map_or_else(Default::default, Into::into),
        mounts: args.mounts.clone(),
        volumes: args.volumes.iter().map(|text| volume(text)).collect::<Result<_, _>>()?,
        ..Default::default()
    })
}

fn volume(text: &str) -> Result<v1::VolumeMount, Quit> {
    // The server validates name, path and mode.
    let VolumeFile { name, path, mode } =
        text.parse().map_err(|error: ModelError| Quit::Usage(error.to_string()))?;
    Ok(v1::VolumeMount { name, path, mode: mode.unwrap_or_default(), ..Default::default() })
}

/// Puts files into a sandbox or a volume.
pub(super) async fn put(guest: &GuestClient, mut files: Inputs, moved: &Moved) -> Result<(), Quit> {
    use std::os::unix::ffi::OsStrExt as _;
    files.prepare(guest).await?;
    for file in files.into_files() {
        let open = WriteOpen {
            path: bytes::Bytes::copy_from_slice(file.target.as_os_str().as_bytes()),
            mode: file.mode,
            make_parents: true,
            ..Default::default()
        };
        guest.write_from(open, Counted::new(file.content, moved)).await?;
    }
    Ok(())
}
