//! Connections to a guest that listens on a Unix socket (`belljar-guest guest --listen`), for engines whose guest inherits nothing.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_guest_config::{GENERATION, GuestConfig, Hello, Welcome};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::client::GuestClient;

/// Time for the guest's answer. It builds its walls first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How a guest that accepts its connections itself is reached.
pub trait Dial: Send + Sync + 'static {
    /// The connection.
    type Stream: AsyncRead + AsyncWrite + std::os::fd::AsFd + Send + Unpin + 'static;

    /// Connects to the guest's socket.
    ///
    /// # Errors
    /// Fails if that is not there (yet).
    fn dial(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Reports whether a guest that has been started may not listen yet, if this is the error of a first connection.
    fn is_early(&self, error: &io::Error) -> bool {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    }
}

/// The path of the socket, where this machine's file system has it.
impl Dial for PathBuf {
    type Stream = tokio::net::UnixStream;

    async fn dial(&self) -> io::Result<Self::Stream> {
        tokio::net::UnixStream::connect(self).await
    }
}

/// Configures a guest, and returns its client, which opens further connections as it needs them. `secret` is random, and known to
/// the guest and its host only.
///
/// # Errors
/// Fails if the guest cannot be reached, does not answer in time, or refuses, with its reason.
pub async fn configure<D: Dial>(dial: D, secret: String, config: GuestConfig) -> io::Result<GuestClient> {
    let dial = Arc::new(dial);
    let hello = Hello { generation: GENERATION, secret: secret.clone(), config: Some(config) };
    let mut stream = dial.dial().await?;
    greet(&mut stream, &hello).await?;
    Ok(client(stream, dial, secret))
}

/// Returns the client of a guest that has its configuration.
///
/// # Errors
/// As [`configure`].
pub async fn reconnect<D: Dial>(dial: D, secret: String) -> io::Result<GuestClient> {
    let dial = Arc::new(dial);
    let stream = open(&*dial, secret.clone()).await?;
    Ok(client(stream, dial, secret))
}

/// Returns the client of a guest that has its configuration, and connects for the first call: a guest that is frozen does not answer.
#[must_use]
pub fn connect_later<D: Dial>(dial: D, secret: String) -> GuestClient {
    GuestClient::from_dialer(dialer(Arc::new(dial), secret))
}

fn client<D: Dial>(stream: D::Stream, dial: Arc<D>, secret: String) -> GuestClient {
    GuestClient::with_dialer(stream, dialer(dial, secret))
}

fn dialer<D: Dial>(
    dial: Arc<D>,
    secret: String,
) -> impl Fn() -> futures::future::BoxFuture<'static, io::Result<D::Stream>> + Clone + Send + Sync + 'static {
    move || {
        let (dial, secret) = (Arc::clone(&dial), secret.clone());
        Box::pin(async move { open(&*dial, secret).await })
    }
}

async fn open<D: Dial>(dial: &D, secret: String) -> io::Result<D::Stream> {
    let mut stream = dial.dial().await?;
    greet(&mut stream, &Hello { generation: GENERATION, secret, config: None }).await?;
    Ok(stream)
}

/// Sends the first message, and waits until the guest accepts it.
async fn greet(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), hello: &Hello) -> io::Result<()> {
    let greeting = async {
        belljar_proto::write_frame(stream, &serde_json::to_vec(hello)?).await?;
        let Welcome { generation, refusal } =
            serde_json::from_slice(&belljar_proto::read_frame(stream).await?)?;
        match refusal {
            None => Ok(()),
            // Text from inside the sandbox, which the guest's error would be too.
            Some(reason) => Err(io::Error::other(format!(
                "the guest, of generation {generation}, refused the connection: {}",
                crate::client::sanitize(&reason)
            ))),
        }
    };
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the guest did not answer in time");
    tokio::time::timeout(ANSWER_TIMEOUT, greeting).await.map_err(late)?
}
