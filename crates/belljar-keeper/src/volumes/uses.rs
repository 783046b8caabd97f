//! Use counts of volumes: a volume in use cannot be removed, and a volume that is being created or removed cannot be used.

use std::collections::HashMap;
use std::sync::Arc;

use belljar_model::VolumeId;
use parking_lot::Mutex;

/// Use counts of all volumes.
#[derive(Clone, Default)]
pub(crate) struct Uses(Arc<Mutex<HashMap<VolumeId, Use>>>);

enum Use {
    /// Number of holds.
    Held(usize),
    Closed,
}

/// A use of a volume, which cannot be removed meanwhile.
#[derive(Debug)]
pub(crate) struct Hold {
    uses: Uses,
    id: VolumeId,
}

/// A volume that cannot be used as long as this exists.
pub(super) struct Closed {
    uses: Uses,
    id: VolumeId,
}

impl std::fmt::Debug for Uses {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Uses").finish_non_exhaustive()
    }
}

impl Uses {
    /// Holds a volume. Returns `None` while it is closed.
    pub(super) fn hold(&self, id: &VolumeId) -> Option<Hold> {
        match self.0.lock().entry(id.clone()).or_insert(Use::Held(0)) {
            Use::Closed => return None,
            Use::Held(count) => *count += 1,
        }
        Some(Hold { uses: self.clone(), id: id.clone() })
    }

    /// Reports whether a volume is being created or removed.
    pub(super) fn is_closed(&self, id: &VolumeId) -> bool {
        matches!(self.0.lock().get(id), Some(Use::Closed))
    }

    /// Closes a volume. Returns `None` while it is in use, or closed already.
    pub(super) fn close(&self, id: &VolumeId) -> Option<Closed> {
        let mut uses = self.0.lock();
        if uses.contains_key(id) {
            return None;
        }
        uses.insert(id.clone(), Use::Closed);
        Some(Closed { uses: self.clone(), id: id.clone() })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut uses = self.uses.0.lock();
        match uses.get_mut(&self.id) {
            Some(Use::Held(count)) if *count > 1 => *count -= 1,
            _ => drop(uses.remove(&self.id)),
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.uses.0.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_is_held_or_closed() {
        let (uses, id) = (Uses::default(), VolumeId::from_entropy([1; 20]));
        let first = uses.hold(&id).unwrap();
        let second = uses.hold(&id).unwrap();
        drop(first);
        assert!(uses.close(&id).is_none());
        drop(second);
        let closed = uses.close(&id).unwrap();
        assert!(uses.is_closed(&id) && uses.hold(&id).is_none() && uses.close(&id).is_none());
        drop(closed);
        assert!(uses.hold(&id).is_some() && uses.0.lock().is_empty());
    }
}
