//! What a caller knows of its key since it was read: a key that ends meanwhile ends what the caller opens later, too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_model::{Approval, Role};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::session::Session;

/// Number of ends that are kept. Callers that were authenticated before all of them count as ended, and authenticate again.
const MAX_ENDS: usize = 4096;

/// Keys that this server has revoked, or that may do less since, in their order.
#[derive(Debug, Clone, Default)]
pub struct KeyEnds(Arc<Mutex<Ends>>);

#[derive(Debug, Default)]
struct Ends {
    /// Number of ends before those that are kept.
    before: u64,
    last: VecDeque<String>,
}

/// The moment at which a key was read, and what it could do then. The default is that of what has no key, and never ends.
#[derive(Debug, Clone, Default)]
pub struct Validity {
    ends: KeyEnds,
    since: u64,
    at: Option<Instant>,
    /// None until the key has been read, and for what has none.
    rights: Option<Rights>,
    expires_at: Option<Timestamp>,
}

impl KeyEnds {
    /// Returns the present moment. It has to be taken before the key is read.
    #[must_use]
    pub fn now(&self) -> Validity {
        let ends = self.0.lock();
        let since = ends.before.saturating_add(ends.last.len() as u64);
        drop(ends);
        Validity { ends: self.clone(), since, at: Some(Instant::now()), rights: None, expires_at: None }
    }

    /// Adds the end of a key.
    pub fn add(&self, key: &str) {
        let mut ends = self.0.lock();
        if ends.last.len() == MAX_ENDS {
            ends.last.pop_front();
            ends.before = ends.before.saturating_add(1);
        }
        ends.last.push_back(key.to_owned());
    }
}

impl Validity {
    /// Returns this with what the key could do, and when it was to expire.
    pub(crate) fn with_rights(self, rights: Rights, expires_at: Option<Timestamp>) -> Self {
        Self { rights: Some(rights), expires_at, ..self }
    }

    /// Returns what the key could do when it was read, if there is one.
    pub(crate) fn rights(&self) -> Option<Rights> {
        self.rights
    }

    /// Reports whether this server has revoked the key since, or lowered what it may do, or cannot tell any more.
    #[must_use]
    pub fn has_ended(&self, key: &str) -> bool {
        self.ended(key).unwrap_or(true)
    }

    /// Reports the same; none if it cannot tell any more, as too many keys have ended since.
    pub(crate) fn ended(&self, key: &str) -> Option<bool> {
        let ends = self.ends.0.lock();
        let seen = usize::try_from(self.since.checked_sub(ends.before)?).unwrap_or(usize::MAX);
        Some(ends.last.iter().skip(seen).any(|ended| ended == key))
    }

    /// Reports whether the key was read so long ago that the store has to be asked again.
    pub(crate) fn is_older_than(&self, age: Duration) -> bool {
        self.at.is_some_and(|at| at.elapsed() >= age)
    }

    /// Returns the time until the key expires, as far as was known when it was read.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let left = self.expires_at?.duration_since(Timestamp::now());
        Some(left.try_into().unwrap_or_default())
    }
}

/// What a key may do, as far as it ends what goes on in its name when it becomes less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// Its role.
    pub role: Role,
    /// Which of its calls wait for approval.
    pub approval: Approval,
}

impl Rights {
    /// Reports whether these are more than the others in any way.
    #[must_use]
    pub fn exceed(self, others: Self) -> bool {
        !others.role.includes(self.role) || others.approval > self.approval
    }
}

/// A key as it was read for what waits in its name.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub(crate) key: String,
    /// The session that it came with.
    pub(crate) session: Option<Session>,
    pub(crate) validity: Validity,
}

impl Standing {
    /// Reports whether this server knows that it has revoked the key since, or lowered what it may do.
    pub(crate) fn has_ended(&self) -> bool {
        self.validity.ended(&self.key) == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_compared() {
        let rights = |role, approval| Rights { role, approval };
        let user = rights(Role::User, Approval::OnRisk);
        for (others, exceeds) in [
            (user, false),
            (rights(Role::Admin, Approval::Never), false),
            (rights(Role::Read, Approval::Never), true),
            (rights(Role::Approver, Approval::Never), true),
            (rights(Role::User, Approval::Always), true),
        ] {
            assert_eq!(user.exceed(others), exceeds, "{others:?}");
            assert!(!others.exceed(others));
        }
    }

    #[test]
    fn keys_end_for_those_who_read_them_before() {
        let ends = KeyEnds::default();
        let before = ends.now();
        ends.add("a");
        let after = ends.now();
        assert!(before.has_ended("a") && !before.has_ended("b"));
        assert!(!after.has_ended("a") && !Validity::default().has_ended("a"));
        // What is not kept any more may have been any key.
        for _ in 0..MAX_ENDS {
            ends.add("c");
        }
        assert!(before.has_ended("b") && !after.has_ended("b") && !ends.now().has_ended("c"));
        ends.add("c");
        assert!(after.has_ended("b"));
    }
}
