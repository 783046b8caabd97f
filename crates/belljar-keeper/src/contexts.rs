//! Contexts of interpreters: made, listed, restarted, interrupted, removed.

use std::collections::BTreeMap;

use belljar_engine::{ErrorCode, v1};
use bytes::Bytes;

use crate::action::{
    CODE_ANSWER, CONTEXT_CREATE, CONTEXT_INTERRUPT, CONTEXT_LIST, CONTEXT_REMOVE, CONTEXT_RESTART,
};
use crate::caller::Caller;
use crate::code::{check_name, environment, explained};
#[cfg(doc)]
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};

/// A context to make.
#[derive(Debug, Clone, Default)]
pub struct NewContext {
    /// Its language; Python if not given.
    pub language: Option<String>,
    /// Its working directory: absolute, or relative to the home directory.
    pub cwd: Option<Bytes>,
    /// Added to the sandbox's environment, for as long as it lives.
    pub env: BTreeMap<String, String>,
}

impl Keeper {
    /// Makes a context.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; [`KeeperError::Kernel`] when its interpreter cannot start, [`KeeperError::Contexts`] when there are
    /// too many.
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
        let why_not = self.warm_for(&entered, Some(&language), false).await;
        let made = match entered.guest().create_context(request).await {
            Ok(mut made) => {
                if made.start_note.is_empty() && made.start == v1::KernelStart::KERNEL_START_PLAIN {
                    made.start_note = why_not.unwrap_or_default();
                }
                Ok(made)
            }
            Err(error) => Err(explained(&entered, error, None).await),
        };
        let mut details = vec![("language", made.as_ref().map_or(language, |made| made.language.clone()))];
        details.extend(made.as_ref().ok().map(|made| ("context", made.id.clone())));
        self.audit(caller, CONTEXT_CREATE, Some(entered.id()), &made, details).await?;
        made
    }

    /// The contexts, the oldest first.
    ///
    /// # Errors
    /// As [`Keeper::enter`].
    pub async fn contexts(&self, caller: &Caller, id: &str) -> Result<Vec<v1::ContextInfo>> {
        let entered = self.enter_for(caller, id, CONTEXT_LIST).await?;
        match entered.guest().list_contexts().await {
            Ok(contexts) => Ok(contexts),
            Err(error) => Err(explained(&entered, error, None).await),
        }
    }

    /// Ends a context's interpreter and starts a fresh one.
    ///
    /// # Errors
    /// As [`Keeper::create_context`]; there is no such context.
    pub async fn restart_context(&self, caller: &Caller, id: &str, context: &str) -> Result<v1::ContextInfo> {
        let entered = self.enter_for(caller, id, CONTEXT_RESTART).await?;
        let done = match entered.guest().restart_context(context).await {
            Ok(info) => Ok(info),
            Err(error) => Err(explained(&entered, error, Some(context)).await),
        };
        self.audit(caller, CONTEXT_RESTART, Some(entered.id()), &done, named(context)).await?;
        done
    }

    /// Interrupts what runs in a context. Says whether there was something.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; there is no such context.
    pub async fn interrupt_context(&self, caller: &Caller, id: &str, context: &str) -> Result<bool> {
        let entered = self.enter_for(caller, id, CONTEXT_INTERRUPT).await?;
        let done = match entered.guest().interrupt_context(context).await {
            Ok(interrupted) => Ok(interrupted),
            Err(error) => Err(explained(&entered, error, Some(context)).await),
        };
        self.audit(caller, CONTEXT_INTERRUPT, Some(entered.id()), &done, named(context)).await?;
        done
    }

    /// Ends a context, with everything that was started in it.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; there is no such context.
    pub async fn remove_context(&self, caller: &Caller, id: &str, context: &str) -> Result<()> {
        let entered = self.enter_for(caller, id, CONTEXT_REMOVE).await?;
        let done = match entered.guest().remove_context(context).await {
            Ok(()) => Ok(()),
            Err(error) => Err(explained(&entered, error, Some(context)).await),
        };
        self.audit(caller, CONTEXT_REMOVE, Some(entered.id()), &done, named(context)).await?;
        done
    }

    /// Answers a question of code that runs.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; there is no such context, or nobody has asked.
    pub async fn answer_code(&self, caller: &Caller, id: &str, request: v1::AnswerRequest) -> Result<()> {
        let entered = self.enter_for(caller, id, CODE_ANSWER).await?;
        let context = request.context.clone();
        match entered.guest().answer_code(request).await {
            Ok(()) => Ok(()),
            // That nobody has asked is no fault of the interpreter.
            Err(error) if error.is(ErrorCode::FailedPrecondition) => Err(entered.explain(error).await),
            Err(error) => Err(explained(&entered, error, Some(&context)).await),
        }
    }
}

fn named(context: &str) -> Vec<(&'static str, String)> {
    vec![("context", context.to_owned())]
}
