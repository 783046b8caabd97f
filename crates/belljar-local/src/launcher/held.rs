//! The sandboxes that the launcher holds, and the ends that nobody has been told of.

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
use crate::launcher::messages::{Groups, Listed, SandboxFacts, millis};
use crate::walls::LocalWalls;

/// How long a sandbox that was killed waits for the order to remove it, while what it used can be asked.
const KILLED_KEPT: Duration = Duration::from_secs(30);

/// How long the news of an end may take when a sandbox has been removed. It takes no time, but for a supervisor that hangs.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most ends that are remembered; the oldest go first.
const MOST_ENDS: usize = 4096;

/// One sandbox.
pub(crate) struct Held {
    pub(crate) id: SandboxId,
    pub(crate) kind: LocalKind,
    pub(crate) walls: LocalWalls,
    pub(crate) facts: SandboxFacts,
    /// The client that it ends with.
    pub(crate) tied_to: Option<u64>,
    /// Whether somebody has asked for its end and takes care of it.
    stopping: watch::Sender<bool>,
    killed: AtomicBool,
    /// Whether its clients have been told of its end.
    announced: watch::Sender<bool>,
}

impl Held {
    /// What was launched, and the first connection to its guest.
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

    /// Ends it, and returns when that is done and has been announced: nobody may hear of this end after the id has been
    /// given to another sandbox.
    pub(crate) async fn stop(&self) -> Result<(), EngineError> {
        self.stopping.send_replace(true);
        let stopped = self.walls.stop().await;
        let mut announced = self.announced.subscribe();
        let _ = tokio::time::timeout(ANNOUNCE_TIMEOUT, announced.wait_for(|announced| *announced)).await;
        stopped
    }

    /// Its clients have been told of its end.
    pub(crate) fn set_announced(&self) {
        self.announced.send_replace(true);
    }

    /// Waits until it has ended, and says how.
    pub(crate) async fn wait_ended(&self) -> String {
        let how = self.walls.wait_ended().await;
        match (*self.stopping.borrow(), self.killed.load(Ordering::Acquire)) {
            (true, _) => "it was stopped".to_owned(),
            (false, true) => "it was killed".to_owned(),
            (false, false) => how,
        }
    }

    /// Removes what is left of it after its end. What was used by one that was killed can be asked for a while, until
    /// somebody stops it.
    pub(crate) async fn clean_up(&self) -> Result<(), EngineError> {
        if self.killed.load(Ordering::Acquire) {
            let mut stopping = self.stopping.subscribe();
            let _ = tokio::time::timeout(KILLED_KEPT, stopping.wait_for(|stopping| *stopping)).await;
        }
        self.walls.stop().await
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    held: HashMap<SandboxId, Arc<Held>>,
    /// Ids of launches that are under way.
    launching: HashSet<SandboxId>,
    ends: VecDeque<(LocalKind, SandboxId, String)>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Keeps an id for a launch.
    pub(crate) fn reserve(self: &Arc<Self>, id: &SandboxId) -> Result<Reserved, EngineError> {
        let mut inner = self.lock();
        if inner.held.contains_key(id) || !inner.launching.insert(id.clone()) {
            return Err(EngineError::IdInUse { id: id.clone() });
        }
        Ok(Reserved { table: Arc::clone(self), id: id.clone() })
    }

    pub(crate) fn insert(&self, held: Arc<Held>) {
        self.lock().held.insert(held.id.clone(), held);
    }

    pub(crate) fn get(&self, kind: LocalKind, id: &SandboxId) -> Result<Arc<Held>, EngineError> {
        let found = self.lock().held.get(id).filter(|held| held.kind == kind).map(Arc::clone);
        found.ok_or_else(|| EngineError::NoSandbox { id: id.clone() })
    }

    pub(crate) fn remove(&self, id: &SandboxId) {
        self.lock().held.remove(id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Held>> {
        self.lock().held.values().map(Arc::clone).collect()
    }

    pub(crate) fn list(&self, kind: LocalKind) -> Vec<Listed> {
        let of_kind = self.all().into_iter().filter(|held| held.kind == kind);
        of_kind
            .map(|held| Listed {
                id: held.id.clone(),
                is_frozen: held.walls.is_frozen(),
                deadline_ms: held.walls.deadline().map(millis),
            })
            .collect()
    }

    /// Whether there is nothing to stay for.
    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.lock();
        inner.held.is_empty() && inner.launching.is_empty()
    }

    /// Remembers an end that nobody has been told of.
    pub(crate) fn remember(&self, kind: LocalKind, id: SandboxId, how: String) {
        let mut inner = self.lock();
        if inner.ends.len() == MOST_ENDS {
            inner.ends.pop_front();
        }
        inner.ends.push_back((kind, id, how));
    }

    /// The oldest end of this engine that nobody has been told of.
    pub(crate) fn untold(&self, kind: LocalKind) -> Option<(SandboxId, String)> {
        let mut inner = self.lock();
        let place = inner.ends.iter().position(|(of, _, _)| *of == kind)?;
        let (_, id, how) = inner.ends.remove(place)?;
        Some((id, how))
    }
}

/// An id that is kept for a launch, as long as that goes on.
pub(crate) struct Reserved {
    table: Arc<Table>,
    id: SandboxId,
}

impl Drop for Reserved {
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
    fn an_id_is_reserved_once() {
        let table = Arc::new(Table::default());
        let reserved = table.reserve(&id('a')).unwrap();
        assert!(!table.is_empty());
        assert!(matches!(table.reserve(&id('a')), Err(EngineError::IdInUse { .. })));
        drop(reserved);
        table.reserve(&id('a')).unwrap();
        assert!(table.is_empty());
    }

    #[test]
    fn ends_are_told_once_and_bounded() {
        let table = Table::default();
        table.remember(LocalKind::Local, id('a'), "1".to_owned());
        table.remember(LocalKind::None, id('b'), "2".to_owned());
        assert_eq!(table.untold(LocalKind::None), Some((id('b'), "2".to_owned())));
        assert_eq!(table.untold(LocalKind::None), None);
        for _ in 0..MOST_ENDS {
            table.remember(LocalKind::Local, id('c'), "3".to_owned());
        }
        assert_eq!(table.untold(LocalKind::Local), Some((id('c'), "3".to_owned())));
        assert_eq!(std::iter::from_fn(|| table.untold(LocalKind::Local)).count(), MOST_ENDS - 1);
    }
}
