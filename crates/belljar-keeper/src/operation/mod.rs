//! What may be asked of a sandbox, and the one way in.
//!
//! ```text
//!  Keeper::perform(caller, sandbox, operation)
//!    role ─► sandbox, resumed and in use ─► checks: quota, … ─► to its end, by the guest ─► audit ─► answer
//! ```
//!
//! An operation is a request to the guest ([`GuestCall`]) with what the keeper has to know of it: its [`Kind`], and what of it goes into
//! the audit. A facade decodes an operation, has it performed, and encodes its answer.

mod files;
mod processes;
mod sessions;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_engine::{Archive, Download, Execution, GuestCall, GuestError, ProcessEvent, Search, Watch, v1};
use bytes::Bytes;
use tokio::sync::oneshot;
use tracing::Instrument as _;

pub use files::{Unpack, Write};
pub use processes::{Connect, Feed};

use crate::action::Action;
use crate::caller::Caller;
use crate::error::{About, KeeperError};
use crate::keeper::{Entered, Keeper, Result};
use crate::steps::{run_detached, step};

/// What the keeper has to know of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The action that it is.
    pub action: Action,
    /// What a refusal of the guest is about.
    pub about: About,
    /// Whether it goes on when its caller goes away, so that it is in the audit. What its caller sends meanwhile cannot.
    pub detached: bool,
}

impl Kind {
    const fn new(name: &'static str, about: About) -> Self {
        Self { action: Action::within(name), about, detached: false }
    }

    const fn audited(self) -> Self {
        Self { action: self.action.audited(), detached: true, ..self }
    }

    const fn executes(self) -> Self {
        Self { action: self.action.executes(), ..self }
    }

    const fn with_caller(self) -> Self {
        Self { detached: false, ..self }
    }
}

/// Something for the audit.
#[derive(Debug, Clone)]
pub enum Detail {
    /// It is known before.
    Text(String),
    /// It is counted meanwhile.
    Count(Arc<AtomicU64>),
}

impl From<Detail> for String {
    fn from(detail: Detail) -> Self {
        match detail {
            Detail::Text(text) => text,
            Detail::Count(count) => count.load(Ordering::Relaxed).to_string(),
        }
    }
}

/// Names and values for the audit.
pub type Details = Vec<(&'static str, Detail)>;

fn number(name: &'static str, value: impl ToString) -> (&'static str, Detail) {
    (name, Detail::Text(value.to_string()))
}

/// A path, with everything that is no printable ASCII escaped.
fn path(name: &'static str, path: &[u8]) -> (&'static str, Detail) {
    (name, Detail::Text(path.escape_ascii().to_string()))
}

/// Something that may be asked of a sandbox.
pub trait Operation: GuestCall {
    /// What it is.
    const KIND: Kind;

    /// What of it goes into the audit, besides its outcome.
    fn details(&self) -> Details {
        Vec::new()
    }

    /// Returns the paths in the request, if it is about files alone. A volume refuses all other operations.
    fn paths(&mut self) -> Option<Vec<&mut Bytes>> {
        None
    }

    /// Adds what the sandbox itself says, such as its environment.
    fn complete(&mut self, _: &Entered) {}

    /// Notes in the sandbox's log what has begun.
    fn note(_: &Self::Response, _: &Entered) {}
}

/// Says what each operation is, and lists them.
macro_rules! operations {
    ($(
        $type:ty = $kind:expr
        $(, at |$placed:ident| [$($path:expr),*])?
        $(, |$request:ident| $details:expr)?
        $(, for |$completed:ident, $entered:ident| $complete:expr)?
        $(, as |$answer:ident, $noted:ident| $note:expr)?
    ;)*) => {
        $(
            impl $crate::operation::Operation for $type {
                const KIND: $crate::operation::Kind = $kind;

                $(
                    fn paths(&mut self) -> Option<Vec<&mut bytes::Bytes>> {
                        let $placed = self;
                        Some(vec![$(&mut $path),*])
                    }
                )?

                $(
                    fn details(&self) -> $crate::operation::Details {
                        let $request = self;
                        $details
                    }
                )?

                $(
                    fn complete(&mut self, $entered: &$crate::keeper::Entered) {
                        let $completed = self;
                        $complete
                    }
                )?

                $(
                    fn note($answer: &Self::Response, $noted: &$crate::keeper::Entered) {
                        $note
                    }
                )?
            }
        )*

        /// What they are.
        pub(super) const KINDS: &[$crate::operation::Kind] =
            &[$(<$type as $crate::operation::Operation>::KIND),*];
    };
}
use operations;

/// Every operation on a guest.
pub(crate) const KINDS: &[&[Kind]] = &[files::KINDS, processes::KINDS, sessions::KINDS];

/// The answer of an operation. The sandbox counts as in use for as long as it is held.
pub struct Opened<A> {
    answer: A,
    entered: Entered,
    about: About,
}

impl<A> std::fmt::Debug for Opened<A> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Opened").field("sandbox", self.entered.id()).finish_non_exhaustive()
    }
}

