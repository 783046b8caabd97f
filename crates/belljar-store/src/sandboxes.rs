//! Records of sandboxes.

use std::collections::BTreeMap;

use belljar_model::{SandboxId, SandboxState};
use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::{Backend, Database, Statement};
use crate::error::{StoreError, failed, is_clash};
use crate::filter::Filter;
use crate::reader::{Reader, refuse_nul, stored_optional_time, stored_time};
use crate::seal::{Place, Sealer};

/// Record of a sandbox. Times are stored to the microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRow {
    /// Id.
    pub id: SandboxId,
    /// Tenant that owns it.
    pub tenant: String,
    /// Id of the API key that created it.
    pub key_id: String,
    /// Keeper on whose machine it runs.
    pub keeper: String,
    /// Name, unique among the tenant's sandboxes that are not gone.
    pub name: Option<String>,
    /// State.
    pub state: SandboxState,
    /// Reason for the state, if any.
    pub reason: Option<String>,
    /// Template it was created from.
    pub template: String,
    /// Specification as JSON.
    pub spec: String,
    /// Settings as JSON.
    pub settings: String,
    /// Labels set by the caller.
    pub labels: BTreeMap<String, String>,
    /// Time of the create request.
    pub created_at: Timestamp,
    /// Time of the last change of this record.
    pub updated_at: Timestamp,
    /// Time at which it started running.
    pub started_at: Option<Timestamp>,
    /// Deadline at which it is ended.
    pub deadline_at: Option<Timestamp>,
    /// Time at which it was paused.
    pub paused_at: Option<Timestamp>,
    /// Time at which it ended.
    pub ended_at: Option<Timestamp>,
    /// Log of its life as JSON, once it has ended; may be empty.
    pub log: String,
    /// Number of changes of this record.
    pub generation: i64,
}

/// Position in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// Creation time of the last sandbox of the previous page.
    pub created_at: Timestamp,
    /// Id of that sandbox.
    pub id: SandboxId,
}

/// Order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Newest first.
    #[default]
    NewestFirst,
    /// Oldest first.
    OldestFirst,
}

/// Filter, order and position of a list of sandboxes. An empty field restricts nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// Sandboxes of this tenant.
    pub tenant: Option<String>,
    /// Sandboxes in one of these states.
    pub states: Vec<SandboxState>,
    /// Sandboxes with all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Sandboxes with this name, including those that are gone.
    pub name: Option<String>,
    /// Sandboxes after this position, in the order of the list.
    pub after: Option<Cursor>,
    /// Maximum number of results.
    pub limit: u32,
    /// Order of the results.
    pub order: Order,
}

impl Default for ListQuery {
    fn default() -> Self {
        Self {
            tenant: None,
            states: Vec::new(),
            labels: BTreeMap::new(),
            name: None,
            after: None,
            limit: 100,
            order: Order::NewestFirst,
        }
    }
}

/// Table of sandboxes.
#[derive(Debug, Clone, Copy)]
pub struct Sandboxes<'s> {
    pub(crate) database: &'s Database,
    pub(crate) sealer: &'s Sealer,
}

/// Column that may contain secrets.
pub(crate) const SPEC: &str = "sandboxes.spec";

/// Column with program output, which may contain secrets.
const LOG: &str = "sandboxes.log";

const INSERT: &str = "INSERT INTO sandboxes (tenant, key_id, keeper, name, state, reason, template, spec, settings, labels, \
     created_at, updated_at, started_at, deadline_at, paused_at, ended_at, id, generation, log) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)";

const UPDATE: &str = "UPDATE sandboxes SET tenant = $1, key_id = $2, keeper = $3, name = $4, state = $5, reason = $6, \
     template = $7, spec = $8, settings = $9, labels = $10, created_at = $11, updated_at = $12, started_at = $13, \
     deadline_at = $14, paused_at = $15, ended_at = $16, log = $19, generation = generation + 1 \
     WHERE id = $17 AND generation = $18";

