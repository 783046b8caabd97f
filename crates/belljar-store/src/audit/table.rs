//! Database tables of the audit log.

use std::fmt::Write as _;

use jiff::Timestamp;
use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Transaction};

use super::canonical::parse_body;
use super::filter::AuditFilter;
use super::head::Head;
use super::record::AuditRecord;
use crate::database::{Backend, Database, Statement};
use crate::error::{StoreError, failed};
use crate::filter::Filter;
use crate::meta::Meta;
use crate::reader::{Reader, stored_time};

/// Numbers of rows that one statement writes. Few sizes, as statements stay prepared.
const ROWS_AT_ONCE: [usize; 4] = [64, 16, 4, 1];

/// Statement that inserts records, without its rows, and the number of their columns.
const ADD: (&str, usize) =
    ("INSERT INTO audit (seq, at, tenant, key_id, action, sandbox, body, hash) VALUES ", 8);

/// Statement that inserts records which follow the head, and moves it.
const APPEND: (&str, usize) = (
    "INSERT INTO audit_append (seq, at, tenant, key_id, action, sandbox, body, hash, mac, after_hash, after_mac) VALUES ",
    11,
);

/// Name of the setting with the noted head.
const NOTED: &str = "audit.head";

/// Head with its MAC.
pub(crate) struct StoredHead {
    pub(crate) head: Head,
    pub(crate) mac: Vec<u8>,
}

/// Row of the table, not verified yet.
pub(crate) struct StoredRecord {
    pub(crate) seq: i64,
    pub(crate) hash: [u8; 32],
    at: i64,
    tenant: String,
    key_id: Option<String>,
    action: String,
    sandbox: Option<String>,
    body: String,
}

impl StoredRecord {
    /// Returns the record if it is exactly what was written, or else the reason why not.
    pub(crate) fn check(self) -> Result<AuditRecord, String> {
        let record = parse_body(&self.body, self.hash)?;
        let columns = [
            ("seq", record.seq == self.seq),
            ("at", stored_time(record.at) == self.at),
            ("tenant", record.tenant == self.tenant),
            ("key_id", record.key_id == self.key_id),
            ("action", record.action == self.action),
            (
                "sandbox",
                record.sandbox.as_ref().map(belljar_model::SandboxId::as_str) == self.sandbox.as_deref(),
            ),
        ];
        match columns.iter().find(|(_, agrees)| !agrees) {
            Some((column, _)) => Err(format!("the column {column} does not agree with its content")),
            None => Ok(record),
        }
    }
}

/// Reads the head, and locks it against other keepers until the transaction ends.
pub(crate) async fn lock_head(
    database: &Database,
    transaction: &mut Transaction<'static, Any>,
) -> Result<Option<StoredHead>, StoreError> {
    let text = match database.backend {
        // The transaction holds the only write lock anyway.
        Backend::Sqlite => "SELECT seq, hash, mac FROM audit_head WHERE id = 1",
        Backend::Postgres => "SELECT seq, hash, mac FROM audit_head WHERE id = 1 FOR UPDATE",
    };
    let row = sqlx::query(text)
        .fetch_optional(&mut **transaction)
        .await
        .map_err(failed("read the head of the audit log"))?;
    row.as_ref().map(|row| parse_head_row(row, HEAD_COLUMNS)).transpose()
}

/// Ends of the chain in the database.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) head: Option<StoredHead>,
    /// Last archived record. There is none before the first archive.
    pub(crate) base: Option<StoredHead>,
    /// A head that was noted when the log was opened: that there was one is known even if all else is removed.
    pub(crate) noted: Option<Head>,
    /// Numbers of the first and the last record; 0 if there are none.
    pub(crate) first: i64,
    pub(crate) last: i64,
}

impl Ends {
    /// Returns the head, which may be forged.
    pub(crate) fn head(&self) -> Head {
        self.head.as_ref().map_or(Head::EMPTY, |stored| stored.head)
    }

    /// Returns the base, which may be forged.
    pub(crate) fn base(&self) -> Head {
        self.base.as_ref().map_or(Head::EMPTY, |stored| stored.head)
    }
}

