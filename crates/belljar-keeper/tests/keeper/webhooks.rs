//! Webhooks: what is sent, and how often.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_keeper::{Approve, Keeper, OnShutdown, WebhooksConfig};
use belljar_model::WebhookSecret;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::Sha256;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::approvals::{add_tool, approver, call, code, user, waiting};
use crate::fixture::{Fixture, until};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request that the receiver has got.
#[derive(Debug, Clone)]
struct Received {
    line: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Received {
    /// Checks the signature as the specification says, and returns the message.
    fn verify(&self) -> Value {
        let header = |name: &str| self.headers[name].as_str();
        let age = Timestamp::now().as_second() - header("webhook-timestamp").parse::<i64>().unwrap();
        assert!((0..300).contains(&age), "{self:?}");
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&STANDARD.decode(SECRET.trim_start_matches("whsec_")).unwrap())
                .unwrap();
        mac.update(format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).as_bytes());
        mac.update(&self.body);
        let signature = header("webhook-signature").strip_prefix("v1,").unwrap();
        mac.verify_slice(&STANDARD.decode(signature).unwrap()).unwrap();
        assert_eq!(header("content-type"), "application/json");
        serde_json::from_slice(&self.body).unwrap()
    }

    fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }
}

/// An HTTP server that answers with a list of statuses, then with 204.
struct Receiver {
    address: String,
    got: Arc<Mutex<Vec<Received>>>,
    serving: AbortHandle,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn receive(stream: TcpStream, answer: &str) -> Option<Received> {
    let mut stream = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let headers: HashMap<_, _> = lines
        .iter()
        .skip(1)
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    stream.write_all(format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await.ok()?;
    Some(Received { line: lines.first()?.clone(), headers, body })
}

impl Receiver {
    async fn new(answers: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let got = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&got);
        let serving = tokio::spawn(async move {
            let mut answers = answers.iter();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = answers.next().unwrap_or(&"204 No Content");
                if let Some(received) = receive(stream, answer).await {
                    all.lock().push(received);
                }
            }
        });
        Self { address, got, serving: serving.abort_handle() }
    }

    fn got(&self) -> Vec<Received> {
        self.got.lock().clone()
    }

    /// Waits for a number of requests.
    async fn wait(&self, count: usize) -> Vec<Received> {
        until("messages have come", async || self.got.lock().len() >= count).await;
        self.got()
    }

    /// Returns a configuration that sends to it.
    fn config(&self) -> WebhooksConfig {
        WebhooksConfig {
            url: format!("http://{}/hook?a=b", self.address),
            secret: SECRET.parse::<WebhookSecret>().unwrap(),
            events: vec!["approval".to_owned()],
            allowed_hosts: vec![format!("http://{}", self.address).parse().unwrap()],
            exceptions: Vec::new(),
            ca_file: None,
        }
    }
}

/// Opens a second keeper on the fixture's store, which sends events.
async fn sending(fixture: &Fixture, name: &'static str, webhooks: WebhooksConfig) -> Keeper {
    fixture
        .reopen(|config| {
            config.name = name.to_owned();
            config.webhooks = Some(webhooks);
        })
        .await
}

