use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use belljar_store::{Claim, Claimed, KeyFile, SandboxRow, Store, StoreError, TemplateKind, TemplateRow};
use futures::future::join_all;

use crate::ground::{Backend, Ground};
use crate::samples::{id, sandbox, time};

const MARKER: &str = "marker-5f1c9a";

fn secret_sandbox(number: u32) -> SandboxRow {
    SandboxRow { spec: format!("{{\"env\":[\"TOKEN={MARKER}\"]}}"), ..sandbox(number) }
}

fn secret_template() -> TemplateRow {
    TemplateRow {
        id: "tpl_1".to_owned(),
        tenant: "acme".to_owned(),
        name: None,
        kind: TemplateKind::Snapshot,
        source_sandbox: Some(id(1)),
        digest: "ab".repeat(32),
        bytes: 1,
        spec: format!("{{\"env\":{{\"TOKEN\":\"{MARKER}\"}}}}"),
        created_at: time(1),
        note: String::new(),
        built: String::new(),
    }
}

const CLAIM: Claim<'_> = Claim {
    scope: "acme/exec/1",
    key: "a",
    request: [1; 32],
    owner: "keeper-1",
    now: jiff::Timestamp::UNIX_EPOCH,
    expires_at: jiff::Timestamp::MAX,
};

async fn fill(store: &Store) {
    for number in 1..=3 {
        store.sandboxes().insert(&secret_sandbox(number)).await.unwrap();
    }
    let mut row = secret_sandbox(1);
    row.updated_at = time(50);
    store.sandboxes().update(&mut row).await.unwrap();
    store.templates().insert(&secret_template()).await.unwrap();
    assert_eq!(store.idempotency().claim(&CLAIM).await.unwrap(), Claimed::New);
    store.idempotency().finish(CLAIM.scope, CLAIM.key, MARKER.as_bytes()).await.unwrap();
}

async fn check(store: &Store) {
    for number in 1..=3 {
        let row = store.sandboxes().get(&id(number)).await.unwrap().unwrap();
        assert_eq!(row.spec, secret_sandbox(number).spec);
    }
    let template = store.templates().get("acme", "tpl_1").await.unwrap();
    assert_eq!(template, Some(secret_template()));
    let answer = Claimed::Done { response: MARKER.as_bytes().to_vec() };
    assert_eq!(store.idempotency().claim(&CLAIM).await.unwrap(), answer);
}

