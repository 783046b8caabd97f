//! Applies a new configuration to a running server. Changes that need a restart are logged.

use belljar_api::{Api, Tls};
use belljar_keeper::Keeper;

use super::log::Log;
use super::parts;
use crate::config::{Loaded, Sources};
use crate::message::chain;

/// The configuration in effect, and the parts that can be changed.
pub(crate) struct Reload {
    loaded: Loaded,
    log: Log,
    tls: Option<Tls>,
}

impl Reload {
    pub(crate) fn new(loaded: Loaded, log: Log, tls: Option<Tls>) -> Self {
        Self { loaded, log, tls }
    }

    /// Returns the configuration in effect.
    pub(crate) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Loads and applies the configuration. An invalid one changes nothing. No sandbox and no connection is dropped.
    pub(crate) fn reload(&mut self, sources: &Sources<'_>, keeper: &Keeper, api: &Api) {
        if let Err(error) = self.apply(sources, keeper, api) {
            tracing::error!(
                error = chain(&*error),
                "the configuration is unchanged: the new one cannot be used"
            );
        }
    }

    fn apply(
        &mut self,
        sources: &Sources<'_>,
        keeper: &Keeper,
        api: &Api,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let new = sources.load()?;
        // Steps that can fail come first.
        if let Some(tls) = &self.tls {
            tls.reload()?;
        }
        self.log.change(&new.config.log)?;
        keeper.reconfigure(parts::keeper(&new));
        api.reconfigure(&parts::api(&new));
        let changed = self.loaded.layers.changes(&new.layers);
        let keys = |reload| {
            let keys: Vec<_> =
                changed.iter().filter(|change| change.reload == reload).map(|change| change.key).collect();
            keys.join(" ")
        };
        let (applied, pending) = (keys(true), keys(false));
        tracing::info!(changed = applied, "the configuration was read again");
        if !pending.is_empty() {
            tracing::warn!(changed = pending, "these changes need a restart");
        }
        self.loaded = new;
        Ok(())
    }
}