const SELECT: &str = "SELECT id, tenant, key_id, keeper, name, state, reason, template, spec, settings, labels, created_at, \
     updated_at, started_at, deadline_at, paused_at, ended_at, log, generation FROM sandboxes";

impl Sandboxes<'_> {
    /// Adds a record.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NameTaken`], [`StoreError::Exists`] or [`StoreError::Nul`], or fails if the store cannot be written.
    pub async fn insert(&self, row: &SandboxRow) -> Result<(), StoreError> {
        self.write(INSERT, row).await.map(|_| ())
    }

    /// Replaces the record if its generation is still the one that was read, and increments the generation.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Conflict`], [`StoreError::NotFound`], [`StoreError::NameTaken`] or [`StoreError::Nul`], or fails
    /// if the store cannot be written.
    pub async fn update(&self, row: &mut SandboxRow) -> Result<(), StoreError> {
        if self.write(UPDATE, row).await? == 1 {
            row.generation += 1;
            return Ok(());
        }
        let id = row.id.to_string();
        Err(match self.get(&row.id).await? {
            Some(_) => StoreError::Conflict { what: "sandbox", id, generation: row.generation },
            None => StoreError::NotFound { what: "sandbox", id },
        })
    }

    /// Returns the record of a sandbox.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn get(&self, id: &SandboxId) -> Result<Option<SandboxRow>, StoreError> {
        self.get_for_tenant(None, id).await
    }

    /// Returns the record of a sandbox if it belongs to this tenant. Without a tenant, of any tenant.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn get_for_tenant(
        &self,
        tenant: Option<&str>,
        id: &SandboxId,
    ) -> Result<Option<SandboxRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("id = ?", &[id.to_string()])?;
        if let Some(tenant) = tenant {
            query.and("tenant = ?", &[tenant.to_owned()])?;
        }
        let row = self.database.read_one("read a sandbox", query.finish()).await?;
        row.as_ref().map(|row| self.open_row(row)).transpose()
    }

    /// Lists all sandboxes of a keeper that are not gone, oldest first.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list_live(&self, keeper: &str) -> Result<Vec<SandboxRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("keeper = ? AND state <> 'gone' ORDER BY created_at, id", &[keeper.to_owned()])?;
        self.read(query).await
    }

    /// Lists a page of sandboxes.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list(&self, query: &ListQuery) -> Result<Vec<SandboxRow>, StoreError> {
        self.read(list_text(SELECT, query, self.database.backend)?).await
    }

    /// Deletes the records of sandboxes that ended before this time, and returns their number.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn forget_before(&self, time: Timestamp) -> Result<u64, StoreError> {
        let text = "DELETE FROM sandboxes WHERE state = 'gone' AND ended_at < $1";
        let statement = sqlx::query(text).bind(stored_time(time));
        self.database.write(statement).await.map_err(failed("delete records of gone sandboxes"))
    }

    /// Returns the number of records that [`Self::forget_before`] would delete.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn count_before(&self, time: Timestamp) -> Result<u64, StoreError> {
        let text = "SELECT COUNT(*) AS gone FROM sandboxes WHERE state = 'gone' AND ended_at < $1";
        let statement = sqlx::query(text).bind(stored_time(time));
        let row = self.database.read_one("count records of gone sandboxes", statement).await?;
        let count = row.map(|row| Reader { table: "sandboxes", row: &row }.number("gone")).transpose()?;
        Ok(count.unwrap_or_default().unsigned_abs())
    }

    async fn write(&self, text: &'static str, row: &SandboxRow) -> Result<u64, StoreError> {
        check_texts(row)?;
        let labels = labels_text(&row.labels)?;
        let spec = self.sealer.seal(Place::new(SPEC, &[row.id.as_str()]), row.spec.as_bytes())?;
        let log = match row.log.is_empty() {
            true => String::new(),
            false => self.sealer.seal(Place::new(LOG, &[row.id.as_str()]), row.log.as_bytes())?,
        };
        self.database.write(bind_row(text, row, &labels, &spec, &log)).await.map_err(|error| {
            match &row.name {
                Some(name) if is_clash(&error, "sandboxes_name", "sandboxes.name") => {
                    StoreError::NameTaken { what: "sandbox", name: name.clone() }
                }
                _ if is_clash(&error, "sandboxes_pkey", "sandboxes.id") => {
                    StoreError::Exists { what: "sandbox", id: row.id.to_string() }
                }
                _ => failed("write a sandbox")(error),
            }
        })
    }

    async fn read(&self, query: Filter) -> Result<Vec<SandboxRow>, StoreError> {
        let rows = self.database.read("list sandboxes", query.finish()).await?;
        rows.iter().map(|row| self.open_row(row)).collect()
    }

    fn open_row(&self, row: &AnyRow) -> Result<SandboxRow, StoreError> {
        let mut row = read_row(row)?;
        row.spec = self.sealer.open_text(Place::new(SPEC, &[row.id.as_str()]), &row.spec)?;
        if !row.log.is_empty() {
            row.log = self.sealer.open_text(Place::new(LOG, &[row.id.as_str()]), &row.log)?;
        }
        Ok(row)
    }
}

