//! Creating, listing, restarting, interrupting and removing interpreter contexts.

use std::collections::BTreeMap;

use belljar_engine::{ErrorCode, GuestError, v1};
use bytes::Bytes;
use futures::future::BoxFuture;

use crate::action::{
    Action, CODE_ANSWER, CONTEXT_CREATE, CONTEXT_INTERRUPT, CONTEXT_LIST, CONTEXT_REMOVE, CONTEXT_RESTART,
};
use crate::caller::Caller;
use crate::code::explain_context_error;
use crate::code_request::{check_name, environment};
#[cfg(doc)]
use crate::error::KeeperError;
use crate::keeper::{Entered, Keeper, Result};
use crate::steps::run_detached;

/// A request for a new context.
#[derive(Debug, Clone, Default)]
pub struct NewContext {
    /// Language; Python if not given.
    pub language: Option<String>,
    /// Working directory: absolute, or relative to the home directory.
    pub cwd: Option<Bytes>,
    /// Environment of the context, added to the sandbox's.
    pub env: BTreeMap<String, String>,
}

impl Keeper {
    /// Creates a context.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; [`KeeperError::Kernel`] if its interpreter cannot start, [`KeeperError::Contexts`] if too many exist.
    pub async fn create_context(
        &self,
        caller: &Caller,
        id: &str,
        new: NewContext,
    ) -> Result<v1::ContextInfo> {
        check_name("language", new.language.as_deref())?;
        let entered = self.enter_for(caller, id, CONTEXT_CREATE).await?;
        let request = v1::CreateContextRequest {
            language: new.language.unwrap_or_default(),
            cwd: new.cwd.unwrap_or_default(),
            env: environment(&entered, &new.env)?,
            ..Default::default()
        };
        let in_flight = self.take_place(caller, &entered).await?;
        let (keeper, caller) = (self.clone(), caller.clone());
        run_detached(&self.inner.tasks, async move {
            let _in_flight = in_flight;
            let language = request.language.clone();
            let cold_reason = keeper.ensure_warm(&entered, Some(&language), false).await;
            let made = match entered.guest().create_context(request).await {
                Ok(mut made) => {
                    if made.start_note.is_empty() && made.start == v1::KernelStart::KERNEL_START_PLAIN {
                        made.start_note = cold_reason.unwrap_or_default();
                    }
                    Ok(made)
                }
                Err(error) => Err(explain_context_error(&entered, error, None).await),
            };
            let language = made.as_ref().map_or(language, |made| made.language.clone());
            let mut details = vec![("language", language)];
            details.extend(made.as_ref().ok().map(|made| ("context", made.id.clone())));
            keeper.audit(&caller, CONTEXT_CREATE, Some(entered.id()), &made, details).await?;
            made
        })
        .await
    }

    /// Lists the contexts, the oldest first.
    ///
    /// # Errors
    /// As [`Keeper::enter`].
    pub async fn contexts(&self, caller: &Caller, id: &str) -> Result<Vec<v1::ContextInfo>> {
        let entered = self.enter_for(caller, id, CONTEXT_LIST).await?;
        match entered.guest().list_contexts().await {
            Ok(contexts) => Ok(contexts),
            Err(error) => Err(explain_context_error(&entered, error, None).await),
        }
    }

    /// Ends a context's interpreter and starts a fresh one.
    ///
    /// # Errors
    /// As [`Keeper::create_context`]; fails if the context does not exist.
    pub async fn restart_context(&self, caller: &Caller, id: &str, context: &str) -> Result<v1::ContextInfo> {
        self.act_on_context(caller, id, context, CONTEXT_RESTART, |entered, context| {
            Box::pin(async move { entered.guest().restart_context(context).await })
        })
        .await
    }

    /// Interrupts the execution in a context. Reports whether one was running.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; fails if the context does not exist.
    pub async fn interrupt_context(&self, caller: &Caller, id: &str, context: &str) -> Result<bool> {
        self.act_on_context(caller, id, context, CONTEXT_INTERRUPT, |entered, context| {
            Box::pin(async move { entered.guest().interrupt_context(context).await })
        })
        .await
    }

    /// Removes a context, and kills everything started in it.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; fails if the context does not exist.
    pub async fn remove_context(&self, caller: &Caller, id: &str, context: &str) -> Result<()> {
        self.act_on_context(caller, id, context, CONTEXT_REMOVE, |entered, context| {
            Box::pin(async move {
                entered.guest().remove_context(context).await?;
                entered.entry.set_lost(context, None);
                Ok(())
            })
        })
        .await
    }

    /// Acts on a context, and records that, even if the caller disconnects: the guest does not stop for that.
    async fn act_on_context<T: Send + 'static>(
        &self,
        caller: &Caller,
        id: &str,
        context: &str,
        action: Action,
        act: for<'a> fn(&'a Entered, &'a str) -> BoxFuture<'a, std::result::Result<T, GuestError>>,
    ) -> Result<T> {
        let entered = self.enter_for(caller, id, action).await?;
        let in_flight = self.take_place(caller, &entered).await?;
        let (keeper, caller, context) = self.clone_for_task(caller, context);
        run_detached(&self.inner.tasks, async move {
            let _in_flight = in_flight;
            let done = match act(&entered, &context).await {
                Ok(done) => Ok(done),
                Err(error) => Err(explain_context_error(&entered, error, Some(&context)).await),
            };
            keeper.audit(&caller, action, Some(entered.id()), &done, context_details(&context)).await?;
            done
        })
        .await
    }

    /// Answers a request for input of running code, or a call of a function.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; fails if the context does not exist, or has not requested input.
    pub async fn answer_code(&self, caller: &Caller, id: &str, request: v1::AnswerRequest) -> Result<()> {
        let entered = self.enter_for(caller, id, CODE_ANSWER).await?;
        let context = request.context.clone();
        // Calls of stored tools are not for callers to answer.
        let request = v1::AnswerRequest { of_tool: false, ..request };
        match entered.guest().answer_code(request).await {
            Ok(()) => Ok(()),
            // No request for input is pending, which is not an error of the interpreter.
            Err(error) if error.is(ErrorCode::FailedPrecondition) => Err(entered.explain(error).await),
            Err(error) => Err(explain_context_error(&entered, error, Some(&context)).await),
        }
    }
}

fn context_details(context: &str) -> Vec<(&'static str, String)> {
    vec![("context", context.to_owned())]
}
