//! The guest's services through the server, as far as the conformance suite does not cover them.

use std::path::Path;
use std::time::Duration;

use belljar_client::{ErrorCode, v1};
use belljar_testing::wait::{DEADLINE, until};

use crate::fixture::{Fixture, cases, sandbox, sh, trail};

cases![
    guest_deadline_cannot_be_set_by_callers,
    broken_stream_keeps_the_old_file,
    flood_is_throttled_by_its_reader,
    tunnel_is_bidirectional,
    idle_stream_stays_open,
    guest_actions_are_audited,
    lost_guest_is_reported_as_a_gone_sandbox,
    streams_of_a_key_are_bounded,
];

async fn guest_deadline_cannot_be_set_by_callers(fixture: Fixture) {
    let user = fixture.user().await;
    let guest = user.guest(&sandbox(&user).await).unwrap();
    let refused = guest.set_deadline(None).await.unwrap_err();
    assert!(refused.is(ErrorCode::PermissionDenied), "{refused:?}");
    assert!(refused.to_string().contains("SetTimeout"), "{refused}");
    assert!(guest.check().await.unwrap().generation > 0);
    assert!(guest.metrics().await.unwrap().disks.iter().any(|disk| disk.bytes_total > 0));
}

/// Reader that yields some bytes and then fails.
struct Broken {
    left: usize,
}

impl tokio::io::AsyncRead for Broken {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        if self.left == 0 {
            return std::task::Poll::Ready(Err(std::io::Error::other("the disk is gone")));
        }
        let piece = self.left.min(buffer.remaining());
        buffer.put_slice(&vec![b'x'; piece]);
        self.left -= piece;
        std::task::Poll::Ready(Ok(()))
    }
}

async fn broken_stream_keeps_the_old_file(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let guest = user.guest(&id).unwrap();
    guest.write(Path::new("a"), 0o644, "old".into()).await.unwrap();
    let open = v1::WriteOpen { path: "a".into(), ..Default::default() };
    let failed = guest.write_from(open, Broken { left: 3_000_000 }).await.unwrap_err();
    assert!(matches!(failed, belljar_client::GuestError::Source(_)), "{failed:?}");
    assert_eq!(guest.read_all(Path::new("a"), 100).await.unwrap(), "old");
    until("the half of the new file is gone", || async {
        sh(&user, &id, "ls -A").await.stdout.data == "a\n"
    })
    .await;
}

async fn flood_is_throttled_by_its_reader(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let guest = user.guest(&id).unwrap();
    let request = v1::StartRequest { shell: "yes".into(), ..Default::default() };
    let mut flood = guest.start(request).await.unwrap();
    // It is not read, and all other clients are served.
    for _ in 0..20 {
        tokio::time::timeout(DEADLINE, guest.stat(Path::new("."), true)).await.unwrap().unwrap();
    }
    let mut bytes = 0;
    while bytes < 20_000_000 {
        match flood.next().await.unwrap() {
            Some(belljar_engine::ProcessEvent::Output { data, .. }) => bytes += data.len(),
            other => panic!("{other:?}"),
        }
    }
    guest.signal(flood.id, 9, true).await.unwrap();
}

