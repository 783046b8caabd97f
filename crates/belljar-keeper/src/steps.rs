//! Steps of a request, with spans for traces. Without a collector no span is enabled, and each costs one load.

use std::pin::Pin;
use std::task::Poll;

use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

/// Creates a span for one step. Logs do not show it: its target is for traces only.
macro_rules! step {
    ($name:literal $(, $($field:tt)*)?) => {
        tracing::info_span!(target: "belljar_steps", $name $(, $($field)*)?)
    };
}

pub(crate) use step;

/// Runs steps to completion even if the returned future is dropped. A request's future is dropped when its client disconnects,
/// which must not leave a sandbox between two states. The remaining steps then become one of `tasks`, for which the keeper
/// waits on shutdown.
pub(crate) async fn run_detached<F>(tasks: &TaskTracker, steps: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let mut remaining = Remaining { steps: Some(Box::pin(steps)), tasks };
    std::future::poll_fn(|context| {
        let Some(steps) = &mut remaining.steps else { return Poll::Pending };
        let done = std::task::ready!(steps.as_mut().poll(context));
        remaining.steps = None;
        Poll::Ready(done)
    })
    .await
}

/// Remaining steps. If dropped before completion, they continue in a task of their own.
struct Remaining<'a, F: Future<Output: Send> + Send + 'static> {
    steps: Option<Pin<Box<F>>>,
    tasks: &'a TaskTracker,
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Remaining<'_, F> {
    fn drop(&mut self) {
        // Steps that panicked cannot go on.
        let remaining = self.steps.take().filter(|_| !std::thread::panicking());
        // Without a runtime the process is exiting, and the next server cleans up.
        if let (Some(remaining), Ok(runtime)) = (remaining, tokio::runtime::Handle::try_current()) {
            self.tasks.spawn_on(remaining.in_current_span(), &runtime);
        }
    }
}
