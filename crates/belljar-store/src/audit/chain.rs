//! Checks records one after the other.

use std::fmt;

use jiff::Timestamp;

use super::head::Head;
use super::record::AuditRecord;

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verification {
    /// Every record is what it was when it was written.
    Verified(Verified),
    /// The chain was tampered with.
    Broken(Broken),
}

/// A chain that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// How many records were checked.
    pub records: u64,
    /// The last of them; the place before the first, if there were none.
    pub head: Head,
    /// How many records bear an earlier time than the one before them: clocks were set back, or keepers' clocks differ.
    pub steps_back: u64,
    /// The first of those.
    pub first_step_back: Option<i64>,
}

/// A chain that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The first record that is not what it was.
    pub seq: i64,
    /// What is wrong with it.
    pub fault: Fault,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: {}", self.seq, self.fault)
    }
}

/// What is wrong with a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It cannot be read, or its content does not match its hash.
    Changed {
        /// In a few words.
        why: String,
    },
    /// Another record is in its place: it was removed or moved.
    Missing {
        /// The record that is there.
        found: i64,
    },
    /// It fits its own hash, but not what is known of it from later records or a head: it was replaced.
    Replaced,
    /// It does not name the hash of the record before.
    Unchained,
    /// The records end here, but the head says that there were more.
    Truncated {
        /// The last record, as the head has it.
        last: i64,
    },
    /// It comes after the last record that the head knows: it was added from outside.
    Surplus,
    /// What the server vouched for the end of the chain with does not fit, so that records from here on may have been removed.
    HeadForged,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { why } => write!(f, "it was changed: {why}"),
            Self::Missing { found } => write!(f, "it is missing; record {found} is in its place"),
            Self::Replaced => f.write_str("it was replaced: it is not the record that the later ones were chained to"),
            Self::Unchained => f.write_str("it was replaced: it does not follow from the record before"),
            Self::Truncated { last } => write!(f, "it is missing; the chain went on to record {last}"),
            Self::Surplus => f.write_str("it was added from outside: the head of the chain is before it"),
            Self::HeadForged => {
                f.write_str("it may be missing: the head of the chain, which is just before it, was not written by this server")
            }
        }
    }
}

/// Takes records one after the other. Pure: where they come from is the caller's matter.
pub(crate) struct Chain {
    next: i64,
    /// The hash of the record before, if it is known.
    prev: Option<[u8; 32]>,
    anchors: Vec<Head>,
    /// The record before this one, which the last one does not follow from. The next one says which of both is wrong.
    suspect: Option<i64>,
    records: u64,
    last_at: Option<Timestamp>,
    steps_back: u64,
    first_step_back: Option<i64>,
}

impl Chain {
    /// Begins after `start`. Its hash is what the next record must name, if it is known. Each anchor must be on the chain.
    pub(crate) fn new(start: i64, prev: Option<[u8; 32]>, anchors: Vec<Head>) -> Self {
        Self {
            next: start + 1,
            prev,
            anchors,
            suspect: None,
            records: 0,
            last_at: None,
            steps_back: 0,
            first_step_back: None,
        }
    }

    /// Takes the record in the next place, or why it cannot be read.
    pub(crate) fn push(&mut self, record: Result<AuditRecord, String>) -> Result<(), Broken> {
        let seq = self.next;
        let broken = |seq, fault| Err(Broken { seq, fault });
        if let Some(suspect) = self.suspect {
            let last_is_vouched_for =
                record.as_ref().is_ok_and(|record| record.seq == seq && Some(record.prev) == self.prev);
            return if last_is_vouched_for {
                broken(suspect, Fault::Replaced)
            } else {
                broken(suspect + 1, Fault::Unchained)
            };
        }
        let record = match record {
            Ok(record) => record,
            Err(why) => return broken(seq, Fault::Changed { why }),
        };
        if record.seq != seq {
            return broken(seq, Fault::Missing { found: record.seq });
        }
        // There may be two for one place: the head that is kept here, and one that somebody noted.
        let mut anchors = self.anchors.iter().filter(|anchor| anchor.seq == seq).peekable();
        let anchored = anchors.peek().is_some().then(|| anchors.all(|anchor| anchor.hash == record.hash));
        if self.prev.is_some_and(|prev| prev != record.prev) {
            match anchored {
                // There is nothing before the first record that could be wrong instead.
                _ if self.records == 0 => return broken(seq, Fault::Unchained),
                Some(true) => return broken(seq - 1, Fault::Replaced),
                Some(false) => return broken(seq, Fault::Unchained),
                None => self.suspect = Some(seq - 1),
            }
        } else if anchored == Some(false) {
            return broken(seq, Fault::Replaced);
        }
        if self.last_at.is_some_and(|last| record.at < last) {
            self.steps_back += 1;
            self.first_step_back.get_or_insert(seq);
        }
        self.last_at = Some(record.at);
        self.prev = Some(record.hash);
        self.next += 1;
        self.records += 1;
        Ok(())
    }

    /// There are no more records.
    pub(crate) fn finish(self) -> Result<Verified, Broken> {
        if let Some(suspect) = self.suspect {
            return Err(Broken { seq: suspect + 1, fault: Fault::Unchained });
        }
        if let Some(anchor) = self.anchors.iter().max_by_key(|anchor| anchor.seq)
            && anchor.seq >= self.next
        {
            return Err(Broken { seq: self.next, fault: Fault::Truncated { last: anchor.seq } });
        }
        Ok(Verified {
            records: self.records,
            head: Head { seq: self.next - 1, hash: self.prev.unwrap_or([0; 32]) },
            steps_back: self.steps_back,
            first_step_back: self.first_step_back,
        })
    }
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
