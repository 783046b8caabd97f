//! Sample rows.

use std::collections::BTreeMap;

use belljar_model::{Approval, Role, SandboxId, SandboxState, SecretScope};
use belljar_store::{KeyRow, SandboxRow, SecretRow};
use jiff::Timestamp;

/// Returns a time, in seconds since an arbitrary start.
pub(crate) fn time(seconds: i64) -> Timestamp {
    Timestamp::from_microsecond(1_790_000_000_000_000 + seconds * 1_000_000).unwrap()
}

/// Returns the id of sandbox `number`. Ids sort by number.
pub(crate) fn id(number: u32) -> SandboxId {
    format!("s{number:019}").parse().unwrap()
}

pub(crate) fn sandbox(number: u32) -> SandboxRow {
    SandboxRow {
        id: id(number),
        tenant: "acme".to_owned(),
        key_id: "key-1".to_owned(),
        keeper: "keeper-1".to_owned(),
        name: None,
        state: SandboxState::Creating,
        reason: None,
        template: "default".to_owned(),
        spec: "{\"cpus\":1}".to_owned(),
        settings: "{}".to_owned(),
        labels: BTreeMap::new(),
        created_at: time(i64::from(number)),
        updated_at: time(i64::from(number)),
        started_at: None,
        deadline_at: None,
        paused_at: None,
        ended_at: None,
        log: String::new(),
        generation: 1,
    }
}

pub(crate) fn key(number: u8) -> KeyRow {
    KeyRow {
        id: format!("key-{number}"),
        hash: [number; 32],
        hint: "bj_abcd".to_owned(),
        name: "for tests".to_owned(),
        tenant: "acme".to_owned(),
        role: Role::User,
        quotas: "{}".to_owned(),
        owner: None,
        approval: Approval::Never,
        created_at: time(i64::from(number)),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    }
}

pub(crate) fn labels<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns a secret of the tenant `acme`, whose id is made of its name.
pub(crate) fn secret(name: &str) -> SecretRow {
    SecretRow {
        id: format!("sec_{name}"),
        tenant: "acme".to_owned(),
        name: name.to_owned(),
        version: 1,
        metadata: BTreeMap::from([("owner".to_owned(), "ci".to_owned())]),
        scope: SecretScope::new(&["*.example.com".to_owned()], Some("authorization")).unwrap(),
        key_id: Some("key-1".to_owned()),
        created_at: time(1),
        updated_at: time(1),
    }
}
