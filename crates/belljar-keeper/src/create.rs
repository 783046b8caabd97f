//! Creation of sandboxes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belljar_engine::{Capabilities, CreateRequest, Engine, EngineError, ErrorCode, GuestError, Sandbox, v1};
use belljar_model::{
    Approval, EngineName, LimitsGrade, NetworkMode, NetworkPolicy, Role, SandboxId, SandboxSpec, SandboxState,
};
use belljar_store::{SandboxRow, ServiceWall, StoreError};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tracing::Instrument as _;

use crate::action::{POLICY_REFUSED, SANDBOX_CREATE};
use crate::audit::{ISOLATION, POLICY_DIGEST};
use crate::caller::Caller;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::head_room::check_memory;
use crate::idempotency::{CREATE, ClaimOutcome};
use crate::images::ENGINE_IMAGE_PREFIX;
use crate::info::SandboxInfo;
use crate::keeper::{Keeper, Result};
use crate::keys::ended_while_waiting;
use crate::lifecycle::{after, holder_deadline};
use crate::pool::has_ended;
use crate::request::{
    CreateSandbox, Lifetime, MAX_CREATE_FILE_BYTES, NewFile, PortSettings, Settings, TimeoutAction, resolve,
};
use crate::steps::{run_detached, step};
use crate::templates::{DEFAULT_TEMPLATE, Origin};

/// Suggested delay before a retry.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Error codes of the guest for files that cannot be written as requested.
const CLIENT_ERRORS: [ErrorCode; 5] = [
    ErrorCode::AlreadyExists,
    ErrorCode::FailedPrecondition,
    ErrorCode::InvalidArgument,
    ErrorCode::NotFound,
    ErrorCode::PermissionDenied,
];

/// Result of a request to create a sandbox.
#[derive(Debug, Clone)]
pub struct Created {
    /// The sandbox.
    pub info: SandboxInfo,
    /// Whether it existed before, by its name or idempotency key.
    pub existing: bool,
}

/// What is told that a sandbox is accepted: checked, within its quotas, and recorded.
pub(crate) type Accepted = dyn Fn(&Entry) + Send + Sync;

/// Checked properties of a sandbox to be created.
pub(crate) struct LaunchPlan {
    pub(crate) spec: SandboxSpec,
    pub(crate) lifetime: Lifetime,
    pub(crate) name: Option<String>,
    pub(crate) labels: std::collections::BTreeMap<String, String>,
    pub(crate) files: Vec<NewFile>,
    pub(crate) origin: Origin,
    pub(crate) idempotency: Option<String>,
    pub(crate) for_build: bool,
    pub(crate) ports: PortSettings,
    /// Called once the sandbox is recorded, unless it comes from a pool.
    pub(crate) accepted: Box<Accepted>,
}

impl Keeper {
    /// Creates a sandbox, or returns the existing one that the request names.
    ///
    /// # Errors
    /// See [`KeeperError`]. After an error nothing of the sandbox is left, and its name is free.
    pub async fn create(&self, caller: &Caller, request: CreateSandbox) -> Result<Created> {
        self.creating(caller, request, Box::new(|_| {})).await
    }