pub(crate) async fn events_are_signed_and_sent(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let receiver = Receiver::new(&[]).await;
    let keeper = sending(&fixture, "other", receiver.config()).await;
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    let (calling, caller) = (keeper.clone(), user.clone());
    let running = tokio::spawn(async move { calling.call_tool(&caller, "sh", code("echo secret")).await });
    let asked = waiting(&fixture).await;
    let first = receiver.wait(1).await.remove(0);
    assert_eq!(first.line, "POST /hook?a=b HTTP/1.1");
    let message = first.verify();
    assert_eq!(
        (message["type"].as_str(), message["data"]["kind"].as_str()),
        (Some("approval.requested"), Some("approval.requested"))
    );
    assert!(message["timestamp"].as_str().unwrap().parse::<Timestamp>().is_ok(), "{message}");
    let approval = &message["data"]["approval"];
    assert_eq!(
        (approval["id"].as_str(), approval["state"].as_str()),
        (Some(asked.id.as_str()), Some("pending"))
    );
    assert_eq!(
        (approval["tool"].as_str(), approval["requester"].as_str()),
        (Some("sh@1"), Some(user.key.as_str()))
    );
    assert_eq!(approval["digest"].as_str(), Some(asked.digest.as_str()));
    // Whoever may see the code asks for it.
    assert!(!String::from_utf8_lossy(&first.body).contains("echo"), "{message}");
    keeper.approve(&ann, &asked.id, Approve::default()).await.unwrap();
    running.await.unwrap().unwrap();
    let second = receiver.wait(2).await.remove(1);
    assert_eq!(second.verify()["type"], "approval.approved");
    assert_ne!(first.id(), second.id());
    // Other kinds are not sent: those of the sandbox that was created.
    keeper.close(OnShutdown::Keep).await.unwrap();
    assert_eq!(receiver.got().len(), 2);
}

pub(crate) async fn refused_messages_are_sent_again(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let answers =
        &["500 Internal Server Error", "302 Found\r\nlocation: http://127.0.0.1:1/", "200 OK", "410 Gone"];
    let receiver = Receiver::new(answers).await;
    let keeper = sending(&fixture, "other", receiver.config()).await;
    let user = user(&fixture).await;
    approver(&fixture).await;
    let (calling, caller) = (keeper.clone(), user.clone());
    let running = tokio::spawn(async move { calling.call_tool(&caller, "sh", code("true")).await });
    // A failure and a redirect, which is not followed, are no acceptance. The message stays the same, with a new time and signature.
    let got = receiver.wait(3).await;
    assert!(got.iter().all(|one| one.id() == got[0].id() && one.body == got[0].body), "{got:?}");
    got.iter().for_each(|one| drop(one.verify()));
    // A receiver that wants no more of a message gets it once; that of the cancelled call is sent while the server ends.
    running.abort();
    let gone = receiver.wait(4).await.remove(3);
    assert_eq!(gone.verify()["type"], "approval.cancelled");
    keeper.close(OnShutdown::Keep).await.unwrap();
    assert_eq!(receiver.got().len(), 4);
}

pub(crate) async fn private_addresses_are_refused(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let receiver = Receiver::new(&[]).await;
    let not_named = WebhooksConfig {
        url: format!("https://{}/", receiver.address),
        allowed_hosts: Vec::new(),
        ..receiver.config()
    };
    let plain = WebhooksConfig { allowed_hosts: Vec::new(), ..receiver.config() };
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    for (name, config) in [("a", not_named), ("b", plain)] {
        let keeper = sending(&fixture, name, config).await;
        let (calling, caller) = (keeper.clone(), user.clone());
        let running = tokio::spawn(async move { calling.call_tool(&caller, "sh", code("true")).await });
        let asked = waiting(&fixture).await;
        keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
        running.await.unwrap().unwrap_err();
        keeper.close(OnShutdown::Keep).await.unwrap();
    }
    assert!(receiver.got().is_empty(), "{:?}", receiver.got());
}

pub(crate) async fn calls_that_waited_are_announced_after_a_restart(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let user = user(&fixture).await;
    approver(&fixture).await;
    let running = call(&fixture, &user, code("true"));
    let asked = waiting(&fixture).await;
    // The next server of that name finds the call, as after a crash of this one.
    let receiver = Receiver::new(&[]).await;
    let next = sending(&fixture, "local", receiver.config()).await;
    let message = receiver.wait(1).await.remove(0).verify();
    assert_eq!(
        (&message["type"], &message["data"]["approval"]["id"]),
        (&"approval.cancelled".into(), &asked.id.as_str().into())
    );
    running.await.unwrap().unwrap_err();
    next.close(OnShutdown::Keep).await.unwrap();
}
