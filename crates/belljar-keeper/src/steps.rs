//! The steps of a request. For traces they have spans: without a collector nobody wants them, and they cost a load each.

use std::pin::Pin;
use std::task::Poll;

use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

/// A span for one step. Logs do not show it: its target is for traces alone.
macro_rules! step {
    ($name:literal $(, $($field:tt)*)?) => {
        tracing::info_span!(target: "belljar_steps", $name $(, $($field)*)?)
    };
}

pub(crate) use step;

/// Takes steps to their end, also when nobody waits for them any more. A request is dropped where it stands when its client
/// goes away; a sandbox must not be left between two states by that. What is left then becomes one of `tasks`, for which the keeper
/// waits when it is closed.
pub(crate) async fn to_its_end<F>(tasks: &TaskTracker, steps: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let mut rest = Rest { steps: Some(Box::pin(steps)), tasks };
    std::future::poll_fn(|context| {
        let Some(steps) = &mut rest.steps else { return Poll::Pending };
        let done = std::task::ready!(steps.as_mut().poll(context));
        rest.steps = None;
        Poll::Ready(done)
    })
    .await
}

/// What is left of the steps. Dropped before they are at their end, they go on in a task of their own.
struct Rest<'a, F: Future<Output: Send> + Send + 'static> {
    steps: Option<Pin<Box<F>>>,
    tasks: &'a TaskTracker,
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Rest<'_, F> {
    fn drop(&mut self) {
        // Steps that panicked cannot go on.
        let rest = self.steps.take().filter(|_| !std::thread::panicking());
        // Without a runtime the process is at its end, and the next server puts things right.
        if let (Some(rest), Ok(runtime)) = (rest, tokio::runtime::Handle::try_current()) {
            self.tasks.spawn_on(rest.in_current_span(), &runtime);
        }
    }
}
