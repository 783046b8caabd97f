//! Notifies the service manager of the server's state: the protocol of sd_notify(3).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// The service manager, if it asked to be notified.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl Manager {
    /// Returns the manager that `NOTIFY_SOCKET` names.
    pub(crate) fn from_environment() -> Self {
        let named = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        Self { socket: named.and_then(|name| Self::connect(&name).ok()) }
    }

    fn connect(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        Ok((UnixDatagram::unbound()?, address))
    }

    /// Reports that requests are answered.
    pub(crate) fn ready(&self) {
        self.send("READY=1\n");
    }

    /// Reports that the configuration is being reloaded. [`Manager::ready`] has to follow.
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000);
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\n"));
    }

    /// Reports that the server is stopping.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\n");
    }

    fn send(&self, state: &str) {
        if let Some((socket, address)) = &self.socket {
            // A manager that cannot be notified detects it in other ways.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_is_notified_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("@belljar-notify-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        for (socket, name) in [(by_path, path.as_os_str()), (by_name, OsStr::new(&name))] {
            let manager = Manager { socket: Some(Manager::connect(name).unwrap()) };
            let mut buffer = [0; 256];
            manager.ready();
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1\n");
            manager.reloading();
            let length = socket.recv(&mut buffer).unwrap();
            let text = std::str::from_utf8(&buffer[..length]).unwrap();
            let time = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(time.trim().parse::<u64>().unwrap() > 0);
        }
        Manager::default().stopping();
    }
}
