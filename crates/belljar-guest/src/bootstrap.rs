//! Start of a guest that has inherited nothing from its host: it listens on a Unix socket, and its configuration is the first message.
//!
//! Code in the sandbox may reach that socket too, so each connection begins with a secret. What comes before the first message with
//! a configuration is refused: no code runs until then, so only the host, or whoever the engine gave the socket's directory, can send it.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use belljar_guest_config::{GENERATION, GuestConfig, Hello, Welcome};
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::connections::{MAX_CONNECTIONS, Services};

/// Time for the first message of a connection.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the configuration, after which a guest ends whose host was killed in the middle of the launch.
const CONFIG_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for the host to read that the guest does not serve.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of connections that have not sent their first message. One more ends all of them: the host connects again, and code
/// that only connects keeps it away no longer.
const MAX_GREETING: usize = 16;

/// Bytes that a bridge copies at once.
const PIECE_BYTES: usize = 64 << 10;

/// Delay before another attempt to accept a connection, when there were no free descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The socket of a guest that has its configuration, and the connection on which that came.
pub(crate) struct Listening {
    listener: UnixListener,
    secret: String,
    first: UnixStream,
}

impl Listening {
    /// Listens at this path, and waits for the configuration.
    ///
    /// # Errors
    /// Fails if there is something else at the path, the socket cannot be made, or no configuration comes in time.
    pub(crate) async fn open(path: &Path) -> io::Result<(Self, GuestConfig)> {
        tokio::time::timeout(CONFIG_TIMEOUT, Self::wait(path)).await?
    }

    async fn wait(path: &Path) -> io::Result<(Self, GuestConfig)> {
        // What an earlier guest has left.
        if std::fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        // The secret is what keeps others away, and a host may connect as another user.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        loop {
            let (mut first, _) = listener.accept().await?;
            let asked = tokio::time::timeout(HELLO_TIMEOUT, read_first(&mut first)).await;
            match asked {
                Ok(Ok((secret, config))) => return Ok((Self { listener, secret, first }, config)),
                Ok(Err(Some(refusal))) => answer(&mut first, &refusal).await,
                Ok(Err(None)) | Err(_) => {}
            }
        }
    }

    /// Tells the host whether the guest serves.
    pub(crate) async fn answer(&mut self, answered: &Welcome) {
        answer(&mut self.first, answered).await;
    }

    /// Waits, for a bounded time, until the host has read an answer and closes the connection: a container ends with its guest, and what
    /// copies for the host with it.
    pub(crate) async fn close(mut self) {
        let mut nowhere = tokio::io::sink();
        let closing = tokio::io::copy(&mut self.first, &mut nowhere);
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
    }

    /// Serves all connections, until the first one ends. With `many` it does not end, also when the host is gone.
    pub(crate) async fn serve(self, services: Services, many: bool) {
        let mut greeting = JoinSet::new();
        let mut open = JoinSet::new();
        let serve = |open: &mut JoinSet<()>, stream| {
            let router = services.router();
            open.spawn(async move {
                // A closed and a failed connection are treated alike.
                let _ = belljar_proto::serve(stream, router).await;
            });
        };
        let first = async {
            let _ = belljar_proto::serve(self.first, services.router()).await;
        };
        let mut first = std::pin::pin!(first);
        let mut is_open = true;
        loop {
            tokio::select! {
                () = &mut first, if is_open => {
                    if !many {
                        return;
                    }
                    is_open = false;
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        if greeting.len() >= MAX_GREETING {
                            greeting.abort_all();
                        }
                        let greeted = greet(stream, self.secret.clone());
                        greeting.spawn(tokio::time::timeout(HELLO_TIMEOUT, greeted));
                    }
                    Err(_) => tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await,
                },
                Some(greeted) = greeting.join_next() => if let Ok(Ok(Some(stream))) = greeted
                    && open.len() + usize::from(is_open) < MAX_CONNECTIONS
                {
                    serve(&mut open, stream);
                },
                Some(_) = open.join_next() => {}
            }
        }
    }
}

/// Reads the message with the configuration. The error is the answer, if the other side can read one.
async fn read_first(stream: &mut UnixStream) -> Result<(String, GuestConfig), Option<Welcome>> {
    /// What is the same in all generations.
    #[derive(serde::Deserialize)]
    struct Any {
        generation: u32,
    }
    let message = belljar_proto::read_frame(stream).await.map_err(|_| None)?;
    let refuse = |reason: String| Some(Welcome::refuse(reason));
    let no_hello = |error: serde_json::Error| refuse(format!("the first message cannot be read: {error}"));
    let Any { generation } = serde_json::from_slice(&message).map_err(no_hello)?;
    if generation != GENERATION {
        return Err(refuse(format!(
            "the host speaks generation {generation} of the protocol, and this guest generation {GENERATION}; give the sandbox a guest \
             of the host's version"
        )));
    }
    let Hello { secret, config, .. } = serde_json::from_slice(&message).map_err(no_hello)?;
    let config = config.ok_or_else(|| refuse("the guest has no configuration yet".to_owned()))?;
    if secret.is_empty() {
        return Err(refuse("the secret is empty".to_owned()));
    }
    Ok((secret, config))
}

/// Returns the connection if it begins with the secret. A host of any generation is accepted: it knows that of the guest.
async fn greet(mut stream: UnixStream, secret: String) -> Option<UnixStream> {
    let message = belljar_proto::read_frame(&mut stream).await.ok()?;
    let hello = serde_json::from_slice::<Hello>(&message).ok();
    let refusal = match hello {
        Some(Hello { config: Some(_), .. }) => Some("the guest has its configuration already"),
        Some(hello) if is_same(&hello.secret, &secret) => None,
        _ => Some("the secret is not that of this sandbox"),
    };
    let answered = refusal.map_or_else(Welcome::accept, Welcome::refuse);
    answer(&mut stream, &answered).await;
    refusal.is_none().then_some(stream)
}

/// Compares in a time that depends on the length alone.
fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    one.len() == other.len()
        && one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

async fn answer(stream: &mut UnixStream, answered: &Welcome) {
    // Cannot fail: numbers and text only. Whoever has gone away needs no answer.
    let message = serde_json::to_vec(answered).unwrap_or_default();
    let _ = tokio::time::timeout(HELLO_TIMEOUT, belljar_proto::write_frame(stream, &message)).await;
}

/// Copies between the standard streams and the socket of a guest, until the guest closes it.
///
/// # Errors
/// Fails if nobody listens there, or a stream breaks.
pub(crate) fn bridge(path: &Path) -> io::Result<()> {
    let socket = std::os::unix::net::UnixStream::connect(path)?;
    let file = |fd| rustix::io::dup(fd).map(std::fs::File::from);
    let (input, output) = (file(rustix::stdio::stdin())?, file(rustix::stdio::stdout())?);
    let sending = socket.try_clone()?;
    std::thread::spawn(move || {
        let _ = copy(input, &sending);
        let _ = sending.shutdown(std::net::Shutdown::Write);
    });
    match copy(&socket, output) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::PIPE) => Err(error),
        _ => Ok(()),
    }
}

/// Copies until the source ends. `io::copy` would splice, and what is spliced into a pipe does not wake all readers: containerd's
/// reads it only when the pipe ends.
fn copy(mut from: impl io::Read, mut to: impl io::Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(piece.get(..count).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
