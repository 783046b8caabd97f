//! The records of sandboxes.

use std::collections::BTreeMap;

use belljar_model::{SandboxId, SandboxState};
use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::{Backend, Database, Statement};
use crate::error::{StoreError, failed, is_clash};
use crate::filter::Filter;
use crate::reader::{Reader, no_nul, stored_optional_time, stored_time};
use crate::seal::{Place, Sealer};

/// The record of a sandbox. Times are stored to the microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRow {
    /// Its id.
    pub id: SandboxId,
    /// To whom it belongs.
    pub tenant: String,
    /// The key with which it was made.
    pub key_id: String,
    /// The keeper on whose machine it is.
    pub keeper: String,
    /// Its name, which no other of the tenant has that is not gone.
    pub name: Option<String>,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why it is in that state, if there is something to say.
    pub reason: Option<String>,
    /// The template that it was made from.
    pub template: String,
    /// What it is, as JSON.
    pub spec: String,
    /// How it is kept, as JSON.
    pub settings: String,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When this record was last changed.
    pub updated_at: Timestamp,
    /// When it began to run.
    pub started_at: Option<Timestamp>,
    /// When it is to end.
    pub deadline_at: Option<Timestamp>,
    /// Since when it has been paused.
    pub paused_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// What happened to it, as JSON, once it has ended; may be empty.
    pub log: String,
    /// Counts the changes of this record.
    pub generation: i64,
}

/// A place in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// When the last sandbox of the page before was created.
    pub created_at: Timestamp,
    /// Its id.
    pub id: SandboxId,
}

/// The order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The newest first.
    #[default]
    NewestFirst,
    /// The oldest first.
    OldestFirst,
}

/// Which sandboxes a list is to show. What is left empty restricts nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// Those of this tenant.
    pub tenant: Option<String>,
    /// Those in one of these states.
    pub states: Vec<SandboxState>,
    /// Those with all of these labels.
    pub labels: BTreeMap<String, String>,
    /// The one with this name, and those gone that had it.
    pub name: Option<String>,
    /// Those that come after this place, in the order of the list.
    pub after: Option<Cursor>,
    /// How many at most.
    pub limit: u32,
    /// In which order.
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

/// The records of sandboxes.
#[derive(Debug, Clone, Copy)]
pub struct Sandboxes<'s> {
    pub(crate) database: &'s Database,
    pub(crate) sealer: &'s Sealer,
}

/// The column with what may be secret.
pub(crate) const SPEC: &str = "sandboxes.spec";

