//! A server's connection to the launcher.

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

/// The most descriptors that may come before their messages are read.
const MOST_DESCRIPTORS: usize = 64;

/// How long an answer may take. The launcher itself gives up sooner.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// How long a launcher may take to say what it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The launcher refused, and says why.
    #[error(transparent)]
    Refused(#[from] EngineError),
    /// The connection is gone, and perhaps the launcher. It is not known whether the request was carried out.
    #[error("the connection to the launcher is gone")]
    Gone,
    /// The request is no message.
    #[error("the request cannot be sent")]
    Request(#[source] FrameError),
    /// No answer came in time.
    #[error("the launcher did not answer in {} s", ANSWER_TIMEOUT.as_secs())]
    Silent,
    /// The answer is one to another request.
    #[error("the launcher broke the protocol")]
    Protocol,
}

/// Hears of ends.
pub(crate) type EndSink = Arc<dyn Fn(&SandboxId, String) + Send + Sync>;

type Answered = Result<(Answer, Option<OwnedFd>), LinkError>;

struct Pending {
    sender: oneshot::Sender<Answered>,
    /// The sandbox that is being launched: if nobody waits for it any more, it must go.
    launched: Option<SandboxId>,
}

/// A connection on which hello has been said.
pub(crate) struct Link {
    /// Which start of the launcher this is.
    pub(crate) instance: String,
    generation: u32,
    version: String,
    /// Whether the launcher can make control groups, if it tells.
    pub(crate) has_groups: Option<bool>,
    kind: LocalKind,
    outbox: mpsc::UnboundedSender<Vec<u8>>,
    pending: Arc<Mutex<HashMap<u64, Pending>>>,
    next: AtomicU64,
    closed: watch::Receiver<bool>,
}

impl Link {
    /// Says hello on a fresh connection.
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
        let mut reader = FrameReader::new(Arc::clone(&stream), MOST_DESCRIPTORS);
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
        let reading = Reading { reader, pending: Arc::clone(&pending), outbox: outbox.downgrade(), ended };
        tokio::spawn(async move {
            tokio::select! {
                () = reading.read() => {}
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

    /// Whether nothing can be asked on it any more.
    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Resolves when nothing can be asked on it any more.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closed = self.closed.clone();
        async move {
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(&self, request: Request) -> Answered {
        let (sender, receiver) = oneshot::channel();
        let number = self.post(request, Some(sender))?;
        let answered = tokio::select! {
            answered = receiver => answered.unwrap_or(Err(LinkError::Gone)),
            () = self.closed() => Err(LinkError::Gone),
            () = tokio::time::sleep(ANSWER_TIMEOUT) => Err(LinkError::Silent),
        };
        if matches!(answered, Err(LinkError::Gone)) {
            self.pending.lock().remove(&number);
        }
        answered
    }

    /// Asks, and does not care for the answer.
    pub(crate) fn order(&self, request: Request) {
        let _ = self.post(request, None);
    }

    fn post(&self, request: Request, sender: Option<oneshot::Sender<Answered>>) -> Result<u64, LinkError> {
        let (name, since) = request.known_since();
        if since > self.generation {
            return Err(LinkError::Refused(EngineError::Unsupported {
                what: name.into(),
                engine: self.kind.name(),
                reason: format!(
                    "the launcher that holds the sandboxes is of version {}, from before that; \
                     end its sandboxes, and a new one takes its place",
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
        self.outbox.send(message).map_err(|_| LinkError::Gone)?;
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

/// The reading half.
struct Reading {
    reader: FrameReader,
    pending: Arc<Mutex<HashMap<u64, Pending>>>,
    outbox: mpsc::WeakUnboundedSender<Vec<u8>>,
    ended: EndSink,
}

impl Reading {
    async fn read(mut self) {
        // What is no message ends the connection: nothing after it can be trusted to be one.
        while let Ok(Some(reply)) = self.reader.next::<Reply>().await {
            match reply {
                Reply::Answer { number, answer } => {
                    let descriptor = match answer.has_descriptor().then(|| self.reader.descriptor()) {
                        None => None,
                        Some(Ok(descriptor)) => Some(descriptor),
                        Some(Err(_)) => return,
                    };
                    self.answered(number, Ok((answer, descriptor)));
                }
                Reply::Refused { number, error } => {
                    self.answered(number, Err(LinkError::Refused(error.into())))
                }
                Reply::Ended { id, how } => (self.ended)(&id, how),
            }
        }
    }

    fn answered(&self, number: u64, answered: Answered) {
        let found = self.pending.lock().remove(&number);
        let Some(Pending { sender, launched }) = found else { return };
        if let (Err(Ok(_)), Some(id)) = (sender.send(answered), launched) {
            // Whoever asked for it has gone away meanwhile.
            let stop = encode(&RequestFrame { number: 0, request: Request::Stop { id } });
            if let (Ok(stop), Some(outbox)) = (stop, self.outbox.upgrade()) {
                let _ = outbox.send(stop);
            }
        }
    }
}
