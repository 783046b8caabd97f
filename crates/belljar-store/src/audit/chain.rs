//! Verification of records one after the other.

use std::fmt;

use jiff::Timestamp;

use super::head::Head;
use super::record::AuditRecord;

/// Result of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verification {
    /// Every record is unchanged since it was written.
    Verified(Verified),
    /// The chain was tampered with.
    Broken(Broken),
}

/// A chain that was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Number of records that were checked.
    pub records: u64,
    /// Number of the first record that was checked. Earlier ones are archived, or were not given.
    pub first: i64,
    /// Last record that was checked; the position before the first if there were none.
    pub head: Head,
    /// Number of records with an earlier time than the one before: clocks were set back, or keepers' clocks differ.
    pub steps_back: u64,
    /// First of those records.
    pub first_step_back: Option<i64>,
}

/// A chain that was tampered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// First record that was changed.
    pub seq: i64,
    /// Fault of that record.
    pub fault: Fault,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: {}", self.seq, self.fault)
    }
}

/// Fault of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The record cannot be read, or its content does not match its hash.
    Changed {
        /// Reason in a few words.
        why: String,
    },
    /// Another record is in its place: the record was removed or moved.
    Missing {
        /// Record that is in its place.
        found: i64,
    },
    /// The record matches its own hash, but not a later record or a head: it was replaced.
    Replaced,
    /// The record does not name the hash of the record before.
    Unchained,
    /// The records end here, but according to the head there were more.
    Truncated {
        /// Last record according to the head.
        last: i64,
    },
    /// The record comes after the head: it was added from outside.
    Surplus,
    /// The MAC of the head does not match, so that records from here on may have been removed.
    HeadForged,
    /// The MAC of the base does not match, so that records before it may have been removed without being archived.
    BaseForged,
    /// The database begins later, and has no base.
    BaseMissing {
        /// First record in the database.
        found: i64,
    },
    /// The database has a record that is archived according to the base.
    BeforeBase,
    /// No file has the record.
    Gap {
        /// Last record that no file has.
        last: i64,
    },
    /// Two files have the record.
    Overlap,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { why } => write!(f, "it was changed: {why}"),
            Self::Missing { found } => write!(f, "it is missing; record {found} is in its place"),
            Self::Replaced => f.write_str("it was replaced: it is not the record that the later ones were chained to"),
            Self::Unchained => f.write_str("it was replaced: it does not follow from the record before"),
            Self::Truncated { last } => write!(f, "it is missing; the chain went on to record {last}"),
            Self::Surplus => f.write_str("it was added from outside: the chain ends before it"),
            Self::HeadForged => {
                f.write_str("it may be missing: the head of the chain, which is just before it, was not written by this server")
            }
            Self::BaseForged => f.write_str(
                "records before it may be missing: the base of the chain, up to which they are archived, was not written by this server",
            ),
            Self::BaseMissing { found } => write!(
                f,
                "it is missing; record {found} is the first one, and no base of the chain says that earlier ones are archived"
            ),
            Self::BeforeBase => f.write_str("it was added from outside: it is archived, according to the base of the chain"),
            Self::Gap { last } => write!(f, "it is missing: no file has the records up to {last}"),
            Self::Overlap => f.write_str("an earlier file has it too: files overlap, or one was given twice"),
        }
    }
}

/// Verifies records one after the other. Does no I/O: the caller reads the records.
pub(crate) struct Chain {
    next: i64,
    /// Hash of the previous record, if known.
    prev: Option<[u8; 32]>,
    anchors: Vec<Head>,
    /// Previous record, if the last one does not follow from it. The next record decides which of the two is wrong.
    suspect: Option<i64>,
    records: u64,
    last_at: Option<Timestamp>,
    steps_back: u64,
    first_step_back: Option<i64>,
}

impl Chain {
    /// Starts after record `start`, whose hash is `prev` if it is known. Each anchor must be on the chain.
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

    /// Returns the number of the next record.
    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    /// Verifies the next record, or reports why it could not be read.
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
        // There may be two for one record: the stored head, and one that an operator noted.
        let mut anchors = self.anchors.iter().filter(|anchor| anchor.seq == seq).peekable();
        let anchored = anchors.peek().is_some().then(|| anchors.all(|anchor| anchor.hash == record.hash));
        if self.prev.is_some_and(|prev| prev != record.prev) {
            match anchored {
                // Nothing before the first record could be wrong instead.
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

    /// Ends the verification after the last record.
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
            first: self.next.saturating_sub_unsigned(self.records),
            head: Head { seq: self.next - 1, hash: self.prev.unwrap_or([0; 32]) },
            steps_back: self.steps_back,
            first_step_back: self.first_step_back,
        })
    }
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
