//! Operations on the guest of a sandbox, and the only path to it.
//!
//! ```text
//!  Keeper::perform(caller, sandbox, operation)
//!    role ─► sandbox, resumed and in use ─► checks: quota, … ─► to its end, by the guest ─► audit ─► answer
//! ```
//!
//! An operation is a request to the guest ([`GuestCall`]) with the properties that the keeper needs: its [`Kind`], and its audit
//! details. A facade decodes an operation, calls the keeper to perform it, and encodes its answer.

mod files;
mod processes;
mod sessions;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_engine::{Archive, Download, Execution, GuestCall, GuestError, ProcessEvent, Search, Watch, v1};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::Instrument as _;

pub use files::{Unpack, Write};
pub use processes::{Connect, Feed};

use crate::action::Action;
use crate::caller::Caller;
use crate::error::{GuestResource, KeeperError};
use crate::keeper::{Entered, Keeper, Result};
use crate::steps::{run_detached, step};

/// Properties of a kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The action, for access control and the audit log.
    pub action: Action,
    /// The resource that the guest's errors are about.
    pub resource: GuestResource,
    /// Whether it continues when its caller disconnects, so that its outcome is audited. Impossible for uploads.
    pub detached: bool,
}

impl Kind {
    const fn new(name: &'static str, resource: GuestResource) -> Self {
        Self { action: Action::in_sandbox(name), resource, detached: false }
    }

    /// Recorded, and many in a minute counted: what a sandbox's owner does to its files is cheap to repeat.
    const fn audited(self) -> Self {
        Self { action: self.action.audited().counted(), detached: true, ..self }
    }

    const fn executes(self) -> Self {
        Self { action: self.action.executes(), ..self }
    }

    const fn with_caller(self) -> Self {
        Self { detached: false, ..self }
    }
}

/// Value of an audit detail.
#[derive(Debug, Clone)]
pub enum Detail {
    /// Known before the operation.
    Text(String),
    /// Counted during the operation.
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

/// Names and values of audit details.
pub type Details = Vec<(&'static str, Detail)>;

fn number(name: &'static str, value: impl ToString) -> (&'static str, Detail) {
    (name, Detail::Text(value.to_string()))
}

/// Maximum length of a path in an audit record, in bytes.
/// Source: docs/audit.md; held by `tests::long_paths_are_cut_in_audit_records`.
const MAX_AUDIT_PATH_BYTES: usize = 256;

/// Returns a path as an audit detail, with everything but printable ASCII escaped. A long one is cut, and followed by its length and
/// digest.
fn path(name: &'static str, path: &[u8]) -> (&'static str, Detail) {
    let mut text = path.escape_ascii().to_string();
    if text.len() > MAX_AUDIT_PATH_BYTES {
        text.truncate(MAX_AUDIT_PATH_BYTES);
        let digest = hex::encode(Sha256::digest(path));
        text = format!("{text}… [cut: {} bytes, sha256 {digest}]", path.len());
    }
    (name, Detail::Text(text))
}

/// An operation on the guest of a sandbox.
pub trait Operation: GuestCall {
    /// Its kind.
    const KIND: Kind;

    /// Returns its audit details, besides the outcome.
    fn details(&self) -> Details {
        Vec::new()
    }

    /// Returns the paths in the request, if it concerns files only. All other operations are refused in volumes.
    fn paths(&mut self) -> Option<Vec<&mut Bytes>> {
        None
    }

    /// Adds properties of the sandbox, such as its environment.
    fn complete(&mut self, _: &Entered) {}

    /// Logs the start of the operation in the sandbox's log.
    fn note(_: &Self::Response, _: &Entered) {}
}

/// Implements [`Operation`] for types, and lists their kinds.
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

        /// Kinds of the operations above.
        pub(super) const KINDS: &[$crate::operation::Kind] =
            &[$(<$type as $crate::operation::Operation>::KIND),*];
    };
}
use operations;

/// Every operation on a guest.
pub(crate) const KINDS: &[&[Kind]] = &[files::KINDS, processes::KINDS, sessions::KINDS];

/// The answer of an operation. The sandbox counts as in use until this is dropped.
pub struct Opened<A> {
    answer: A,
    entered: Entered,
    resource: GuestResource,
}

impl<A> std::fmt::Debug for Opened<A> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Opened").field("sandbox", self.entered.id()).finish_non_exhaustive()
    }
}

impl<A> Opened<A> {
    /// Returns the sandbox.
    #[must_use]
    pub fn sandbox(&self) -> &Entered {
        &self.entered
    }

