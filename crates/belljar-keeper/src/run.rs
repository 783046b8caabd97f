//! Runs of code and of commands, as streams of their events.

use std::future::Future;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::code_step::EndedStep;
use crate::error::KeeperError;

type Result<T> = std::result::Result<T, KeeperError>;

/// Maximum number of events buffered for a reader. A slower reader slows the run down.
const MAX_WAITING_EVENTS: usize = 16;

/// What a run waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Id of the approval.
    pub approval: String,
    /// Time after which it is refused, unless somebody has approved it.
    pub expires_at: Timestamp,
}

/// What a run reports. A facade has one arm for each.
#[derive(Debug)]
pub enum RunEvent<E, R> {
    /// It waits for approval.
    Waiting(Waiting),
    /// It is accepted, and may have to wait for its turn.
    Queued,
    /// It goes on.
    Progress(E),
    /// It has ended, with its result. The last event.
    Ended(Result<R>),
}

/// A run whose events are read. Dropping it tells the keeper that the caller has disconnected. It is a task of its own: while nobody
/// reads, it waits for room for an event and holds nothing else, such as a connection to the store.
pub struct Run<E, R> {
    events: mpsc::Receiver<Reported<E>>,
    running: Option<AbortOnDropHandle<Result<R>>>,
    /// Result, kept until all events before it are read.
    result: Option<Result<R>>,
    /// Event that was read already.
    first: Option<RunEvent<E, R>>,
    /// The step that has ended, until somebody takes it.
    step: Option<EndedStep>,
}

impl<E, R> Run<E, R> {
    /// Starts a run, which gets the place for its events.
    pub(crate) fn new<F>(start: impl FnOnce(Reporter<E>) -> F) -> Self
    where
        F: Future<Output = Result<R>> + Send + 'static,
        R: Send + 'static,
    {
        let (sender, events) = mpsc::channel(MAX_WAITING_EVENTS);
        let running = tokio::spawn(start(Reporter(Some(sender))).in_current_span());
        Self { events, running: Some(AbortOnDropHandle::new(running)), result: None, first: None, step: None }
    }

    /// Waits until the run is accepted.
    ///
    /// # Errors
    /// The refusal. What fails later is an event.
    pub async fn accepted(&mut self) -> Result<()> {
        if self.first.is_none() {
            self.first = self.read().await;
        }
        self.refusal()
    }

    /// Waits until the run has begun or ended, as [`Self::accepted`], but not only for its turn.
    ///
    /// # Errors
    /// The refusal.
    pub async fn begun(&mut self) -> Result<()> {
        while matches!(self.first, None | Some(RunEvent::Queued)) && self.step.is_none() {
            self.first = self.read().await;
        }
        self.refusal()
    }

    /// Takes the result of a run that has ended without an event: the stored one of a repeated request.
    pub fn take_stored(&mut self) -> Option<R> {
        match self.first.take() {
            Some(RunEvent::Ended(Ok(stored))) => Some(stored),
            first => {
                self.first = first;
                None
            }
        }
    }

    /// Takes the step that has ended, after which [`Self::next`] has returned `None`, although the run goes on.
    pub(crate) fn take_step(&mut self) -> Option<EndedStep> {
        self.step.take()
    }

    /// Returns the next event; `None` after the end, and at the end of a step.
    pub async fn next(&mut self) -> Option<RunEvent<E, R>> {
        match self.first.take() {
            Some(first) => Some(first),
            None => self.read().await,
        }
    }

    fn refusal(&mut self) -> Result<()> {
        match self.first.take() {
            Some(RunEvent::Ended(Err(error))) => Err(error),
            first => {
                self.first = first;
                Ok(())
            }
        }
    }

    /// Reads the next event. Nothing is lost if the future is dropped.
    async fn read(&mut self) -> Option<RunEvent<E, R>> {
        if self.step.is_some() {
            return None;
        }
        let step = &mut self.step;
        let mut event = |event: Reported<E>| match event {
            Reported::Waiting(waiting) => Some(RunEvent::Waiting(waiting)),
            Reported::Queued => Some(RunEvent::Queued),
            Reported::Progress(event) => Some(RunEvent::Progress(event)),
            Reported::Step(ended) => {
                *step = Some(*ended);
                None
            }
        };
        if let Some(running) = &mut self.running {
            tokio::select! {
                biased;
                Some(next) = self.events.recv() => return event(next),
                ended = running => self.result = Some(match ended.map_err(JoinError::try_into_panic) {
                    Ok(result) => result,
                    Err(Ok(panic)) => std::panic::resume_unwind(panic),
                    Err(Err(_)) => Err(KeeperError::ShuttingDown),
                }),
            }
            self.running = None;
        }
        // Short code may send its events and end within one poll.
        match self.events.recv().await {
            Some(next) => event(next),
            None => self.result.take().map(RunEvent::Ended),
        }
    }
}