    /// Creates a sandbox, and reports once that it is accepted, unless it runs at once. Boxed: a caller's own future would become as large as
    /// all that a creation keeps.
    pub(crate) fn creating(
        &self,
        caller: &Caller,
        request: CreateSandbox,
        accepted: Box<Accepted>,
    ) -> Pin<Box<dyn Future<Output = Result<Created>> + Send + '_>> {
        let (keeper, caller) = (self.clone(), caller.clone());
        let creating = async move { keeper.create_audited(&caller, request, false, accepted).await };
        Box::pin(run_detached(&self.inner.tasks, creating))
    }

    /// Creates a sandbox in which a template is built. It ends with this server.
    pub(crate) async fn create_for_build(&self, caller: &Caller, request: CreateSandbox) -> Result<Created> {
        self.create_audited(caller, request, true, Box::new(|_| {})).await
    }

    async fn create_audited(
        &self,
        caller: &Caller,
        request: CreateSandbox,
        for_build: bool,
        accepted: Box<Accepted>,
    ) -> Result<Created> {
        self.check_reserve("make a sandbox").await?;
        let creating = self.create_once(caller, request, for_build, accepted);
        let outcome = creating.instrument(step!("keeper.create")).await;
        let (sandbox, details) = match &outcome {
            Ok(created) if created.existing => return outcome,
            Ok(created) => (Some(created.info.id.clone()), policy_details(&created.info)),
            Err(error) => (None, vec![("error", error.to_string())]),
        };
        let action = match &outcome {
            Err(KeeperError::Policy { .. }) => POLICY_REFUSED,
            _ => SANDBOX_CREATE,
        };
        self.audit(caller, action, sandbox.as_ref(), &outcome, details).await?;
        outcome
    }

    async fn create_once(
        &self,
        caller: &Caller,
        request: CreateSandbox,
        for_build: bool,
        accepted: Box<Accepted>,
    ) -> Result<Created> {
        self.require(caller, SANDBOX_CREATE)?;
        if !caller.approval.is_never() && !request.files.is_empty() {
            let reason = "calls with this key wait for approval, and files of a new sandbox cannot; write them in a call".to_owned();
            return Err(KeeperError::Policy { field: "files", reason });
        }
        let by_risk = matches!(caller.approval, Approval::OnRisk | Approval::OnMediumRisk);
        if by_risk && request.spec.env.as_ref().is_some_and(|env| !env.is_empty()) {
            let reason = "calls with this key wait by their risk, and the environment of a sandbox cannot be screened; give it in a call, which waits".to_owned();
            return Err(KeeperError::Policy { field: "env", reason });
        }
        if self.inner.closing.load(Ordering::Relaxed) {
            return Err(KeeperError::ShuttingDown);
        }
        let claim = match &request.idempotency {
            None => None,
            Some(idempotency) => match self.claim(caller, CREATE, idempotency).await? {
                ClaimOutcome::New(claim) => Some(claim),
                ClaimOutcome::Answered(answer) => {
                    let id = String::from_utf8_lossy(&answer).into_owned();
                    return Ok(Created { info: self.get(caller, &id).await?, existing: true });
                }
            },
        };
        if let (Some(name), true) = (&request.name, request.return_existing)
            && let Some(entry) = self.find_name(&caller.tenant, name.as_str())
        {
            // The lock is held until it has been created.
            drop(entry.step.lock().await);
            if !matches!(entry.state(), SandboxState::Stopping | SandboxState::Gone) {
                return Ok(Created { info: entry.info(), existing: true });
            }
        }
        let plan = LaunchPlan { for_build, accepted, ..self.plan_launch(caller, request).await? };
        let entry = self.create_from_plan(caller, plan).await?;
        if let Some(claim) = claim {
            claim.finish(entry.id.as_str().as_bytes()).await?;
        }
        Ok(Created { info: entry.info(), existing: false })
    }

    /// Checks a request as far as possible before anything is started.
    pub(crate) async fn plan_launch(&self, caller: &Caller, request: CreateSandbox) -> Result<LaunchPlan> {
        let origin = self.origin_of(caller, request.template.as_deref()).await?;
        let mut origin = self.pulled_origin(caller, origin, request.spec.engine.as_deref()).await?;
        let names_memory = request.spec.limits.memory.is_some() || origin.spec.limits.memory.is_some();
        // Whoever has made the template has decided; a request alone needs the right.
        let asks_machine = request.spec.machine == Some(true) && origin.spec.machine != Some(true);
        let mut spec = resolve(&self.inner.engines, self.grade()?, &origin.spec, request.spec)?;
        if names_memory {
            check_memory(spec.limits.memory)?;
        }
        if origin.has_disk() && !spec.machine {
            let reason = "the template is the disk of a machine; omit it".to_owned();
            return Err(KeeperError::field("machine", reason));
        }
        spec.tree = origin.tree(&self.layers(), &caller.tenant);
        if origin.id == DEFAULT_TEMPLATE
            && let Some(image) = self.engine(spec.engine)?.default_image()
        {
            origin.name = format!("{ENGINE_IMAGE_PREFIX}{image}");
        }
        self.resolve_volumes(caller, &mut spec).await?;
        self.check_policy(caller, &spec, asks_machine)?;
        let mut lifetime = request.lifetime;
        self.check_capabilities(&spec, &lifetime)?;
        lifetime.timeout = self.checked_lifetime(lifetime.timeout)?;
        self.check_stored_secrets(caller, &caller.tenant, &spec.network).await?;
        let bytes: usize = request.files.iter().map(|file| file.content.len() + file.path.len()).sum();
        if bytes > MAX_CREATE_FILE_BYTES {
            let reason =
                format!("they have {bytes} bytes; at most {MAX_CREATE_FILE_BYTES} may come with the request");
            return Err(KeeperError::field("files", reason));
        }
        for file in &request.files {
            let name = file.path.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty());
            if name.is_none_or(|name| [&b"."[..], b".."].contains(&name)) {
                let path = String::from_utf8_lossy(&file.path);
                return Err(KeeperError::field("files", format!("path {path:?} does not end in a name")));
            }
        }
        Ok(LaunchPlan {
            spec,
            lifetime,
            name: request.name.map(|name| name.to_string()),
            labels: request.labels.into_inner(),
            files: request.files,
            origin,
            idempotency: request.idempotency.map(|idempotency| idempotency.key_of(caller)),
            for_build: false,
            ports: request.ports,
            accepted: Box::new(|_| {}),
        })
    }

    /// Checks that the specification has nothing that a tenant, a tool or a model must never get (corpus C19).
    fn check_policy(&self, caller: &Caller, spec: &SandboxSpec, asks_machine: bool) -> Result<()> {
        let refuse = |field, reason: String| Err(KeeperError::Policy { field, reason });
        self.check_offered(spec)?;
        self.check_network(caller, &spec.network)?;
        if ServiceWall::Policy.allows(caller.role == Role::Admin) {
            return self.check_tree(spec);
        }
        if !spec.mounts.is_empty() {
            return refuse("mounts", "host directories are only for keys with the role admin".to_owned());
        }
        if asks_machine && !self.may_make_machines(caller) {
            let reason = "only keys with the role admin make machines of images and of templates whose files have no machine = true; name \
                 a template that has it, or the operator can allow it with sandboxes.machines = true";
            return refuse("machine", reason.to_owned());
        }
        if spec.grade == LimitsGrade::Watched && self.grade()? != LimitsGrade::Watched {
            return refuse("grade", "the weaker grade is only for keys with the role admin".to_owned());
        }
        self.check_tree(spec)
    }

    /// Checks that a network is within the ceiling of the key and, but for administrators, within that of the server.
    pub(crate) fn check_network(&self, caller: &Caller, policy: &NetworkPolicy) -> Result<()> {
        if ServiceWall::Policy.is_down() {
            return Ok(());
        }
        let refuse = |whose: &str, beyond: String| KeeperError::Policy {
            field: "network",
            reason: format!("it reaches more than {whose} may: {beyond}"),
        };
        if let Some(max) = &caller.quotas.network {
            max.check(policy).map_err(|beyond| refuse("this key", beyond))?;
        }
        if caller.role != Role::Admin {
            let max = &self.inner.config.now().max_network;
            max.check(policy).map_err(|beyond| refuse("keys without the role admin", beyond))?;
        }
        Ok(())
    }

    /// Reports whether the caller may make machines of templates that are none.
    #[must_use]
    pub fn may_make_machines(&self, caller: &Caller) -> bool {
        caller.role == Role::Admin || self.inner.config.now().machines
    }

    /// Reports whether any sandbox of the caller may have a network.
    #[must_use]
    pub fn may_reach_network(&self, caller: &Caller) -> bool {
        let of_server = || caller.role == Role::Admin || !self.inner.config.now().max_network.is_empty();
        caller.quotas.network.as_ref().is_none_or(|max| !max.is_empty()) && of_server()
    }

    /// Checks, before anything is started, that the engine supports what a new sandbox needs.
    pub(crate) fn check_capabilities(&self, spec: &SandboxSpec, lifetime: &Lifetime) -> Result<()> {
        let can = self.engine(spec.engine)?.capabilities();
        let refuse = |field: &'static str, what: &str| {
            Err(KeeperError::field(field, format!("the engine {} {what}", spec.engine)))
        };
        can.check(spec).or_else(|lack| refuse(lack.field, lack.reason))?;
        if lifetime.on_timeout == TimeoutAction::Pause && !(can.pause && spec.grade == LimitsGrade::Cgroup) {
            return refuse("on_timeout", "cannot pause such a sandbox here; give kill");
        }
        Ok(())
    }

    /// Checks that a sandbox's engine supports an operation.
    pub(crate) fn check_can(
        &self,
        spec: &SandboxSpec,
        what: &'static str,
        can: impl Fn(&Capabilities) -> bool,
    ) -> Result<()> {
        let engine = self.engine(spec.engine)?;
        if can(&engine.capabilities()) {
            return Ok(());
        }
        // An engine that pauses has control groups.
        let reason = match engine.capabilities().pause {
            true => "those of a running sandbox do not change; create one with other limits",
            false => {
                "pausing and changes of limits need control groups; GET /v1/engines, or belljar engine info, lists what an engine can"
            }
        };
        let reason = reason.into();
        Err(EngineError::Unsupported { what: what.into(), engine: engine.name(), reason }.into())
    }

    /// Checks that the engine is offered by the server.
    pub(crate) fn check_offered(&self, spec: &SandboxSpec) -> Result<()> {
        let engines = &self.inner.engines;
        if ServiceWall::Engines.allows(engines.offered().any(|engine| engine.name() == spec.engine)) {
            return Ok(());
        }
        let reason = format!(
            "this server makes sandboxes with the engine {} only; the operator adds others to sandboxes.engines (BELLJAR_SANDBOXES_ENGINES)",
            engines.names()
        );
        Err(KeeperError::Policy { field: "engine", reason })
    }

    /// Returns the engine with this name.
    pub(crate) fn engine(&self, name: EngineName) -> Result<&Arc<dyn Engine>> {
        let missing = || KeeperError::field("engine", format!("{name} is not in this server"));
        self.inner.engines.get(name).ok_or_else(missing)
    }

    /// Checks that tenants do not share the machine's own tree, and so its page cache, unless the operator allows it.
    fn check_tree(&self, spec: &SandboxSpec) -> Result<()> {
        let shares = !spec.tree.is_own() && !self.inner.config.now().share_host_tree;
        if shares && self.inner.keys.several_tenants() && self.engine(spec.engine)?.capabilities().own_tree {
            return Err(KeeperError::Policy {
                field: "template",
                reason: "keys of several tenants are in use, and templates from the machine's own tree would share its page \
                         cache between them; give a template with a tree of its own, or let the operator allow that with \
                         sandboxes.share_host_tree = true"
                    .to_owned(),
            });
        }
        Ok(())
    }

    /// Returns how limits are enforced in sandboxes whose request and template do not say: the operator's choice for all.
    pub(crate) fn grade(&self) -> Result<LimitsGrade> {
        let config = self.inner.config.now();
        Ok(config.template.grade.as_deref().map(str::parse).transpose()?.unwrap_or_default())
    }

    /// Creates a sandbox from a plan. It counts in quotas from before it exists until nothing of it is left.
    pub(crate) async fn create_from_plan(&self, caller: &Caller, plan: LaunchPlan) -> Result<Arc<Entry>> {
        self.start_plan(caller, plan).await.map_err(|error| error.for_caller(caller))
    }

    async fn start_plan(&self, caller: &Caller, plan: LaunchPlan) -> Result<Arc<Entry>> {
        let begin = Instant::now();
        let volumes = self.hold_volumes(caller, &plan.spec).await?;
        let share = self.inner.ledger.reserve(caller, &plan.spec)?;
        self.admit_start(caller).await?;
        self.check_key_still(caller).await?;
        let entry = match self.take_pooled(caller, &plan, begin).await? {
            Some(entry) => entry,
            None => self.launch(caller, &plan, begin).await?,
        };
        self.inner.keep_share(&entry.id, share);
        entry.keep_volumes(volumes);
        self.inner.crowds.grew(&entry);
        entry.note("created", None, format!("template {}", plan.origin.name));
        self.inner.metrics.record_start(begin.elapsed(), entry.live().settings.pooled);
        self.guard(&entry);
        if plan.spec.network.mode() != NetworkMode::Disabled {
            self.follow_network(&entry, Timestamp::UNIX_EPOCH);
        }
        Ok(entry)
    }

    /// Takes a fitting sandbox from the pool, if any. One that has ended meanwhile is skipped.
    async fn take_pooled(
        &self,
        caller: &Caller,
        plan: &LaunchPlan,
        begin: Instant,
    ) -> Result<Option<Arc<Entry>>> {
        let take = || self.inner.pools.take(&plan.origin, &plan.spec, &caller.tenant);
        while let Some(ready) = take() {
            let sandbox = Arc::new(ready.sandbox);
            let is_warm = ready.warm_for.is_some();
            let made = self.assign_pooled(caller, plan, &sandbox, is_warm, begin).await;
            let Err(error) = made else { return made.map(Some) };
            let had_ended = has_ended(&sandbox);
            let _ = sandbox.stop().await;
            if !had_ended {
                return Err(error);
            }
        }
        Ok(None)
    }

    /// Prepares a pooled sandbox for its new owner.
    async fn assign_pooled(
        &self,
        caller: &Caller,
        plan: &LaunchPlan,
        sandbox: &Arc<Sandbox>,
        is_warm: bool,
        begin: Instant,
    ) -> Result<Arc<Entry>> {
        self.put_files(plan, sandbox).await?;
        let mut row = self.row(caller, plan, sandbox.id.clone(), begin, true)?;
        row.state = SandboxState::Running;
        row.started_at = Some(row.created_at);
        row.deadline_at = after(plan.lifetime.timeout);
        let holder = holder_deadline(Some(plan.lifetime.timeout), plan.lifetime.on_timeout);
        let (written, deadline) = futures::join!(self.insert(&row), sandbox.set_deadline(holder));
        written?;
        let settings = settings(plan, begin, true);
        let entry = {
            let (spec, sandbox) = (Arc::new(plan.spec.clone()), Some(Arc::clone(sandbox)));
            Entry::new(row, spec, settings, sandbox, &self.inner.events)
        };
        if let Err(error) = deadline {
            self.write(&entry, |row| row.state = SandboxState::Stopping).await?;
            self.record_gone(&entry).await?;
            return Err(error.into());
        }
        if is_warm {
            entry.warm.lock().await.mark_sent();
        }
        self.put(&entry);
        self.prewarm(&entry);
        Ok(entry)
    }

    /// Launches a new sandbox, which is reported once it is recorded.
    async fn launch(&self, caller: &Caller, plan: &LaunchPlan, begin: Instant) -> Result<Arc<Entry>> {
        let passing = self.inner.gate.acquire(&caller.key).instrument(step!("keeper.wait_for_turn"));
        let permit = tokio::select! {
            // The end of its key is looked at only if it has to wait.
            biased;
            passed = passing => passed.map_err(|full| KeeperError::Full {
                what: format!("{} sandboxes are already waiting to be started", full.waiting),
                retry_after: RETRY_AFTER,
            })?,
            () = async { self.wait_for_key_end(&caller.standing()).await } => return Err(ended_while_waiting()),
        };
        self.check_key_still(caller).await?;
        self.check_machine_disk(caller, &plan.spec).await?;
        let row = self.row(caller, plan, new_id()?, begin, false)?;
        self.insert(&row).await?;
        let (spec, settings) = (Arc::new(plan.spec.clone()), settings(plan, begin, false));
        let entry = Entry::new(row, spec, settings, None, &self.inner.events);
        let step = entry.step.lock().await;
        self.put(&entry);
        (plan.accepted)(&entry);
        // The guest needs no environment: each execution brings its own.
        let mut bare = SandboxSpec { env: Vec::new(), ..plan.spec.clone() };
        let lifetime = &plan.lifetime;
        let holder = holder_deadline(Some(lifetime.timeout), lifetime.on_timeout);
        let launching = async {
            // From here on, changes of secrets find the sandbox and wait for its launch.
            bare.network = self.fill_secrets(&caller.tenant, &bare.network).await?;
            let request = CreateRequest::long_lived(&entry.id, &bare, holder);
            self.launch_on(request, &entry.id, &plan.origin).await
        };
        let launched = launching.instrument(step!("engine.launch", sandbox = %entry.id)).await;
        drop(permit);
        let made = match launched {
            Ok(sandbox) => {
                let sandbox = Arc::new(sandbox);
                entry.live().sandbox = Some(Arc::clone(&sandbox));
                self.prewarm(&entry);
                self.provision(&entry, plan, &sandbox, begin).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = made {
            // Whoever waits for it finds it gone.
            let reason = format!("it could not be made: {}", crate::error::chain(&error));
            self.end_in_step(&entry, None, &reason).await?;
            return Err(error);
        }
        drop(step);
        Ok(entry)
    }

    /// Fills a launched sandbox with its files, and marks it as running.
    async fn provision(
        &self,
        entry: &Arc<Entry>,
        plan: &LaunchPlan,
        sandbox: &Arc<Sandbox>,
        begin: Instant,
    ) -> Result<()> {
        self.unpack(&plan.origin, sandbox).await?;
        self.put_files(plan, sandbox).await?;
        let lifetime = &plan.lifetime;
        entry.live().settings.start_us = micros(begin.elapsed());
        self.write(entry, |row| {
            row.state = SandboxState::Running;
            row.started_at = Some(Timestamp::now());
            row.deadline_at = after(lifetime.timeout);
        })
        .await?;
        entry.live().deadline = Some(Instant::now() + lifetime.timeout);
        Ok(())
    }

    /// Writes the files of the request into the sandbox.
    async fn put_files(&self, plan: &LaunchPlan, sandbox: &Sandbox) -> Result<()> {
        for file in &plan.files {
            let open = v1::WriteOpen {
                path: file.path.clone(),
                mode: file.mode,
                make_parents: true,
                ..Default::default()
            };
            let writing = sandbox.guest().write_from(open, std::io::Cursor::new(file.content.clone()));
            let written = writing.instrument(step!("guest.write")).await;
            match written {
                Ok(_) => {}
                // Such as a path that is a directory, or a mode that is not allowed in a sandbox.
                Err(GuestError::NotRegular { message }) => return Err(KeeperError::field("files", message)),
                Err(GuestError::Refused { code, message, .. }) if CLIENT_ERRORS.contains(&code) => {
                    return Err(KeeperError::field("files", message));
                }
                Err(error) => return Err(sandbox.explain(EngineError::Guest(error)).await.into()),
            }
        }
        Ok(())
    }

    fn row(
        &self,
        caller: &Caller,
        plan: &LaunchPlan,
        id: SandboxId,
        begin: Instant,
        pooled: bool,
    ) -> Result<SandboxRow> {
        let now = Timestamp::now();
        let json = |value: serde_json::Result<String>| {
            value.map_err(|error| KeeperError::field("spec", error.to_string()))
        };
        Ok(SandboxRow {
            id,
            tenant: caller.tenant.clone(),
            key_id: caller.key.clone(),
            keeper: self.inner.config.now().name.clone(),
            name: plan.name.clone(),
            state: SandboxState::Creating,
            reason: None,
            template: plan.origin.name.clone(),
            spec: json(serde_json::to_string(&plan.spec))?,
            settings: json(serde_json::to_string(&settings(plan, begin, pooled)))?,
            labels: plan.labels.clone(),
            created_at: now,
            updated_at: now,
            started_at: None,
            deadline_at: None,
            paused_at: None,
            ended_at: None,
            log: String::new(),
            generation: 0,
        })
    }

    async fn insert(&self, row: &SandboxRow) -> Result<()> {
        match self.inner.store.sandboxes().insert(row).await {
            Err(StoreError::NameTaken { name, .. }) => {
                let holder = self.find_name(&row.tenant, &name);
                let owner = holder.map_or_else(
                    || "a sandbox of another server".to_owned(),
                    |entry| format!("sandbox {}", entry.id),
                );
                Err(KeeperError::NameTaken { name, owner })
            }
            inserted => {
                inserted?;
                self.inner.metrics.record_transition(SandboxState::Gone, row.state);
                Ok(())
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.inner.entries.read().len()
    }
}

fn settings(plan: &LaunchPlan, begin: Instant, pooled: bool) -> Settings {
    Settings {
        lifetime: plan.lifetime.clone(),
        pooled,
        start_us: micros(begin.elapsed()),
        idempotency: plan.idempotency.clone(),
        for_build: plan.for_build,
        read_hosts: plan.spec.network.read_hosts(),
        token_keys: std::collections::BTreeSet::new(),
        ports: plan.ports.clone(),
        held_by: None,
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns audit details of a sandbox's policy.
fn policy_details(info: &SandboxInfo) -> Vec<(&'static str, String)> {
    // Without the environment: it is not part of the policy, and a weak secret could be guessed from its digest.
    let spec = &info.spec;
    let policy = SandboxSpec { env: Vec::new(), network: NetworkPolicy::default(), ..spec.clone() };
    let mut digest = Sha256::new_with_prefix(serde_json::to_vec(&policy).unwrap_or_default());
    digest.update(spec.network.canonical_json());
    let mut details = vec![
        (POLICY_DIGEST, hex::encode(digest.finalize())),
        (ISOLATION, info.spec.engine.to_string()),
        ("template", info.template.clone()),
        ("network", info.spec.network.to_string()),
        ("memory", info.spec.limits.memory.to_string()),
        ("pooled", info.pooled.to_string()),
    ];
    if spec.machine {
        details.push(("machine", true.to_string()));
    }
    details.extend(spec.user.clone().map(|user| ("user", user)));
    let volumes = spec.volumes.iter().filter_map(|volume| {
        let image = volume.image.as_ref()?;
        Some(format!("{}:{}", image.id, volume.mode.as_str()))
    });
    let volumes: Vec<String> = volumes.collect();
    if !volumes.is_empty() {
        details.push(("volumes", volumes.join(",")));
    }
    details
}

/// Generates an id from the kernel's random numbers.
pub(crate) fn new_id() -> Result<SandboxId> {
    let mut bytes = [0u8; SandboxId::LEN];
    fill_random(&mut bytes)?;
    Ok(SandboxId::from_entropy(bytes))
}

/// Fills at most 256 `bytes` with the kernel's random numbers; up to that size, reads are never partial (getrandom(2)).
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty()).map(drop).map_err(|errno| {
        EngineError::Launch { step: "get random bytes".to_owned(), source: errno.into() }.into()
    })
}
