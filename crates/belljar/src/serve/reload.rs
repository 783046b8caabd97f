//! A new configuration for a running server: what can change does, and the log says what cannot.

use belljar_api::{Api, Tls};
use belljar_keeper::Keeper;

use super::log::Log;
use super::parts;
use crate::config::{Loaded, Sources};
use crate::message::chain;

/// What holds now, and what can be changed.
pub(crate) struct Reload {
    loaded: Loaded,
    log: Log,
    tls: Option<Tls>,
}

impl Reload {
    pub(crate) fn new(loaded: Loaded, log: Log, tls: Option<Tls>) -> Self {
        Self { loaded, log, tls }
    }

    /// The configuration that holds.
    pub(crate) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Reads everything again. What is wrong changes nothing. No sandbox and no connection is dropped.
    pub(crate) fn reload(&mut self, sources: &Sources<'_>, keeper: &Keeper, api: &Api) {
        if let Err(error) = self.take(sources, keeper, api) {
            tracing::error!(
                error = chain(&*error),
                "the configuration is as before: the new one cannot be used"
            );
        }
    }

    fn take(
        &mut self,
        sources: &Sources<'_>,
        keeper: &Keeper,
        api: &Api,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let new = sources.load()?;
        // What can fail comes first.
        if let Some(tls) = &self.tls {
            tls.reload()?;
        }
        self.log.change(&new.config.log)?;
        keeper.reconfigure(parts::keeper(&new));
        api.reconfigure(&parts::api(&new));
        let changed = self.loaded.said.changes(&new.said);
        let keys = |reload| {
            let keys: Vec<_> =
                changed.iter().filter(|change| change.reload == reload).map(|change| change.key).collect();
            keys.join(" ")
        };
        let (taken, left) = (keys(true), keys(false));
        tracing::info!(changed = taken, "the configuration was read again");
        if !left.is_empty() {
            tracing::warn!(changed = left, "these changes need a restart");
        }
        self.loaded = new;
        Ok(())
    }
}
