//! Canaries: files and sockets on the host that nothing in a sandbox may touch, and that detect it.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use crate::error::HarnessError;
use crate::judge::Fault;
use crate::scratch::{Scratch, token};

/// Canaries for one run. Connections are not accepted during the run: they wait in the queue, and are counted afterwards.
#[derive(Debug)]
pub(crate) struct Canaries {
    dir: Scratch,
    /// Directory for files that the run makes on the host.
    tmp: Scratch,
    /// Token in a file that only its owner may read.
    secret: String,
    /// Token in a file that every user of the host may read.
    public: String,
    abstract_name: String,
    tcp: TcpListener,
    tcp_port: u16,
    abstract_socket: UnixListener,
    path_socket: UnixListener,
}

impl Canaries {
    pub(crate) fn plant() -> Result<Self, HarnessError> {
        let dir = Scratch::new(0o755)?;
        let (secret, public, name) = (token()?, token()?, token()?);
        write(&dir.path().join("secret"), &secret, 0o600)?;
        write(&dir.path().join("public"), &public, 0o644)?;
        let listening = |what: &str| HarnessError::step(format!("listen on {what}"));
        let tcp = TcpListener::bind("127.0.0.1:0").map_err(listening("a port of 127.0.0.1"))?;
        let tcp_port = tcp.local_addr().map_err(listening("a port of 127.0.0.1"))?.port();
        let abstract_name = format!("canary-{name}");
        let address =
            SocketAddr::from_abstract_name(&abstract_name).map_err(listening("an abstract socket"))?;
        let abstract_socket = UnixListener::bind_addr(&address).map_err(listening("an abstract socket"))?;
        let path = dir.path().join("socket");
        let path_socket = UnixListener::bind(&path).map_err(listening(&path.display().to_string()))?;
        // Any user may connect to it, so that only the sandbox's walls prevent a connection.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777))
            .map_err(listening("a socket open to all users"))?;
        for done in [
            tcp.set_nonblocking(true),
            abstract_socket.set_nonblocking(true),
            path_socket.set_nonblocking(true),
        ] {
            done.map_err(listening("a non-blocking socket"))?;
        }
        let tmp = Scratch::new(0o700)?;
        Ok(Self { dir, tmp, secret, public, abstract_name, tcp, tcp_port, abstract_socket, path_socket })
    }

    /// Returns the directory for belljar's own temporary files during the run.
    pub(crate) fn scratch(&self) -> &Path {
        self.tmp.path()
    }

    /// Returns the environment variables by which programs and scripts find the canaries to attack.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let path = |name: &str| self.dir.path().join(name).into_os_string();
        vec![
            ("CANARY_FILE", path("secret")),
            ("CANARY_PUBLIC", path("public")),
            ("CANARY_SOCKET", path("socket")),
            ("CANARY_ABSTRACT", self.abstract_name.clone().into()),
            ("CANARY_PORT", self.tcp_port.to_string().into()),
            ("CANARY_PID", std::process::id().to_string().into()),
        ]
    }

    /// Returns the canaries that were touched. `output` is all output of the run.
    pub(crate) fn faults(&self, output: &str) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut fault = |what: String| faults.push(Fault::Invariant { invariant: "host canaries", what });
        for (name, token, mode) in [("secret", &self.secret, 0o600), ("public", &self.public, 0o644)] {
            let path = self.dir.path().join(name);
            if output.contains(token.as_str()) {
                fault(format!("the token of the {name} file was leaked"));
            }
            let is_unchanged = std::fs::read_to_string(&path).is_ok_and(|content| content == *token)
                && std::fs::metadata(&path).is_ok_and(|metadata| metadata.mode() & 0o7777 == mode);
            if !is_unchanged {
                fault(format!("the {name} file was changed"));
            }
        }
        let mut names: Vec<String> = std::fs::read_dir(self.dir.path())
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        if names != ["public", "secret", "socket"] {
            fault(format!("beside the canaries there is now {names:?}"));
        }
        let tcp = std::iter::from_fn(|| self.tcp.accept().ok()).count();
        let by_name = std::iter::from_fn(|| self.abstract_socket.accept().ok()).count();
        let by_path = std::iter::from_fn(|| self.path_socket.accept().ok()).count();
        for (what, count) in
            [("port on 127.0.0.1", tcp), ("abstract socket", by_name), ("socket in a directory", by_path)]
        {
            if count > 0 {
                fault(format!("the host's {what} was connected to, {count} times"));
            }
        }
        faults
    }

    /// Returns the leftovers in the directory for temporary files.
    pub(crate) fn scratch_files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.tmp.path()).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    }
}

fn write(path: &Path, content: &str, mode: u32) -> Result<(), HarnessError> {
    let written =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).and_then(|mut file| {
            // Set explicitly, because the umask may have removed bits.
            file.set_permissions(PermissionsExt::from_mode(mode))?;
            file.write_all(content.as_bytes())
        });
    written.map_err(HarnessError::step(format!("write {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    #[test]
    fn touched_canaries_are_reported() {
        let canaries = Canaries::plant().unwrap();
        assert_eq!(canaries.faults("nothing"), []);
        let count = |said: &str| canaries.faults(said).len();
        let path = canaries.dir.path().join("secret");
        assert_eq!(count(&std::fs::read_to_string(&path).unwrap()), 1);
        TcpStream::connect(("127.0.0.1", canaries.tcp_port)).unwrap();
        assert_eq!(count(""), 1);
        UnixStream::connect(canaries.dir.path().join("socket")).unwrap();
        let address = SocketAddr::from_abstract_name(&canaries.abstract_name).unwrap();
        UnixStream::connect_addr(&address).unwrap();
        assert_eq!(count(""), 2);
        std::fs::write(&path, "other").unwrap();
        std::fs::write(canaries.dir.path().join("planted"), "x").unwrap();
        assert_eq!(count(""), 2);
    }
}
