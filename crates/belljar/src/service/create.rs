//! `belljar sandbox create`.

use belljar_api::limits_message;
use belljar_client::v1;
use belljar_engine::GuestClient;
use belljar_engine::v1::WriteOpen;

use super::args::CreateArgs;
use super::link::Link;
use super::long::{ByteCounter, Counted};
use super::sandbox::print_changed;
use super::values;
use crate::files::Inputs;
use crate::message::Quit;

/// Creates a sandbox, and copies its files into it. If that fails, the sandbox is removed.
pub(crate) async fn create(link: &Link, args: &CreateArgs) -> Result<(), Quit> {
    // All input is checked before a request is sent.
    let files = Inputs::find(&args.files, None)?;
    let mut request = request(args)?;
    super::image::start_from(link, args.image.as_ref(), &mut request).await?;
    let made = link.create(request).await?;
    let info = made.sandbox.into_option().unwrap_or_default();
    let moved = ByteCounter::default();
    let upload_files = async {
        if let Some(memory) = info.limits.as_option().and_then(|limits| limits.memory_bytes) {
            files.check_size(memory)?;
        }
        upload(&link.client.guest(&info.id)?, files, &moved).await
    };
    if let Err(error) = link.with_byte_progress("putting files in", &moved, upload_files).await {
        if !made.existing {
            let request = v1::KillSandboxRequest { sandbox: info.id, ..Default::default() };
            link.client.kill(request).await?;
        }
        return Err(error);
    }
    print_changed(link, &info)
}

fn request(args: &CreateArgs) -> Result<v1::CreateSandboxRequest, Quit> {
    Ok(v1::CreateSandboxRequest {
        template: args.template.clone().unwrap_or_default(),
        engine: args.engine.clone().unwrap_or_default(),
        machine: args.machine,
        user: args.user.clone().unwrap_or_default(),
        name: args.name.clone().unwrap_or_default(),
        return_existing: args.or_get,
        timeout: values::span("timeout", args.timeout.as_deref())?,
        idle_timeout: values::span("idle-timeout", args.idle_timeout.as_deref())?,
        on_timeout: values::on_timeout(args.on_timeout.as_deref())?.into(),
        auto_resume: args.no_auto_resume.then_some(false),
        labels: values::labels(&args.label)?.into_iter().collect(),
        env: values::variables("env", &args.env)?.into_iter().collect(),
        limits: limits_message(&args.limits.file()?),
        network_policy: args.net.message()?.map_or_else(Default::default, Into::into),
        mounts: args.mounts.clone(),
        port_host: args.port_host.clone().unwrap_or_default(),
        volumes: values::volumes(&args.volumes)?,
        ..Default::default()
    })
}

/// Copies files into a sandbox or a volume.
pub(super) async fn upload(guest: &GuestClient, mut files: Inputs, moved: &ByteCounter) -> Result<(), Quit> {
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
