//! Queries of sandboxes, and changes of their labels, limits, timeouts and networks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use belljar_model::{
    Approval, DomainName, DomainPattern, LimitsChange, NetworkFile, NetworkPolicy, NetworkRecord, Role,
    SandboxSpec, SandboxState,
};
use belljar_store::{Cursor, ListQuery, Order};
use futures::{Stream, TryStreamExt as _};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::action::{
    Action, ENGINE_LIST, KEY_GET, SANDBOX_LIST, SANDBOX_LOGS, SANDBOX_METRICS, SANDBOX_NETWORK_LOG,
    SANDBOX_UPDATE,
};
use crate::caller::Caller;
use crate::entry::{Entry, to_info};
use crate::error::KeeperError;
use crate::head_room::check_memory;
use crate::info::{DiskUse, EngineInfo, LogEntry, Me, SandboxInfo, SandboxMetrics};
use crate::keeper::{Keeper, Result};
use crate::request::{Labels, ListSandboxes, SandboxUpdate, Settings};

/// One page of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The entries.
    pub items: Vec<T>,
    /// Cursor of the next page, if any.
    pub next_cursor: Option<String>,
}

/// Maximum number of entries per page.
pub const MAX_PAGE: u32 = 100;

impl Keeper {
    /// Lists the caller's sandboxes.
    ///
    /// # Errors
    /// Returns [`KeeperError::Field`] for an invalid cursor.
    pub async fn list(&self, caller: &Caller, query: ListSandboxes) -> Result<Page<SandboxInfo>> {
        self.require(caller, SANDBOX_LIST)?;
        let states = if query.states.is_empty() {
            SandboxState::ALL.into_iter().filter(|state| *state != SandboxState::Gone).collect()
        } else {
            query.states
        };
        let limit = query.limit.clamp(1, MAX_PAGE);
        let store_query = ListQuery {
            tenant: (caller.role != Role::Admin).then(|| caller.tenant.clone()),
            states,
            labels: query.labels,
            name: query.name,
            after: query.cursor.as_deref().map(read_cursor).transpose()?,
            limit: limit + 1,
            order: if query.ascending { Order::OldestFirst } else { Order::NewestFirst },
        };
        let mut rows = self.inner.store.sandboxes().list(&store_query).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next_cursor =
            rows.last().filter(|_| more).map(|row| cursor_after(row.created_at, row.id.as_str()));
        let items = rows.into_iter().map(|row| match self.entry(&row.id) {
            Some(entry) => Ok(entry.info()),
            None => self.row_info(&row),
        });
        Ok(Page { items: items.collect::<Result<_>>()?, next_cursor })
    }

    /// Describes a sandbox that is not in memory.
    pub(crate) fn row_info(&self, row: &belljar_store::SandboxRow) -> Result<SandboxInfo> {
        let (spec, settings) = crate::reconcile::read_row(row)?;
        Ok(to_info(row, &spec, &settings, None, Vec::new()))
    }

    /// Changes a sandbox's labels, limits, timeouts and network policy.
    ///
    /// # Errors
    /// As [`Keeper::get`]; limits below the current use are refused. Nothing is changed then.
    pub async fn update(&self, caller: &Caller, id: &str, mut update: SandboxUpdate) -> Result<SandboxInfo> {
        self.transact(SANDBOX_UPDATE, caller, id, move |keeper, caller, id| async move {
            let entry = keeper.find(&caller, &id).await?;
            let mut details = update_details(&update);
            let changed = keeper.change(&caller, &entry, &mut update).await;
            // The record of the sandbox has the whole policy; the audit log has its digest only.
            let policy = update.network.and_then(|network| network.resolve().ok());
            details.extend(network_details(policy.iter()));
            keeper.audit(&caller, SANDBOX_UPDATE, Some(&entry.id), &changed, details).await?;
            changed.map(|()| entry.info())
        })
        .await
    }