/// Reads the ends in one snapshot.
pub(crate) async fn read_ends(database: &Database) -> Result<Ends, StoreError> {
    let text = "SELECT (SELECT COALESCE(MIN(seq), 0) FROM audit) AS first, (SELECT COALESCE(MAX(seq), 0) FROM audit) AS last, \
         head.seq, head.hash, head.mac, base.seq AS base_seq, base.hash AS base_hash, base.mac AS base_mac, \
         noted.value AS noted \
         FROM (SELECT 1 AS one) AS always LEFT JOIN audit_head AS head ON head.id = 1 \
         LEFT JOIN audit_base AS base ON base.id = 1 LEFT JOIN meta AS noted ON noted.name = $1";
    let query = sqlx::query(text).bind(NOTED);
    let Some(row) = database.read_one("read the ends of the audit log", query).await? else {
        return Ok(Ends::default());
    };
    let reader = Reader { table: "audit_head", row: &row };
    // Without a row, its columns are NULL.
    let parse = |columns: [&str; 3]| {
        reader.optional_bytes(columns[1])?.map(|_| parse_head_row(&row, columns)).transpose()
    };
    Ok(Ends {
        head: parse(HEAD_COLUMNS)?,
        base: parse(["base_seq", "base_hash", "base_mac"])?,
        // Only this server writes it; another text is as good as none.
        noted: reader.optional_bytes("noted")?.and_then(|text| String::from_utf8(text).ok()?.parse().ok()),
        first: reader.number("first")?,
        last: reader.number("last")?,
    })
}

/// Returns the number of the last record before the first one that is not older than a time; 0 if there is none.
pub(crate) async fn last_before(database: &Database, time: Timestamp) -> Result<i64, StoreError> {
    let text = "SELECT COALESCE((SELECT seq FROM audit WHERE at >= $1 ORDER BY seq LIMIT 1) - 1, \
         (SELECT MAX(seq) FROM audit), 0) AS last";
    let query = sqlx::query(text).bind(stored_time(time));
    let row = database.read_one("read the audit log", query).await?;
    row.map_or(Ok(0), |row| Reader { table: "audit", row: &row }.number("last"))
}

/// Makes `last` the base in the place of `before`, and removes the records up to it. Returns false, without having changed
/// anything, if the base is another one or the records are not all there.
pub(crate) async fn cut(
    database: &Database,
    before: Option<&StoredHead>,
    last: Head,
    secret: &[u8; 32],
) -> Result<bool, StoreError> {
    const ACTION: &str = "remove archived audit records";
    let mut transaction = database.begin(ACTION).await?;
    let text = "INSERT INTO audit_base (id, seq, hash, mac) SELECT 1, $1, $2, $3 \
         WHERE EXISTS (SELECT 1 FROM audit WHERE seq = $1 AND hash = $2) \
         ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, mac = excluded.mac \
         WHERE audit_base.seq = $4 AND audit_base.hash = $5 AND audit_base.mac = $6";
    let (base, mac) = before.map_or((Head::EMPTY, &[][..]), |stored| (stored.head, stored.mac.as_slice()));
    let statement = sqlx::query(text).bind(last.seq).bind(last.hash.as_slice()).bind(last.base_mac(secret));
    let statement = statement.bind(base.seq).bind(base.hash.as_slice()).bind(mac);
    let set = statement.execute(&mut *transaction).await.map_err(failed(ACTION))?.rows_affected();
    let removed = sqlx::query("DELETE FROM audit WHERE seq <= $1").bind(last.seq);
    let removed = match set {
        1 => removed.execute(&mut *transaction).await.map_err(failed(ACTION))?.rows_affected(),
        _ => 0,
    };
    if i64::try_from(removed).ok() != Some(last.seq - base.seq) {
        transaction.rollback().await.map_err(failed(ACTION))?;
        return Ok(false);
    }
    database.commit(transaction).await.map_err(failed(ACTION))?;
    database.sync().await?;
    Ok(true)
}