    /// Returns a reference to the answer.
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

/// A streamed answer.
pub trait Pieces: Send {
    /// A piece.
    type Piece: Send;

    /// Logs a piece in the sandbox's log.
    fn note(&self, _: &Self::Piece, _: &Entered) {}

    /// Waits for the next piece; returns `None` after the last.
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
    /// Waits for the next piece; returns `None` after the last.
    ///
    /// # Errors
    /// Fails if the stream or the sandbox does.
    pub async fn next(&mut self) -> Result<Option<A::Piece>> {
        match self.answer.next().await {
            Ok(piece) => {
                piece.iter().for_each(|piece| self.answer.note(piece, &self.entered));
                Ok(piece)
            }
            Err(error) => Err(self.entered.explain_about(error, self.resource).await),
        }
    }
}

impl Keeper {
    /// Performs an operation in the caller's sandbox. It is completed and audited even if the future is dropped.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; fails if a quota is exceeded or the guest refuses, or if the audit record cannot be written.
    pub async fn perform<O: Operation>(
        &self,
        caller: &Caller,
        id: &str,
        operation: O,
    ) -> Result<O::Response> {
        Ok(self.begin(caller, id, operation).await?.answer)
    }

    /// Begins an operation with a streamed answer. Refusals are reported here.
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

    /// Performs an operation in a sandbox that has been entered.
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

    /// Begins an operation with a streamed answer in a sandbox that has been entered.
    ///
    /// # Errors
    /// As [`Keeper::perform`].
    pub async fn begin_in<O: Operation>(
        &self,
        caller: &Caller,
        entered: &Entered,
        operation: O,
    ) -> Result<Opened<O::Response>> {
        self.check(caller, O::KIND.action)?;
        self.begin_checked(caller, entered, operation, Vec::new()).await
    }

    /// Takes one of the places of a sandbox for what goes on if its caller disconnects. Who waits for one is cancelled with its caller, so that
    /// these cannot pile up.
    ///
    /// # Errors
    /// As [`Keeper::check_key_still`].
    pub(crate) async fn take_place(
        &self,
        caller: &Caller,
        entered: &Entered,
    ) -> Result<Option<OwnedSemaphorePermit>> {
        let place = Arc::clone(&entered.entry.in_flight).acquire_owned().await.ok();
        self.check_key_still(caller).await?;
        Ok(place)
    }

    /// Begins an operation whose caller has passed the checks. The further details are recorded with it.
    pub(crate) async fn begin_checked<O: Operation>(
        &self,
        caller: &Caller,
        entered: &Entered,
        mut operation: O,
        further: Vec<(&'static str, String)>,
    ) -> Result<Opened<O::Response>> {
        let (kind, entered) = (O::KIND, entered.clone());
        if entered.volume().is_some() {
            keep_in_volume(kind, &mut operation)?;
        }
        let in_flight = match kind.detached {
            true => self.take_place(caller, &entered).await?,
            false => None,
        };
        operation.complete(&entered);
        let mut details = operation.details();
        details.extend(further.into_iter().map(|(name, text)| (name, Detail::Text(text))));
        // A content sandbox belongs to no tenant.
        let sandbox = entered.volume().is_none().then(|| entered.id().clone());
        details.extend(entered.volume().map(|volume| number("volume", volume)));
        let (_here, gone) = oneshot::channel::<()>();
        let (keeper, caller) = (self.clone(), caller.clone());
        let steps = async move {
            let _in_flight = in_flight;
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
                    Err(error) => Err(entered.explain_about(error, kind.resource).await),
                }
            };
            let done = asked.instrument(step!("guest.ask", operation = kind.action.name)).await;
            if kind.action.audited {
                let details = details.into_iter().map(|(name, detail)| (name, detail.into())).collect();
                keeper.audit(&caller, kind.action, sandbox.as_ref(), &done, details).await?;
            }
            Ok(Opened { answer: done?, entered, resource: kind.resource })
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

/// Adds the sandbox's own environment, which the guest of a pre-warmed one does not have, to the requested one, which takes
/// precedence.
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
    fn long_paths_are_cut_in_audit_records() {
        let text = |length: usize| String::from(path("path", &vec![b'a'; length]).1);
        assert_eq!(text(256), "a".repeat(256));
        let cut = text(3000);
        assert!(cut.starts_with(&format!("{}… [cut: 3000 bytes, sha256 ", "a".repeat(256))), "{cut}");
        assert!(cut.len() < 400 && cut != text(3001), "{cut}");
    }

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
