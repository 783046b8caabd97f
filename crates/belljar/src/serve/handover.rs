//! Handover of the home from a server in the background to one that was started by hand.
//!
//! Only the owner of the home and root can connect to the socket `handover.sock` in it; a connection is the request to end.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use super::listen::bind;

/// Name of the socket in the home.
const SOCKET_FILE: &str = "handover.sock";

/// Listener for requests to end. The socket is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Handover {
    listener: UnixListener,
    path: PathBuf,
}

impl Handover {
    /// Starts to listen.
    pub(crate) fn listen(home: &Path) -> io::Result<Self> {
        let path = home.join(SOCKET_FILE);
        Ok(Self { listener: bind(&path)?, path })
    }

    /// Waits for a request to end.
    pub(crate) async fn wait_for_request(&self) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) if belljar_api::is_operator(&stream) => return,
                Ok(_) => {}
                // Out of descriptors, or a similar error that may pass.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
            }
        }
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Requests the background server of this home to end.
pub(crate) fn request_end(home: &Path) -> io::Result<()> {
    connect(&home.join(SOCKET_FILE)).map(drop)
}

/// Connects to a socket whose path may exceed the limit for socket addresses.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = std::fs::File::open(dir)?;
    UnixStream::connect(PathBuf::from(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd())).join(name))
}
