//! Socket activation: no connection is refused while one server replaces another.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::FdFlags;
use rustix::process::Signal;

use crate::fixture::{BELLJAR, Home, Refused, Server};
use crate::http::{send, send_unix};

/// Moves two descriptors to where sd_listen_fds(3) expects them, and executes the server.
const PASS: &str = r#"exec 3<&"$1"- 4<&"$2"-; pid=${3:-$$}; shift 3; LISTEN_PID=$pid LISTEN_FDS=2 exec "$@""#;

/// Starts a server with two descriptors that are meant for the process `pid`, or for the server if empty.
fn start(home: &Home, passed: [&dyn AsFd; 2], pid: &str, args: &[&str]) -> Result<Server, Refused> {
    // Above the numbers that the shell uses, and inheritable: nothing else is started here at the same time.
    let open: Vec<OwnedFd> = passed
        .iter()
        .map(|socket| {
            let copy = rustix::io::fcntl_dupfd_cloexec(socket.as_fd(), 20).unwrap();
            rustix::io::fcntl_setfd(&copy, FdFlags::empty()).unwrap();
            copy
        })
        .collect();
    let mut command = home.isolated_command(Path::new("/bin/bash"));
    command.args(["-c", PASS, "pass"]);
    command.args(open.iter().map(|socket| socket.as_raw_fd().to_string()));
    command.args([pid, BELLJAR, "serve", "--on-exit", "end", "--pool", "0"]).args(args);
    home.spawn(&mut command)
}

#[test]
fn no_connection_is_lost_across_a_restart() {
    let home = Home::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    let path = home.dir.path().join("passed.sock");
    let unix = UnixListener::bind(&path).unwrap();
    let run = |key: &str| {
        // The configured address is ignored: it could not be bound.
        let mut server = start(&home, [&tcp, &unix], "", &["--listen", "192.0.2.1:1"])
            .unwrap_or_else(|why| panic!("{why:?}"));
        assert_eq!(server.address, address);
        if !key.is_empty() {
            key.clone_into(&mut server.key);
        }
        server
    };
    let mut server = run("");
    let key = server.key.clone();
    assert!(!home.socket().exists(), "its own socket is not created if one was passed");
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let ask = |by_tcp: bool| {
            let (address, path, key, over, answers) = (&address, &path, &key, &over, &answers);
            move || {
                while !over.load(Ordering::Relaxed) {
                    let answer = if by_tcp {
                        send(address, "GET", "/v1/sandboxes", &[("X-API-Key", key)], "")
                    } else {
                        send_unix(path, "GET", "/v1/sandboxes", "")
                    };
                    assert_eq!(answer.status, 200, "{answer:?}");
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let asking = [true, true, true, false].map(|by_tcp| scope.spawn(ask(by_tcp)));
        for _ in 0..4 {
            let before = answers.load(Ordering::Relaxed);
            assert_eq!(server.stop(Signal::TERM), Some(0));
            server = run(&key);
            crate::fixture::eventually(|| match answers.load(Ordering::Relaxed) - before {
                20.. => Ok(()),
                few => Err(format!("{few} answers since the last server")),
            });
        }
        over.store(true, Ordering::Relaxed);
        for asking in asking {
            asking.join().unwrap();
        }
        assert_eq!(server.stop(Signal::TERM), Some(0));
    });
    // The server does not remove a passed socket.
    assert!(path.symlink_metadata().unwrap().file_type().is_socket());
}

#[test]
fn only_listening_sockets_are_accepted() {
    let home = Home::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let wrong: [&dyn AsFd; 3] = [&connected, &datagrams, &file];
    for wrong in wrong {
        let refused = start(&home, [&tcp, wrong], "", &[]).err().unwrap();
        assert_eq!(refused.status, Some(125), "{refused:?}");
        assert!(refused.stderr.contains("descriptor 4 was passed on"), "{refused:?}");
        assert!(!home.path().join("belljar.db").exists());
    }
}

/// Sockets that are meant for another process, such as a shell around the server, are left alone.
#[test]
fn sockets_for_another_process_are_not_taken() {
    let home = Home::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = std::process::id().to_string();
    let server = start(&home, [&tcp, &tcp], &other, &["--listen", "127.0.0.1:0"]).unwrap();
    assert_ne!(server.address, tcp.local_addr().unwrap().to_string());
    assert_eq!(server.call("GET", "/v1/me", "").status, 200);
    assert!(home.socket().exists());
}
