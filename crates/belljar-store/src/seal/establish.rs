//! Determines the key with which a store is sealed, and seals a store that is not sealed yet.

use sqlx::{Any, Transaction};

use super::key_file::KeyFile;
use super::sealer::{Place, Sealer, is_sealed};
use crate::database::{Backend, Database};
use crate::error::{StoreError, failed};
use crate::meta::Meta;
use crate::random::random_32;
use crate::reader::Reader;

/// Name of the setting that proves which key the store is sealed with: a value that only this key opens.
const CHECK: &str = "sealing.check";
const CHECK_PLACE: Place<'_> = Place::new("meta.value", &[CHECK]);

/// Name of the setting that exists while plain text of sealed values may still be in the database's files.
const SCRUB: &str = "sealing.scrub";

/// Rows that are sealed at a time.
const PAGE: i64 = 200;

const SEAL: &str = "seal the store";

/// Returns the sealer of a store with the key in this file.
pub(crate) async fn establish(database: &Database, file: &KeyFile) -> Result<Sealer, StoreError> {
    let stored = Meta { database }.get(CHECK).await?;
    let (key, is_new) = load_key(file.clone(), stored.is_some()).await?;
    let sealer = Sealer::new(&key)?;
    let fits = match verify_key(database, &sealer, stored).await {
        Err(StoreError::Corrupt { .. }) => Ok(false),
        other => other,
    };
    if !matches!(fits, Ok(true)) && is_new {
        file.remove();
    }
    match fits? {
        true => Ok(sealer),
        false => Err(StoreError::KeyWrong { path: file.path().to_owned() }),
    }
}

/// Returns the sealer of a store in memory.
pub(crate) async fn establish_in_memory(database: &Database) -> Result<Sealer, StoreError> {
    let sealer = Sealer::new(&random_32()?)?;
    verify_key(database, &sealer, None).await?;
    Ok(sealer)
}

/// Returns the key, and whether it has just been created.
async fn load_key(file: KeyFile, is_sealed: bool) -> Result<([u8; 32], bool), StoreError> {
    let path = file.path().to_owned();
    let load = move || match file.read()? {
        Some(key) => Ok((key, false)),
        None if is_sealed => Err(StoreError::KeyMissing { path: file.path().to_owned() }),
        None => file.create(),
    };
    let loaded = tokio::task::spawn_blocking(load).await;
    loaded.map_err(|error| StoreError::File { action: "read", path, source: std::io::Error::other(error) })?
}

/// Reports whether the key is the store's. A store without one adopts it.
async fn verify_key(
    database: &Database,
    sealer: &Sealer,
    stored: Option<Vec<u8>>,
) -> Result<bool, StoreError> {
    let stored = match stored {
        Some(stored) => Some(stored),
        None => {
            seal_existing(database, sealer).await?;
            // Another keeper may have been faster; the stored value is authoritative.
            Meta { database }.get(CHECK).await?
        }
    };
    sealer.open(CHECK_PLACE, &stored.unwrap_or_default())?;
    scrub(database).await;
    Ok(true)
}

/// Seals all existing values, unless another keeper has done so.
async fn seal_existing(database: &Database, sealer: &Sealer) -> Result<(), StoreError> {
    let check = sealer.seal(CHECK_PLACE, CHECK.as_bytes())?;
    let mut transaction = database.begin(SEAL).await?;
    let text = "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
    let insert = sqlx::query(text).bind(CHECK).bind(check.as_bytes());
    if insert.execute(&mut *transaction).await.map_err(failed(SEAL))?.rows_affected() == 0 {
        return transaction.rollback().await.map_err(failed(SEAL));
    }
    let mut sealed = seal_specs(&mut transaction, sealer, &SANDBOXES).await?;
    sealed += seal_specs(&mut transaction, sealer, &TEMPLATES).await?;
    sealed += seal_answers(&mut transaction, sealer).await?;
    if sealed > 0 {
        let scrub = sqlx::query(text).bind(SCRUB).bind(b"".as_slice());
        scrub.execute(&mut *transaction).await.map_err(failed(SEAL))?;
    }
    database.commit(transaction).await.map_err(failed(SEAL))?;
    database.sync().await
}