    /// Changes a sandbox. The policy of `update` gets the values of secrets that it leaves as they are.
    async fn change(&self, caller: &Caller, entry: &Arc<Entry>, update: &mut SandboxUpdate) -> Result<()> {
        let _step = entry.step.lock().await;
        if update.network.is_some()
            || update.memory.is_some()
            || update.cpus.is_some()
            || update.pids.is_some()
        {
            check_as_shown(caller, entry)?;
        }
        let (mut labels, mut spec, mut settings) = {
            let live = entry.live();
            (live.row.labels.clone(), (*live.spec).clone(), live.settings.clone())
        };
        for (key, value) in std::mem::take(&mut update.labels) {
            match value {
                Some(value) => drop(labels.insert(key, value)),
                None => drop(labels.remove(&key)),
            }
        }
        let labels = Labels::new(labels)?.into_inner();
        let lifetime = &mut settings.lifetime;
        if let Some(idle) = update.idle_timeout {
            lifetime.idle_timeout = idle.map(|idle| self.checked_lifetime(idle)).transpose()?;
        }
        if let Some(on_timeout) = update.on_timeout {
            lifetime.on_timeout = on_timeout;
            self.check_capabilities(&spec, lifetime)?;
        }
        lifetime.auto_resume = update.auto_resume.unwrap_or(lifetime.auto_resume);
        let limits = LimitsChange {
            memory: update.memory,
            cpus: update.cpus,
            pids: update.pids,
            ..LimitsChange::default()
        };
        if let Some(network) = &mut update.network {
            network.keep_values(&spec.network);
        }
        let network = update.network.clone().map(NetworkFile::resolve).transpose()?;
        let replaced = match network.filter(|policy| *policy != spec.network) {
            Some(policy) => {
                policy.check_available()?;
                let read = Some(&settings.read_hosts).filter(|hosts| !hosts.is_empty()).cloned();
                let read = read.unwrap_or_else(|| spec.network.read_hosts());
                check_secrets(&spec.network, &read, &policy)?;
                self.check_stored_secrets(caller, &entry.tenant, &policy).await?;
                self.check_network(caller, &policy)?;
                let sandbox = entry.require_running("changing its network policy")?;
                sandbox.set_network(&self.fill_secrets(&entry.tenant, &policy).await?).await?;
                Some((sandbox, std::mem::replace(&mut spec.network, policy)))
            }
            None => None,
        };
        let written = self.write_change(caller, entry, &limits, (labels, spec, settings)).await;
        if let (Err(_), Some((sandbox, old))) = (&written, replaced) {
            // The enforced policy must match the recorded one.
            sandbox.set_network(&self.fill_secrets(&entry.tenant, &old).await?).await?;
        }
        written?;
        let sandbox = {
            let live = entry.live();
            live.sandbox.clone().filter(|_| live.row.state == SandboxState::Running)
        };
        // The engine's own deadline depends on the action on timeout.
        if let Some(sandbox) = sandbox {
            self.set_deadlines(entry, &sandbox).await?;
        }
        entry.changed.notify_one();
        Ok(())
    }

    /// Applies the limits, and writes the new record.
    async fn write_change(
        &self,
        caller: &Caller,
        entry: &Arc<Entry>,
        limits: &LimitsChange,
        (labels, mut spec, settings): (BTreeMap<String, String>, SandboxSpec, Settings),
    ) -> Result<()> {
        if !limits.is_empty() {
            let sandbox = entry.require_running("changing its limits")?;
            self.check_can(&spec, "limits", |can| can.live_limits)?;
            let old = spec.limits.memory.bytes();
            if let Some(memory) = limits.memory {
                check_memory(memory)?;
                self.inner.set_share_memory(&entry.id, &caller.quotas, memory.bytes())?;
            }
            if let Err(error) = sandbox.set_limits(limits).await {
                self.inner.set_share_memory(&entry.id, &crate::caller::Quotas::default(), old)?;
                return Err(error.into());
            }
            spec.limits.memory = limits.memory.unwrap_or(spec.limits.memory);
            spec.limits.cpus = limits.cpus.unwrap_or(spec.limits.cpus);
            spec.limits.pids = limits.pids.unwrap_or(spec.limits.pids);
        }
        let json = |text: serde_json::Result<String>| {
            text.map_err(|error| KeeperError::field("spec", error.to_string()))
        };
        let (spec_text, settings_text) =
            (json(serde_json::to_string(&spec))?, json(serde_json::to_string(&settings))?);
        self.write(entry, |row| {
            row.labels = labels;
            row.spec = spec_text;
            row.settings = settings_text;
        })
        .await?;
        let mut live = entry.live();
        live.spec = Arc::new(spec);
        live.settings = settings;
        Ok(())
    }

