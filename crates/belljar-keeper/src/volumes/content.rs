//! Access to the files of a volume without a sandbox of the tenant: a small hidden sandbox, the *content sandbox*, mounts the volume
//! as its home, and its guest carries out file operations. It has no network and starts no programs. It is stopped when idle. After a
//! crash the next server removes it like any sandbox without a record.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::{CreateRequest, EngineError, Sandbox};
use belljar_model::{
    DiskSize, LimitsFile, Memory, MountMode, Pids, SandboxSpec, SandboxState, SpecFile, TmpSize, Tree,
    VolumeId, VolumeImage, VolumeMount,
};
use belljar_store::{SandboxRow, ServiceWall, VolumeRow};
use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::Instrument as _;

use super::{HOME, missing};
use crate::action::VOLUME_USE;
use crate::caller::Caller;
use crate::create::new_id;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::head_room::Purpose;
use crate::keeper::{Entered, Keeper, Result};
use crate::pool::has_ended;
use crate::request::{Lifetime, Settings, TimeoutAction};
use crate::steps::{run_detached, step};

/// Idle time after which a content sandbox is stopped.
const RETENTION: Duration = Duration::from_secs(60);

/// Deadline of a content sandbox without a server.
const HOLDER_DEADLINE: Duration = Duration::from_secs(600);

/// Maximum number of content sandboxes, in all and of one tenant. The longest idle one is evicted.
const MAX_CONTENTS: usize = 64;
const MAX_TENANT_CONTENTS: usize = 16;

/// Suggested delay before a retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The content sandboxes, by volume.
#[derive(Default)]
pub(crate) struct Contents(Mutex<HashMap<VolumeId, Arc<Content>>>);

/// The content sandbox of one volume.
struct Content {
    tenant: String,
    used: Mutex<Instant>,
    /// Locked while the sandbox is started or stopped.
    running: tokio::sync::Mutex<Option<Running>>,
}

#[derive(Clone)]
struct Running {
    entry: Arc<Entry>,
    sandbox: Arc<Sandbox>,
}

impl Contents {
    /// Returns the entry of a volume, which may not run yet, and an evicted one that the caller has to stop.
    fn get(&self, row: &VolumeRow) -> Result<(Arc<Content>, Option<Arc<Content>>)> {
        let mut all = self.0.lock();
        if let Some(content) = all.get(&row.id) {
            *content.used.lock() = Instant::now();
            return Ok((Arc::clone(content), None));
        }
        let of_tenant = all.values().filter(|content| content.tenant == row.tenant).count();
        let is_full = of_tenant >= MAX_TENANT_CONTENTS;
        let mut surplus = None;
        if is_full || all.len() >= MAX_CONTENTS {
            // No other request holds a reference, and none is in flight.
            let is_idle = |content: &Arc<Content>| {
                let running = content.running.try_lock();
                Arc::strong_count(content) == 1
                    && running
                        .is_ok_and(|running| running.as_ref().is_none_or(|running| !running.entry.is_used()))
            };
            let idle = all.iter().filter(|(_, content)| !is_full || content.tenant == row.tenant);
            let idle = idle.filter(|(_, content)| is_idle(content));
            let oldest = idle.min_by_key(|(_, content)| *content.used.lock()).map(|(id, _)| id.clone());
            let Some(oldest) = oldest else {
                let what = "too many volumes are in use without a sandbox".to_owned();
                return Err(KeeperError::Full { what, retry_after: RETRY_AFTER });
            };
            surplus = all.remove(&oldest);
        }
        let content = Arc::new(Content {
            tenant: row.tenant.clone(),
            used: Mutex::new(Instant::now()),
            running: tokio::sync::Mutex::default(),
        });
        all.insert(row.id.clone(), Arc::clone(&content));
        Ok((content, surplus))
    }

    /// Stops the content sandbox of a volume, and returns when the volume is unmounted.
    pub(super) async fn end(&self, id: &VolumeId) {
        let content = self.0.lock().remove(id);
        if let Some(content) = content {
            content.end().await;
        }
    }

