//! Sandboxes that the launcher holds, and ends that have not been reported yet.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_engine::{EngineError, Walls as _};
use belljar_model::{FilePath, SandboxId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::LocalKind;
use crate::engine::Launched;
use crate::launcher::messages::{Groups, ListedSandbox, SandboxFacts, millis};
use crate::walls::LocalWalls;

/// Maximum time for which a killed sandbox waits to be removed, so that its usage can be queried.
const KILLED_KEPT: Duration = Duration::from_secs(30);

/// Maximum time to wait until the end of a removed sandbox has been announced. Only a supervisor that hangs takes any.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of remembered ends; the oldest are dropped first.
const MAX_ENDS: usize = 4096;

/// Sandbox held by the launcher.
pub(crate) struct HeldSandbox {
    pub(crate) id: SandboxId,
    pub(crate) kind: LocalKind,
    pub(crate) walls: LocalWalls,
    pub(crate) facts: SandboxFacts,
    /// Client whose disconnection ends it.
    pub(crate) tied_to: Option<u64>,
    /// Whether a client has requested its end and handles it.
    stopping: watch::Sender<bool>,
    killed: AtomicBool,
    /// Whether its end has been announced to its clients.
    announced: watch::Sender<bool>,
}

impl HeldSandbox {
    /// Creates it from a launched sandbox; also returns the first connection to its guest.
    pub(crate) fn new(
        kind: LocalKind,
        launched: Launched,
        tied_to: Option<u64>,
    ) -> std::io::Result<(Self, OwnedFd)> {
        let phases = launched.walls.phases().into_iter();
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let facts = SandboxFacts {
            isolation: launched.isolation,
            home: FilePath::from(launched.home.as_path()),
            phases: phases.map(|(name, time)| (name.to_owned(), nanoseconds(time))).collect(),
            groups: launched.walls.cgroups().map(Groups::from),
        };
        let stream = launched.stream.into_std()?.into();
        let held = Self {
            id: launched.walls.id().clone(),
            kind,
            walls: launched.walls,
            facts,
            tied_to,
            stopping: watch::Sender::new(false),
            killed: AtomicBool::new(false),
            announced: watch::Sender::new(false),
        };
        Ok((held, stream))
    }

    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.walls.kill();
    }

    /// Ends it, and waits until its end has been announced: nobody may be notified of this end after the id has been given to
    /// another sandbox.
    pub(crate) async fn stop(&self) -> Result<(), EngineError> {
        self.stopping.send_replace(true);
        let stopped = self.walls.stop().await;
        let mut announced = self.announced.subscribe();
        let _ = tokio::time::timeout(ANNOUNCE_TIMEOUT, announced.wait_for(|announced| *announced)).await;
        stopped
    }

    /// Records that its end has been announced to its clients.
    pub(crate) fn set_announced(&self) {
        self.announced.send_replace(true);
    }

    /// Waits until it has ended, and returns the reason.
    pub(crate) async fn wait_for_end(&self) -> String {
        let how = self.walls.wait_ended().await;
        match (*self.stopping.borrow(), self.killed.load(Ordering::Acquire)) {
            (true, _) => "it was stopped".to_owned(),
            (false, true) => "it was killed".to_owned(),
            (false, false) => how,
        }
    }

    /// Removes its resources after its end. The usage of a killed one can be queried for a while, until it is stopped.
    pub(crate) async fn clean_up(&self) -> Result<(), EngineError> {
        if self.killed.load(Ordering::Acquire) {
            let mut stopping = self.stopping.subscribe();
            let _ = tokio::time::timeout(KILLED_KEPT, stopping.wait_for(|stopping| *stopping)).await;
        }
        self.walls.stop().await
    }
}

