//! Templates, from which sandboxes are created.

use std::fmt;
use std::str::FromStr;

use belljar_model::SandboxId;
use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed, is_clash};
use crate::filter::Filter;
use crate::reader::{Reader, refuse_nul, stored_time};
use crate::seal::{Place, Sealer};

/// Origin of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateKind {
    /// Shipped with Belljar, for all tenants.
    Builtin,
    /// Snapshot of a sandbox.
    Snapshot,
    /// Built by steps, or uploaded as a file.
    Built,
}

impl TemplateKind {
    /// Returns the name: `builtin`, `snapshot` or `built`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::Snapshot => "snapshot",
            Self::Built => "built",
        }
    }
}

impl fmt::Display for TemplateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TemplateKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Builtin, Self::Snapshot, Self::Built]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| format!("invalid kind {text:?}: expected builtin, snapshot or built"))
    }
}

/// Template. Times are stored to the microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRow {
    /// Id.
    pub id: String,
    /// Tenant that owns it. One of the kind `builtin` belongs to everybody.
    pub tenant: String,
    /// Key that made it; empty if it was made by an earlier version.
    pub key_id: String,
    /// Name, unique within the tenant.
    pub name: Option<String>,
    /// Origin.
    pub kind: TemplateKind,
    /// Sandbox it was taken from.
    pub source_sandbox: Option<SandboxId>,
    /// SHA-256 of its content, in hexadecimal.
    pub digest: String,
    /// Size of its content, in bytes.
    pub bytes: i64,
    /// Specification of its sandboxes, as JSON.
    pub spec: String,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Note by its creator.
    pub note: String,
    /// Description of its tree as JSON; empty for the machine's own tree.
    pub built: String,
}

/// Table of templates.
#[derive(Debug, Clone, Copy)]
pub struct Templates<'s> {
    pub(crate) database: &'s Database,
    pub(crate) sealer: &'s Sealer,
}

/// Column that may contain secrets.
pub(crate) const SPEC: &str = "templates.spec";

const SELECT: &str = "SELECT id, tenant, key_id, name, kind, source_sandbox, digest, bytes, spec, created_at, note, built FROM templates";

impl Templates<'_> {
    /// Adds a template.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NameTaken`], [`StoreError::Exists`] or [`StoreError::Nul`], or fails if the store cannot be written.
    pub async fn insert(&self, row: &TemplateRow) -> Result<(), StoreError> {
        refuse_nul([
            ("the template's id", row.id.as_str()),
            ("the tenant", &row.tenant),
            ("the key", &row.key_id),
            ("the name", row.name.as_deref().unwrap_or_default()),
            ("the digest", &row.digest),
            ("the specification", &row.spec),
            ("the note", &row.note),
            ("the tree", &row.built),
        ])?;
        let spec = self.sealer.seal(Place::new(SPEC, &[row.id.as_str()]), row.spec.as_bytes())?;
        let text = "INSERT INTO templates (id, tenant, name, kind, source_sandbox, digest, bytes, spec, created_at, note, built, \
             key_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let statement = sqlx::query(text)
            .bind(&row.id)
            .bind(&row.tenant)
            .bind(&row.name)
            .bind(row.kind.as_str())
            .bind(row.source_sandbox.as_ref().map(SandboxId::as_str))
            .bind(&row.digest)
            .bind(row.bytes)
            .bind(&spec)
            .bind(stored_time(row.created_at))
            .bind(&row.note)
            .bind(&row.built)
            .bind(&row.key_id);
        let written = self.database.write(statement).await;
        written.map(|_| ()).map_err(|error| match &row.name {
            Some(name) if is_clash(&error, "templates_name", "templates.name") => {
                StoreError::NameTaken { what: "template", name: name.clone() }
            }
            _ if is_clash(&error, "templates_pkey", "templates.id") => {
                StoreError::Exists { what: "template", id: row.id.clone() }
            }
            _ => failed("write a template")(error),
        })
    }

    /// Returns the template with this id or name: the tenant's own, or else a builtin one. Ids take precedence over names.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn get(&self, tenant: &str, id_or_name: &str) -> Result<Option<TemplateRow>, StoreError> {
        let text = id_or_name.to_owned();
        let mut query = Filter::new(SELECT);
        query.and("(tenant = ? OR kind = 'builtin')", &[tenant.to_owned()])?;
        query.and("(id = ? OR name = ?)", &[text.clone(), text.clone()])?;
        query.push(" ORDER BY CASE WHEN id = ? THEN 0", &[text])?;
        query.push(" WHEN tenant = ? THEN 1 ELSE 2 END LIMIT 1", &[tenant.to_owned()])?;
        let row = self.database.read_one("read a template", query.finish()).await?;
        row.as_ref().map(|row| self.open_row(row)).transpose()
    }

    /// Lists the templates that a tenant may use, or all; oldest first.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list(&self, tenant: Option<&str>) -> Result<Vec<TemplateRow>, StoreError> {
        self.list_page(tenant, None, u32::MAX).await
    }

    /// Lists a page of them: those after a creation time and id, at most `limit`.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list_page(
        &self,
        tenant: Option<&str>,
        after: Option<(Timestamp, &str)>,
        limit: u32,
    ) -> Result<Vec<TemplateRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        if let Some(tenant) = tenant {
            query.and("(tenant = ? OR kind = 'builtin')", &[tenant.to_owned()])?;
        }
        query.after(after)?;
        query.push(" ORDER BY created_at, id LIMIT ?", &[i64::from(limit)])?;
        let rows = self.database.read("list templates", query.finish()).await?;
        rows.iter().map(|row| self.open_row(row)).collect()
    }

    fn open_row(&self, row: &AnyRow) -> Result<TemplateRow, StoreError> {
        let mut row = read_row(row)?;
        row.spec = self.sealer.open_text(Place::new(SPEC, &[row.id.as_str()]), &row.spec)?;
        Ok(row)
    }

    /// Deletes a template. Sandboxes created from it stay.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NotFound`], or fails if the store cannot be written.
    pub async fn remove(&self, id: &str) -> Result<(), StoreError> {
        let statement = sqlx::query("DELETE FROM templates WHERE id = $1").bind(id);
        match self.database.write(statement).await.map_err(failed("remove a template"))? {
            0 => Err(StoreError::NotFound { what: "template", id: id.to_owned() }),
            _ => Ok(()),
        }
    }
}

/// Reads the row as stored, with its specification sealed.
fn read_row(row: &AnyRow) -> Result<TemplateRow, StoreError> {
    let row = Reader { table: "templates", row };
    Ok(TemplateRow {
        id: row.text("id")?,
        tenant: row.text("tenant")?,
        key_id: row.text("key_id")?,
        name: row.optional_text("name")?,
        kind: row.parsed("kind")?,
        source_sandbox: row.optional_parsed("source_sandbox")?,
        digest: row.text("digest")?,
        bytes: row.number("bytes")?,
        spec: row.text("spec")?,
        created_at: row.time("created_at")?,
        note: row.text("note")?,
        built: row.text("built")?,
    })
}
