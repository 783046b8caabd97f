//! Canonical form in which a record is hashed and exported.
//!
//! JSON with sorted names, no whitespace between tokens, and ASCII only: no character of a value can end a line or act on a
//! terminal. `docs/audit.md` specifies it in full.

use std::io;

use belljar_model::SandboxId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::details::Details;
use super::record::AuditRecord;

/// Upper bound of a record's line, in bytes. Each byte of a text takes at most six.
pub(crate) const MAX_LINE_BYTES: usize = 512 * 1024;

/// A record in its canonical form. The fields are in alphabetical order, as the hash depends on it.
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

/// Returns the record without its hash, which is the text that is hashed.
pub(crate) fn serialize_body(record: &AuditRecord) -> String {
    to_ascii_json(&Line::new(record, false))
}

/// Returns the record with its hash, as it is exported.
pub(crate) fn serialize_line(record: &AuditRecord) -> String {
    to_ascii_json(&Line::new(record, true))
}

/// Returns the hash of a body.
pub(crate) fn digest(body: &str) -> [u8; 32] {
    Sha256::digest(body.as_bytes()).into()
}

/// Parses a body that is stored with its hash. Fails with the reason if it is not exactly what this program wrote.
pub(crate) fn parse_body(text: &str, hash: [u8; 32]) -> Result<AuditRecord, String> {
    if digest(text) != hash {
        return Err("its content does not match its hash".to_owned());
    }
    let line: Line = serde_json::from_str(text).map_err(|error| format!("not a valid record: {error}"))?;
    let record = line.into_record(hash)?;
    if serialize_body(&record) != text {
        return Err("not in canonical form".to_owned());
    }
    Ok(record)
}

/// Parses a line of an export, without its newline. Fails with the reason if it is not exactly what this program wrote.
pub(crate) fn parse_line(text: &str) -> Result<AuditRecord, String> {
    let parsed: Line = serde_json::from_str(text).map_err(|error| format!("not a valid record: {error}"))?;
    let hash = parsed.hash.as_deref().and_then(from_hex).ok_or("it has no hash")?;
    let record = parsed.into_record(hash)?;
    if serialize_line(&record) != text {
        return Err("not in canonical form".to_owned());
    }
    if digest(&serialize_body(&record)) != hash {
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

    fn into_record(self, hash: [u8; 32]) -> Result<AuditRecord, String> {
        Ok(AuditRecord {
            seq: self.seq,
            at: self.at.parse::<Timestamp>().map_err(|error| format!("invalid time: {error}"))?,
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
            prev: from_hex(&self.prev).ok_or("invalid hash of the previous record")?,
            hash,
        })
    }
}

fn to_ascii_json(line: &Line) -> String {
    let mut bytes = Vec::with_capacity(1024);
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Ascii);
    // Writing texts and numbers to memory does not fail. If it did, the hash would match nothing and verification would report
    // it.
    let _ = line.serialize(&mut serializer);
    String::from_utf8(bytes).unwrap_or_default()
}

/// Escapes every character outside ASCII, and DEL, as `\uXXXX` in UTF-16 as JSON requires.
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

/// Parses 64 lower-case hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    (!text.contains(|digit: char| digit.is_ascii_uppercase())).then_some(bytes)
}

#[cfg(test)]
#[path = "canonical_tests.rs"]
mod tests;
