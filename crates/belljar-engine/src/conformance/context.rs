//! The engine under test, and what its cases share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_model::{SandboxId, SandboxSpec};

use super::case::{Capability, Checked, Stop, ensure, eventually};
use crate::engine::{CreateRequest, Engine, Sandbox};

/// How long what a dropped sandbox held may stay.
const CLEAN_LIMIT: Duration = Duration::from_secs(10);

/// Says what is left of a sandbox on the host, one sentence a thing.
type Leftovers = dyn Fn(&SandboxId) -> Vec<String> + Send + Sync;

/// Directories of the host that the engine under test may mount. Made by the engine's tests, owned by the caller.
#[derive(Debug, Clone)]
pub struct HostDirs {
    /// May be mounted read-only.
    pub readable: PathBuf,
    /// May be mounted writable.
    pub writable: PathBuf,
    /// May not be mounted.
    pub closed: PathBuf,
}

/// One engine in one set-up.
pub struct Context {
    engine: Arc<dyn Engine>,
    spec: SandboxSpec,
    capabilities: Vec<Capability>,
    scratch: PathBuf,
    programs: PathBuf,
    host_dirs: Option<HostDirs>,
    leftovers: Box<Leftovers>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Context").field("capabilities", &self.capabilities).finish_non_exhaustive()
    }
}

impl Context {
    /// An engine, the specification its sandboxes are made from, and what it can do. `scratch` is an empty directory of
    /// the host for the cases' own files; `programs` holds `<language>/hello.*`.
    #[must_use]
    pub fn new(
        engine: Arc<dyn Engine>,
        spec: SandboxSpec,
        capabilities: &[Capability],
        scratch: PathBuf,
        programs: PathBuf,
    ) -> Self {
        Self {
            engine,
            spec,
            capabilities: capabilities.to_vec(),
            scratch,
            programs,
            host_dirs: None,
            leftovers: Box::new(|_| Vec::new()),
        }
    }

    /// Names directories for the cases of mounts.
    #[must_use]
    pub fn with_host_dirs(mut self, dirs: HostDirs) -> Self {
        self.host_dirs = Some(dirs);
        self
    }

    /// Sets what looks for processes, control groups, mounts and files that a sandbox has left on the host.
    #[must_use]
    pub fn with_leftovers(
        mut self,
        leftovers: impl Fn(&SandboxId) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.leftovers = Box::new(leftovers);
        self
    }

    /// What the engine can do.
    #[must_use]
    pub fn capabilities(&self) -> &[Capability] {
        &self.capabilities
    }

    pub(super) fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    pub(super) fn scratch(&self) -> &Path {
        &self.scratch
    }

    pub(super) fn programs(&self) -> &Path {
        &self.programs
    }

    pub(super) fn engine(&self) -> &dyn Engine {
        self.engine.as_ref()
    }

    pub(super) fn host_dirs(&self) -> Checked<&HostDirs> {
        self.host_dirs
            .as_ref()
            .ok_or_else(|| Stop::Failed("the tests name no directories to mount".to_owned()))
    }

    /// The specification that a case may change for itself.
    pub(super) fn spec(&self) -> SandboxSpec {
        self.spec.clone()
    }

    /// A sandbox with the engine's usual specification.
    pub(super) async fn sandbox(&self) -> Checked<Sandbox> {
        self.sandbox_of(&self.spec).await
    }

    pub(super) async fn sandbox_of(&self, spec: &SandboxSpec) -> Checked<Sandbox> {
        Ok(self.engine.create(CreateRequest::run(spec)).await?)
    }

    /// Ends a sandbox, which must succeed and leave nothing.
    pub(super) async fn stop(&self, sandbox: Sandbox) -> Checked {
        let id = sandbox.id.clone();
        sandbox.stop().await?;
        let left = (self.leftovers)(&id);
        ensure!(left.is_empty(), "after its end there is left of {id}: {}", left.join("; "));
        Ok(())
    }

    /// Waits until nothing is left of a sandbox that nobody stopped.
    pub(super) async fn gone(&self, id: &SandboxId) -> Checked {
        let waited =
            eventually("nothing is left", CLEAN_LIMIT, async || Ok((self.leftovers)(id).is_empty())).await;
        waited
            .map_err(|_| Stop::Failed(format!("there is left of {id}: {}", (self.leftovers)(id).join("; "))))
    }

    /// What is left of a sandbox now.
    pub(super) fn left(&self, id: &SandboxId) -> Vec<String> {
        (self.leftovers)(id)
    }
}
