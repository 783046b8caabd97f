//! Processes over WebSockets.

use belljar_testing::wait::{DEADLINE, until};
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::client::Client;
use crate::fixture::{Fixture, cases, sandbox};

cases![
    terminal_behaves_like_a_terminal,
    process_is_attached_at_an_offset,
    control_messages_are_checked,
    messages_are_bounded,
    requests_without_an_upgrade_are_refused,
    process_outlives_its_client,
];

struct Socket(WebSocketStream<TcpStream>);

async fn connect(client: &Client, path: &str) -> Socket {
    let request = client
        .request("GET", path)
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let uri = format!("ws://{}{path}", client.address);
    let stream = TcpStream::connect(client.address).await.unwrap();
    let request = request.uri(uri).body(()).unwrap();
    let (socket, answer) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    assert_eq!(answer.status(), 101);
    Socket(socket)
}

impl Socket {
    async fn next(&mut self) -> Message {
        loop {
            let message = tokio::time::timeout(DEADLINE, self.0.next()).await.unwrap().unwrap().unwrap();
            if !matches!(message, Message::Ping(_) | Message::Pong(_)) {
                return message;
            }
        }
    }

    /// Returns the next text message, skipping output before it.
    async fn text(&mut self) -> Value {
        loop {
            match self.next().await {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Binary(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Reads output of this stream until it contains `end`. Also returns the first offset.
    async fn until(&mut self, stream: u8, end: &str) -> (u64, String) {
        let (mut first, mut all) = (None, String::new());
        while !all.contains(end) {
            let Message::Binary(data) = self.next().await else { continue };
            if data[0] == stream {
                first.get_or_insert(u64::from_be_bytes(data[1..9].try_into().unwrap()));
                all.push_str(&String::from_utf8_lossy(&data[9..]));
            }
        }
        (first.unwrap(), all)
    }

    async fn send(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    async fn input(&mut self, data: &str) {
        self.0.send(Message::Binary(Bytes::copy_from_slice(data.as_bytes()))).await.unwrap();
    }

    async fn closed(&mut self) -> CloseCode {
        loop {
            if let Message::Close(frame) = self.next().await {
                return frame.unwrap().code;
            }
        }
    }
}

async fn terminal_behaves_like_a_terminal(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let command =
        "tty%3B%20stty%20size%3B%20read%20line%3B%20echo%20got%20%24line%3B%20stty%20size%3B%20exit%204";
    let mut socket = connect(
        &user,
        &format!("/v1/sandboxes/{id}/terminal?rows=30&columns=100&cwd=/tmp&command={command}"),
    )
    .await;
    let started = socket.text().await;
    assert_eq!(started["event"], "started");
    let (offset, shown) = socket.until(3, "30 100\r\n").await;
    assert!(offset == 0 && shown.contains("/dev/pts/"), "{shown}");
    socket.send(r#"{"resize":{"rows":40,"columns":120}}"#).await;
    socket.input("abc\n").await;
    let (_, shown) = socket.until(3, "40 120\r\n").await;
    assert!(shown.contains("got abc"), "{shown}");
    let exited = socket.text().await;
    assert_eq!(
        (&exited["event"], &exited["exit_code"], &exited["outcome"]["kind"]),
        (&json!("exited"), &json!(4), &json!("exited"))
    );
    assert_eq!(socket.closed().await, CloseCode::Normal);

    // Without a command, a shell is started.
    let mut shell = connect(&user, &format!("/v1/sandboxes/{id}/terminal")).await;
    assert_eq!(shell.text().await["event"], "started");
    shell.input("echo $((20+22)); exit\n").await;
    shell.until(3, "42\r\n").await;
}

async fn start(client: &Client, id: &str, body: &Value) -> u64 {
    let started = client.post(&format!("/v1/sandboxes/{id}/processes"), body).await;
    started.json()["process"].as_u64().unwrap_or_else(|| panic!("{started:?}"))
}

async fn process_is_attached_at_an_offset(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let number =
        start(&user, &id, &json!({"command": "printf abcdef; cat; printf end >&2", "stdin_open": true}))
            .await;
    let path = format!("/v1/sandboxes/{id}/processes/{number}");
    until("there is output", || async { user.get(&path).await.json()["stdout_bytes"] == 6 }).await;
    let mut socket = connect(&user, &format!("{path}/attach?stdout=4")).await;
    assert_eq!(socket.until(1, "ef").await, (4, "ef".to_owned()));
    // A second client gets the same output.
    let mut second = connect(&user, &format!("{path}/attach")).await;
    assert_eq!(second.until(1, "abcdef").await.0, 0);
    socket.input("ghi").await;
    assert_eq!(second.until(1, "ghi").await, (6, "ghi".to_owned()));
    socket.send(r#"{"close_stdin":true}"#).await;
    assert_eq!(socket.until(2, "end").await, (0, "end".to_owned()));
    assert_eq!(socket.text().await["exit_code"], 0);
    assert_eq!(socket.closed().await, CloseCode::Normal);
    assert_eq!(second.text().await["event"], "exited");
}

async fn control_messages_are_checked(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let number = start(
        &user,
        &id,
        &json!({"command": "trap 'echo caught; exit 0' INT; echo ready; while :; do sleep 0.05; done"}),
    )
    .await;
    let mut socket = connect(&user, &format!("/v1/sandboxes/{id}/processes/{number}/attach")).await;
    socket.until(1, "ready\n").await;
    let long = format!("{{\"signal\":\"{}\"}}", "x".repeat(5000));
    for bad in [
        "nonsense",
        "{}",
        "[]",
        r#"{"signal":"SIGNONE"}"#,
        r#"{"signal":0}"#,
        r#"{"close_stdin":false}"#,
        r#"{"resize":{"rows":0,"columns":1}}"#,
        r#"{"resize":{"rows":1}}"#,
        r#"{"resize":{"rows":1,"columns":1},"signal":"SIGINT"}"#,
        r#"{"other":1}"#,
        &long,
    ] {
        socket.send(bad).await;
        let message = socket.text().await;
        assert_eq!(
            (&message["event"], &message["code"]),
            (&json!("error"), &json!("invalid_field")),
            "{bad}"
        );
    }
    socket.send(r#"{"signal":"SIGINT"}"#).await;
    socket.until(1, "caught\n").await;
    assert_eq!(socket.text().await["exit_code"], 0);
}

async fn messages_are_bounded(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let number = start(&user, &id, &json!({"command": "cat > got; wc -c < got", "stdin_open": true})).await;
    let attach = format!("/v1/sandboxes/{id}/processes/{number}/attach");
    let mut socket = connect(&user, &attach).await;
    let _ = socket.0.send(Message::Binary(vec![b'x'; (1 << 20) + 1].into())).await;
    assert_eq!(socket.closed().await, CloseCode::Size);
    let mut socket = connect(&user, &attach).await;
    for _ in 0..4 {
        socket.0.send(Message::Binary(vec![b'x'; 1 << 20].into())).await.unwrap();
    }
    socket.send(r#"{"close_stdin":true}"#).await;
    assert_eq!(socket.until(1, "\n").await.1, "4194304\n");
}

async fn requests_without_an_upgrade_are_refused(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    user.get(&format!("/v1/sandboxes/{id}/terminal")).await.refused(426, "upgrade_required", None);
    user.get(&format!("/v1/sandboxes/{id}/terminal?rows=x")).await.refused(
        400,
        "invalid_field",
        Some("rows"),
    );
    user.get(&format!("/v1/sandboxes/{id}/processes/1/attach")).await.refused(426, "upgrade_required", None);
}

async fn process_outlives_its_client(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let mut socket = connect(&user, &format!("/v1/sandboxes/{id}/terminal?command=cat")).await;
    let number = socket.text().await["process"].as_u64().unwrap();
    // Input that was sent before the client left is processed.
    socket.input("last words\n").await;
    drop(socket);
    let path = format!("/v1/sandboxes/{id}/processes/{number}");
    let mut again = connect(&user, &format!("{path}/attach")).await;
    again.until(3, "last words\r\nlast words\r\n").await;
    assert_eq!(user.get(&path).await.json()["running"], true);
    user.delete(&format!("/v1/sandboxes/{id}")).await;
    let message = again.text().await;
    assert_eq!(message["event"], "error", "{message}");
}