/// Returns the condition that a label exists, with placeholders for its name and value.
fn label_condition(backend: Backend) -> &'static str {
    match backend {
        Backend::Sqlite => {
            "EXISTS (SELECT 1 FROM json_each(labels) AS label WHERE label.key = ? AND label.value = ?)"
        }
        Backend::Postgres => "(labels::json ->> ?) = ?",
    }
}

/// Returns the statement for a page of a list.
fn list_text(select: &'static str, query: &ListQuery, backend: Backend) -> Result<Filter, StoreError> {
    let mut sql = Filter::new(select);
    if let Some(tenant) = &query.tenant {
        sql.and("tenant = ?", std::slice::from_ref(tenant))?;
    }
    if let Some(name) = &query.name {
        sql.and("name = ?", std::slice::from_ref(name))?;
    }
    // In this very form, so that the indexes of sandboxes that are not gone are used.
    if !query.states.is_empty() && !query.states.contains(&SandboxState::Gone) {
        sql.and::<i64>("state <> 'gone'", &[])?;
    }
    let is_any_live =
        SandboxState::ALL.iter().all(|state| query.states.contains(state) != (*state == SandboxState::Gone));
    if let [first, others @ ..] = query.states.as_slice()
        && !is_any_live
    {
        sql.and("(state = ?", &[first.to_string()])?;
        for state in others {
            sql.push(" OR state = ?", &[state.to_string()])?;
        }
        sql.push::<i64>(")", &[])?;
    }
    for (name, value) in &query.labels {
        sql.and(label_condition(backend), &[name.clone(), value.clone()])?;
    }
    if let Some(after) = &query.after {
        let beyond = match query.order {
            Order::OldestFirst => "(created_at, id) > (?",
            Order::NewestFirst => "(created_at, id) < (?",
        };
        sql.and(beyond, &[stored_time(after.created_at)])?;
        sql.push(", ?)", &[after.id.to_string()])?;
    }
    let order = match query.order {
        Order::NewestFirst => " ORDER BY created_at DESC, id DESC LIMIT ?",
        Order::OldestFirst => " ORDER BY created_at, id LIMIT ?",
    };
    sql.push(order, &[i64::from(query.limit)])?;
    Ok(sql)
}