    /// Stops all content sandboxes.
    pub(super) async fn end_all(&self) {
        let all: Vec<_> = self.0.lock().drain().map(|(_, content)| content).collect();
        futures::future::join_all(all.iter().map(|content| content.end())).await;
    }
}

impl Content {
    async fn end(&self) {
        let running = self.running.lock().await.take();
        if let Some(Running { entry, sandbox }) = running
            && let Err(error) = sandbox.stop().await
        {
            tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot stop the content sandbox of a volume");
        }
    }
}

impl Keeper {
    /// Enters a volume of the caller for operations on its files. Paths begin at the volume's root, and other operations are refused.
    ///
    /// # Errors
    /// Returns [`KeeperError::NotFound`], [`KeeperError::Forbidden`] for read-only keys, or [`KeeperError::Full`].
    pub async fn enter_volume(&self, caller: &Caller, id: &str) -> Result<Entered> {
        self.require(caller, VOLUME_USE)?;
        let row = self.find_own_volume(caller, id).await?;
        // A token is valid for its own volume only.
        if !ServiceWall::TokenScope.allows(caller.only.as_ref().is_none_or(|only| *only == row.id)) {
            return Err(missing(id));
        }
        self.check_place(&row)?;
        let (keeper, caller) = (self.clone(), caller.clone());
        let (asked, asker) = (self.clone(), caller.clone());
        let entered =
            run_detached(&self.inner.tasks, async move { keeper.enter_content(&caller, row).await }).await?;
        asked.check_key_still(&asker).await?;
        Ok(entered)
    }

    async fn enter_content(&self, caller: &Caller, row: VolumeRow) -> Result<Entered> {
        let (content, surplus) = self.inner.volumes.contents.get(&row)?;
        if let Some(surplus) = surplus {
            self.inner.tasks.spawn(async move { surplus.end().await });
        }
        let mut running = content.running.lock().await;
        if running.as_ref().is_some_and(|running| has_ended(&running.sandbox))
            && let Some(ended) = running.take()
        {
            let _ = ended.sandbox.stop().await;
        }
        let Running { entry, sandbox } = match &*running {
            Some(running) => running.clone(),
            None => {
                // The volume may have been removed since the lookup. Checked in this order, a later removal waits for the lock.
                if self.inner.volumes.uses.is_closed(&row.id) {
                    return Err(missing(&row.name));
                }
                self.find_own_volume(caller, row.id.as_str()).await?;
                let started = self.start_content(caller, &row).await?;
                self.watch_content(&row.id, &content, &started);
                running.insert(started).clone()
            }
        };
        Ok(Entered::of_volume(&entry, sandbox, row.id))
    }

    async fn start_content(&self, caller: &Caller, row: &VolumeRow) -> Result<Running> {
        let config = self.inner.config.now();
        config.capacity().check(Purpose::Start)?;
        let waiting = self.inner.gate.acquire(&caller.key).instrument(step!("keeper.wait_for_turn"));
        let _permit = waiting.await.map_err(|full| KeeperError::Full {
            what: format!("{} sandboxes are already waiting to be started", full.waiting),
            retry_after: RETRY_AFTER,
        })?;
        self.check_key_still(caller).await?;
        let engine = self.find_volume_engine()?;
        let spec = Arc::new(self.content_spec(row, engine.name())?);
        let id = new_id()?;
        let launching = engine.create(CreateRequest::long_lived(&id, &spec, Some(HOLDER_DEADLINE)));
        let sandbox = Arc::new(launching.instrument(step!("engine.launch", sandbox = %id)).await?);
        let now = Timestamp::now();
        let record = SandboxRow {
            id,
            tenant: row.tenant.clone(),
            key_id: caller.key.clone(),
            keeper: config.name.clone(),
            name: None,
            state: SandboxState::Running,
            reason: None,
            template: String::new(),
            spec: String::new(),
            settings: String::new(),
            labels: BTreeMap::new(),
            created_at: now,
            updated_at: now,
            started_at: Some(now),
            deadline_at: None,
            paused_at: None,
            ended_at: None,
            log: String::new(),
            generation: 0,
        };
        let lifetime = Lifetime {
            timeout: RETENTION,
            idle_timeout: Some(RETENTION),
            on_timeout: TimeoutAction::Kill,
            auto_resume: false,
        };
        let settings = Settings { lifetime, ..Settings::default() };
        let entry = Entry::new(record, spec, settings, Some(Arc::clone(&sandbox)), &self.inner.events);
        Ok(Running { entry, sandbox })
    }

