//! Verification of the chain in the database.

use super::chain::{Broken, Chain, Fault, Verification};
use super::head::Head;
use super::table::{read_head_and_last, read_range};
use crate::database::Database;
use crate::error::StoreError;

/// Records that are read at a time.
const PAGE: u32 = 1000;

/// Verifies records from `from` up to the head. Records appended meanwhile are ignored.
pub(crate) async fn verify(
    database: &Database,
    secret: &[u8; 32],
    from: i64,
    known: Option<Head>,
) -> Result<Verification, StoreError> {
    let (stored, last) = read_head_and_last(database).await?;
    let end = stored.as_ref().map_or(last, |stored| stored.head.seq);
    let from = from.max(1);
    let prev = match from {
        1 => Some([0; 32]),
        _ => read_range(database, from - 1, from - 1, 1).await?.first().map(|record| record.hash),
    };
    let anchors =
        stored.iter().map(|stored| stored.head).chain(known).filter(|head| head.seq >= from).collect();
    let mut chain = Chain::new(from - 1, prev, anchors);
    let mut next = from;
    while next <= end {
        let page = read_range(database, next, end, PAGE).await?;
        let Some(last) = page.last() else { break };
        next = last.seq + 1;
        for record in page {
            if let Err(broken) = chain.push(record.check()) {
                return Ok(Verification::Broken(broken));
            }
        }
    }
    let verified = match chain.finish() {
        Ok(verified) => verified,
        Err(broken) => return Ok(Verification::Broken(broken)),
    };
    let broken = |seq, fault| Ok(Verification::Broken(Broken { seq, fault }));
    match stored {
        Some(stored) if !stored.head.is_authentic(secret, &stored.mac) => broken(end + 1, Fault::HeadForged),
        Some(_) if last > end => broken(end + 1, Fault::Surplus),
        Some(stored) if stored.head.seq == 0 && stored.head != Head::EMPTY => broken(1, Fault::HeadForged),
        Some(_) => Ok(Verification::Verified(verified)),
        None => broken(end + 1, Fault::HeadForged),
    }
}