/// An event on its way to the reader.
enum Reported<E> {
    Waiting(Waiting),
    Queued,
    Progress(E),
    Step(Box<EndedStep>),
}

/// Where a run reports its events: a reader, or nowhere.
pub(crate) struct Reporter<E>(Option<mpsc::Sender<Reported<E>>>);

impl<E> Clone for Reporter<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E> Reporter<E> {
    /// Returns one for a run whose result alone is wanted.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Reports that the run is accepted.
    pub(crate) fn queued(&self) {
        if let Some(events) = &self.0 {
            // With other events waiting, the reader knows.
            let _ = events.try_send(Reported::Queued);
        }
    }

    /// Reports that the run, or a call of its code, waits for approval.
    pub(crate) fn waiting(&self, waiting: Waiting) {
        if let Some(events) = &self.0 {
            // There is room, unless the reader is gone.
            let _ = events.try_send(Reported::Waiting(waiting));
        }
    }

    /// Reports the end of a step, when the reader has room for it. If it is gone, the calls of the step are told.
    pub(crate) async fn step(&self, step: EndedStep) {
        if let Some(events) = &self.0 {
            let _ = events.send(Reported::Step(Box::new(step))).await;
        }
    }

    /// Reports the only event of a run.
    pub(crate) fn progress(&self, event: E) {
        if let Some(events) = &self.0 {
            // There is room, unless the reader is gone.
            let _ = events.try_send(Reported::Progress(event));
        }
    }

    /// Reports an event, when the reader has room for it.
    pub(crate) async fn send(&self, event: E) {
        if let Some(events) = &self.0 {
            // The reader may be gone.
            let _ = events.send(Reported::Progress(event)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<R>() -> Result<R> {
        Err(KeeperError::field("code", "no"))
    }

    async fn rest(mut run: Run<u8, &str>) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(event) = run.next().await {
            all.push(match event {
                RunEvent::Waiting(waiting) => format!("waiting for {}", waiting.approval),
                RunEvent::Queued => "queued".to_owned(),
                RunEvent::Progress(number) => number.to_string(),
                RunEvent::Ended(result) => result.map_or_else(|error| error.to_string(), str::to_owned),
            });
        }
        assert!(run.next().await.is_none());
        all
    }

    #[tokio::test]
    async fn events_precede_the_result() {
        // More events than fit, and an end within the poll that sends the last ones.
        let mut run = Run::new(|report| async move {
            report.queued();
            for number in 0..20 {
                report.send(number).await;
            }
            Ok("end")
        });
        run.accepted().await.unwrap();
        assert!(matches!(run.first, Some(RunEvent::Queued)));
        run.begun().await.unwrap();
        let expected: Vec<_> = (0..20).map(|number| number.to_string()).chain(["end".to_owned()]).collect();
        assert_eq!(rest(run).await, expected);
    }

    #[tokio::test]
    async fn refusals_are_told_from_failures() {
        let mut run = Run::<u8, &str>::new(|_| async { refused() });
        assert!(run.accepted().await.is_err());
        let mut run = Run::<u8, &str>::new(|report| async move {
            report.queued();
            refused()
        });
        run.accepted().await.unwrap();
        assert!(run.begun().await.is_err());
        let run = Run::<u8, &str>::new(|report| async move {
            report.send(1).await;
            refused()
        });
        assert_eq!(rest(run).await, ["1".to_owned(), refused::<()>().unwrap_err().to_string()]);
    }

    #[tokio::test]
    async fn waiting_for_approval_is_a_beginning() {
        let mut run = Run::<u8, &str>::new(|report| async move {
            report.waiting(Waiting { approval: "a".to_owned(), expires_at: Timestamp::UNIX_EPOCH });
            report.queued();
            refused()
        });
        run.begun().await.unwrap();
        let refused = refused::<()>().unwrap_err().to_string();
        assert_eq!(rest(run).await, ["waiting for a".to_owned(), "queued".to_owned(), refused]);
    }

    #[tokio::test]
    async fn stored_results_have_no_events() {
        let mut run = Run::<u8, &str>::new(|_| async { Ok("stored") });
        run.begun().await.unwrap();
        assert_eq!(run.take_stored(), Some("stored"));
        let mut run = Run::<u8, &str>::new(|report| async move {
            report.send(1).await;
            Ok("new")
        });
        run.begun().await.unwrap();
        assert_eq!(run.take_stored(), None);
        assert_eq!(rest(run).await, ["1", "new"]);
    }
}
