//! First messages that a guest refuses, or waits for.

use std::time::Duration;

use belljar_engine::{configure, reconnect};
use belljar_guest_config::{Domain, GENERATION, GuestConfig, Hello, Welcome};
use libtest_mimic::{Failed, Trial};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::guest::{Reach, Socket, config, start_guest};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("greetings::guests_are_configured_once_by_their_generation", || test(refused)),
        Trial::test("greetings::sockets_that_user_code_could_replace_are_refused", || test(in_reach)),
        Trial::test("greetings::connections_need_the_secret", || test(secret)),
        Trial::test("greetings::guests_are_reached_through_streams", || test(bridged)),
        Trial::test("greetings::silent_connections_do_not_keep_the_host_away", || test(silent)),
    ]
}

/// Runs a test with the socket of a guest that has no configuration yet.
fn test<F: Future<Output = Result<(), Failed>>>(test: impl FnOnce(Socket) -> F) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("s");
    let mut guest = start_guest(&path)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        while UnixStream::connect(&path).await.is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        test(Socket { path: path.clone(), reach: Reach::Directly }).await
    });
    guest.kill()?;
    guest.wait()?;
    result
}

fn configuration(socket: &Socket) -> serde_json::Result<GuestConfig> {
    let home = socket.path.with_file_name("home");
    let many = true;
    config(&serde_json::json!({
        "home": home, "env": [], "deadline_ms": 60_000, "grace_ms": 100, "many_connections": many, "watched": null,
    }))
}

/// Sends a first message, and returns the answer, if there is one.
async fn say(socket: &Socket, message: &[u8]) -> Result<Option<Welcome>, Failed> {
    let mut stream = UnixStream::connect(&socket.path).await?;
    stream.write_all(message).await?;
    let mut read = Vec::new();
    match stream.read_to_end(&mut read).await {
        // It was closed before all of the message was read.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
        done => done?,
    };
    Ok(read.get(4..).map(serde_json::from_slice).transpose()?)
}

fn frame(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or_default();
    [&length.to_be_bytes()[..], text.as_bytes()].concat()
}

fn refusal(answer: Option<Welcome>) -> String {
    answer.and_then(|answer| answer.refusal).unwrap_or_default()
}

async fn refused(socket: Socket) -> Result<(), Failed> {
    // An HTTP/2 client that does not greet: its first bytes announce too long a message.
    assert!(say(&socket, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?.is_none());
    for (message, reason) in [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (r#"{"generation": 1, "secret": "s"}"#, "no configuration yet"),
        (r#"{"generation": 1, "secret": "s", "config": {"home": "/"}}"#, "missing field"),
    ] {
        let said = refusal(say(&socket, &frame(message)).await?);
        assert!(said.contains(reason), "{message}: {said}");
    }
    for generation in [GENERATION - 1, GENERATION + 1] {
        let message = format!(r#"{{"generation": {generation}, "secret": "s", "config": {{"new": true}}}}"#);
        let said = refusal(say(&socket, &frame(&message)).await?);
        let both =
            format!("generation {generation} of the protocol, and this guest generation {GENERATION};");
        assert!(said.contains(&both), "{said}");
    }
    // None of that has configured it.
    let guest = configure(socket.clone(), "s".to_owned(), configuration(&socket)?).await?;
    assert_eq!(guest.check().await?.generation, GENERATION);
    let error = configure(socket.clone(), "s".to_owned(), configuration(&socket)?).await.err();
    assert!(error.is_some_and(|error| error.to_string().contains("has its configuration already")));
    Ok(())
}

async fn in_reach(socket: Socket) -> Result<(), Failed> {
    let (dir, link) = (socket.path.with_file_name(""), socket.path.with_file_name("link"));
    std::os::unix::fs::symlink(&dir, &link)?;
    let mut config = configuration(&socket)?;
    let write = vec![socket.path.with_file_name("home"), link.clone()];
    config.landlock = Some(Domain { read: vec!["/".into()], write, tcp: true, least_abi: 1 });
    let hello = Hello { generation: GENERATION, secret: "s".to_owned(), config: Some(config) };
    let mut stream = UnixStream::connect(&socket.path).await?;
    belljar_proto::write_frame(&mut stream, &serde_json::to_vec(&hello)?).await?;
    let answer = serde_json::from_slice(&belljar_proto::read_frame(&mut stream).await?)?;
    let said = refusal(Some(answer));
    assert!(said.contains(&format!("user code could write in {}", link.display())), "{said}");
    // In a container, what copies the answer would end with the guest.
    tokio::time::sleep(Duration::from_millis(200)).await;
    UnixStream::connect(&socket.path).await?;
    drop(stream);
    while UnixStream::connect(&socket.path).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

async fn secret(socket: Socket) -> Result<(), Failed> {
    let guest = configure(socket.clone(), "secret".to_owned(), configuration(&socket)?).await?;
    for wrong in ["", "s", "secreT", "secret "] {
        let error = reconnect(socket.clone(), wrong.to_owned()).await.err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("is not that of this sandbox"), "{wrong}: {error}");
    }
    // A later host speaks of what this guest does not know.
    let later = r#"{"generation": 2, "secret": "secret", "colour": "green"}"#;
    let mut stream = UnixStream::connect(&socket.path).await?;
    stream.write_all(&frame(later)).await?;
    let answer: Welcome = serde_json::from_slice(&belljar_proto::read_frame(&mut stream).await?)?;
    assert_eq!((answer.generation, answer.refusal), (GENERATION, None));
    reconnect(socket, "secret".to_owned()).await?.check().await?;
    guest.check().await?;
    Ok(())
}

async fn bridged(socket: Socket) -> Result<(), Failed> {
    let through = Socket { reach: Reach::ThroughStreams, ..socket.clone() };
    std::fs::create_dir(socket.path.with_file_name("home"))?;
    let guest = configure(through.clone(), "s".to_owned(), configuration(&socket)?).await?;
    // More than the buffers on the way take, in both directions, beside another connection.
    let content = bytes::Bytes::from(vec![b'x'; 8 << 20]);
    guest.write("large".as_ref(), 0o644, content.clone()).await?;
    let other = reconnect(through, "s".to_owned()).await?;
    assert!(other.read_all("large".as_ref(), 16 << 20).await? == content);
    guest.check().await?;
    Ok(())
}

async fn silent(socket: Socket) -> Result<(), Failed> {
    let guest = configure(socket.clone(), "secret".to_owned(), configuration(&socket)?).await?;
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(UnixStream::connect(&socket.path).await?);
    }
    // One that was still waiting may be ended with them.
    let mut tries = 0;
    while let Err(error) = reconnect(socket.clone(), "secret".to_owned()).await {
        tries += 1;
        assert!(tries < 10, "{error}");
    }
    guest.check().await?;
    Ok(())
}