    fn content_spec(&self, row: &VolumeRow, engine: belljar_model::EngineName) -> Result<SandboxSpec> {
        let limits = LimitsFile {
            memory: Some(Memory::new(128 << 20)?),
            pids: Some(Pids::MIN),
            disk: Some(DiskSize::MIN),
            tmp: Some(TmpSize::MIN),
            ..LimitsFile::default()
        };
        let grade = Some(self.grade()?.to_string());
        let file = SpecFile { engine: Some(engine.to_string()), limits, grade, ..SpecFile::default() };
        let path = self.volume_path(&row.id);
        Ok(SandboxSpec {
            tree: Tree::Bare,
            volumes: vec![VolumeMount {
                name: row.name.clone(),
                path: HOME.into(),
                mode: MountMode::ReadWrite,
                image: Some(VolumeImage { id: row.id.clone(), path }),
            }],
            ..file.resolve()?
        })
    }

    /// Spawns a task that stops the content sandbox when it is idle, or beyond reach: the next request starts another.
    fn watch_content(&self, id: &VolumeId, content: &Arc<Content>, started: &Running) {
        let (keeper, id, content) = (self.clone(), id.clone(), Arc::downgrade(content));
        let Running { entry, sandbox } = started.clone();
        tokio::spawn(async move {
            loop {
                let idle_until = entry.idle_until().unwrap_or_else(|| Instant::now() + RETENTION);
                let is_over = tokio::select! {
                    _ = sandbox.wait_ended() => true,
                    () = sandbox.guest().wait_for_doubt() => keeper.find_silence(&entry, &sandbox).await.is_some(),
                    () = tokio::time::sleep_until(idle_until.into()) => false,
                };
                let Some(content) = content.upgrade() else { return };
                let mut running = content.running.lock().await;
                if running.as_ref().is_none_or(|running| !Arc::ptr_eq(&running.entry, &entry)) {
                    // It has been stopped or replaced already.
                    return;
                }
                if !is_over && entry.idle_until().is_none_or(|until| until > Instant::now()) {
                    // Without a server the launcher stops it at this deadline.
                    if let Err(error) = sandbox.set_deadline(Some(HOLDER_DEADLINE)).await {
                        tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot move a deadline");
                    }
                    continue;
                }
                running.take();
                break;
            }
            keeper.forget_content(&id, &content);
            if let Err(error) = sandbox.stop().await {
                tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot stop the content sandbox of a volume");
            }
        });
    }

    /// Removes the entry of a stopped content sandbox, unless it is in use again.
    fn forget_content(&self, id: &VolumeId, content: &std::sync::Weak<Content>) {
        let mut all = self.inner.volumes.contents.0.lock();
        let is_it = all.get(id).is_some_and(|known| {
            std::ptr::eq(Arc::as_ptr(known), content.as_ptr())
                && Arc::strong_count(known) == 1
                && known.running.try_lock().is_ok_and(|running| running.is_none())
        });
        if is_it {
            all.remove(id);
        }
    }
}

/// Maps an error of a content sandbox. If it has ended, a retry starts another one.
pub(crate) fn explain(error: EngineError) -> KeeperError {
    match error {
        EngineError::Ended { how } => KeeperError::Full {
            what: format!("the content sandbox of the volume has ended: {how}"),
            retry_after: RETRY_AFTER,
        },
        error => KeeperError::Engine(error),
    }
}
