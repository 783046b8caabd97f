//! A guest without walls, and how it is reached.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use belljar_engine::Dial;
use belljar_guest_config::{BRIDGE_ARGUMENT, GUEST_ARGUMENT, GuestConfig, LISTEN_ARGUMENT};
use tokio::net::UnixStream;

/// How the guest's socket is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reach {
    Directly,
    ThroughStreams,
}

/// The socket of one guest.
#[derive(Debug, Clone)]
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    pub(crate) reach: Reach,
}

impl Dial for Socket {
    type Stream = UnixStream;

    async fn dial(&self) -> std::io::Result<UnixStream> {
        match self.reach {
            Reach::Directly => UnixStream::connect(&self.path).await,
            Reach::ThroughStreams => {
                // Fails here if nobody listens, and not only once something is sent.
                std::fs::metadata(&self.path)?;
                let (ours, theirs) = StdUnixStream::pair()?;
                let theirs = OwnedFd::from(theirs);
                let mut bridge = Command::new(std::env::current_exe()?);
                bridge.arg(BRIDGE_ARGUMENT).arg(&self.path).stderr(Stdio::null());
                let bridge = bridge.stdin(theirs.try_clone()?).stdout(theirs).spawn()?;
                std::thread::spawn(move || reap(bridge));
                ours.set_nonblocking(true)?;
                UnixStream::from_std(ours)
            }
        }
    }
}

fn reap(mut child: Child) {
    let _ = child.wait();
}

/// Starts a guest that listens at this path.
pub(crate) fn start_guest(path: &Path) -> std::io::Result<Child> {
    let mut guest = Command::new(std::env::current_exe()?);
    guest.args([GUEST_ARGUMENT, LISTEN_ARGUMENT]).arg(path).env_clear();
    guest.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Returns the configuration of a guest without walls, with these values.
pub(crate) fn config(values: &serde_json::Value) -> serde_json::Result<GuestConfig> {
    let mut all = serde_json::json!({
        "landlock": null,
        "umask": 0o022,
        "confine_guest": false,
        "when_alone": "end",
        "first_process": false,
        "own_proc": false,
        "open_files": null,
    });
    if let (Some(all), Some(values)) = (all.as_object_mut(), values.as_object()) {
        all.extend(values.clone());
    }
    serde_json::from_value(all)
}