    /// Finds a sandbox to look at what only a running one has; waits for one that is being created.
    async fn find_created(&self, caller: &Caller, id: &str, action: Action) -> Result<Arc<Entry>> {
        let entry = self.find_to_look(caller, id, action).await?;
        if entry.state() != SandboxState::Creating {
            return Ok(entry);
        }
        drop(entry.step.lock().await);
        self.find_to_look(caller, id, action).await
    }

    /// Returns a sandbox's resource usage.
    ///
    /// # Errors
    /// As [`Keeper::get`].
    pub async fn metrics(&self, caller: &Caller, id: &str) -> Result<SandboxMetrics> {
        let entry = self.find_created(caller, id, SANDBOX_METRICS).await?;
        let (sandbox, state, started) = {
            let live = entry.live();
            (live.sandbox.clone(), live.row.state, live.row.started_at)
        };
        let Some(sandbox) = sandbox else { return Err(entry.wrong_state(state, "measuring it", "running")) };
        let usage = sandbox.usage().await;
        // The guest of a paused sandbox does not answer.
        let disks = match state {
            SandboxState::Running => {
                sandbox.guest().metrics().await.map(|guest| guest.disks).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let disk = |disk: belljar_engine::v1::DiskUse| DiskUse {
            path: String::from_utf8_lossy(&disk.path).into_owned(),
            bytes_used: disk.bytes_used,
            bytes_total: disk.bytes_total,
            inodes_used: disk.inodes_used,
            inodes_total: disk.inodes_total,
        };
        let uptime = started.map(|at| Timestamp::now().duration_since(at));
        Ok(SandboxMetrics {
            cpu: usage.cpu,
            memory_bytes: usage.memory_bytes,
            memory_peak_bytes: usage.peak_memory_bytes,
            pids: usage.pids.map(u64::from),
            oom_kills: usage.oom_kills,
            disks: disks.into_iter().take(MAX_DISKS).map(disk).collect(),
            uptime: uptime.and_then(|uptime| Duration::try_from(uptime).ok()).unwrap_or_default(),
        })
    }

    /// Returns the gateway's decisions on a running sandbox's connections after record `after`. The last 1,024 since its start or
    /// resumption are kept. With `follow`, later ones follow until it ends.
    ///
    /// # Errors
    /// As [`Keeper::get`]; fails if it is not running, or was created without a network.
    pub async fn network_log(
        &self,
        caller: &Caller,
        id: &str,
        after: u64,
        follow: bool,
    ) -> Result<impl Stream<Item = std::io::Result<NetworkRecord>> + Send + use<>> {
        let entry = self.find_created(caller, id, SANDBOX_NETWORK_LOG).await?;
        let sandbox = entry.require_running("reading the log of its network")?;
        let reports = sandbox.network_log(after, follow).await?;
        Ok(reports.try_filter_map(async |report| Ok(report.record())))
    }

    /// Returns the log of a sandbox after entry `after`. The log of a live sandbox is in memory only and lost when the server
    /// restarts; the last entries of an ended one are kept with its record.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`].
    pub async fn logs(&self, caller: &Caller, id: &str, after: u64, limit: u32) -> Result<Vec<LogEntry>> {
        let limit = limit.clamp(1, 1000) as usize;
        let ended = match self.find_to_look(caller, id, SANDBOX_LOGS).await {
            Err(KeeperError::Gone { id, .. }) => self.find_ended(caller, id.as_str()).await?,
            found => return Ok(found?.read_log(after, limit)),
        };
        // Records of versions that did not store logs have none.
        let Some(row) = ended.filter(|row| !row.log.is_empty()) else { return Ok(Vec::new()) };
        let entries: Vec<LogEntry> = serde_json::from_str(&row.log)
            .map_err(|source| KeeperError::Record { what: format!("log of sandbox {}", row.id), source })?;
        Ok(entries.into_iter().filter(|entry| entry.seq > after).take(limit).collect())
    }

    /// Streams the log of a sandbox after entry `after`; with `follow`, new entries too, until it is gone.
    ///
    /// # Errors
    /// As [`Keeper::logs`].
    pub async fn follow_logs(
        &self,
        caller: &Caller,
        id: &str,
        mut after: u64,
        follow: bool,
    ) -> Result<impl Stream<Item = Result<LogEntry>> + Send + 'static> {
        let entry = self.find_to_look(caller, id, SANDBOX_LOGS).await.ok().filter(|_| follow);
        let id = entry.as_ref().map_or_else(|| id.to_owned(), |entry| entry.id.to_string());
        let mut logged = entry.map(|entry| entry.subscribe_log());
        let mut page = self.logs(caller, &id, after, LOG_PAGE).await?;
        let (keeper, caller) = (self.clone(), caller.clone());
        Ok(async_stream::stream! {
            loop {
                if page.is_empty() {
                    let Some(last) = &mut logged else { return };
                    let seen = *last.borrow_and_update();
                    // Read once more: entries may have been added while it ended.
                    if seen == u64::MAX || seen <= after && last.changed().await.is_err() {
                        logged = None;
                    }
                }
                for entry in std::mem::take(&mut page) {
                    after = entry.seq;
                    yield Ok(entry);
                }
                page = match keeper.logs(&caller, &id, after, LOG_PAGE).await {
                    Ok(page) => page,
                    // The log ends with the sandbox.
                    Err(KeeperError::Gone { .. } | KeeperError::NotFound { .. }) => return,
                    Err(error) => {
                        yield Err(error);
                        return;
                    }
                };
            }
        })
    }

    /// Lists the engines that create sandboxes, the default first.
    ///
    /// # Errors
    /// [`KeeperError::Forbidden`] for the token of a sandbox.
    pub fn engines(&self, caller: &Caller) -> Result<Vec<EngineInfo>> {
        self.require(caller, ENGINE_LIST)?;
        let engines = self.inner.engines.offered().enumerate();
        let info = engines.map(|(index, engine)| EngineInfo {
            name: engine.name(),
            is_default: index == 0,
            capabilities: engine.capabilities(),
            obstacles: self.inner.engines.obstacles(engine.name()).to_vec(),
        });
        Ok(info.collect())
    }

    /// Describes the caller, and the usage of its key's sandboxes.
    ///
    /// # Errors
    /// [`KeeperError::Forbidden`] for the token of a sandbox.
    pub fn me(&self, caller: &Caller) -> Result<Me> {
        self.require(caller, KEY_GET)?;
        Ok(Me {
            key: caller.key.clone(),
            tenant: caller.tenant.clone(),
            owner: caller.owner.clone(),
            role: caller.role,
            approval: caller.approval,
            quotas: caller.quotas.clone(),
            usage: self.inner.ledger.usage(&caller.key),
        })
    }
}

/// Checks that a new policy needs no secrets or hosts that the sandbox was not created with: it got the placeholders of its
/// secrets, and certificates for its hosts, at its start.
fn check_secrets(old: &NetworkPolicy, read: &BTreeSet<DomainPattern>, new: &NetworkPolicy) -> Result<()> {
    let is_known = |name: &String, host| old.secrets().get(name).is_some_and(|secret| secret.host() == host);
    if let Some((name, _)) = new.secrets().iter().find(|(name, secret)| !is_known(name, secret.host())) {
        let reason = format!(
            "{name}: while a sandbox runs its secrets can be taken away and have other values; create another sandbox"
        );
        return Err(KeeperError::field("network.secrets", reason));
    }
    if let Some(set) = new.headers().iter().find(|set| !read.contains(set.host())) {
        let reason = format!(
            "{}: while a sandbox runs hosts that had headers can have others; create another sandbox",
            set.host()
        );
        return Err(KeeperError::field("network.headers", reason));
    }
    if let Some(host) = new.terminated_hosts().find(|host| !read.iter().any(|pattern| pattern.covers(host))) {
        let reason = format!(
            "{host}: while a sandbox runs TLS is terminated for the hosts that it was terminated for at its start; create another sandbox"
        );
        return Err(KeeperError::field("network.tls", reason));
    }
    let is_read = |host: &&DomainName| read.iter().any(|pattern| pattern.matches(host));
    match new.requests().keys().find(|host| !is_read(host)) {
        Some(host) => Err(KeeperError::field(
            "network.requests",
            format!(
                "{host}: while a sandbox runs hosts that had rules for requests can have others; create another sandbox"
            ),
        )),
        None => Ok(()),
    }
}

/// Returns audit details of network policies: the widest mode, and a digest of all. Empty if there are none.
pub(crate) fn network_details<'a>(
    policies: impl Iterator<Item = &'a NetworkPolicy> + Clone,
) -> Vec<(&'static str, String)> {
    let Some(widest) = policies.clone().map(NetworkPolicy::mode).max() else { return Vec::new() };
    let texts: BTreeSet<String> = policies.map(NetworkPolicy::canonical_json).collect();
    let digest = Sha256::digest(texts.into_iter().collect::<Vec<_>>().join("\n"));
    vec![("network", widest.to_string()), ("network_digest", hex::encode(digest))]
}