/// Table of all sandboxes of the launcher.
#[derive(Default)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    held: HashMap<SandboxId, Arc<HeldSandbox>>,
    /// Ids of launches in progress.
    launching: HashSet<SandboxId>,
    ends: VecDeque<(LocalKind, SandboxId, String)>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Reserves an id for a launch.
    pub(crate) fn reserve(self: &Arc<Self>, id: &SandboxId) -> Result<Reservation, EngineError> {
        let mut inner = self.lock();
        if inner.held.contains_key(id) || !inner.launching.insert(id.clone()) {
            return Err(EngineError::IdInUse { id: id.clone() });
        }
        Ok(Reservation { table: Arc::clone(self), id: id.clone() })
    }

    pub(crate) fn insert(&self, held: Arc<HeldSandbox>) {
        self.lock().held.insert(held.id.clone(), held);
    }

    pub(crate) fn get(&self, kind: LocalKind, id: &SandboxId) -> Result<Arc<HeldSandbox>, EngineError> {
        let found = self.lock().held.get(id).filter(|held| held.kind == kind).map(Arc::clone);
        found.ok_or_else(|| EngineError::NoSandbox { id: id.clone() })
    }

    pub(crate) fn remove(&self, id: &SandboxId) {
        self.lock().held.remove(id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<HeldSandbox>> {
        self.lock().held.values().map(Arc::clone).collect()
    }

    pub(crate) fn list(&self, kind: LocalKind) -> Vec<ListedSandbox> {
        let of_kind = self.all().into_iter().filter(|held| held.kind == kind);
        of_kind
            .map(|held| ListedSandbox {
                id: held.id.clone(),
                is_frozen: held.walls.is_frozen(),
                deadline_ms: held.walls.deadline().map(millis),
            })
            .collect()
    }

    /// Reports whether there are neither sandboxes nor launches.
    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.lock();
        inner.held.is_empty() && inner.launching.is_empty()
    }

    /// Remembers an end that has not been reported.
    pub(crate) fn remember(&self, kind: LocalKind, id: SandboxId, how: String) {
        let mut inner = self.lock();
        if inner.ends.len() == MAX_ENDS {
            inner.ends.pop_front();
        }
        inner.ends.push_back((kind, id, how));
    }

    /// Takes the oldest unreported end of this kind of engine.
    pub(crate) fn take_unreported(&self, kind: LocalKind) -> Option<(SandboxId, String)> {
        let mut inner = self.lock();
        let place = inner.ends.iter().position(|(of, _, _)| *of == kind)?;
        let (_, id, how) = inner.ends.remove(place)?;
        Some((id, how))
    }
}

/// Reservation of an id, released on drop.
pub(crate) struct Reservation {
    table: Arc<Table>,
    id: SandboxId,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.table.lock().launching.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(letter: char) -> SandboxId {
        letter.to_string().repeat(20).parse().unwrap()
    }

    #[test]
    fn ids_are_reserved_once() {
        let table = Arc::new(Table::default());
        let reserved = table.reserve(&id('a')).unwrap();
        assert!(!table.is_empty());
        assert!(matches!(table.reserve(&id('a')), Err(EngineError::IdInUse { .. })));
        drop(reserved);
        table.reserve(&id('a')).unwrap();
        assert!(table.is_empty());
    }

    #[test]
    fn ends_are_reported_once_and_bounded() {
        let table = Table::default();
        table.remember(LocalKind::Local, id('a'), "1".to_owned());
        table.remember(LocalKind::None, id('b'), "2".to_owned());
        assert_eq!(table.take_unreported(LocalKind::None), Some((id('b'), "2".to_owned())));
        assert_eq!(table.take_unreported(LocalKind::None), None);
        for _ in 0..MAX_ENDS {
            table.remember(LocalKind::Local, id('c'), "3".to_owned());
        }
        assert_eq!(table.take_unreported(LocalKind::Local), Some((id('c'), "3".to_owned())));
        assert_eq!(std::iter::from_fn(|| table.take_unreported(LocalKind::Local)).count(), MAX_ENDS - 1);
    }
}
