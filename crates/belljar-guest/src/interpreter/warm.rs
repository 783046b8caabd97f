//! Pre-warmed interpreters: forks of a warm parent that have entered this sandbox.
//!
//! The host has put it into the sandbox's cgroups and namespaces, and behind its seccomp filter. It announces itself,
//! and the guest at once applies what it applies to all processes that it starts: the Landlock domain, limits, umask,
//! and the sandbox's own environment and directory. Then it waits for its context, which may have others. It has run no
//! user code until then, and is afterwards a process of the sandbox like any other.

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
use tokio::task::JoinHandle;

use super::frame::{self, Frames, KernelMessage};
use super::kernel::{Channel, Kernel, Language, receive};
use crate::guest::Guest;
use crate::start::Command;

/// Timeout for entering the sandbox and becoming ready. After it, the interpreter is dropped and another one started.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that a context waits for an interpreter that is on its way: it is there within milliseconds, unless its parent waits for something.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Reason why a process is not used.
const NOT_A_CHILD: &str = "the warm interpreter is not a child of the guest";

/// An interpreter that the host has sent, or the reason why it is unusable.
pub(crate) type Spare = JoinHandle<Result<Prepared, String>>;

/// An interpreter in the sandbox that waits for its context.
pub(crate) struct Prepared {
    pid: i32,
    pidfd: OwnedFd,
    channel: Channel,
    /// What it would be started with, in place of a context's.
    command: Command,
}

/// Applies the sandbox's settings to an interpreter that the host has sent, in a task of its own. It ends when the result is
/// dropped.
pub(crate) fn prepare_spare(guest: &Arc<Guest>, socket: OwnedFd, streams: [OwnedFd; 2]) -> Spare {
    let guest = Arc::clone(guest);
    tokio::spawn(async move {
        let prepared = tokio::time::timeout(READY_TIMEOUT, set_up(&guest, socket, streams)).await;
        prepared.unwrap_or_else(|_| Err(timeout_reason()))
    })
}

/// Turns the interpreter that the host has sent into that of a context.
///
/// # Errors
/// Returns the reason on failure; the caller then starts a plain interpreter.
pub(super) async fn adopt(
    guest: &Arc<Guest>,
    mut spare: Spare,
    cwd: &Bytes,
    env: &[v1::EnvVar],
) -> Result<Kernel, String> {
    if let Some(name) = find_startup_variable(guest, env) {
        return Err(format!("{name} is set, which takes effect only when an interpreter starts"));
    }
    let begin = Instant::now();
    let command = command(guest, cwd, env)?;
    let arrival = tokio::time::timeout(ARRIVAL_TIMEOUT, &mut spare).await.map_err(|_| {
        // Its sockets are closed, so it ends when it arrives.
        spare.abort();
        format!("the warm interpreter did not arrive within {} second", ARRIVAL_TIMEOUT.as_secs())
    })?;
    let prepared = arrival.map_err(|_| "the guest's task was cancelled".to_owned())??;
    let (frame, mut kernel) = prepared.into_kernel(guest, command, begin).await?;
    let ready = async {
        kernel.send(frame)?;
        kernel.wait_ready().await
    };
    let why = match tokio::time::timeout(READY_TIMEOUT, ready).await {
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

/// Returns what an interpreter would be started with.
fn command(guest: &Guest, cwd: &Bytes, env: &[v1::EnvVar]) -> Result<Command, String> {
    Kernel::command(guest, &Language::Python, cwd, env).map_err(|error| error.message.unwrap_or_default())
}

impl Prepared {
    /// Makes it a process of the sandbox; returns it with the frame that it waits for.
    async fn into_kernel(
        mut self,
        guest: &Arc<Guest>,
        command: Command,
        begin: Instant,
    ) -> Result<(Vec<u8>, Kernel), String> {
        if let Err(why) = check_child(&self.pidfd) {
            // It may have said why.
            let said = receive_pid(&self.channel.socket, &mut self.channel.frames);
            return Err(said.await.err().unwrap_or(why));
        }
        let ((own_env, own_cwd), (env, cwd)) = (self.command.env_and_cwd(), command.env_and_cwd());
        let frame = frame::adopt((env != own_env).then_some(env.as_slice()), (cwd != own_cwd).then_some(cwd));
        let spawned = Spawned { pid: self.pid, pidfd: Some(self.pidfd) };
        Ok((frame, Kernel::from_process(guest, spawned, command, begin, self.channel)))
    }
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
async fn set_up(guest: &Guest, socket: OwnedFd, streams: [OwnedFd; 2]) -> Result<Prepared, String> {
    let fail = |what: &str, why: &dyn std::fmt::Display| format!("cannot {what}: {why}");
    let socket = crate::connections::into_stream(socket)
        .map_err(|error| fail("open the warm interpreter's socket", &error))?;
    let [out, err] = streams.map(crate::start::non_blocking);
    let full = |_| "the runtime accepts no more descriptors".to_owned();
    let streams = [out.map_err(full)?, err.map_err(full)?];
    let mut channel = Channel { socket, frames: Frames::default(), streams };
    let pid = receive_pid(&channel.socket, &mut channel.frames).await?;
    let pidfd = open_child(pid)?;
    let command = command(guest, &Bytes::new(), &[])?;
    let (env, directory) = command.env_and_cwd();
    let settings = serde_json::json!({
        "env": env.iter().map(|pair| BASE64.encode(pair)).collect::<Vec<_>>(),
        "cwd": BASE64.encode(directory),
        "rlimits": guest.restrictions.rlimits,
        "umask": guest.restrictions.umask,
    });
    let settings = settings.to_string().into_bytes();
    let length = u32::try_from(settings.len()).map_err(|_| "the environment is too large".to_owned())?;
    let rules = guest.restrictions.landlock.as_ref();
    send_settings(&mut channel.socket, &length.to_be_bytes(), &settings, rules)
        .await
        .map_err(|errno| fail("send the settings to the warm interpreter", &errno))?;
    Ok(Prepared { pid, pidfd, channel, command })
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
    let invalid = || NOT_A_CHILD.to_owned();
    let pid = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1).ok_or_else(invalid)?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|_| invalid())?;
    check_child(&pidfd)?;
    Ok(pidfd)
}

/// Checks that a process is a child of the guest, and runs.
fn check_child(pidfd: &OwnedFd) -> Result<(), String> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err("the warm interpreter exited before it was ready".to_owned()),
        Err(_) => Err(NOT_A_CHILD.to_owned()),
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