/// Table with specifications.
struct Table {
    column: &'static str,
    select: &'static str,
    update: &'static str,
}

const SANDBOXES: Table = Table {
    column: crate::sandboxes::SPEC,
    select: "SELECT id, spec FROM sandboxes WHERE id > $1 ORDER BY id LIMIT $2",
    update: "UPDATE sandboxes SET spec = $1 WHERE id = $2",
};

const TEMPLATES: Table = Table {
    column: crate::templates::SPEC,
    select: "SELECT id, spec FROM templates WHERE id > $1 ORDER BY id LIMIT $2",
    update: "UPDATE templates SET spec = $1 WHERE id = $2",
};

async fn seal_specs(
    transaction: &mut Transaction<'static, Any>,
    sealer: &Sealer,
    table: &Table,
) -> Result<usize, StoreError> {
    let (mut after, mut sealed) = (String::new(), 0);
    loop {
        let select = sqlx::query(table.select).bind(after.clone()).bind(PAGE);
        let rows = select.fetch_all(&mut **transaction).await.map_err(failed(SEAL))?;
        if rows.is_empty() {
            return Ok(sealed);
        }
        for row in &rows {
            let row = Reader { table: "the store", row };
            let (id, spec) = (row.text("id")?, row.text("spec")?);
            let place = [id.as_str()];
            let place = Place::new(table.column, &place);
            if let Some(text) = seal_if_plain(sealer, place, spec.as_bytes())? {
                let update = sqlx::query(table.update).bind(text).bind(&id);
                update.execute(&mut **transaction).await.map_err(failed(SEAL))?;
                sealed += 1;
            }
            after = id;
        }
    }
}

async fn seal_answers(
    transaction: &mut Transaction<'static, Any>,
    sealer: &Sealer,
) -> Result<usize, StoreError> {
    // They are few: each is deleted after about a day.
    let select = sqlx::query("SELECT scope, name, response FROM idempotency WHERE response IS NOT NULL");
    let rows = select.fetch_all(&mut **transaction).await.map_err(failed(SEAL))?;
    let mut sealed = 0;
    for row in &rows {
        let row = Reader { table: "idempotency", row };
        let (scope, name, response) = (row.text("scope")?, row.text("name")?, row.bytes("response")?);
        let place = [scope.as_str(), name.as_str()];
        let place = Place::new(crate::idempotency::RESPONSE, &place);
        if let Some(text) = seal_if_plain(sealer, place, &response)? {
            let text = text.into_bytes();
            let update = sqlx::query("UPDATE idempotency SET response = $1 WHERE scope = $2 AND name = $3");
            let update = update.bind(text).bind(&scope).bind(&name);
            update.execute(&mut **transaction).await.map_err(failed(SEAL))?;
            sealed += 1;
        }
    }
    Ok(sealed)
}

/// Returns the sealed form of a plain value, or `None` if it is already sealed with this key.
fn seal_if_plain(sealer: &Sealer, place: Place<'_>, value: &[u8]) -> Result<Option<String>, StoreError> {
    if is_sealed(value) {
        return sealer.open(place, value).map(|_| None);
    }
    sealer.seal(place, value).map(Some)
}

/// Removes the plain text of sealed values from the database's files. If that fails, the next start tries again.
async fn scrub(database: &Database) {
    if let Err(error) = try_scrub(database).await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "cannot remove plain text of sealed values from the database's files; the next start tries again"
        );
    }
}

async fn try_scrub(database: &Database) -> Result<(), StoreError> {
    if (Meta { database }).get(SCRUB).await?.is_none() {
        return Ok(());
    }
    let statements: &[&'static str] = match database.backend {
        Backend::Sqlite => &["VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"],
        Backend::Postgres => &["VACUUM FULL sandboxes", "VACUUM FULL templates", "VACUUM FULL idempotency"],
    };
    for statement in statements {
        database.write(sqlx::query(*statement)).await.map_err(failed("scrub the store"))?;
    }
    let done = sqlx::query("DELETE FROM meta WHERE name = $1").bind(SCRUB);
    database.write(done).await.map(|_| ()).map_err(failed("scrub the store"))
}
