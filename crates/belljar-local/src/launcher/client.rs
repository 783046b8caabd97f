//! One client of the launcher: its requests, and what it is told.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{CreateRequest, EngineError, Walls as _};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};

use crate::launcher::LAUNCHER_GENERATION;
use crate::launcher::frame::{FrameError, FrameReader, encode, send};
use crate::launcher::held::Held;
use crate::launcher::messages::{Answer, Reply, Request, RequestFrame};
use crate::launcher::server::Launcher;
use crate::{LocalConfig, LocalEngine, LocalKind};

/// The most requests of one client that are under way at once; more wait in its socket.
const MAX_REQUESTS: usize = 256;

/// The most messages that wait for one client.
const MAX_REPLIES: usize = 512;

/// How long a client may take to take one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a client may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// What waits to be sent to a client.
#[derive(Clone)]
pub(crate) struct Outbox {
    sender: mpsc::Sender<(Reply, Option<OwnedFd>)>,
}

impl Outbox {
    /// Waits for room. What is for a client that is gone is dropped.
    pub(crate) async fn send(&self, reply: Reply, descriptor: Option<OwnedFd>) {
        let _ = self.sender.send((reply, descriptor)).await;
    }

    /// Whether there was room.
    pub(crate) fn try_send(&self, reply: Reply) -> bool {
        self.sender.try_send((reply, None)).is_ok()
    }
}

/// A connected client.
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

    /// Serves it until it goes, or says what is no message.
    pub(crate) async fn serve(self, launcher: &Arc<Launcher>) -> Result<(), FrameError> {
        let Self { number, stream, outbox, replies } = self;
        // A client sends no descriptors.
        let reader = FrameReader::new(Arc::clone(&stream), 0);
        tokio::select! {
            read = requests(number, reader, launcher, outbox) => read,
            written = write(&stream, replies) => written,
        }
    }
}

async fn write(
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
    // The launcher has let go of it, because it takes nothing.
    Err(FrameError::Socket(std::io::ErrorKind::WouldBlock.into()))
}

/// The first generation of servers that know what the launcher tells of control groups.
const TELLS_GROUPS: u32 = 3;

/// The first generation of servers that know where the control groups of a sandbox are.
const TELLS_PLACES: u32 = 6;

async fn requests(
    number: u64,
    mut reader: FrameReader,
    launcher: &Arc<Launcher>,
    outbox: Outbox,
) -> Result<(), FrameError> {
    let hello = tokio::time::timeout(HELLO_TIMEOUT, reader.next::<RequestFrame>()).await;
    let Ok(hello) = hello else { return Err(FrameError::Socket(std::io::ErrorKind::TimedOut.into())) };
    let Some(RequestFrame { number: asked, request: Request::Hello { generation, config, .. } }) = hello?
    else {
        return Ok(());
    };
    let config = LocalConfig::from(*config);
    let kind = config.kind;
    let engine = Arc::new(LocalEngine::new(config));
    let answer = Answer::Hello {
        generation: LAUNCHER_GENERATION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: launcher.instance.clone(),
        has_groups: (generation >= TELLS_GROUPS).then(|| engine.layout().is_complete()),
    };
    outbox.send(Reply::Answer { number: asked, answer }, None).await;
    launcher.hello(number, kind, &outbox).await;
    let room = Arc::new(Semaphore::new(MAX_REQUESTS));
    // The launcher's list of clients holds the sender: when it lets go, so does the writer.
    let weak = outbox.sender.downgrade();
    drop(outbox);
    while let Some(RequestFrame { number: asked, request }) = reader.next::<RequestFrame>().await? {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        let Some(sender) = weak.upgrade() else { return Ok(()) };
        let asking = Asking {
            client: number,
            generation,
            kind,
            launcher: Arc::clone(launcher),
            engine: Arc::clone(&engine),
        };
        tokio::spawn(async move {
            let (reply, descriptor) = match asking.carry_out(request).await {
                Ok((answer, descriptor)) => (Reply::Answer { number: asked, answer }, descriptor),
                Err(error) => (Reply::Refused { number: asked, error: error.into() }, None),
            };
            Outbox { sender }.send(reply, descriptor).await;
            drop(permit);
        });
    }
    Ok(())
}

/// A request with what it needs.
struct Asking {
    client: u64,
    generation: u32,
    kind: LocalKind,
    launcher: Arc<Launcher>,
    engine: Arc<LocalEngine>,
}

type Carried = Result<(Answer, Option<OwnedFd>), EngineError>;

impl Asking {
    async fn carry_out(&self, request: Request) -> Carried {
        let get = |id| self.launcher.table.get(self.kind, id);
        let done = Ok((Answer::Done, None));
        match request {
            Request::Hello { .. } => done,
            Request::Launch { id, spec, deadline_ms, tied } => {
                self.launcher.may_launch()?;
                let reserved = self.launcher.table.reserve(&id)?;
                let deadline = deadline_ms.map(Duration::from_millis);
                let launched = self.engine.launch(CreateRequest::long(&id, &spec, deadline)).await?;
                let tied_to = tied.then_some(self.client);
                let (held, stream) = Held::new(self.kind, launched, tied_to)
                    .map_err(crate::engine::launch("pass on the guest's connection"))?;
                let held = self.launcher.hold(held);
                drop(reserved);
                if !self.launcher.is_connected(self.client) {
                    // Nobody will ever know that it is there.
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
                Ok((Answer::Gateway, Some(get(&id)?.walls.gateway_connection()?)))
            }
            Request::Usage { id } => Ok((Answer::Usage(get(&id)?.walls.usage().await.into()), None)),
            Request::Interpreter { id, owner, imports } => {
                self.launcher.may_launch()?;
                let held = get(&id)?;
                let offered = self.launcher.parents.offer(&self.engine, &held.walls, &owner, &imports);
                Ok((Answer::Interpreter { why_not: offered.err() }, None))
            }
            Request::SetLimits { id, change } => {
                get(&id)?.walls.set_limits(&change).await?;
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

    fn sandbox(&self, held: &Held) -> Answer {
        let mut facts = Box::new(held.facts.clone());
        facts.groups = facts.groups.filter(|_| self.generation >= TELLS_PLACES);
        Answer::Sandbox(facts)
    }
}
