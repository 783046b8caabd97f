//! Verification of exports without the database.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::archive::parse_name;
use super::canonical::{MAX_LINE_BYTES, parse_line};
use super::chain::{Broken, Chain, Fault, Verification, Verified};
use super::head::Head;
use super::record::AuditRecord;
use crate::error::StoreError;

/// Expected properties of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected {
    /// First record. Without it, records may be missing at the front.
    pub first: Option<i64>,
    /// Head that is known from elsewhere and must be on the chain. Without it, records may be missing at the end.
    pub head: Option<Head>,
}

/// A file of a chain that was tampered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenFile {
    /// Path of the file.
    pub path: PathBuf,
    /// First record that was changed, and how.
    pub broken: Broken,
}

impl fmt::Display for BrokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.broken)
    }
}

/// Verifies an export of the audit log, as JSON lines, without the database. Memory use does not grow with its length.
///
/// A line that cannot be read counts as the record that would be in its place.
///
/// # Errors
///
/// Fails if reading fails.
pub fn verify_export(reader: impl BufRead, expected: Expected) -> io::Result<Verification> {
    let mut check = Check { expected, chain: None };
    let result = check.read(reader, 1)?.and_then(|()| check.finish());
    Ok(result.map_or_else(Verification::Broken, Verification::Verified))
}

/// Verifies exports that follow one another, such as archived files, given in any order. A file that is named like an archived
/// one, `audit-FIRST-LAST.jsonl`, must have exactly these records.
///
/// # Errors
///
/// Returns [`StoreError::File`] if a file cannot be read. A broken chain is not an error but a result.
pub fn verify_files(
    paths: &[PathBuf],
    expected: Expected,
) -> Result<Result<Verified, BrokenFile>, StoreError> {
    let mut check = Check { expected, chain: None };
    let broken = |path: &Path, broken| Ok(Err(BrokenFile { path: path.to_owned(), broken }));
    let mut parts = Vec::with_capacity(paths.len());
    for path in paths {
        parts.push(Part::new(path, paths.len() == 1).map_err(failed(path))?);
    }
    parts.sort_by_key(|part| part.first);
    // A fault may be found only when the next record is read.
    let owner = |parts: &[Part<'_>], seq| {
        let part = parts.iter().rev().find(|part| part.first <= seq).or(parts.first());
        part.map_or(PathBuf::new(), |part| part.path.to_owned())
    };
    for (index, part) in parts.iter().enumerate() {
        if let Err(fault) = part.check_begin(check.next()) {
            return broken(part.path, fault);
        }
        let file = File::open(part.path).map_err(failed(part.path))?;
        if let Err(fault) = check.read(BufReader::new(file), part.first).map_err(failed(part.path))? {
            return broken(&owner(&parts[..=index], fault.seq), fault);
        }
        if let Err(fault) = part.check_end(check.next()) {
            return broken(part.path, fault);
        }
    }
    match check.finish() {
        Ok(verified) => Ok(Ok(verified)),
        Err(fault) => broken(&owner(&parts, fault.seq), fault),
    }
}

/// Reports whether lines are the records after `before` up to `last`, and nothing else.
///
/// # Errors
/// Fails if reading fails.
pub(super) fn is_segment(reader: impl BufRead, before: Head, last: Head) -> io::Result<bool> {
    let chain = Some(Chain::new(before.seq, Some(before.hash), vec![last]));
    let mut check = Check { expected: Expected::default(), chain };
    let result = check.read(reader, 1)?.and_then(|()| check.finish());
    Ok(result.is_ok_and(|verified| verified.head == last))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::File { action: "read", path: path.to_owned(), source }
}

/// One of several files.
struct Part<'p> {
    path: &'p Path,
    /// First and last record according to its name.
    name: Option<(i64, i64)>,
    /// First record, if it can be read.
    found: Option<i64>,
    /// Number by which it is sorted.
    first: i64,
}