impl<A> Opened<A> {
    /// The sandbox, in use.
    #[must_use]
    pub fn sandbox(&self) -> &Entered {
        &self.entered
    }

    /// The answer itself.
    #[must_use]
    pub fn get(&self) -> &A {
        &self.answer
    }

    /// Returns the answer alone.
    #[must_use]
    pub fn into_answer(self) -> A {
        self.answer
    }
}

/// An answer that comes in pieces.
pub trait Pieces: Send {
    /// A piece.
    type Piece: Send;

    /// Notes in the sandbox's log what a piece says.
    fn note(&self, _: &Self::Piece, _: &Entered) {}

    /// The next one; nothing after the last.
    fn next(&mut self) -> impl Future<Output = std::result::Result<Option<Self::Piece>, GuestError>> + Send;
}

macro_rules! pieces {
    ($($stream:ty => $piece:ty $(, $note:ident)?;)*) => {$(
        impl Pieces for $stream {
            type Piece = $piece;

            $(
                fn note(&self, piece: &$piece, entered: &Entered) {
                    entered.$note(self, piece);
                }
            )?

            fn next(&mut self) -> impl Future<Output = std::result::Result<Option<$piece>, GuestError>> + Send {
                <$stream>::next(self)
            }
        }
    )*};
}

pieces! {
    Execution => ProcessEvent, note;
    Download => Bytes;
    Watch => v1::WatchEvent;
    Search => v1::SearchMatch;
    Archive => Bytes;
}

impl<A: Pieces> Opened<A> {
    /// The next piece; nothing after the last.
    ///
    /// # Errors
    /// What became of the stream.
    pub async fn next(&mut self) -> Result<Option<A::Piece>> {
        match self.answer.next().await {
            Ok(piece) => {
                piece.iter().for_each(|piece| self.answer.note(piece, &self.entered));
                Ok(piece)
            }
            Err(error) => Err(self.entered.explain_about(error, self.about).await),
        }
    }
}

impl Keeper {
    /// Has something done in the caller's sandbox. It goes to its end, and into the audit, also when the future is dropped.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; the key has used up its quota; what the guest refuses; what is done without a record in the audit is
    /// not told as done.
    pub async fn perform<O: Operation>(
        &self,
        caller: &Caller,
        id: &str,
        operation: O,
    ) -> Result<O::Response> {
        Ok(self.begin(caller, id, operation).await?.answer)
    }

    /// The same for an answer that is a stream. What is refused is refused here.
    ///
    /// # Errors
    /// As [`Keeper::perform`].
    pub async fn begin<O: Operation>(
        &self,
        caller: &Caller,
        id: &str,
        operation: O,
    ) -> Result<Opened<O::Response>> {
        let entered = self.find_for(caller, id, O::KIND.action).await?;
        self.begin_in(caller, &entered, operation).await
    }

    /// The same in a sandbox that the caller, or a token of his, has been let into.
    ///
    /// # Errors
    /// As [`Keeper::perform`].
    pub async fn perform_in<O: Operation>(
        &self,
        caller: &Caller,
        entered: &Entered,
        operation: O,
    ) -> Result<O::Response> {
        Ok(self.begin_in(caller, entered, operation).await?.answer)
    }

