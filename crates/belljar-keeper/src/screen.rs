//! Screening of code, before anybody decides whether it runs.

use std::sync::Arc;

use belljar_model::Languages;
use belljar_screen::{Language, Modules, Report, Request, ScreenError};

use crate::action;
use crate::caller::Caller;
use crate::create::RETRY_AFTER;
use crate::error::{KeeperError, chain};
use crate::gate::{Gate, Permit};
use crate::keeper::{Keeper, Result};

/// Code to screen.
#[derive(Debug, Clone)]
pub struct ScreenRequest {
    /// Its language, by name or alias.
    pub language: String,
    /// The code.
    pub code: String,
    /// The caller's lists of modules.
    pub modules: Modules,
}

impl Keeper {
    /// Reads code in a jailed process, and reports what it seems to do. This is advice: nothing relies on it.
    ///
    /// # Errors
    /// Returns [`KeeperError::Forbidden`] for keys that may run nothing, [`KeeperError::Field`] for code, a language or lists that are not
    /// allowed, [`KeeperError::RateLimited`] if too many wait, and [`KeeperError::Machine`] if the process cannot be jailed.
    pub async fn screen(&self, caller: &Caller, request: ScreenRequest) -> Result<Report> {
        self.require(caller, action::SCREEN)?;
        let ScreenRequest { language, code, modules } = request;
        let name = &Languages::builtin()
            .by_name(&language)
            .map_err(|error| {
                let text = error.to_string();
                KeeperError::field("language", text.strip_prefix("language: ").unwrap_or(&text))
            })?
            .name;
        let language = Language::by_name(name).ok_or_else(|| {
            let known = Language::ALL.map(Language::as_str).join(", ");
            KeeperError::field("language", format!("{name} cannot be screened; {known} can"))
        })?;
        self.screen_in_turn(&caller.key, Request { language, code, modules }).await
    }

    /// Takes all turns of screenings until the result is dropped. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn occupy_screenings(&self) -> OccupiedScreenings {
        let gate = self.inner.screenings.clone();
        let permits = std::iter::from_fn(|| gate.try_acquire_idle()).collect();
        OccupiedScreenings { _permits: permits, gate }
    }

    /// Screens code when it is the key's turn.
    pub(crate) async fn screen_in_turn(&self, key: &str, request: Request) -> Result<Report> {
        request.check().map_err(screen_error)?;
        let permit = self.inner.screenings.acquire(key).await.map_err(|full| KeeperError::RateLimited {
            what: "screenings",
            waiting: full.waiting,
            retry_after: RETRY_AFTER,
        })?;
        let screeners = Arc::clone(&self.inner.screeners);
        let screening = tokio::task::spawn_blocking(move || {
            // Also held if the caller does not wait for the end.
            let _permit = permit;
            screeners.screen(&request)
        });
        let report = screening.await.map_err(|_| KeeperError::ShuttingDown)?;
        let screeners = Arc::clone(&self.inner.screeners);
        tokio::task::spawn_blocking(move || screeners.prepare());
        report.map_err(screen_error)
    }
}

/// All turns of screenings, taken as by screenings that never end. For tests.
#[doc(hidden)]
#[derive(Debug)]
pub struct OccupiedScreenings {
    gate: Gate,
    _permits: Vec<Permit>,
}

impl OccupiedScreenings {
    /// Returns the number of screenings that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.gate.waiting()
    }
}

fn screen_error(error: ScreenError) -> KeeperError {
    match error {
        ScreenError::TooLarge { .. } => KeeperError::field("code", error.reason()),
        ScreenError::Modules { field, reason } => KeeperError::field(field, reason),
        error => {
            tracing::error!(error = chain(&error), "code cannot be screened");
            KeeperError::Machine("code cannot be screened on this server; its log has the reason".to_owned())
        }
    }
}
