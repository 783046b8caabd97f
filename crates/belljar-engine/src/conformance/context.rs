//! The engine under test, and fixtures shared by its cases.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_model::{SandboxId, SandboxSpec};

use super::case::{Capability, Checked, Stop, ensure, eventually};
use crate::engine::{CreateRequest, Engine, Sandbox};

/// Time for the cleanup of a dropped sandbox.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Lists the leftovers of a sandbox on the host, one sentence each.
type Leftovers = dyn Fn(&SandboxId) -> Vec<String> + Send + Sync;

/// Directories of the host that the engine under test may mount. Created by the engine's tests, owned by the caller.
#[derive(Debug, Clone)]
pub struct HostDirs {
    /// May be mounted read-only.
    pub readable: PathBuf,
    /// May be mounted writable.
    pub writable: PathBuf,
    /// May not be mounted.
    pub closed: PathBuf,
}

/// An engine in one configuration.
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
    /// Creates a context from an engine, the specification of its sandboxes, and its capabilities. `scratch` is an
    /// empty directory of the host for the cases' own files; `programs` contains `<language>/hello.*`.
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

    /// Sets the directories for the mount cases.
    #[must_use]
    pub fn with_host_dirs(mut self, dirs: HostDirs) -> Self {
        self.host_dirs = Some(dirs);
        self
    }

    /// Sets the function that finds leftover processes, cgroups, mounts and files of a sandbox on the host.
    #[must_use]
    pub fn with_leftovers(
        mut self,
        leftovers: impl Fn(&SandboxId) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.leftovers = Box::new(leftovers);
        self
    }

    /// Returns the engine's capabilities.
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
            .ok_or_else(|| Stop::Failed("the tests set no directories to mount".to_owned()))
    }

    /// Returns a copy of the specification, which the case may change.
    pub(super) fn spec(&self) -> SandboxSpec {
        self.spec.clone()
    }

    /// Creates a sandbox with the default specification.
    pub(super) async fn sandbox(&self) -> Checked<Sandbox> {
        self.sandbox_with(&self.spec).await
    }

    pub(super) async fn sandbox_with(&self, spec: &SandboxSpec) -> Checked<Sandbox> {
        Ok(self.engine.create(CreateRequest::run(spec)).await?)
    }

    /// Stops a sandbox, which must succeed without leftovers.
    pub(super) async fn stop(&self, sandbox: Sandbox) -> Checked {
        let id = sandbox.id.clone();
        sandbox.stop().await?;
        let left = (self.leftovers)(&id);
        ensure!(left.is_empty(), "leftovers of {id} after its end: {}", left.join("; "));
        Ok(())
    }

    /// Waits until a sandbox that was not stopped explicitly has no leftovers.
    pub(super) async fn wait_for_cleanup(&self, id: &SandboxId) -> Checked {
        let waited =
            eventually("nothing is left", CLEANUP_TIMEOUT, async || Ok((self.leftovers)(id).is_empty()))
                .await;
        waited.map_err(|_| Stop::Failed(format!("leftovers of {id}: {}", (self.leftovers)(id).join("; "))))
    }

    /// Returns the current leftovers of a sandbox.
    pub(super) fn find_leftovers(&self, id: &SandboxId) -> Vec<String> {
        (self.leftovers)(id)
    }
}
