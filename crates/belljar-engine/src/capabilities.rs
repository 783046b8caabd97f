//! Capabilities of engines, and the engines of a server.

use std::borrow::Cow;
use std::sync::Arc;

use belljar_model::{EngineName, Timeout};
use serde::{Serialize, Serializer};

use crate::engine::Engine;

/// Level of isolation between code in a sandbox and the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum IsolationLevel {
    /// All isolation layers.
    Full,
    /// Fewer layers; for more trusted code.
    Partial,
    /// No isolation at all; for development.
    None,
}

/// Capabilities of an engine on this machine, in this configuration. Requests for others are refused before anything starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Capabilities {
    /// Level of isolation.
    pub isolation: IsolationLevel,
    /// Supported network modes, such as `disabled`. If empty, sandboxes share the host's network.
    pub network: Vec<Cow<'static, str>>,
    /// Sandboxes can be paused.
    pub pause: bool,
    /// Limits can change while a sandbox runs.
    pub live_limits: bool,
    /// Files of a sandbox can be stored as a template.
    pub snapshot: bool,
    /// Files of a sandbox can be copied into new ones.
    pub fork: bool,
    /// Templates with their own root file system can be built.
    pub own_tree: bool,
    /// Directories of the host can be mounted.
    pub mounts: bool,
    /// Volumes can be mounted.
    pub volumes: bool,
    /// Python contexts are forked from a warm interpreter.
    pub warm_interpreters: bool,
    /// Sandboxes can use graphics processors.
    pub gpu: bool,
    /// Holder of sandboxes while no server runs, such as `launcher`; null if they end with the server.
    pub held_by: Option<Cow<'static, str>>,
    /// Default timeout of an execution, in seconds.
    #[serde(rename = "default_timeout_s", serialize_with = "seconds")]
    #[cfg_attr(feature = "schema", schema(value_type = f64))]
    pub default_timeout: Timeout,
}

fn seconds<S: Serializer>(timeout: &Timeout, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(timeout.duration().as_secs_f64())
}

impl Capabilities {
    /// Lists the boolean capabilities by name, in the order in which tables show them.
    #[must_use]
    pub fn list(&self) -> [(&'static str, bool); 10] {
        [
            ("pause", self.pause),
            ("live_limits", self.live_limits),
            ("snapshot", self.snapshot),
            ("fork", self.fork),
            ("own_tree", self.own_tree),
            ("mounts", self.mounts),
            ("volumes", self.volumes),
            ("warm_interpreters", self.warm_interpreters),
            ("gpu", self.gpu),
            ("survive_restart", self.held_by.is_some()),
        ]
    }
}

/// The engines of a server, by name.
#[derive(Clone, Default)]
pub struct Engines {
    /// The default is first.
    engines: Vec<(Arc<dyn Engine>, Offer)>,
}

/// Availability of an engine for new sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// New sandboxes are allowed.
    Offered,
    /// No new sandboxes; the engine only manages those created before the operator retired it.
    Retired,
}

impl Engines {
    /// Creates a set with one engine, which is the default.
    #[must_use]
    pub fn new(default: Arc<dyn Engine>) -> Self {
        Self::default().with(default, Offer::Offered)
    }

    /// Adds an engine, unless one of the same name exists. The first engine is the default.
    #[must_use]
    pub fn with(mut self, engine: Arc<dyn Engine>, offer: Offer) -> Self {
        if self.get(engine.name()).is_none() {
            self.engines.push((engine, offer));
        }
        self
    }

    /// Returns the engine for requests that name none; `None` if there are no engines.
    #[must_use]
    pub fn default_engine(&self) -> Option<&Arc<dyn Engine>> {
        self.all().next()
    }

    /// Returns the engine of this name, offered or retired.
    #[must_use]
    pub fn get(&self, name: EngineName) -> Option<&Arc<dyn Engine>> {
        self.all().find(|engine| engine.name() == name)
    }

    /// Returns all engines, the default first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Engine>> {
        self.engines.iter().map(|(engine, _)| engine)
    }

    /// Returns the engines that create sandboxes, the default first.
    pub fn offered(&self) -> impl Iterator<Item = &Arc<dyn Engine>> {
        self.engines.iter().filter(|(_, offer)| *offer == Offer::Offered).map(|(engine, _)| engine)
    }

    /// Returns the names of the engines that create sandboxes, separated by commas.
    #[must_use]
    pub fn names(&self) -> String {
        self.offered().map(|engine| engine.name().to_string()).collect::<Vec<_>>().join(", ")
    }
}

impl std::fmt::Debug for Engines {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.all().map(|engine| engine.name())).finish()
    }
}
