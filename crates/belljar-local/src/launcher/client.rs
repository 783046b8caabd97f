//! Client of the launcher: its requests and the replies to it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{CreateRequest, EngineError, Walls as _};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};

use crate::launcher::LAUNCHER_GENERATION;
use crate::launcher::frame::{FrameError, FrameReader, encode, send};
use crate::launcher::messages::{Answer, Reply, Request, RequestFrame};
use crate::launcher::server::Launcher;
use crate::launcher::table::HeldSandbox;
use crate::{LocalConfig, LocalEngine, LocalKind};

/// Maximum number of requests in flight of one client; more wait in its socket.
const MAX_REQUESTS: usize = 256;

/// Maximum number of messages queued for one client.
const MAX_REPLIES: usize = 512;

/// Maximum time for a client to receive one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time for a client to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Sender of messages to a client.
#[derive(Clone)]
pub(crate) struct Outbox {
    sender: mpsc::Sender<(Reply, Option<OwnedFd>)>,
}

impl Outbox {
    /// Queues a message, waiting for room. Messages for a client that is gone are dropped.
    pub(crate) async fn send(&self, reply: Reply, descriptor: Option<OwnedFd>) {
        let _ = self.sender.send((reply, descriptor)).await;
    }

    /// Queues a message if there is room, and returns whether there was.
    pub(crate) fn try_send(&self, reply: Reply) -> bool {
        self.sender.try_send((reply, None)).is_ok()
    }
}

/// Connected client.
pub(crate) struct Client {
    number: u64,
    stream: Arc<UnixStream>,
    outbox: Outbox,
    replies: mpsc::Receiver<(Reply, Option<OwnedFd>)>,
}

impl Client {
    pub(crate) fn new(number: u64, stream: UnixStream) -> (Self, Outbox) {
        let (sender, replies) = mpsc::channel(MAX_REPLIES);
        let outbox = Outbox { sender };
        (Self { number, stream: Arc::new(stream), outbox: outbox.clone(), replies }, outbox)
    }

    /// Serves the client until it disconnects. Fails if it sends an invalid message.
    pub(crate) async fn serve(self, launcher: &Arc<Launcher>) -> Result<(), FrameError> {
        let Self { number, stream, outbox, replies } = self;
        // Clients send no descriptors.
        let reader = FrameReader::new(Arc::clone(&stream), 0);
        tokio::select! {
            read = read_requests(number, reader, launcher, outbox) => read,
            written = write_replies(&stream, replies) => written,
        }
    }
}

async fn write_replies(
    stream: &UnixStream,
    mut replies: mpsc::Receiver<(Reply, Option<OwnedFd>)>,
) -> Result<(), FrameError> {
    while let Some((reply, descriptor)) = replies.recv().await {
        let message = encode(&reply)?;
        let sending = send(stream, &message, descriptor.as_ref().map(OwnedFd::as_fd));
        match tokio::time::timeout(SEND_TIMEOUT, sending).await {
            Ok(sent) => sent?,
            Err(_) => return Err(FrameError::Socket(std::io::ErrorKind::TimedOut.into())),
        }
    }
    // The launcher dropped the client, as it does not receive its messages.
    Err(FrameError::Socket(std::io::ErrorKind::WouldBlock.into()))
}

/// First generation of servers that know whether the launcher can create control groups.
const HAS_GROUPS_SINCE: u32 = 3;

/// First generation of servers that change a network policy through the launcher, and not over a connection to the gateway.
const SETS_NETWORK_SINCE: u32 = 8;

/// First generation of servers that know the paths of a sandbox's control groups.
const GROUP_PATHS_SINCE: u32 = 6;

