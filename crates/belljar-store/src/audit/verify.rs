//! Verification of the chain in the database.

use super::chain::{Broken, Chain, Fault, Verification, Verified};
use super::head::Head;
use super::table::{Ends, StoredHead, read_ends, read_range};
use crate::database::Database;
use crate::error::StoreError;

/// Records that are read at a time.
const PAGE: u32 = 1000;

/// Verifies records from `from` up to the head, or from the base if that is later. Records appended meanwhile are ignored.
///
/// # Errors
/// Returns [`StoreError::Archived`] if `known` is before the base, or fails if the store cannot be read.
pub(crate) async fn verify(
    database: &Database,
    secret: &[u8; 32],
    from: i64,
    known: Option<Head>,
) -> Result<Verification, StoreError> {
    loop {
        let ends = read_ends(database).await?;
        let base = ends.base();
        let result = match check_base(&ends, secret) {
            Ok(()) => match known.filter(|known| known.seq < base.seq) {
                Some(known) => return Err(StoreError::Archived { seq: known.seq, base: base.seq }),
                None => verify_records(database, secret, &ends, from, known).await?,
            },
            Err(broken) => Err(broken),
        };
        match result {
            Ok(verified) => return Ok(Verification::Verified(verified)),
            // Records that were archived meanwhile seem to be missing.
            Err(_) if read_ends(database).await?.base() != base => {}
            Err(broken) => return Ok(Verification::Broken(broken)),
        }
    }
}

/// Checks the base, and that the records and the head come after it.
pub(crate) fn check_base(ends: &Ends, secret: &[u8; 32]) -> Result<(), Broken> {
    let (head, base) = (ends.head(), ends.base());
    let broken = |seq, fault| Err(Broken { seq, fault });
    match &ends.base {
        None if ends.first > 1 => broken(1, Fault::BaseMissing { found: ends.first }),
        None => Ok(()),
        Some(stored) if base.seq < 1 || !base.is_authentic_base(secret, &stored.mac) => {
            broken(base.seq.max(0).saturating_add(1), Fault::BaseForged)
        }
        Some(_) if (1..=base.seq).contains(&ends.first) => broken(ends.first, Fault::BeforeBase),
        Some(_) if head.seq < base.seq => {
            broken(head.seq.max(0).saturating_add(1), Fault::Truncated { last: base.seq })
        }
        Some(_) => Ok(()),
    }
}

/// Checks that the chain goes on to the noted head at least.
fn check_noted(ends: &Ends) -> Result<(), Broken> {
    let last = ends.head.as_ref().map_or(ends.last, |stored| stored.head.seq);
    match ends.noted {
        Some(noted) if last < noted.seq => {
            Err(Broken { seq: last.max(0).saturating_add(1), fault: Fault::Truncated { last: noted.seq } })
        }
        _ => Ok(()),
    }
}

/// Checks that the head was written by this server, that the records end there, and that it is not before the noted one.
pub(crate) fn check_head(ends: &Ends, secret: &[u8; 32]) -> Result<(), Broken> {
    let broken = |seq: i64, fault| Err(Broken { seq: seq.saturating_add(1), fault });
    match &ends.head {
        None => check_noted(ends).and_then(|()| broken(ends.last, Fault::HeadForged)),
        Some(StoredHead { head, mac }) if !head.is_authentic(secret, mac) => {
            broken(head.seq, Fault::HeadForged)
        }
        Some(StoredHead { head, .. }) if ends.last > head.seq => broken(head.seq, Fault::Surplus),
        Some(StoredHead { head, .. }) if head.seq == 0 && *head != Head::EMPTY => {
            broken(0, Fault::HeadForged)
        }
        Some(_) => check_noted(ends),
    }
}

async fn verify_records(
    database: &Database,
    secret: &[u8; 32],
    ends: &Ends,
    from: i64,
    known: Option<Head>,
) -> Result<Result<Verified, Broken>, StoreError> {
    let base = ends.base();
    let end = ends.head.as_ref().map_or(ends.last, |stored| stored.head.seq);
    let from = from.max(base.seq.saturating_add(1));
    let prev = if from == base.seq.saturating_add(1) {
        Some(base.hash)
    } else {
        read_range(database, from - 1, from - 1, 1).await?.first().map(|record| record.hash)
    };
    let anchors = ends.head.iter().map(|stored| stored.head).chain(known);
    if let Some(anchor) = anchors.clone().find(|one| base.seq > 0 && one.seq == base.seq && *one != base) {
        return Ok(Err(Broken { seq: anchor.seq, fault: Fault::Replaced }));
    }
    let mut chain = Chain::new(from - 1, prev, anchors.filter(|head| head.seq >= from).collect());
    let mut next = from;
    while next <= end {
        let page = read_range(database, next, end, PAGE).await?;
        let Some(last) = page.last() else { break };
        next = last.seq + 1;
        for record in page {
            if let Err(broken) = chain.push(record.check()) {
                return Ok(Err(broken));
            }
        }
    }
    Ok(chain.finish().and_then(|verified| check_head(ends, secret).map(|()| verified)))
}