const ECHO: &str = "python3 -c '
import socket
listener = socket.create_server((\"127.0.0.1\", 7000))
while True:
    connection, _ = listener.accept()
    connection.sendall(b\"x\" * 3000000)
    total = 0
    while piece := connection.recv(65536):
        total += len(piece)
    connection.sendall(b\"|%d\" % total)
    connection.close()
'";

async fn tunnel_is_bidirectional(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let guest = user.guest(&id).unwrap();
    let request = v1::StartRequest { shell: ECHO.into(), detach: true, ..Default::default() };
    guest.start(request).await.unwrap();
    until("the server listens", || async { guest.list_ports().await.unwrap().contains(&7000) }).await;
    let mut tunnel = guest.tunnel(7000).await.unwrap();
    // Everything is sent before anything is read, and the other side sends first.
    for _ in 0..50 {
        tokio::time::timeout(DEADLINE, tunnel.send(vec![b'y'; 100_000].into())).await.unwrap().unwrap();
    }
    tunnel.close_send();
    let mut received = Vec::new();
    while let Some(piece) = tokio::time::timeout(DEADLINE, tunnel.receive()).await.unwrap().unwrap() {
        received.extend_from_slice(&piece);
    }
    assert_eq!(received.len(), 3_000_000 + "|5000000".len());
    assert!(received.ends_with(b"|5000000"));
    let mut closed = guest.tunnel(7001).await.unwrap();
    let refused = loop {
        match closed.receive().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("nothing listens there"),
            Err(error) => break error,
        }
    };
    assert!(refused.is(ErrorCode::Unavailable), "{refused:?}");
}

async fn idle_stream_stays_open(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let guest = user.guest(&id).unwrap();
    let request = v1::StartRequest { shell: "cat".into(), stdin_open: true, ..Default::default() };
    let mut process = guest.start(request).await.unwrap();
    let (mut keyboard, input) = tokio::io::duplex(64);
    let (feeder, number) = (guest.clone(), process.id);
    let feeding = tokio::spawn(async move { feeder.feed(number, input, true).await });
    tokio::io::AsyncWriteExt::write_all(&mut keyboard, b"first ").await.unwrap();
    // Longer than other timeouts for a body, and short enough for a test.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    tokio::io::AsyncWriteExt::write_all(&mut keyboard, b"second").await.unwrap();
    drop(keyboard);
    let mut output = Vec::new();
    while let Some(event) = process.next().await.unwrap() {
        if let belljar_engine::ProcessEvent::Output { data, .. } = event {
            output.extend_from_slice(&data);
        }
    }
    assert_eq!(output, b"first second");
    assert_eq!(feeding.await.unwrap().unwrap(), 12);
}

async fn guest_actions_are_audited(fixture: Fixture) {
    let (admin, user) = (fixture.admin().await, fixture.user().await);
    let id = sandbox(&user).await;
    let guest = user.guest(&id).unwrap();
    guest.make_dir(Path::new("d"), false).await.unwrap();
    guest.write(Path::new("d/a\n\u{1b}[31m"), 0o644, "abc".into()).await.unwrap();
    guest.rename(Path::new("d/a\n\u{1b}[31m"), Path::new("d/b"), false).await.unwrap();
    let mut read = guest.read(Path::new("d/b"), 0, 0, false).await.unwrap();
    while read.next().await.unwrap().is_some() {}
    guest.remove(Path::new("d"), true).await.unwrap();
    guest.remove(Path::new("d"), true).await.unwrap_err();
    let request = v1::StartRequest { shell: "true".into(), ..Default::default() };
    let mut process = guest.start(request).await.unwrap();
    while process.next().await.unwrap().is_some() {}
    let mut actions = Vec::new();
    for record in trail(&admin, &id).await {
        assert!(!record.contains('\u{1b}'), "{record}");
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        actions.push(format!(
            "{} {}",
            record["action"].as_str().unwrap(),
            record["outcome"].as_str().unwrap()
        ));
    }
    let expected = [
        "sandbox.create ok",
        "file.mkdir ok",
        "file.write ok",
        "file.move ok",
        "file.read ok",
        "file.remove ok",
        "file.remove path_not_found",
        "exec.start ok",
    ];
    assert_eq!(actions, expected);
}

async fn lost_guest_is_reported_as_a_gone_sandbox(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let guest = user.guest(&id).unwrap();
    let request = v1::StartRequest { shell: "sleep 1000".into(), ..Default::default() };
    let mut process = guest.start(request).await.unwrap();
    user.kill(v1::KillSandboxRequest { sandbox: id.clone(), ..Default::default() }).await.unwrap();
    let error = loop {
        match process.next().await {
            Ok(Some(belljar_engine::ProcessEvent::Exited(_)) | None) => panic!("no end can be reported"),
            Ok(Some(_)) => {}
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("gone"), "{error:?}");
    let error = guest.list_processes().await.unwrap_err();
    assert!(error.is(ErrorCode::NotFound) && error.to_string().contains("gone"), "{error:?}");
}

async fn streams_of_a_key_are_bounded(fixture: Fixture) {
    drop(fixture);
    let config = belljar_api::ApiConfig { max_streams_per_key: 5, ..Default::default() };
    let fixture = Fixture::new(config, crate::fixture::engine()).await;
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let guest = user.guest(&id).unwrap();
    let mut open = Vec::new();
    let refused = loop {
        match guest.watch(Path::new("."), false).await {
            Ok(watch) => open.push(watch),
            Err(error) => break error,
        }
        assert!(open.len() <= 5, "{} streams are open", open.len());
    };
    assert_eq!(open.len(), 5);
    assert!(refused.is(ErrorCode::ResourceExhausted), "{refused:?}");
    assert!(guest.stat(Path::new("."), true).await.is_ok());
    open.clear();
    until("streams can be opened again", || async { guest.watch(Path::new("."), false).await.is_ok() }).await;
    fixture.keeper.close(belljar_keeper::OnShutdown::Kill).await.unwrap();
}