impl<'p> Part<'p> {
    /// A single file without such a name is not read in advance, as it may be a pipe.
    fn new(path: &'p Path, is_only: bool) -> io::Result<Self> {
        let name = parse_name(path);
        let found = match is_only && name.is_none() {
            true => None,
            false => next_line(&mut BufReader::new(File::open(path)?), &mut Vec::new())?
                .and_then(Result::ok)
                .map(|record| record.seq),
        };
        let first = found.or(name.map(|(first, _)| first)).unwrap_or(1);
        Ok(Self { path, name, found, first })
    }

    /// Checks the first record, before record `next` of the chain, if one was read.
    fn check_begin(&self, next: Option<i64>) -> Result<(), Broken> {
        let Some(found) = self.found else { return Ok(()) };
        let broken = |seq, fault| Err(Broken { seq, fault });
        match (self.name, next) {
            (Some((first, _)), _) if first != found => broken(first, Fault::Missing { found }),
            (_, Some(next)) if found < next => broken(found, Fault::Overlap),
            (_, Some(next)) if found > next => broken(next, Fault::Gap { last: found - 1 }),
            _ => Ok(()),
        }
    }

    /// Checks the last record, which is the one before `next`.
    fn check_end(&self, next: Option<i64>) -> Result<(), Broken> {
        let Some((first, last)) = self.name else { return Ok(()) };
        let end = next.map_or(0, |next| next - 1);
        match end {
            end if end < last => Err(Broken { seq: first.max(end + 1), fault: Fault::Truncated { last } }),
            end if end > last => Err(Broken { seq: last + 1, fault: Fault::Surplus }),
            _ => Ok(()),
        }
    }
}

/// Verifies lines one after the other.
struct Check {
    expected: Expected,
    /// Set with the first line.
    chain: Option<Chain>,
}

impl Check {
    /// Returns the number of the next record, once a line was read.
    fn next(&self) -> Option<i64> {
        self.chain.as_ref().map(Chain::next)
    }

    /// Reads records. If the first line of all is none, it counts as record `first`.
    fn read(&mut self, mut reader: impl BufRead, first: i64) -> io::Result<Result<(), Broken>> {
        let mut line = Vec::new();
        while let Some(record) = next_line(&mut reader, &mut line)? {
            let found = record.as_ref().map_or(first, |record| record.seq);
            let chain = match &mut self.chain {
                Some(chain) => chain,
                None => match self.expected.head.filter(|head| head.seq < found - 1) {
                    // The head would not protect any of these records.
                    Some(head) => {
                        return Ok(Err(Broken { seq: head.seq, fault: Fault::Missing { found } }));
                    }
                    None => self.chain.insert(self.expected.begin(found)),
                },
            };
            if let Err(broken) = chain.push(record) {
                return Ok(Err(broken));
            }
        }
        Ok(Ok(()))
    }

    fn finish(&mut self) -> Result<Verified, Broken> {
        self.chain.take().unwrap_or_else(|| self.expected.begin(1)).finish()
    }
}

impl Expected {
    /// Begins with record `found`, or with the one that is expected first.
    fn begin(self, found: i64) -> Chain {
        let first = self.first.unwrap_or(found);
        let before = self.head.filter(|head| head.seq == first - 1);
        let prev = if first == 1 { Some([0; 32]) } else { before.map(|head| head.hash) };
        Chain::new(first - 1, prev, self.head.into_iter().collect())
    }
}

/// Reads the next line, and returns its record or the reason why it is none.
fn next_line(
    reader: &mut impl BufRead,
    line: &mut Vec<u8>,
) -> io::Result<Option<Result<AuditRecord, String>>> {
    line.clear();
    let bound = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX);
    Ok(match reader.by_ref().take(bound).read_until(b'\n', line)? {
        0 => None,
        _ => Some(parse(line)),
    })
}

fn parse(line: &[u8]) -> Result<AuditRecord, String> {
    let Some(line) = line.strip_suffix(b"\n") else {
        return Err("its line has no end".to_owned());
    };
    let text = std::str::from_utf8(line).map_err(|error| format!("it is not text: {error}"))?;
    parse_line(text)
}
