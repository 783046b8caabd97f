//! The one form in which a record is hashed and exported.
//!
//! It is JSON with the names in order, nothing between the tokens, and nothing outside of ASCII: no character of a value can
//! end a line, and none means anything to a terminal. `docs/audit.md` has it in full.

use std::io;

use belljar_model::SandboxId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::details::Details;
use super::record::AuditRecord;

/// The longest line that a record can make, by far. Each byte of a text takes at most six.
pub(crate) const MAX_LINE_BYTES: usize = 512 * 1024;

/// A record as it is written. The names are in order, as a hash depends on it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    action: String,
    actor: String,
    at: String,
    code_digest: Option<String>,
    details: Details,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    isolation: Option<String>,
    key_id: Option<String>,
    outcome: String,
    output_digest: Option<String>,
    policy_digest: Option<String>,
    prev: String,
    request_id: String,
    sandbox: Option<SandboxId>,
    seq: i64,
    tenant: String,
}

/// What is hashed: the record without its hash.
pub(crate) fn body(record: &AuditRecord) -> String {
    to_ascii_json(&Line::new(record, false))
}

/// What is exported: the record with its hash.
pub(crate) fn line(record: &AuditRecord) -> String {
    to_ascii_json(&Line::new(record, true))
}

/// The hash of a body.
pub(crate) fn digest(body: &str) -> [u8; 32] {
    Sha256::digest(body.as_bytes()).into()
}

/// Reads a body that is stored with its hash. Says what is wrong if it is not exactly what this program wrote.
pub(crate) fn read_body(text: &str, hash: [u8; 32]) -> Result<AuditRecord, String> {
    if digest(text) != hash {
        return Err("its content does not match its hash".to_owned());
    }
    let line: Line = serde_json::from_str(text).map_err(|error| format!("it is no record: {error}"))?;
    let record = line.record(hash)?;
    if body(&record) != text {
        return Err("it is not in its canonical form".to_owned());
    }
    Ok(record)
}

/// Reads a line of an export, without its end. Says what is wrong if it is not exactly what this program wrote.
pub(crate) fn read_line(text: &str) -> Result<AuditRecord, String> {
    let parsed: Line = serde_json::from_str(text).map_err(|error| format!("it is no record: {error}"))?;
    let hash = parsed.hash.as_deref().and_then(from_hex).ok_or("it has no hash")?;
    let record = parsed.record(hash)?;
    if line(&record) != text {
        return Err("it is not in its canonical form".to_owned());
    }
    if digest(&body(&record)) != hash {
        return Err("its content does not match its hash".to_owned());
    }
    Ok(record)
}

impl Line {
    fn new(record: &AuditRecord, with_hash: bool) -> Self {
        let record = record.clone();
        Self {
            action: record.action,
            actor: record.actor,
            at: format!("{:.6}", record.at),
            code_digest: record.code_digest,
            details: record.details,
            hash: with_hash.then(|| hex::encode(record.hash)),
            isolation: record.isolation,
            key_id: record.key_id,
            outcome: record.outcome,
            output_digest: record.output_digest,
            policy_digest: record.policy_digest,
            prev: hex::encode(record.prev),
            request_id: record.request_id,
            sandbox: record.sandbox,
            seq: record.seq,
            tenant: record.tenant,
        }
    }

    fn record(self, hash: [u8; 32]) -> Result<AuditRecord, String> {
        Ok(AuditRecord {
            seq: self.seq,
            at: self.at.parse::<Timestamp>().map_err(|error| format!("its time is none: {error}"))?,
            tenant: self.tenant,
            key_id: self.key_id,
            actor: self.actor,
            action: self.action,
            sandbox: self.sandbox,
            request_id: self.request_id,
            outcome: self.outcome,
            isolation: self.isolation,
            policy_digest: self.policy_digest,
            code_digest: self.code_digest,
            output_digest: self.output_digest,
            details: self.details,
            prev: from_hex(&self.prev).ok_or("the hash of the record before is none")?,
            hash,
        })
    }
}

fn to_ascii_json(line: &Line) -> String {
    let mut bytes = Vec::with_capacity(1024);
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Ascii);
    // Writing texts and numbers to memory does not fail. If it did, the hash would match nothing, and verify would say so.
    let _ = line.serialize(&mut serializer);
    String::from_utf8(bytes).unwrap_or_default()
}

/// Writes every character beyond ASCII, and DEL, as `\uXXXX`, in UTF-16 as JSON has it.
struct Ascii;

impl serde_json::ser::Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let is_plain = |character: char| character.is_ascii() && character != '\u{7f}';
        let mut rest = fragment;
        while let Some(special) = rest.chars().find(|character| !is_plain(*character)) {
            let (plain, from_special) = rest.split_at(rest.find(special).unwrap_or_default());
            writer.write_all(plain.as_bytes())?;
            for unit in special.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &from_special[special.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// Reads 64 digits of lower case.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    (!text.contains(|digit: char| digit.is_ascii_uppercase())).then_some(bytes)
}

#[cfg(test)]
#[path = "canonical_tests.rs"]
mod tests;
