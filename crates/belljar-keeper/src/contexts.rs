//! Creating, listing, restarting, interrupting and removing interpreter contexts.

use std::collections::BTreeMap;

use belljar_engine::{ErrorCode, v1};
use bytes::Bytes;

use crate::action::{
    CODE_ANSWER, CONTEXT_CREATE, CONTEXT_INTERRUPT, CONTEXT_LIST, CONTEXT_REMOVE, CONTEXT_RESTART,
};
use crate::caller::Caller;
use crate::code::explain_context_error;
use crate::code_request::{check_name, environment};
#[cfg(doc)]
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};

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
        let language = request.language.clone();
        let cold_reason = self.ensure_warm(&entered, Some(&language), false).await;
        let made = match entered.guest().create_context(request).await {
            Ok(mut made) => {
                if made.start_note.is_empty() && made.start == v1::KernelStart::KERNEL_START_PLAIN {
                    made.start_note = cold_reason.unwrap_or_default();
                }
                Ok(made)
            }
            Err(error) => Err(explain_context_error(&entered, error, None).await),
        };
        let mut details = vec![("language", made.as_ref().map_or(language, |made| made.language.clone()))];
        details.extend(made.as_ref().ok().map(|made| ("context", made.id.clone())));
        self.audit(caller, CONTEXT_CREATE, Some(entered.id()), &made, details).await?;
        made
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
        let entered = self.enter_for(caller, id, CONTEXT_RESTART).await?;
        let done = match entered.guest().restart_context(context).await {
            Ok(info) => Ok(info),
            Err(error) => Err(explain_context_error(&entered, error, Some(context)).await),
        };
        self.audit(caller, CONTEXT_RESTART, Some(entered.id()), &done, context_details(context)).await?;
        done
    }

    /// Interrupts the execution in a context. Reports whether one was running.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; fails if the context does not exist.
    pub async fn interrupt_context(&self, caller: &Caller, id: &str, context: &str) -> Result<bool> {
        let entered = self.enter_for(caller, id, CONTEXT_INTERRUPT).await?;
        let done = match entered.guest().interrupt_context(context).await {
            Ok(interrupted) => Ok(interrupted),
            Err(error) => Err(explain_context_error(&entered, error, Some(context)).await),
        };
        self.audit(caller, CONTEXT_INTERRUPT, Some(entered.id()), &done, context_details(context)).await?;
        done
    }

    /// Removes a context, and kills everything started in it.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; fails if the context does not exist.
    pub async fn remove_context(&self, caller: &Caller, id: &str, context: &str) -> Result<()> {
        let entered = self.enter_for(caller, id, CONTEXT_REMOVE).await?;
        let done = match entered.guest().remove_context(context).await {
            Ok(()) => {
                entered.entry.set_lost(context, None);
                Ok(())
            }
            Err(error) => Err(explain_context_error(&entered, error, Some(context)).await),
        };
        self.audit(caller, CONTEXT_REMOVE, Some(entered.id()), &done, context_details(context)).await?;
        done
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
