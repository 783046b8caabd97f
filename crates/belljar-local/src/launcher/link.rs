//! Connection of a server to the launcher.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use belljar_engine::EngineError;
use belljar_model::SandboxId;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};

use crate::launcher::LAUNCHER_GENERATION;
use crate::launcher::frame::{FrameError, FrameReader, encode, send};
use crate::launcher::messages::{Answer, Reply, Request, RequestFrame};
use crate::{LocalConfig, LocalKind};

/// Maximum number of descriptors received before their messages are read.
const MAX_DESCRIPTORS: usize = 64;

/// Maximum time for an answer. The launcher itself gives up sooner.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// Maximum time for a launcher to answer the hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The launcher refused the request.
    #[error(transparent)]
    Refused(#[from] EngineError),
    /// The connection is lost, and perhaps the launcher is gone. It is unknown whether the request was carried out.
    #[error("the connection to the launcher is lost")]
    Disconnected,
    /// The request cannot be encoded.
    #[error("the request cannot be sent")]
    Request(#[source] FrameError),
    /// No answer arrived in time.
    #[error("the launcher did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    /// The answer does not match the request.
    #[error("the launcher broke the protocol")]
    Protocol,
}

/// Callback for ends of sandboxes.
pub(crate) type EndSink = Arc<dyn Fn(&SandboxId, String) + Send + Sync>;

type AnswerResult = Result<(Answer, Option<OwnedFd>), LinkError>;

struct Pending {
    sender: oneshot::Sender<AnswerResult>,
    /// Sandbox being launched: if the caller is gone when it has been, it must be stopped.
    launched: Option<SandboxId>,
}

/// Connection after the hello.
pub(crate) struct Link {
    /// Identifier of this run of the launcher.
    pub(crate) instance: String,
    generation: u32,
    version: String,
    /// Whether the launcher can create control groups, if it reports that.
    pub(crate) has_groups: Option<bool>,
    kind: LocalKind,
    outbox: mpsc::UnboundedSender<Vec<u8>>,
    pending: Arc<Mutex<HashMap<u64, Pending>>>,
    next: AtomicU64,
    closed: watch::Receiver<bool>,
}

impl Link {
    /// Sends the hello on a new connection.
    pub(crate) async fn open(
        stream: UnixStream,
        config: &LocalConfig,
        ended: EndSink,
    ) -> Result<Self, FrameError> {
        let stream = Arc::new(stream);
        let hello = Request::Hello {
            generation: LAUNCHER_GENERATION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: Box::new(config.into()),
        };
        send(&stream, &encode(&RequestFrame { number: 0, request: hello })?, None).await?;
        let mut reader = FrameReader::new(Arc::clone(&stream), MAX_DESCRIPTORS);
        let first = tokio::time::timeout(HELLO_TIMEOUT, reader.next::<Reply>()).await;
        let first = first.map_err(|_| FrameError::Socket(std::io::ErrorKind::TimedOut.into()))??;
        let Some(Reply::Answer {
            number: 0,
            answer: Answer::Hello { generation, version, instance, has_groups },
        }) = first
        else {
            return Err(FrameError::Cut);
        };
        let (outbox, messages) = mpsc::unbounded_channel();
        let (closing, closed) = watch::channel(false);
        let pending = Arc::new(Mutex::new(HashMap::new()));
        let half = Reader { reader, pending: Arc::clone(&pending), outbox: outbox.downgrade(), ended };
        tokio::spawn(async move {
            tokio::select! {
                () = half.read() => {}
                () = write(&stream, messages) => {}
            }
            closing.send_replace(true);
        });
        let kind = config.kind;
        Ok(Self {
            instance,
            generation,
            version,
            has_groups,
            kind,
            outbox,
            pending,
            next: AtomicU64::new(1),
            closed,
        })
    }

    /// Reports whether the connection is closed.
    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Resolves when the connection is closed.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closed = self.closed.clone();
        async move {
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }

    /// Sends a request and waits for the answer.
    pub(crate) async fn request(&self, request: Request) -> AnswerResult {
        let (sender, receiver) = oneshot::channel();
        let number = self.enqueue(request, Some(sender))?;
        let answer = tokio::select! {
            answer = receiver => answer.unwrap_or(Err(LinkError::Disconnected)),
            () = self.closed() => Err(LinkError::Disconnected),
            () = tokio::time::sleep(ANSWER_TIMEOUT) => Err(LinkError::Timeout),
        };
        if matches!(answer, Err(LinkError::Disconnected)) {
            self.pending.lock().remove(&number);
        }
        answer
    }

    /// Sends a request and ignores the answer.
    pub(crate) fn send(&self, request: Request) {
        let _ = self.enqueue(request, None);
    }

    fn enqueue(
        &self,
        request: Request,
        sender: Option<oneshot::Sender<AnswerResult>>,
    ) -> Result<u64, LinkError> {
        let (name, since) = request.known_since();
        if since > self.generation {
            return Err(LinkError::Refused(EngineError::Unsupported {
                what: name.into(),
                engine: self.kind.name(),
                reason: format!(
                    "the launcher that holds the sandboxes is version {}, which is too old for that; \
                     end its sandboxes, and a new one replaces it",
                    self.version
                )
                .into(),
            }));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let launched = match &request {
            Request::Launch { id, .. } => Some(id.clone()),
            _ => None,
        };
        let message = encode(&RequestFrame { number, request }).map_err(LinkError::Request)?;
        if let Some(sender) = sender {
            let mut pending = self.pending.lock();
            pending.insert(number, Pending { sender, launched });
        }
        self.outbox.send(message).map_err(|_| LinkError::Disconnected)?;
        Ok(number)
    }
}

async fn write(stream: &UnixStream, mut messages: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(message) = messages.recv().await {
        if send(stream, &message, None).await.is_err() {
            return;
        }
    }
}

/// Reading half of the connection.
struct Reader {
    reader: FrameReader,
    pending: Arc<Mutex<HashMap<u64, Pending>>>,
    outbox: mpsc::WeakUnboundedSender<Vec<u8>>,
    ended: EndSink,
}

impl Reader {
    async fn read(mut self) {
        // An invalid message ends the connection: nothing after it can be trusted.
        while let Ok(Some(reply)) = self.reader.next::<Reply>().await {
            match reply {
                Reply::Answer { number, answer } => {
                    let descriptor = match answer.has_descriptor().then(|| self.reader.descriptor()) {
                        None => None,
                        Some(Ok(descriptor)) => Some(descriptor),
                        Some(Err(_)) => return,
                    };
                    self.deliver(number, Ok((answer, descriptor)));
                }
                Reply::Refused { number, error } => {
                    self.deliver(number, Err(LinkError::Refused(error.into())))
                }
                Reply::Ended { id, how } => (self.ended)(&id, how),
            }
        }
    }

    fn deliver(&self, number: u64, answer: AnswerResult) {
        let found = self.pending.lock().remove(&number);
        let Some(Pending { sender, launched }) = found else { return };
        if let (Err(Ok(_)), Some(id)) = (sender.send(answer), launched) {
            // The caller has stopped waiting meanwhile.
            let stop = encode(&RequestFrame { number: 0, request: Request::Stop { id } });
            if let (Ok(stop), Some(outbox)) = (stop, self.outbox.upgrade()) {
                let _ = outbox.send(stop);
            }
        }
    }
}
