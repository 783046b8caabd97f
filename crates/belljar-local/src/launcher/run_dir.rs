//! Run directory of the launcher: its socket, and the lock that only one launcher holds.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

const SOCKET: &str = "launcher.sock";
const LOCK: &str = "launcher.lock";

/// Maximum number of connections waiting to be accepted.
const BACKLOG: i32 = 64;

/// Open run directory. The socket is always reached through this descriptor: its path may be longer than a socket address
/// allows, and may lead elsewhere later.
#[derive(Debug)]
pub(crate) struct RunDir {
    dir: OwnedFd,
}

impl RunDir {
    /// Opens the run directory, and creates it if missing.
    ///
    /// It must belong to this user and be closed to all others: everybody who can reach the socket can launch.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&dir)?;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
        if !is_ours || stat.st_mode & 0o077 != 0 {
            let text = "the directory must belong to this user and have the mode 0700";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self { dir })
    }

    /// Takes the lock for as long as the descriptor is open. `None` if another launcher has it.
    pub(crate) fn lock(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&self.dir, LOCK, flags, Mode::RUSR | Mode::WUSR)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(lock)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Listens on the socket. Only the holder of the lock may, as this replaces the socket of a launcher that is gone.
    pub(crate) fn listen(&self) -> io::Result<std::os::unix::net::UnixListener> {
        self.remove_socket()?;
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(self.address())?)?;
        rustix::fs::chmodat(&self.dir, SOCKET, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket.into())
    }

    /// Removes the socket.
    pub(crate) fn remove_socket(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, SOCKET, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Connects to the launcher, if there is one, and checks that it runs as the same user.
    pub(crate) async fn connect(&self) -> io::Result<tokio::net::UnixStream> {
        let stream = tokio::net::UnixStream::connect(self.address()).await?;
        check_same_user(&stream)?;
        Ok(stream)
    }

    fn address(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", self.dir.as_raw_fd()))
    }
}

/// Fails if the peer is another user.
pub(crate) fn check_same_user(stream: &tokio::net::UnixStream) -> io::Result<()> {
    let (peer, own) = (stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if peer == own {
        return Ok(());
    }
    let text = format!("the peer runs as user {peer}, and this process as {own}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[tokio::test]
    async fn path_may_be_longer_than_a_socket_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x".repeat(200)).join("y");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let run_dir = RunDir::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(run_dir.connect().await.is_err(), "nobody listens yet");
        let lock = run_dir.lock().unwrap().unwrap();
        let again = RunDir::open(&path).unwrap();
        assert!(again.lock().unwrap().is_none());
        let listener = run_dir.listen().unwrap();
        let mode = std::fs::metadata(path.join(SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        again.connect().await.unwrap();
        drop((listener, lock));
        assert!(again.connect().await.is_err(), "a socket that nobody listens on");
        let _lock = again.lock().unwrap().unwrap();
        let _listener = again.listen().unwrap();
        run_dir.connect().await.unwrap();
        again.remove_socket().unwrap();
        again.remove_socket().unwrap();
    }

    #[test]
    fn directory_accessible_to_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(RunDir::open(&open).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        assert!(RunDir::open(&link).is_err(), "a link");
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(RunDir::open(&dir.path().join("file")).is_err(), "a file");
        assert!(RunDir::open(&dir.path().join("missing/dir")).is_err());
    }
}