/// Writes the head of a new chain. Does nothing if there is a head, or if there are records or a base without one, or there was a chain.
pub(crate) async fn begin_chain(database: &Database, secret: &[u8; 32]) -> Result<(), StoreError> {
    let text = "INSERT INTO audit_head (id, seq, hash, mac) SELECT 1, 0, $1, $2 WHERE NOT EXISTS (SELECT 1 FROM audit) \
         AND NOT EXISTS (SELECT 1 FROM audit_base) AND NOT EXISTS (SELECT 1 FROM meta WHERE name = $3) ON CONFLICT (id) DO NOTHING";
    let head = Head::EMPTY;
    let statement = sqlx::query(text).bind(head.hash.as_slice().to_vec()).bind(head.mac(secret)).bind(NOTED);
    database.write(statement).await.map_err(failed("create the audit log"))?;
    Ok(())
}

/// Notes the head, which must be on the chain from now on.
pub(crate) async fn note_head(database: &Database, head: Head) -> Result<(), StoreError> {
    Meta { database }.set(NOTED, head.to_string().as_bytes()).await
}

/// Appends records after `before` and makes the last of them the head, in one statement (SQLite only). Returns the new head, or
/// `None`, without having written anything, if the stored head is another one or could not be compared.
pub(crate) async fn append(
    database: &Database,
    before: StoredHead,
    records: &[(AuditRecord, String)],
    secret: &[u8; 32],
) -> Result<Option<StoredHead>, sqlx::Error> {
    let mut statement = sqlx::query(AssertSqlSafe(insert_statement(APPEND, records.len())));
    let mut last = before;
    for (record, body) in records {
        let head = record.head();
        let mac = head.mac(secret);
        statement = bind_record(statement, record, body).bind(mac.clone());
        statement = statement.bind(last.head.hash.to_vec()).bind(last.mac);
        last = StoredHead { head, mac };
    }
    match database.write(statement).await {
        Ok(_) => Ok(Some(last)),
        // Either the head differs or a number is taken: `add`, before which both are looked at under a lock, reports which.
        Err(sqlx::Error::Database(error)) if is_constraint(error.as_ref()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports whether this is SQLite's SQLITE_CONSTRAINT (19), which is the low byte of its extended codes.
fn is_constraint(error: &dyn sqlx::error::DatabaseError) -> bool {
    error.code().and_then(|code| code.parse::<i32>().ok()).is_some_and(|code| code & 0xff == 19)
}

fn bind_record<'q>(statement: Statement<'q>, record: &'q AuditRecord, body: &'q str) -> Statement<'q> {
    statement
        .bind(record.seq)
        .bind(stored_time(record.at))
        .bind(&record.tenant)
        .bind(&record.key_id)
        .bind(&record.action)
        .bind(record.sandbox.as_ref().map(belljar_model::SandboxId::as_str))
        .bind(body)
        .bind(record.hash.as_slice())
}

/// Appends records, and makes the last of them the head.
pub(crate) async fn add(
    transaction: &mut Transaction<'static, Any>,
    records: &[(AuditRecord, String)],
    secret: &[u8; 32],
) -> Result<(), StoreError> {
    let mut rest = records;
    while !rest.is_empty() {
        let count = ROWS_AT_ONCE.into_iter().find(|count| *count <= rest.len()).unwrap_or(1);
        let (rows, others) = rest.split_at(count);
        rest = others;
        let mut statement = sqlx::query(AssertSqlSafe(insert_statement(ADD, count)));
        for (record, body) in rows {
            statement = bind_record(statement, record, body);
        }
        statement.execute(&mut **transaction).await.map_err(failed("write an audit record"))?;
    }
    let Some((last, _)) = records.last() else { return Ok(()) };
    let head = last.head();
    let text = "UPDATE audit_head SET seq = $1, hash = $2, mac = $3 WHERE id = 1";
    let statement = sqlx::query(text).bind(head.seq).bind(last.hash.as_slice()).bind(head.mac(secret));
    statement.execute(&mut **transaction).await.map_err(failed("write the head of the audit log"))?;
    Ok(())
}

fn insert_statement((insert, columns): (&str, usize), rows: usize) -> String {
    let mut text = insert.to_owned();
    for row in 0..rows {
        for column in 0..columns {
            let begin = if column > 0 { ", " } else { ["(", ", ("][usize::from(row > 0)] };
            // Writing to a String does not fail.
            let _ = write!(text, "{begin}${}", row * columns + column + 1);
        }
        text.push(')');
    }
    text
}

/// Reads records with numbers in the range, in order.
pub(crate) async fn read_range(
    database: &Database,
    first: i64,
    last: i64,
    limit: u32,
) -> Result<Vec<StoredRecord>, StoreError> {
    let mut query = Filter::new(SELECT);
    query.and("seq >= ?", &[first])?;
    query.and("seq <= ?", &[last])?;
    query.push(" ORDER BY seq LIMIT ?", &[i64::from(limit)])?;
    let rows = database.read("read the audit log", query.finish()).await?;
    rows.iter().map(parse_record_row).collect()
}

/// Reads matching records: the first ones after a number, or else the last ones. In order in both cases.
pub(crate) async fn read_matching(
    database: &Database,
    filter: &AuditFilter,
    after: Option<i64>,
    limit: u32,
) -> Result<Vec<StoredRecord>, StoreError> {
    let mut query = Filter::new(SELECT);
    if let Some(tenant) = &filter.tenant {
        query.and("tenant = ?", std::slice::from_ref(tenant))?;
    }
    if let Some(key_id) = &filter.key_id {
        query.and("key_id = ?", std::slice::from_ref(key_id))?;
    }
    match &filter.action {
        Some(begin) if begin.ends_with('.') => {
            let length = i64::try_from(begin.chars().count()).unwrap_or(i64::MAX);
            query.and("substr(action, 1, CAST(? AS INTEGER))", &[length])?;
            query.push(" = ?", std::slice::from_ref(begin))?;
        }
        Some(action) => query.and("action = ?", std::slice::from_ref(action))?,
        None => {}
    }
    if let Some(sandbox) = &filter.sandbox {
        query.and("sandbox = ?", &[sandbox.to_string()])?;
    }
    if let Some(since) = filter.since {
        query.and("at >= ?", &[stored_time(since)])?;
    }
    if let Some(until) = filter.until {
        query.and("at < ?", &[stored_time(until)])?;
    }
    if let Some(after) = after {
        query.and("seq > ?", &[after])?;
        query.push(" ORDER BY seq LIMIT ?", &[i64::from(limit)])?;
    } else {
        query.push(" ORDER BY seq DESC LIMIT ?", &[i64::from(limit)])?;
    }
    let rows = database.read("read the audit log", query.finish()).await?;
    let mut records: Vec<_> = rows.iter().map(parse_record_row).collect::<Result<_, _>>()?;
    if after.is_none() {
        records.reverse();
    }
    Ok(records)
}

const SELECT: &str = "SELECT seq, at, tenant, key_id, action, sandbox, body, hash FROM audit";

fn parse_record_row(row: &AnyRow) -> Result<StoredRecord, StoreError> {
    let row = Reader { table: "audit", row };
    Ok(StoredRecord {
        seq: row.number("seq")?,
        // A hash of the wrong length is treated like a wrong hash.
        hash: row.bytes("hash")?.try_into().unwrap_or([0; 32]),
        at: row.number("at")?,
        tenant: row.text("tenant")?,
        key_id: row.optional_text("key_id")?,
        action: row.text("action")?,
        sandbox: row.optional_text("sandbox")?,
        body: row.text("body")?,
    })
}

const HEAD_COLUMNS: [&str; 3] = ["seq", "hash", "mac"];

fn parse_head_row(row: &AnyRow, [seq, hash, mac]: [&str; 3]) -> Result<StoredHead, StoreError> {
    let row = Reader { table: "audit_head", row };
    let head = Head { seq: row.number(seq)?, hash: row.bytes(hash)?.try_into().unwrap_or([0; 32]) };
    Ok(StoredHead { head, mac: row.bytes(mac)? })
}
