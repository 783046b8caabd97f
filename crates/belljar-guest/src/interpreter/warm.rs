//! Pre-warmed interpreters: forks of a warm parent that have entered this sandbox.
//!
//! The host has put it into the sandbox's cgroups and namespaces, and behind its seccomp filter. It announces itself,
//! and the guest applies what it applies to all processes that it starts: the Landlock domain, limits, umask,
//! environment and directory. It has run no user code until then, and is afterwards a process of the sandbox like any
//! other.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use belljar_linux::Spawned;
use belljar_proto::v1;
use bytes::Bytes;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use super::frame::{Frames, KernelMessage};
use super::kernel::{Channel, Kernel, Language, receive};
use crate::connections::Spare;
use crate::guest::Guest;

/// Timeout for entering the sandbox and becoming ready. After it, the interpreter is dropped and another one started.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// Turns the interpreter that the host has sent into that of a context.
///
/// # Errors
/// Returns the reason on failure; the caller then starts a plain interpreter.
pub(super) async fn adopt(
    guest: &Arc<Guest>,
    spare: Spare,
    cwd: &Bytes,
    env: &[v1::EnvVar],
) -> Result<Kernel, String> {
    if let Some(name) = find_startup_variable(guest, env) {
        return Err(format!("{name} is set, which takes effect only when an interpreter starts"));
    }
    let begin = Instant::now();
    let kernel = tokio::time::timeout(READY_TIMEOUT, set_up(guest, spare, cwd, env, begin)).await;
    let mut kernel = match kernel {
        Ok(kernel) => kernel?,
        Err(_) => return Err(timeout_reason()),
    };
    let left = READY_TIMEOUT.saturating_sub(begin.elapsed());
    let why = match tokio::time::timeout(left, kernel.wait_ready()).await {
        Ok(Ok(version)) => {
            kernel.version = version;
            kernel.start.0 = v1::KernelStart::KERNEL_START_WARM;
            return Ok(kernel);
        }
        Ok(Err(why)) => why,
        Err(_) => timeout_reason(),
    };
    kernel.end(guest).await;
    Err(why)
}

fn timeout_reason() -> String {
    format!("the warm interpreter was not ready within {} seconds", READY_TIMEOUT.as_secs())
}

/// Returns the name of a variable that the interpreter, or its loader, reads only at its start.
fn find_startup_variable(guest: &Guest, env: &[v1::EnvVar]) -> Option<String> {
    let own = guest.config.env.iter().map(|(name, _)| name.as_bytes());
    let all = own.chain(env.iter().map(|variable| &*variable.name));
    let mut found = all.filter(|name| {
        [b"PYTHON".as_slice(), b"LD_", b"MALLOC_", b"GLIBC_"].iter().any(|start| name.starts_with(start))
    });
    found.next().map(|name| String::from_utf8_lossy(name).into_owned())
}

/// Receives and checks its pid, and sends its settings.
async fn set_up(
    guest: &Arc<Guest>,
    spare: Spare,
    cwd: &Bytes,
    env: &[v1::EnvVar],
    begin: Instant,
) -> Result<Kernel, String> {
    let fail = |what: &str, why: &dyn std::fmt::Display| format!("cannot {what}: {why}");
    let socket = crate::connections::into_stream(spare.socket)
        .map_err(|error| fail("open the warm interpreter's socket", &error))?;
    let [out, err] = spare.streams.map(crate::start::non_blocking);
    let full = |_| "the runtime accepts no more descriptors".to_owned();
    let streams = [out.map_err(full)?, err.map_err(full)?];
    let mut frames = Frames::default();
    let pid = receive_pid(&socket, &mut frames).await?;
    let pidfd = open_child(pid)?;
    let command = Kernel::command(guest, &Language::Python, cwd, env)
        .map_err(|error| error.message.unwrap_or_default())?;
    let (env, directory) = command.env_and_cwd();
    let settings = serde_json::json!({
        "env": env.iter().map(|pair| BASE64.encode(pair)).collect::<Vec<_>>(),
        "cwd": BASE64.encode(directory),
        "rlimits": guest.restrictions.rlimits,
        "umask": guest.restrictions.umask,
    });
    let settings = settings.to_string().into_bytes();
    let length = u32::try_from(settings.len()).map_err(|_| "the environment is too large".to_owned())?;
    let mut channel = Channel { socket, frames, streams };
    let sent = send_settings(
        &mut channel.socket,
        &length.to_be_bytes(),
        &settings,
        guest.restrictions.landlock.as_ref(),
    )
    .await;
    let kernel = Kernel::from_process(guest, Spawned { pid, pidfd }, command, begin, channel);
    if let Err(errno) = sent {
        kernel.end(guest).await;
        return Err(fail("send the settings to the warm interpreter", &errno));
    }
    Ok(kernel)
}

async fn receive_pid(socket: &UnixStream, frames: &mut Frames) -> Result<i32, String> {
    loop {
        match frames.next()? {
            Some(KernelMessage::Born { pid }) => return Ok(pid),
            Some(KernelMessage::Failed { message }) => return Err(message),
            Some(_) => return Err("the warm interpreter sent an unexpected message".to_owned()),
            None => {}
        }
        if !receive(socket, frames).await {
            return match frames.next()? {
                Some(KernelMessage::Failed { message }) => Err(message),
                _ => Err("the warm interpreter exited before it was ready".to_owned()),
            };
        }
    }
}

/// Opens the process with this pid, if it is a child of the guest.
fn open_child(pid: i32) -> Result<OwnedFd, String> {
    let invalid = || "the warm interpreter is not a child of the guest".to_owned();
    let pid = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1).ok_or_else(invalid)?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|_| invalid())?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options) {
        Ok(None) => Ok(pidfd),
        Ok(Some(_)) => Err("the warm interpreter exited before it was ready".to_owned()),
        Err(_) => Err(invalid()),
    }
}

/// Sends a frame, with the ruleset of user code attached to its first bytes.
async fn send_settings(
    socket: &mut UnixStream,
    length: &[u8],
    frame: &[u8],
    landlock: Option<&OwnedFd>,
) -> Result<(), Errno> {
    let rules: Vec<_> = landlock.iter().map(|rules| rules.as_fd()).collect();
    // An empty socket accepts four bytes at once.
    belljar_linux::send_with(socket.as_fd(), length, &rules)?;
    let written = socket.write_all(frame).await;
    written.map_err(|error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}
