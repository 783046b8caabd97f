//! Verification of an export without the database.

use std::io::{self, BufRead, Read as _};

use super::canonical::{MAX_LINE_BYTES, parse_line};
use super::chain::{Broken, Chain, Fault, Verification};
use super::head::Head;

/// Expected properties of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected {
    /// First record. Without it, records may be missing at the front.
    pub first: Option<i64>,
    /// Head that is known from elsewhere and must be on the chain. Without it, records may be missing at the end.
    pub head: Option<Head>,
}

/// Verifies an export of the audit log, as JSON lines, without the database. Memory use does not grow with its length.
///
/// A line that cannot be read counts as the record that would be in its place.
///
/// # Errors
///
/// Fails if reading fails.
pub fn verify_export(mut reader: impl BufRead, expected: Expected) -> io::Result<Verification> {
    let mut line = Vec::new();
    let mut chain: Option<Chain> = None;
    let anchors: Vec<Head> = expected.head.into_iter().collect();
    let mut first = None;
    let start = |found: i64| {
        let first = expected.first.unwrap_or(found);
        let before = expected.head.filter(|head| head.seq == first - 1);
        let prev = if first == 1 { Some([0; 32]) } else { before.map(|head| head.hash) };
        Chain::new(first - 1, prev, anchors.clone())
    };
    loop {
        line.clear();
        let bound = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX);
        if reader.by_ref().take(bound).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let record = parse(&line);
        let found = record.as_ref().map_or(1, |record| record.seq);
        let first = *first.get_or_insert(found);
        if let Some(head) = expected.head.filter(|head| head.seq < first - 1) {
            // The head would not protect any of these records.
            return Ok(Verification::Broken(Broken {
                seq: head.seq,
                fault: Fault::Missing { found: first },
            }));
        }
        let chain = chain.get_or_insert_with(|| start(first));
        if let Err(broken) = chain.push(record) {
            return Ok(Verification::Broken(broken));
        }
    }
    Ok(match chain.unwrap_or_else(|| start(1)).finish() {
        Ok(verified) => Verification::Verified(verified),
        Err(broken) => Verification::Broken(broken),
    })
}

fn parse(line: &[u8]) -> Result<super::record::AuditRecord, String> {
    let Some(line) = line.strip_suffix(b"\n") else {
        return Err("its line has no end".to_owned());
    };
    let text = std::str::from_utf8(line).map_err(|error| format!("it is not text: {error}"))?;
    parse_line(text)
}
