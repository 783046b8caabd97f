//! An interpreter that was forked from a warm one and has moved into this sandbox.
//!
//! The host has put it into the sandbox's groups and namespaces, and behind its filter. It says that it is there, and the guest
//! gives it what it gives to all that it starts: the Landlock domain, limits, umask, environment and directory. It has run no
//! user code until then, and is one of the sandbox's processes like any other from then on.

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

use super::frame::{Frames, Said};
use super::kernel::{Channel, Kernel, Language, receive};
use crate::connections::Spare;
use crate::guest::Guest;

/// How long it may take to move in and to be ready. What takes longer is let go, and another one is started.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Makes the interpreter that the host has sent that of a context.
///
/// # Errors
/// Why it cannot be: one is started then as any process is.
pub(super) async fn take(
    guest: &Arc<Guest>,
    spare: Spare,
    cwd: &Bytes,
    env: &[v1::EnvVar],
) -> Result<Kernel, String> {
    if let Some(name) = only_at_start(guest, env) {
        return Err(format!("{name} is set, which only an interpreter that is started obeys"));
    }
    let begin = Instant::now();
    let taken = tokio::time::timeout(READY_WITHIN, settle(guest, spare, cwd, env, begin)).await;
    let mut kernel = match taken {
        Ok(taken) => taken?,
        Err(_) => return Err(late()),
    };
    let left = READY_WITHIN.saturating_sub(begin.elapsed());
    let why = match tokio::time::timeout(left, kernel.until_ready()).await {
        Ok(Ok(version)) => {
            kernel.version = version;
            kernel.start.0 = v1::KernelStart::KERNEL_START_WARM;
            return Ok(kernel);
        }
        Ok(Err(why)) => why,
        Err(_) => late(),
    };
    kernel.end(guest).await;
    Err(why)
}

fn late() -> String {
    format!("the warm interpreter was not ready within {} seconds", READY_WITHIN.as_secs())
}

/// A variable that the interpreter, or its loader, reads once at its start.
fn only_at_start(guest: &Guest, env: &[v1::EnvVar]) -> Option<String> {
    let own = guest.config.env.iter().map(|(name, _)| name.as_bytes());
    let all = own.chain(env.iter().map(|variable| &*variable.name));
    let mut found = all.filter(|name| {
        [b"PYTHON".as_slice(), b"LD_", b"MALLOC_", b"GLIBC_"].iter().any(|start| name.starts_with(start))
    });
    found.next().map(|name| String::from_utf8_lossy(name).into_owned())
}

/// Hears where it is, checks that, and gives it its place.
async fn settle(
    guest: &Arc<Guest>,
    spare: Spare,
    cwd: &Bytes,
    env: &[v1::EnvVar],
    begin: Instant,
) -> Result<Kernel, String> {
    let fail = |what: &str, why: &dyn std::fmt::Display| format!("cannot {what}: {why}");
    let socket = crate::connections::stream(spare.socket)
        .map_err(|error| fail("open the warm interpreter's socket", &error))?;
    let [out, err] = spare.streams.map(crate::start::non_blocking);
    let full = |_| "the runtime takes no more descriptors".to_owned();
    let streams = [out.map_err(full)?, err.map_err(full)?];
    let mut frames = Frames::default();
    let pid = born(&socket, &mut frames).await?;
    let pidfd = own_child(pid)?;
    let command = Kernel::command(guest, &Language::Python, cwd, env)
        .map_err(|error| error.message.unwrap_or_default())?;
    let (env, directory) = command.place();
    let place = serde_json::json!({
        "env": env.iter().map(|pair| BASE64.encode(pair)).collect::<Vec<_>>(),
        "cwd": BASE64.encode(directory),
        "rlimits": guest.terms.rlimits,
        "umask": guest.terms.umask,
    });
    let place = place.to_string().into_bytes();
    let length = u32::try_from(place.len()).map_err(|_| "the environment is too large".to_owned())?;
    let mut channel = Channel { socket, frames, streams };
    let told = tell(&mut channel.socket, &length.to_be_bytes(), &place, guest.terms.landlock.as_ref()).await;
    let kernel = Kernel::of(guest, Spawned { pid, pidfd }, command, begin, channel);
    if let Err(errno) = told {
        kernel.end(guest).await;
        return Err(fail("tell the warm interpreter its place", &errno));
    }
    Ok(kernel)
}

async fn born(socket: &UnixStream, frames: &mut Frames) -> Result<i32, String> {
    loop {
        match frames.next()? {
            Some(Said::Born { pid }) => return Ok(pid),
            Some(Said::Failed { message }) => return Err(message),
            Some(_) => return Err("the warm interpreter speaks before it was asked".to_owned()),
            None => {}
        }
        if !receive(socket, frames).await {
            return match frames.next()? {
                Some(Said::Failed { message }) => Err(message),
                _ => Err("the warm interpreter has ended on its way".to_owned()),
            };
        }
    }
}

/// The process of that number, if it is a child of the guest.
fn own_child(pid: i32) -> Result<OwnedFd, String> {
    let wrong = || "the warm interpreter is not where it should be".to_owned();
    let pid = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1).ok_or_else(wrong)?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|_| wrong())?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options) {
        Ok(None) => Ok(pidfd),
        Ok(Some(_)) => Err("the warm interpreter has ended on its way".to_owned()),
        Err(_) => Err(wrong()),
    }
}

/// Sends a frame, and the rules of user code with its first bytes.
async fn tell(
    socket: &mut UnixStream,
    length: &[u8],
    frame: &[u8],
    landlock: Option<&OwnedFd>,
) -> Result<(), Errno> {
    let rules: Vec<_> = landlock.iter().map(|rules| rules.as_fd()).collect();
    // An empty socket takes four bytes at once.
    belljar_linux::send_with(socket.as_fd(), length, &rules)?;
    let written = socket.write_all(frame).await;
    written.map_err(|error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}