    /// The same for an answer that is a stream.
    ///
    /// # Errors
    /// As [`Keeper::perform`].
    pub async fn begin_in<O: Operation>(
        &self,
        caller: &Caller,
        entered: &Entered,
        mut operation: O,
    ) -> Result<Opened<O::Response>> {
        let (kind, entered) = (O::KIND, entered.clone());
        self.check(caller, kind.action)?;
        if entered.volume().is_some() {
            keep_in_volume(kind, &mut operation)?;
        }
        // Who is not served yet goes with its caller, so that callers that come and go pile nothing up.
        let under_way = match kind.detached {
            true => Arc::clone(&entered.entry.under_way).acquire_owned().await.ok(),
            false => None,
        };
        operation.complete(&entered);
        let mut details = operation.details();
        // A content sandbox belongs to no tenant.
        let sandbox = entered.volume().is_none().then(|| entered.id().clone());
        details.extend(entered.volume().map(|volume| number("volume", volume)));
        let (_here, gone) = oneshot::channel::<()>();
        let (keeper, caller) = (self.clone(), caller.clone());
        let steps = async move {
            let _under_way = under_way;
            let asked = async {
                let asking = entered.guest().call(operation);
                let answer = if kind.detached {
                    asking.await
                } else {
                    tokio::select! {
                        answer = asking => answer,
                        _ = gone => Err(GuestError::Source(io::Error::other("the caller has gone away"))),
                    }
                };
                match answer {
                    Ok(answer) => {
                        O::note(&answer, &entered);
                        Ok(answer)
                    }
                    Err(error) => Err(entered.explain_about(error, kind.about).await),
                }
            };
            let done = asked.instrument(step!("guest.ask", operation = kind.action.name)).await;
            if kind.action.audited {
                let details = details.into_iter().map(|(name, detail)| (name, detail.into())).collect();
                keeper.audit(&caller, kind.action, sandbox.as_ref(), &done, details).await?;
            }
            Ok(Opened { answer: done?, entered, about: kind.about })
        };
        run_detached(&self.inner.tasks, steps).await
    }
}

/// Makes an operation's paths relative to the root of a volume, which is the home of its content sandbox.
fn keep_in_volume<O: Operation>(kind: Kind, operation: &mut O) -> Result<()> {
    let refused = || KeeperError::Policy {
        field: "volume",
        reason: format!("{} is not for volumes: they have files and nothing else", kind.action.name),
    };
    for path in operation.paths().ok_or_else(refused)? {
        *path = make_relative(path)?;
    }
    Ok(())
}

/// Returns a path relative to the root of a volume.
fn make_relative(path: &[u8]) -> Result<Bytes> {
    let mut below = Vec::with_capacity(path.len());
    for part in path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")) {
        if part == b".." {
            return Err(KeeperError::field(
                "path",
                "it contains .., which may lead out of the volume; give a path without it",
            ));
        }
        if !below.is_empty() {
            below.push(b'/');
        }
        below.extend_from_slice(part);
    }
    Ok(if below.is_empty() { Bytes::from_static(b".") } else { below.into() })
}

/// The environment of something that is started: the sandbox's own, which its guest may not know if it was made ahead, and what was
/// asked for, which wins.
fn with_own_env(entered: &Entered, asked: &mut Vec<v1::EnvVar>) {
    let own = entered.spec().env.iter().map(|variable| v1::EnvVar {
        name: Bytes::copy_from_slice(variable.name().as_bytes()),
        value: Bytes::copy_from_slice(variable.value().as_bytes()),
        ..Default::default()
    });
    *asked = own.chain(std::mem::take(asked)).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_a_volume_start_at_its_root() {
        for (path, expected) in [
            ("a", Some("a")),
            ("/a/b", Some("a/b")),
            ("//a//./b/", Some("a/b")),
            ("", Some(".")),
            ("/", Some(".")),
            (".", Some(".")),
            ("..", None),
            ("a/../b", None),
            ("/../etc/passwd", None),
            ("..a/b..", Some("..a/b..")),
        ] {
            let below = make_relative(path.as_bytes()).ok();
            assert_eq!(below.as_deref(), expected.map(str::as_bytes), "{path}");
        }
    }
}
