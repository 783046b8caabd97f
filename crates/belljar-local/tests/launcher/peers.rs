//! Tests of other peers of the launcher, and of what else a server may find in its place.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use belljar_engine::{Engine as _, EngineError};
use belljar_local::CreateRequest;
use libtest_mimic::Failed;

use crate::account;
use crate::fixture::{Fixture, TestResult, id, skipped, spec};

/// Encodes a frame.
fn frame(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [length.to_be_bytes().as_slice(), text.as_bytes()].concat()
}

const HELLO: &str = r#"{"number":1,"request":{"ask":"hello","generation":1,"version":"0","config":{"kind":"local",
    "mount_policy":{"read":[],"write":[],"forbidden":[]},"cgroup_base":null,"when_alone":"end","guest":null}}}"#;

fn connect(fixture: &Fixture) -> Result<UnixStream, Failed> {
    let stream = UnixStream::connect(fixture.dir.join("run/launcher.sock"))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

/// Reads the next frame; empty at the end.
fn read(stream: &mut UnixStream) -> std::io::Result<String> {
    let mut length = [0u8; 4];
    match stream.read_exact(&mut length) {
        Ok(()) => {}
        // A peer that is disconnected with bytes unread gets a reset.
        Err(_) => return Ok(String::new()),
    }
    let mut content = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap_or(0)];
    stream.read_exact(&mut content)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

pub(crate) async fn invalid_frames_disconnect_their_sender(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let unknown = r#"{"number":2,"request":{"ask":"become_root"}}"#;
    let more = r#"{"number":2,"request":{"ask":"kill","id":"abcdefghij0123456789","also":1}}"#;
    let bad_id = r#"{"number":2,"request":{"ask":"kill","id":"../../etc"}}"#;
    let bad_spec =
        r#"{"number":2,"request":{"ask":"launch","id":"abcdefghij0123456789","spec":{},"tied":false}}"#;
    let no_hello = frame(r#"{"number":2,"request":{"ask":"list"}}"#);
    let cases: Vec<(&str, Vec<u8>, bool)> = vec![
        ("too long", [0xff; 64].to_vec(), false),
        ("too long after hello", ((2 << 20) + 1u32).to_be_bytes().to_vec(), true),
        ("empty", vec![0; 4], true),
        ("no JSON", frame("{"), true),
        ("no UTF-8", vec![0, 0, 0, 2, 0xff, 0xfe], true),
        ("deep", frame(&"[".repeat(100_000)), true),
        ("unknown", frame(unknown), true),
        ("one key more", frame(more), true),
        ("no id", frame(bad_id), true),
        ("no specification", frame(bad_spec), true),
        ("no hello", no_hello, false),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec(), false),
    ];
    for (name, bytes, after_hello) in cases {
        let mut stream = connect(fixture)?;
        if after_hello {
            stream.write_all(&frame(HELLO))?;
            assert!(read(&mut stream)?.contains("instance"), "{name}");
        }
        // It may be disconnected before everything is sent.
        let _ = stream.write_all(&bytes);
        assert_eq!(read(&mut stream)?, "", "{name}");
    }
    // Half a frame blocks only its sender.
    let mut half = connect(fixture)?;
    half.write_all(&frame(HELLO)[..20])?;
    sandbox.guest().check().await?;
    assert_eq!(engine.survivors().await?.len(), 1);
    // A well-behaved client, by hand.
    let mut stream = connect(fixture)?;
    stream.write_all(&[frame(HELLO), frame(r#"{"number":9,"request":{"ask":"list"}}"#)].concat())?;
    assert!(read(&mut stream)?.contains("instance"));
    let list = read(&mut stream)?;
    assert!(list.contains(sandbox.id.as_str()) && list.contains("\"number\":9"), "{list}");
    sandbox.stop().await?;
    Ok(())
}

pub(crate) async fn descriptors_disconnect_their_sender(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let count = || -> Result<usize, Failed> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", fixture.launcher().ok_or("no launcher")?))?.count())
    };
    let before = count()?;
    for _ in 0..20 {
        let mut stream = connect(fixture)?;
        let null = std::fs::File::open("/dev/null")?;
        let fds = [null.as_fd(), null.as_fd(), null.as_fd()];
        belljar_linux::send_with(stream.as_fd(), &frame(HELLO), &fds)?;
        assert_eq!(read(&mut stream)?, "");
    }
    crate::fixture::eventually("they are closed", async || Ok(count()? <= before)).await?;
    sandbox.guest().check().await?;
    sandbox.stop().await?;
    Ok(())
}

/// The directory keeps other users out; if it does not, the launcher does.
pub(crate) async fn other_users_are_refused(fixture: &Fixture) -> TestResult {
    let Some((uid, gid)) = account::find_account() else {
        return skipped(&format!("there is no account {}", account::ACCOUNT));
    };
    let engine = fixture.engine();
    let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let script = r#"
import socket, sys
peer = socket.socket(socket.AF_UNIX)
try:
    peer.connect(sys.argv[1])
except PermissionError:
    print('closed'); sys.exit()
try:
    peer.sendall(bytes.fromhex(sys.argv[2]))
    print('answered' if peer.recv(1) else 'dropped')
except (ConnectionResetError, BrokenPipeError):
    print('dropped')
"#;
    let hello: String = frame(HELLO).iter().map(|byte| format!("{byte:02x}")).collect();
    let socket = fixture.dir.join("run/launcher.sock");
    let ask = |uid: u32, gid: u32| -> Result<String, Failed> {
        let output = Command::new("/usr/bin/python3")
            .args(["-I", "-c", script])
            .arg(&socket)
            .arg(&hello)
            .current_dir("/")
            .gid(gid)
            .uid(uid)
            .output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    assert_eq!(ask(0, 0)?, "answered");
    assert_eq!(ask(uid, gid)?, "closed");
    // All permissions are opened.
    for (path, mode) in [(fixture.dir.as_path(), 0o755), (&fixture.dir.join("run"), 0o755), (&socket, 0o666)]
    {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    assert_eq!(ask(uid, gid)?, "dropped");
    // And no server uses such a directory.
    let error = fixture.engine().survivors().await.err().ok_or("it is used")?;
    assert!(matches!(error, EngineError::Unreachable { .. }), "{error}");
    std::fs::set_permissions(fixture.dir.join("run"), std::fs::Permissions::from_mode(0o700))?;
    sandbox.stop().await?;
    Ok(())
}

/// A launcher of generation 0 never existed; every request is newer than it.
pub(crate) async fn older_launcher_is_refused_by_name(fixture: &Fixture) -> TestResult {
    let run_dir = fixture.dir.join("run");
    std::fs::create_dir(&run_dir)?;
    std::fs::set_permissions(&run_dir, std::fs::Permissions::from_mode(0o700))?;
    let listener = UnixListener::bind(run_dir.join("launcher.sock"))?;
    let old = std::thread::spawn(move || -> std::io::Result<String> {
        let (mut stream, _) = listener.accept()?;
        let received = read(&mut stream)?;
        let answer =
            r#"{"answer":{"number":0,"answer":{"hello":{"generation":0,"version":"0.0.1","instance":"x"}}}}"#;
        stream.write_all(&frame(answer))?;
        // It gets no request that it cannot handle.
        Ok(received + &read(&mut stream)?)
    });
    let engine = fixture.engine();
    let error = engine
        .create(CreateRequest::long_lived(&id()?, &spec(), None))
        .await
        .err()
        .ok_or("it was launched")?;
    let text = error.to_string();
    assert!(matches!(error, EngineError::Unsupported { .. }), "{text}");
    assert!(text.contains("launch") && text.contains("0.0.1"), "{text}");
    drop(engine);
    let received = tokio::task::spawn_blocking(|| old.join()).await?.map_err(|_| "it panicked")??;
    assert!(received.contains("hello") && !received.contains("\"launch\""), "{received}");
    Ok(())
}
