//! How a server in the background is asked to make room for one that was started by hand.
//!
//! Whoever can connect to the socket `handover.sock` in the home is its owner, or root; to connect is to ask.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use super::listen::bind;

/// The socket's name in the home.
const SOCKET_FILE: &str = "handover.sock";

/// Where a server in the background hears that it is to end. The socket is taken away when this is dropped.
#[derive(Debug)]
pub(crate) struct Handover {
    listener: UnixListener,
    path: PathBuf,
}

impl Handover {
    /// Begins to listen.
    pub(crate) fn listen(home: &Path) -> io::Result<Self> {
        let path = home.join(SOCKET_FILE);
        Ok(Self { listener: bind(&path)?, path })
    }

    /// Waits until somebody asks.
    pub(crate) async fn asked(&self) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) if belljar_api::is_operator(&stream) => return,
                Ok(_) => {}
                // No descriptor is free, or the like: it may pass.
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

/// Asks the server in the background of this home to end.
pub(crate) fn ask(home: &Path) -> io::Result<()> {
    connect(&home.join(SOCKET_FILE)).map(drop)
}

/// Connects to a socket whose path may be longer than a socket's name.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = std::fs::File::open(dir)?;
    UnixStream::connect(PathBuf::from(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd())).join(name))
}
