use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use belljar_store::{
    Claim, Claimed, KeyFile, SandboxRow, SecretValue, Store, StoreError, TemplateKind, TemplateRow, ToolRow,
};
use futures::future::join_all;

use crate::fixture::{Backend, Fixture};
use crate::samples::{id, sandbox, secret, time};
use crate::tools::tool;

const MARKER: &str = "marker-5f1c9a";

fn secret_sandbox(number: u32) -> SandboxRow {
    SandboxRow { spec: format!("{{\"env\":[\"TOKEN={MARKER}\"]}}"), ..sandbox(number) }
}

fn secret_template() -> TemplateRow {
    TemplateRow {
        id: "tpl_1".to_owned(),
        tenant: "acme".to_owned(),
        key_id: "key-1".to_owned(),
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
    for name in ["first", "second"] {
        let inserted = store.secrets().insert(&secret(name), &SecretValue(MARKER.to_owned()), 2).await;
        assert!(inserted.unwrap());
    }
    let tool = ToolRow { definition: MARKER.to_owned(), ..tool("a", 1) };
    store.tools().insert(&tool).await.unwrap();
    assert_eq!(store.idempotency().claim(&CLAIM).await.unwrap(), Claimed::New);
    store.idempotency().finish(CLAIM.owner, CLAIM.scope, CLAIM.key, MARKER.as_bytes()).await.unwrap();
}

async fn check(store: &Store) {
    for number in 1..=3 {
        let row = store.sandboxes().get(&id(number)).await.unwrap().unwrap();
        assert_eq!(row.spec, secret_sandbox(number).spec);
    }
    let template = store.templates().get("acme", "tpl_1").await.unwrap();
    assert_eq!(template, Some(secret_template()));
    for name in ["first", "second"] {
        let value = store.secrets().value("acme", name).await.unwrap();
        assert_eq!(value, Some(SecretValue(MARKER.to_owned())));
    }
    assert_eq!(store.tools().list("acme").await.unwrap()[0].definition, MARKER);
    let answer = Claimed::Done { response: MARKER.as_bytes().to_vec() };
    assert_eq!(store.idempotency().claim(&CLAIM).await.unwrap(), answer);
}

/// Returns the files below a directory that contain the marker.
fn files_with_marker(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            found.append(&mut files_with_marker(&path));
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

/// Reports whether the marker is in the database's tables or, if they can be read, in its files.
async fn is_exposed(fixture: &Fixture) -> bool {
    let tables = [
        ("sandboxes", "spec"),
        ("templates", "spec"),
        ("secrets", "value"),
        ("idempotency", "response"),
        ("registry_logins", "password"),
    ];
    for (table, column) in tables {
        let text = match fixture.backend {
            Backend::Sqlite => format!("CAST({column} AS TEXT)"),
            Backend::Postgres if column == "response" => format!("encode({column}, 'escape')"),
            Backend::Postgres => column.to_owned(),
        };
        // Fails with a division by zero or a violated check if the marker is there.
        let expose = match fixture.backend {
            Backend::Sqlite => format!(
                "CREATE TEMP TABLE bare (n CHECK (n = 0)); INSERT INTO bare SELECT count(*) FROM {table} WHERE {text} LIKE '%{MARKER}%'"
            ),
            Backend::Postgres => {
                format!(
                    "SELECT 1 / (CASE WHEN count(*) = 0 THEN 1 ELSE 0 END) FROM {table} WHERE {text} LIKE '%{MARKER}%'"
                )
            }
        };
        if fixture.try_run_sql(&expose).await.is_err() {
            return true;
        }
    }
    !files_with_marker(fixture.dir.path()).is_empty()
}

pub(crate) async fn secrets_are_nowhere_in_plain_text(fixture: Fixture) {
    let store = fixture.store().await;
    fill(&store).await;
    check(&store).await;
    assert!(!is_exposed(&fixture).await, "{:?}", files_with_marker(fixture.dir.path()));
    let mode = fs::metadata(fixture.key().path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    store.close().await;
    check(&fixture.store().await).await;
    assert!(!is_exposed(&fixture).await, "{:?}", files_with_marker(fixture.dir.path()));
}

/// Restores the store to the state before values were sealed.
async fn unseal(fixture: &Fixture) {
    let specs = format!(
        "UPDATE sandboxes SET spec = '{}'; UPDATE templates SET spec = '{}';",
        secret_sandbox(1).spec,
        secret_template().spec
    );
    let hex: String = MARKER.bytes().map(|byte| format!("{byte:02x}")).collect();
    let answer = format!("UPDATE idempotency SET response = {};", fixture.bytes(&hex));
    fixture.run_sql(&format!("{specs}{answer}DELETE FROM meta WHERE name LIKE 'sealing.%'")).await;
}

pub(crate) async fn plain_values_are_sealed_and_scrubbed(fixture: Fixture) {
    let store = fixture.store().await;
    fill(&store).await;
    store.close().await;
    unseal(&fixture).await;
    assert!(is_exposed(&fixture).await, "the search does not detect plain text");
    let store = fixture.store().await;
    check(&store).await;
    assert!(!is_exposed(&fixture).await, "{:?}", files_with_marker(fixture.dir.path()));
    // Once the store is sealed, a plain value was put there by an attacker.
    let plain = format!("UPDATE sandboxes SET spec = '{}'", secret_sandbox(1).spec);
    fixture.run_sql(&plain).await;
    let error = store.sandboxes().get(&id(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
}

pub(crate) async fn sealed_values_are_bound_to_their_rows(fixture: Fixture) {
    let store = fixture.store().await;
    fill(&store).await;
    let of_first = "(SELECT spec FROM sandboxes WHERE id LIKE '%1')";
    for (table, condition) in [("sandboxes", "id LIKE '%2'"), ("templates", "id = 'tpl_1'")] {
        fixture.run_sql(&format!("UPDATE {table} SET spec = {of_first} WHERE {condition}")).await;
    }
    for error in [
        store.sandboxes().get(&id(2)).await.unwrap_err(),
        store.templates().get("acme", "tpl_1").await.unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains(".spec") && text.contains("restore a backup"), "{text}");
    }
    assert_eq!(store.sandboxes().get(&id(3)).await.unwrap(), Some(secret_sandbox(3)));
    let of_first = "(SELECT value FROM secrets WHERE name = 'first')";
    fixture.run_sql(&format!("UPDATE secrets SET value = {of_first} WHERE name = 'second'")).await;
    let error = store.secrets().value("acme", "second").await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
}

pub(crate) async fn missing_or_wrong_key_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    fill(&store).await;
    store.close().await;
    let open = async || Store::open(&fixture.url().await, &fixture.key()).await.map(drop);
    let key = fixture.key();
    let kept = fs::read(key.path()).unwrap();

    fs::remove_file(key.path()).unwrap();
    let error = open().await.unwrap_err();
    assert!(matches!(error, StoreError::KeyMissing { .. }), "{error:?}");
    assert!(!key.path().exists(), "a useless key was created");
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
    check(&fixture.store().await).await;
}

pub(crate) async fn only_one_keeper_creates_the_key(fixture: Fixture) {
    let url = fixture.url().await;
    let keys: Vec<KeyFile> =
        (0..4).map(|number| KeyFile::at(fixture.dir.path().join(format!("key-{number}")))).collect();
    let opened = join_all(keys.iter().map(|key| Store::open(&url, key))).await;
    let first: Vec<&KeyFile> =
        keys.iter().zip(&opened).filter(|(_, opened)| opened.is_ok()).map(|(key, _)| key).collect();
    assert_eq!(first.len(), 1, "{opened:?}");
    for (key, opened) in keys.iter().zip(&opened) {
        let Err(error) = opened else { continue };
        let expected = matches!(error, StoreError::KeyWrong { .. } | StoreError::KeyMissing { .. });
        assert!(expected, "{error:?}");
        assert!(!key.path().exists(), "a useless key was left");
    }
    // The others get a copy of its key.
    for key in &keys {
        if key != first[0] {
            fs::copy(first[0].path(), key.path()).unwrap();
        }
    }
    for opened in join_all(keys.iter().map(|key| Store::open(&url, key))).await {
        opened.unwrap().ping().await.unwrap();
    }
    // Several servers with the same key path create one key.
    let other = Fixture::new(fixture.backend).unwrap();
    let (url, key) = (other.url().await, other.key());
    for opened in join_all((0..4).map(|_| Store::open(&url, &key))).await {
        opened.unwrap().ping().await.unwrap();
    }
    let left = fs::read_dir(other.key().path().parent().unwrap()).unwrap().flatten();
    let left = left.filter(|entry| entry.file_name().to_string_lossy().contains(".new-")).count();
    assert_eq!(left, 0);
}
