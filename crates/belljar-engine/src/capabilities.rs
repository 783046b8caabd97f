//! Capabilities of engines, and the engines of a server.

use std::borrow::Cow;
use std::sync::Arc;

use belljar_model::{EngineName, NetworkMode, SandboxSpec, Timeout, Tree};
use serde::{Serialize, Serializer};

use crate::engine::Engine;
use crate::engine_error::EngineError;
use crate::kind::Finding;

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
    /// Sandboxes can start from an image of the engine's own store.
    pub images: bool,
    /// Sandboxes can be machines: root inside, and a tree that is writable.
    pub machines: bool,
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

/// Something that a specification asks for and an engine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lack {
    /// Field of the specification.
    pub field: &'static str,
    /// What the engine lacks, and what to do: the rest of a sentence about the engine.
    pub reason: &'static str,
}

impl Capabilities {
    /// Returns the capabilities of an engine without a network, which can do nothing of what is optional.
    #[must_use]
    pub fn none(isolation: IsolationLevel, default_timeout: Timeout) -> Self {
        Self {
            isolation,
            network: vec![NetworkMode::Disabled.as_str().into()],
            pause: false,
            live_limits: false,
            snapshot: false,
            fork: false,
            own_tree: false,
            images: false,
            machines: false,
            mounts: false,
            volumes: false,
            warm_interpreters: false,
            gpu: false,
            held_by: None,
            default_timeout,
        }
    }

    /// Checks that a specification is one of the engine `this`, which has what it asks for.
    ///
    /// # Errors
    /// [`EngineError::WrongEngine`] and [`EngineError::Unsupported`], the latter for the first thing that it lacks.
    pub fn require(&self, this: EngineName, spec: &SandboxSpec) -> Result<(), EngineError> {
        if spec.engine != this {
            return Err(EngineError::WrongEngine { asked: spec.engine, this });
        }
        self.check(spec).map_err(|Lack { field, reason }| EngineError::Unsupported {
            what: field.into(),
            engine: this,
            reason: format!("it {reason}").into(),
        })
    }

    /// Checks that the engine has what a specification asks for.
    ///
    /// # Errors
    /// The first thing that it lacks.
    pub fn check(&self, spec: &SandboxSpec) -> Result<(), Lack> {
        let mode = spec.network.mode();
        let has_network =
            mode == NetworkMode::Disabled || self.network.iter().any(|has| has == mode.as_str());
        let lacks = [
            (
                "mounts",
                !spec.mounts.is_empty() && !self.mounts,
                "has no tree of its own to mount into; put files in instead",
            ),
            (
                "volumes",
                !spec.volumes.is_empty() && !self.volumes,
                "mounts no volumes here: only the engine local of an administrator does, as nothing else bounds what is written",
            ),
            (
                "network",
                !has_network,
                "has no network that a policy could be applied to; give an engine that has one, such as local",
            ),
            (
                "template",
                spec.tree.template().is_some() && !self.own_tree,
                "has no tree of its own, which this template needs; give an engine that has one, such as local",
            ),
            (
                "image",
                matches!(spec.tree, Tree::Image(_)) && !self.images,
                "has no images of its own; belljar image pull IMAGE makes a template of one, or give an engine that has some, such as docker",
            ),
            (
                "machine",
                spec.machine && !self.machines,
                "has no machines here; the engine local has, where the server runs as root and has control groups",
            ),
            (
                "machine",
                spec.machine && !spec.tree.is_own(),
                "makes a machine only of a template or an image that has a tree of its own; name one",
            ),
        ];
        let lack = lacks.into_iter().find(|(_, lacks, _)| *lacks);
        lack.map_or(Ok(()), |(field, _, reason)| Err(Lack { field, reason }))
    }

    /// Lists the boolean capabilities by name, in the order in which tables show them.
    #[must_use]
    pub fn list(&self) -> [(&'static str, bool); 12] {
        [
            ("pause", self.pause),
            ("live_limits", self.live_limits),
            ("snapshot", self.snapshot),
            ("fork", self.fork),
            ("own_tree", self.own_tree),
            ("images", self.images),
            ("machines", self.machines),
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
    obstacles: Vec<(EngineName, Vec<Finding>)>,
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

    /// Adds what keeps an engine from creating sandboxes on this machine.
    #[must_use]
    pub fn with_obstacles(mut self, name: EngineName, obstacles: Vec<Finding>) -> Self {
        self.obstacles.push((name, obstacles));
        self
    }

    /// Returns what keeps an engine from creating the sandboxes that a request gets by default, as seen when the server was started.
    #[must_use]
    pub fn obstacles(&self, name: EngineName) -> &[Finding] {
        self.obstacles.iter().find(|(of, _)| *of == name).map_or(&[], |(_, obstacles)| obstacles)
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

    /// Ends what holds sandboxes of these engines, if none is left. Otherwise it ends by itself after the last one. Only for the sole user
    /// of the engines, such as the server of a home: a sandbox that another starts between check and end would be ended too.
    ///
    /// # Errors
    /// Fails if it cannot be reached, or does not end.
    pub async fn shut_down_if_idle(&self) -> Result<(), EngineError> {
        for engine in self.all() {
            if engine.survivors().await?.iter().any(|survivor| survivor.ended.is_none()) {
                return Ok(());
            }
        }
        for engine in self.all() {
            engine.shut_down().await?;
        }
        Ok(())
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