/// Files below a directory that hold the marker.
fn found_in(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            found.append(&mut found_in(&path));
        } else if fs::read(&path)
            .unwrap_or_default()
            .windows(MARKER.len())
            .any(|window| window == MARKER.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

/// Whether the database shows the marker, in its tables or, if they can be read, in its files.
async fn is_exposed(ground: &Ground) -> bool {
    let tables = [("sandboxes", "spec"), ("templates", "spec"), ("idempotency", "response")];
    for (table, column) in tables {
        let text = match ground.backend {
            Backend::Sqlite => format!("CAST({column} AS TEXT)"),
            Backend::Postgres if column == "response" => format!("encode({column}, 'escape')"),
            Backend::Postgres => column.to_owned(),
        };
        // A division by zero, or a text that is no number, where there is the marker.
        let expose = match ground.backend {
            Backend::Sqlite => format!(
                "CREATE TEMP TABLE bare (n CHECK (n = 0)); INSERT INTO bare SELECT count(*) FROM {table} WHERE {text} LIKE '%{MARKER}%'"
            ),
            Backend::Postgres => {
                format!(
                    "SELECT 1 / (CASE WHEN count(*) = 0 THEN 1 ELSE 0 END) FROM {table} WHERE {text} LIKE '%{MARKER}%'"
                )
            }
        };
        if ground.try_meddle(&expose).await.is_err() {
            return true;
        }
    }
    !found_in(ground.dir.path()).is_empty()
}

pub(crate) async fn what_may_be_secret_is_nowhere_in_plain(ground: Ground) {
    let store = ground.store().await;
    fill(&store).await;
    check(&store).await;
    assert!(!is_exposed(&ground).await, "{:?}", found_in(ground.dir.path()));
    let mode = fs::metadata(ground.key().path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    store.close().await;
    check(&ground.store().await).await;
    assert!(!is_exposed(&ground).await, "{:?}", found_in(ground.dir.path()));
}

/// Makes the store what it was before values were sealed.
async fn unseal(ground: &Ground) {
    let specs = format!(
        "UPDATE sandboxes SET spec = '{}'; UPDATE templates SET spec = '{}';",
        secret_sandbox(1).spec,
        secret_template().spec
    );
    let hex: String = MARKER.bytes().map(|byte| format!("{byte:02x}")).collect();
    let answer = format!("UPDATE idempotency SET response = {};", ground.bytes(&hex));
    ground.meddle(&format!("{specs}{answer}DELETE FROM meta WHERE name LIKE 'sealing.%'")).await;
}

pub(crate) async fn what_is_plain_is_sealed_and_scrubbed(ground: Ground) {
    let store = ground.store().await;
    fill(&store).await;
    store.close().await;
    unseal(&ground).await;
    assert!(is_exposed(&ground).await, "the search finds nothing");
    let store = ground.store().await;
    check(&store).await;
    assert!(!is_exposed(&ground).await, "{:?}", found_in(ground.dir.path()));
    // Once it is sealed, what is plain was put there by somebody else.
    let plain = format!("UPDATE sandboxes SET spec = '{}'", secret_sandbox(1).spec);
    ground.meddle(&plain).await;
    let error = store.sandboxes().get(&id(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
}

pub(crate) async fn sealed_values_stay_in_their_rows(ground: Ground) {
    let store = ground.store().await;
    fill(&store).await;
    let of_first = "(SELECT spec FROM sandboxes WHERE id LIKE '%1')";
    for (table, condition) in [("sandboxes", "id LIKE '%2'"), ("templates", "id = 'tpl_1'")] {
        ground.meddle(&format!("UPDATE {table} SET spec = {of_first} WHERE {condition}")).await;
    }
    for error in [
        store.sandboxes().get(&id(2)).await.unwrap_err(),
        store.templates().get("acme", "tpl_1").await.unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains(".spec") && text.contains("restore a backup"), "{text}");
    }
    assert_eq!(store.sandboxes().get(&id(3)).await.unwrap(), Some(secret_sandbox(3)));
}

pub(crate) async fn a_key_that_is_missing_or_wrong_is_refused(ground: Ground) {
    let store = ground.store().await;
    fill(&store).await;
    store.close().await;
    let open = async || Store::open(&ground.url().await, &ground.key()).await.map(drop);
    let key = ground.key();
    let kept = fs::read(key.path()).unwrap();

    fs::remove_file(key.path()).unwrap();
    let error = open().await.unwrap_err();
    assert!(matches!(error, StoreError::KeyMissing { .. }), "{error:?}");
    assert!(!key.path().exists(), "a key was made that opens nothing");
    let text = error.to_string();
    assert!(text.contains("put the key file back") && text.contains("store.key_file"), "{text}");

    fs::write(key.path(), format!("{}\n", "0".repeat(64))).unwrap();
    fs::set_permissions(key.path(), fs::Permissions::from_mode(0o600)).unwrap();
    let error = open().await.unwrap_err();
    assert!(matches!(error, StoreError::KeyWrong { .. }), "{error:?}");

    for (bytes, mode) in [
        (b"".as_slice(), 0o600),
        (b"secret", 0o600),
        (&kept[..40], 0o600),
        (b"\xff\xfe", 0o600),
        (&kept, 0o644),
        (&kept, 0o620),
        (&kept, 0o604),
    ] {
        fs::write(key.path(), bytes).unwrap();
        fs::set_permissions(key.path(), fs::Permissions::from_mode(mode)).unwrap();
        let error = open().await.unwrap_err();
        assert!(
            matches!(error, StoreError::KeyRefused { .. } | StoreError::File { action: "read", .. }),
            "{mode:o} {error:?}"
        );
    }
    fs::remove_file(key.path()).unwrap();
    fs::create_dir(key.path()).unwrap();
    let error = open().await.unwrap_err();
    assert!(matches!(error, StoreError::KeyRefused { .. }), "{error:?}");
    fs::remove_dir(key.path()).unwrap();

    fs::write(key.path(), &kept).unwrap();
    fs::set_permissions(key.path(), fs::Permissions::from_mode(0o440)).unwrap();
    check(&ground.store().await).await;
}

pub(crate) async fn one_of_several_keepers_makes_the_key(ground: Ground) {
    let url = ground.url().await;
    let keys: Vec<KeyFile> =
        (0..4).map(|number| KeyFile::at(ground.dir.path().join(format!("key-{number}")))).collect();
    let opened = join_all(keys.iter().map(|key| Store::open(&url, key))).await;
    let first: Vec<&KeyFile> =
        keys.iter().zip(&opened).filter(|(_, opened)| opened.is_ok()).map(|(key, _)| key).collect();
    assert_eq!(first.len(), 1, "{opened:?}");
    for (key, opened) in keys.iter().zip(&opened) {
        let Err(error) = opened else { continue };
        let expected = matches!(error, StoreError::KeyWrong { .. } | StoreError::KeyMissing { .. });
        assert!(expected, "{error:?}");
        assert!(!key.path().exists(), "a key stays that opens nothing");
    }
    // The others are given its key.
    for key in &keys {
        if key != first[0] {
            fs::copy(first[0].path(), key.path()).unwrap();
        }
    }
    for opened in join_all(keys.iter().map(|key| Store::open(&url, key))).await {
        opened.unwrap().ping().await.unwrap();
    }
    // Several in one place make one.
    let other = Ground::new(ground.backend).unwrap();
    let (url, key) = (other.url().await, other.key());
    for opened in join_all((0..4).map(|_| Store::open(&url, &key))).await {
        opened.unwrap().ping().await.unwrap();
    }
    let left = fs::read_dir(other.key().path().parent().unwrap()).unwrap().flatten();
    let left = left.filter(|entry| entry.file_name().to_string_lossy().contains(".new-")).count();
    assert_eq!(left, 0);
}
