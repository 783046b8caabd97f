//! Runs of code in steps. A step ends with calls of functions that wait for their answers, and the next one begins with these.
//!
//! ```text
//!  code ─► calls ─► sandbox frozen ─► the caller gets the calls ─► answers in time ─► sandbox resumed ─► calls answered ─► code
//!                                                             └─► none, or the server ends: sandbox resumed, calls fail ─► code,
//!                                                                 as after a caller that disconnects
//! ```

use std::sync::atomic::Ordering;
use std::time::Duration;

use belljar_engine::CodeEvent;
use belljar_model::{CodeExecution, SandboxId};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::action::CODE_ANSWER;
use crate::caller::Caller;
use crate::code_step::{CallAnswer, CodeStep};
use crate::code_steps::{KEY_ENDED, SERVER_ENDED, TIME_OVER};
use crate::entry::until;
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};
use crate::run::{Run, RunEvent};

/// Time for which the calls of a step wait for their answers if the request gives none.
/// Source: docs/spec.md; held by `steps::calls_wait_for_their_time` of the keeper's tests.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Range of that time. Source: docs/spec.md; held by `times_of_calls_are_bounded`.
pub(super) const CALL_TIMEOUTS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];

/// How a step has ended.
#[derive(Debug)]
pub enum StepEnd {
    /// With calls that wait for [`Keeper::continue_code`].
    Calls(CodeStep),
    /// With the end of the code.
    Ended(Box<CodeExecution>),
}

impl Keeper {
    /// Keeps a run whose step has ended with calls until [`Self::continue_code`], or until their time is over; none if it has ended.
    ///
    /// # Errors
    /// [`KeeperError::ShuttingDown`]; then the calls fail.
    pub fn keep_step(&self, mut run: Run<CodeEvent, CodeExecution>) -> Result<Option<CodeStep>> {
        let Some(ended) = run.take_step() else { return Ok(None) };
        if self.inner.closing.load(Ordering::Relaxed) {
            return Err(KeeperError::ShuttingDown);
        }
        let (keeper, id, left) = (self.clone(), ended.run.clone(), until(ended.step.expires_at));
        let standing = ended.standing.clone();
        let (kept, is_kept) = oneshot::channel();
        let expiry = tokio::spawn(async move {
            // A key that has ended already closes it at once, which has to find it.
            let _ = is_kept.await;
            let reason = tokio::select! {
                () = tokio::time::sleep(left) => TIME_OVER,
                () = keeper.wait_for_key_end(&standing) => KEY_ENDED,
            };
            keeper.inner.steps.close(&id, reason);
        });
        let step = self.inner.steps.keep_run(run, ended, AbortOnDropHandle::new(expiry));
        let _ = kept.send(());
        if self.inner.closing.load(Ordering::Relaxed) {
            self.inner.steps.close_all(SERVER_ENDED);
        }
        Ok(Some(step))
    }

    /// Reads a run to the end of its step.
    ///
    /// # Errors
    /// See [`Self::run_code`].
    pub async fn finish_step(&self, mut run: Run<CodeEvent, CodeExecution>) -> Result<StepEnd> {
        while let Some(event) = run.next().await {
            if let RunEvent::Ended(done) = event {
                return Ok(StepEnd::Ended(Box::new(done?)));
            }
        }
        self.keep_step(run)?.map(StepEnd::Calls).ok_or(KeeperError::ShuttingDown)
    }

    /// Answers the calls with which a step of code has ended, and returns its sandbox and the run, which goes on.
    ///
    /// # Errors
    /// As [`Self::get`], if a sandbox is given; [`KeeperError::NotFound`] if there is no such call, or it is one of another key or sandbox;
    /// [`KeeperError::CallClosed`] if it does not wait any more; [`KeeperError::Field`] if not each call that waits is answered once.
    pub async fn continue_code(
        &self,
        caller: &Caller,
        sandbox: Option<&str>,
        answers: Vec<CallAnswer>,
    ) -> Result<(SandboxId, Run<CodeEvent, CodeExecution>)> {
        self.require(caller, CODE_ANSWER)?;
        let sandbox = match sandbox {
            Some(sandbox) => Some(self.find(caller, sandbox).await?.id.clone()),
            None => caller.only.clone(),
        };
        self.inner.steps.answer(&caller.key, sandbox.as_ref(), answers)
    }
}