async fn read_requests(
    number: u64,
    mut reader: FrameReader,
    launcher: &Arc<Launcher>,
    outbox: Outbox,
) -> Result<(), FrameError> {
    let hello = tokio::time::timeout(HELLO_TIMEOUT, reader.next::<RequestFrame>()).await;
    let Ok(hello) = hello else { return Err(FrameError::Socket(std::io::ErrorKind::TimedOut.into())) };
    let Some(RequestFrame { number: request_number, request: Request::Hello { generation, config, .. } }) =
        hello?
    else {
        return Ok(());
    };
    let config = LocalConfig::from(*config);
    let kind = config.kind;
    let engine = Arc::new(LocalEngine::with_forks(config, Arc::clone(&launcher.forks)));
    let answer = Answer::Hello {
        generation: LAUNCHER_GENERATION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: launcher.instance.clone(),
        has_groups: (generation >= HAS_GROUPS_SINCE).then(|| engine.layout().is_complete()),
    };
    outbox.send(Reply::Answer { number: request_number, answer }, None).await;
    launcher.register(number, kind, &outbox).await;
    let room = Arc::new(Semaphore::new(MAX_REQUESTS));
    // The launcher's list of clients holds the sender: when it drops it, the writer ends.
    let weak = outbox.sender.downgrade();
    drop(outbox);
    while let Some(RequestFrame { number: request_number, request }) = reader.next::<RequestFrame>().await? {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        let Some(sender) = weak.upgrade() else { return Ok(()) };
        let context = RequestContext {
            client: number,
            generation,
            kind,
            launcher: Arc::clone(launcher),
            engine: Arc::clone(&engine),
        };
        tokio::spawn(async move {
            let (reply, descriptor) = match context.handle(request).await {
                Ok((answer, descriptor)) => (Reply::Answer { number: request_number, answer }, descriptor),
                Err(error) => (Reply::Refused { number: request_number, error: error.into() }, None),
            };
            Outbox { sender }.send(reply, descriptor).await;
            drop(permit);
        });
    }
    Ok(())
}

/// Context of a request.
struct RequestContext {
    client: u64,
    generation: u32,
    kind: LocalKind,
    launcher: Arc<Launcher>,
    engine: Arc<LocalEngine>,
}

type RequestResult = Result<(Answer, Option<OwnedFd>), EngineError>;

impl RequestContext {
    async fn handle(&self, request: Request) -> RequestResult {
        let get = |id| self.launcher.table.get(self.kind, id);
        let done = Ok((Answer::Done, None));
        match request {
            Request::Hello { .. } => done,
            Request::Launch { id, spec, deadline_ms, tied } => {
                let reserved = self.launcher.table.reserve(&id)?;
                let deadline = deadline_ms.map(Duration::from_millis);
                let launched = self.engine.launch(CreateRequest::long_lived(&id, &spec, deadline)).await?;
                let tied_to = tied.then_some(self.client);
                let (held, stream) = HeldSandbox::new(self.kind, launched, tied_to)
                    .map_err(EngineError::launch("pass on the guest's connection"))?;
                let held = self.launcher.hold(held);
                drop(reserved);
                if !self.launcher.is_connected(self.client) {
                    // The client is gone and nobody knows of the sandbox.
                    self.launcher.stop(&held).await?;
                    return Err(EngineError::NoSandbox { id: held.id.clone() });
                }
                Ok((self.sandbox(&held), Some(stream)))
            }
            Request::List => Ok((Answer::List { sandboxes: self.launcher.table.list(self.kind) }, None)),
            Request::Connect { id } => {
                let held = get(&id)?;
                let stream = held.walls.connection().await?;
                Ok((self.sandbox(&held), Some(stream)))
            }
            Request::ConnectGateway { id } => {
                let held = get(&id)?;
                if self.generation < SETS_NETWORK_SINCE {
                    held.walls.forget_policy();
                }
                Ok((Answer::Gateway, Some(held.walls.gateway_connection().await?)))
            }
            Request::Usage { id } => Ok((Answer::Usage(get(&id)?.walls.usage().await.into()), None)),
            Request::Interpreter { id, owner, imports } => {
                let held = get(&id)?;
                let offered = self.launcher.parents.offer(&self.engine, &held.walls, &owner, &imports);
                Ok((Answer::Interpreter { why_not: offered.err() }, None))
            }
            Request::SetLimits { id, change } => {
                get(&id)?.walls.set_limits(&change).await?;
                done
            }
            Request::SetNetwork { id, policy } => {
                get(&id)?.walls.set_network(&policy).await?;
                done
            }
            Request::SetDeadline { id, after_ms } => {
                get(&id)?.walls.set_deadline(after_ms.map(Duration::from_millis)).await?;
                done
            }
            Request::Freeze { id } => {
                get(&id)?.walls.freeze().await?;
                done
            }
            Request::Thaw { id } => {
                get(&id)?.walls.thaw().await?;
                done
            }
            Request::Kill { id } => {
                get(&id)?.kill();
                done
            }
            Request::Stop { id } => {
                self.launcher.stop(&*get(&id)?).await?;
                done
            }
            Request::ShutDown => {
                self.launcher.end_all().await;
                self.launcher.exit();
                done
            }
        }
    }

    fn sandbox(&self, held: &HeldSandbox) -> Answer {
        let mut facts = Box::new(held.facts.clone());
        facts.groups = facts.groups.filter(|_| self.generation >= GROUP_PATHS_SINCE);
        Answer::Sandbox(facts)
    }
}