/// The other one: what programs wrote is in it.
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
    /// [`StoreError::NameTaken`], [`StoreError::Exists`], [`StoreError::Nul`], and those of writing.
    pub async fn insert(&self, row: &SandboxRow) -> Result<(), StoreError> {
        self.write(INSERT, row).await.map(|_| ())
    }

    /// Writes the whole record, if it is still the one that was read: its generation says so, and is then one more.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`], [`StoreError::NotFound`], [`StoreError::NameTaken`], [`StoreError::Nul`], and those of
    /// writing.
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

    /// The record of one sandbox.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn get(&self, id: &SandboxId) -> Result<Option<SandboxRow>, StoreError> {
        self.get_of(None, id).await
    }

    /// One sandbox, if it is this tenant's. Without a tenant it may be anybody's.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn get_of(
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
        row.as_ref().map(|row| self.sandbox(row)).transpose()
    }

    /// All sandboxes of a keeper that are not gone, the oldest first.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn list_live(&self, keeper: &str) -> Result<Vec<SandboxRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("keeper = ? AND state <> 'gone' ORDER BY created_at, id", &[keeper.to_owned()])?;
        self.read(query).await
    }

    /// Sandboxes, a page at a time.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn list(&self, wanted: &ListQuery) -> Result<Vec<SandboxRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        if let Some(tenant) = &wanted.tenant {
            query.and("tenant = ?", std::slice::from_ref(tenant))?;
        }
        if let Some(name) = &wanted.name {
            query.and("name = ?", std::slice::from_ref(name))?;
        }
        if let [first, others @ ..] = wanted.states.as_slice() {
            query.and("(state = ?", &[first.to_string()])?;
            for state in others {
                query.push(" OR state = ?", &[state.to_string()])?;
            }
            query.push::<i64>(")", &[])?;
        }
        for (name, value) in &wanted.labels {
            query.and(self.label_condition(), &[name.clone(), value.clone()])?;
        }
        if let Some(after) = &wanted.after {
            let beyond = match wanted.order {
                Order::OldestFirst => "(created_at, id) > (?",
                Order::NewestFirst => "(created_at, id) < (?",
            };
            query.and(beyond, &[stored_time(after.created_at)])?;
            query.push(", ?)", &[after.id.to_string()])?;
        }
        let order = match wanted.order {
            Order::NewestFirst => " ORDER BY created_at DESC, id DESC LIMIT ?",
            Order::OldestFirst => " ORDER BY created_at, id LIMIT ?",
        };
        query.push(order, &[i64::from(wanted.limit)])?;
        self.read(query).await
    }

    /// Removes the records of sandboxes that ended before this time, and says how many there were.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub async fn forget_before(&self, time: Timestamp) -> Result<u64, StoreError> {
        let text = "DELETE FROM sandboxes WHERE state = 'gone' AND ended_at < $1";
        let statement = sqlx::query(text).bind(stored_time(time));
        self.database.write(statement).await.map_err(failed("forget sandboxes that are gone"))
    }

    /// How many records [`Self::forget_before`] would remove.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn count_before(&self, time: Timestamp) -> Result<u64, StoreError> {
        let text = "SELECT COUNT(*) AS gone FROM sandboxes WHERE state = 'gone' AND ended_at < $1";
        let statement = sqlx::query(text).bind(stored_time(time));
        let row = self.database.read_one("count sandboxes that are gone", statement).await?;
        let count = row.map(|row| Reader { table: "sandboxes", row: &row }.number("gone")).transpose()?;
        Ok(count.unwrap_or_default().unsigned_abs())
    }

    /// The condition that a label is there, with its name and its value to be bound.
    fn label_condition(&self) -> &'static str {
        match self.database.backend {
            Backend::Sqlite => {
                "EXISTS (SELECT 1 FROM json_each(labels) AS label WHERE label.key = ? AND label.value = ?)"
            }
            Backend::Postgres => "(labels::json ->> ?) = ?",
        }
    }

    async fn write(&self, text: &'static str, row: &SandboxRow) -> Result<u64, StoreError> {
        check(row)?;
        let labels = labels_text(&row.labels)?;
        let spec = self.sealer.seal(Place::new(SPEC, &[row.id.as_str()]), row.spec.as_bytes())?;
        let log = match row.log.is_empty() {
            true => String::new(),
            false => self.sealer.seal(Place::new(LOG, &[row.id.as_str()]), row.log.as_bytes())?,
        };
        self.database.write(bound(text, row, &labels, &spec, &log)).await.map_err(|error| match &row.name {
            Some(name) if is_clash(&error, "sandboxes_name", "sandboxes.name") => {
                StoreError::NameTaken { what: "sandbox", name: name.clone() }
            }
            _ if is_clash(&error, "sandboxes_pkey", "sandboxes.id") => {
                StoreError::Exists { what: "sandbox", id: row.id.to_string() }
            }
            _ => failed("write a sandbox")(error),
        })
    }

    async fn read(&self, query: Filter) -> Result<Vec<SandboxRow>, StoreError> {
        let rows = self.database.read("list sandboxes", query.finish()).await?;
        rows.iter().map(|row| self.sandbox(row)).collect()
    }

    fn sandbox(&self, row: &AnyRow) -> Result<SandboxRow, StoreError> {
        let mut row = sandbox(row)?;
        row.spec = self.sealer.open_text(Place::new(SPEC, &[row.id.as_str()]), &row.spec)?;
        if !row.log.is_empty() {
            row.log = self.sealer.open_text(Place::new(LOG, &[row.id.as_str()]), &row.log)?;
        }
        Ok(row)
    }
}

fn bound<'q>(
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

fn check(row: &SandboxRow) -> Result<(), StoreError> {
    let labels = row.labels.iter().flat_map(|(name, value)| [("a label's name", name), ("a label", value)]);
    no_nul(labels.map(|(field, text)| (field, text.as_str())))?;
    no_nul([
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

/// The row as it is stored, with its specification sealed.
fn sandbox(row: &AnyRow) -> Result<SandboxRow, StoreError> {
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