/// Returns what a change asks for, besides its network policy, for an audit record.
fn update_details(update: &SandboxUpdate) -> Vec<(&'static str, String)> {
    let labels: Vec<String> = update
        .labels
        .iter()
        .map(|(key, value)| {
            value.as_ref().map_or_else(|| format!("{key}-"), |value| format!("{key}={value}"))
        })
        .collect();
    let idle = |idle: Option<Duration>| idle.map_or("none".to_owned(), |idle| idle.as_secs_f64().to_string());
    let found = [
        ("memory_bytes", update.memory.map(|memory| memory.bytes().to_string())),
        ("cpus", update.cpus.map(|cpus| cpus.get().to_string())),
        ("pids", update.pids.map(|pids| pids.get().to_string())),
        ("idle_timeout_s", update.idle_timeout.map(idle)),
        ("on_timeout", update.on_timeout.map(|action| action.as_str().to_owned())),
        ("auto_resume", update.auto_resume.map(|resumes| resumes.to_string())),
        ("labels", (!labels.is_empty()).then(|| labels.join(",").chars().take(MAX_LABELS_CHARS).collect())),
    ];
    found.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Maximum length of changed labels in an audit record, in characters. Refused ones are recorded as well.
const MAX_LABELS_CHARS: usize = 1024;

/// Number of log entries read at a time.
const LOG_PAGE: u32 = 100;

/// Maximum number of reported disks; the list comes from the guest.
const MAX_DISKS: usize = 16;

fn read_cursor(text: &str) -> Result<Cursor> {
    let (created_at, id) = read_position(text)?;
    let id = id.parse().map_err(|_| invalid_cursor())?;
    Ok(Cursor { created_at, id })
}

/// Returns the cursor of the page after an entry with this creation time and id.
fn cursor_after(created_at: Timestamp, id: &str) -> String {
    format!("{}-{id}", created_at.as_microsecond())
}

fn read_position(cursor: &str) -> Result<(Timestamp, &str)> {
    let read = || {
        let (at, id) = cursor.split_once('-')?;
        Some((Timestamp::from_microsecond(at.parse().ok()?).ok()?, id))
    };
    read().ok_or_else(invalid_cursor)
}

fn invalid_cursor() -> KeeperError {
    KeeperError::field("cursor", "invalid cursor; begin without one")
}

/// A part of a list in the order of creation. The default is the whole list.
#[derive(Debug, Clone, Default)]
pub struct Part {
    /// Maximum number of entries.
    pub limit: Option<u32>,
    /// Cursor from the previous part.
    pub cursor: Option<String>,
}

impl Part {
    /// Returns the creation time and the id after which the part begins.
    pub(crate) fn after(&self) -> Result<Option<(Timestamp, &str)>> {
        self.cursor.as_deref().map(read_position).transpose()
    }

    /// Returns the number of rows to read: one more than the part has.
    pub(crate) fn rows(&self) -> u32 {
        self.limit.map_or(u32::MAX, |limit| limit.saturating_add(1))
    }

    /// Splits rows that were read into the part and the cursor of the next one.
    pub(crate) fn cut<T>(
        &self,
        mut rows: Vec<T>,
        position: impl Fn(&T) -> (Timestamp, &str),
    ) -> (Vec<T>, Option<String>) {
        let limit = self.limit.map_or(usize::MAX, |limit| limit as usize);
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| has_more).map(position).map(|(at, id)| cursor_after(at, id));
        (rows, next)
    }
}

/// Checks that network and limits of a sandbox may be changed: not those that another person has seen or will see with a call.
fn check_as_shown(caller: &Caller, entry: &Entry) -> Result<()> {
    let reason = if entry.live().approved_calls > 0 {
        "a call with an approval waits or runs in the sandbox, with the network and the limits that were shown; wait for its end"
    } else if caller.approval != Approval::Never {
        "calls with this key wait for approval, which covers the network and the limits that the sandbox has; create another sandbox"
    } else {
        return Ok(());
    };
    Err(KeeperError::Policy { field: "network", reason: reason.to_owned() })
}