fn bind_row<'q>(
    text: &'static str,
    row: &'q SandboxRow,
    labels: &'q str,
    spec: &'q str,
    log: &'q str,
) -> Statement<'q> {
    sqlx::query(text)
        .bind(&row.tenant)
        .bind(&row.key_id)
        .bind(&row.keeper)
        .bind(&row.name)
        .bind(row.state.as_str())
        .bind(&row.reason)
        .bind(&row.template)
        .bind(spec)
        .bind(&row.settings)
        .bind(labels)
        .bind(stored_time(row.created_at))
        .bind(stored_time(row.updated_at))
        .bind(stored_optional_time(row.started_at))
        .bind(stored_optional_time(row.deadline_at))
        .bind(stored_optional_time(row.paused_at))
        .bind(stored_optional_time(row.ended_at))
        .bind(row.id.as_str())
        .bind(row.generation)
        .bind(log)
}

fn check_texts(row: &SandboxRow) -> Result<(), StoreError> {
    let labels = row.labels.iter().flat_map(|(name, value)| [("a label's name", name), ("a label", value)]);
    refuse_nul(labels.map(|(field, text)| (field, text.as_str())))?;
    refuse_nul([
        ("the tenant", row.tenant.as_str()),
        ("the key's id", &row.key_id),
        ("the keeper", &row.keeper),
        ("the name", row.name.as_deref().unwrap_or_default()),
        ("the reason", row.reason.as_deref().unwrap_or_default()),
        ("the template", &row.template),
        ("the specification", &row.spec),
        ("the settings", &row.settings),
        ("the log", &row.log),
    ])
}

fn labels_text(labels: &BTreeMap<String, String>) -> Result<String, StoreError> {
    serde_json::to_string(labels).map_err(|error| StoreError::Statement {
        action: "write the labels of a sandbox",
        source: sqlx::Error::Encode(error.into()),
    })
}

/// Reads the row as stored, with its specification sealed.
fn read_row(row: &AnyRow) -> Result<SandboxRow, StoreError> {
    let row = Reader { table: "sandboxes", row };
    Ok(SandboxRow {
        id: row.parsed("id")?,
        tenant: row.text("tenant")?,
        key_id: row.text("key_id")?,
        keeper: row.text("keeper")?,
        name: row.optional_text("name")?,
        state: row.parsed("state")?,
        reason: row.optional_text("reason")?,
        template: row.text("template")?,
        spec: row.text("spec")?,
        settings: row.text("settings")?,
        labels: row.labels("labels")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        started_at: row.optional_time("started_at")?,
        deadline_at: row.optional_time("deadline_at")?,
        paused_at: row.optional_time("paused_at")?,
        ended_at: row.optional_time("ended_at")?,
        log: row.text("log")?,
        generation: row.number("generation")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    /// Sandboxes that are gone are by far the most, so lists of others must not read them.
    #[tokio::test]
    async fn lists_without_ended_sandboxes_read_indexes_without_them() {
        let store = Store::in_memory().await.expect("a store");
        let live: Vec<_> =
            SandboxState::ALL.into_iter().filter(|state| *state != SandboxState::Gone).collect();
        let cursor =
            Cursor { created_at: Timestamp::UNIX_EPOCH, id: "aaaaaaaaaaaaaaaaaaaa".parse().expect("an id") };
        for tenant in [None, Some("t".to_owned())] {
            for states in [live.clone(), vec![SandboxState::Running]] {
                for after in [None, Some(cursor.clone())] {
                    let index = if tenant.is_some() { "sandboxes_page_live" } else { "sandboxes_all_live" };
                    let query = ListQuery {
                        tenant: tenant.clone(),
                        states: states.clone(),
                        after,
                        ..ListQuery::default()
                    };
                    let select = "EXPLAIN QUERY PLAN SELECT id FROM sandboxes";
                    let text = list_text(select, &query, Backend::Sqlite).expect("a statement");
                    let rows =
                        store.sandboxes().database.read("explain", text.finish()).await.expect("a plan");
                    let read = |row| Reader { table: "plan", row }.text("detail").expect("a line");
                    let plan: Vec<String> = rows.iter().map(read).collect();
                    let uses_it = plan.len() == 1 && plan[0].contains(&format!("INDEX {index}"));
                    assert!(uses_it, "{query:?}: {plan:?}");
                }
            }
        }
    }
}
