//! Measures the latency of the store, on SQLite in a directory of one's choice: `latency DIR`. Build it with `--release`.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use belljar_model::{Approval, Role, SandboxId, SandboxState};
use belljar_store::{
    AuditLog, AuditOptions, Details, Durability, KeyFile, KeyRow, MirrorOptions, NewRecord, SandboxRow,
    Store, StoreUrl,
};
use futures::future::join_all;
use jiff::Timestamp;

/// Number of calls of each kind.
const CALLS: usize = 4000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = PathBuf::from(std::env::args().nth(1).ok_or("usage: latency DIR")?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(dir))
}

async fn measure(dir: PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    for rows in [Durability::Process, Durability::Power] {
        let path = dir.join(format!("latency-{rows:?}.db"));
        let store =
            Store::open_with(&StoreUrl::sqlite(&path)?, rows, &KeyFile::at(dir.join("latency.key"))).await?;
        print_line(&format!("rows survive the loss of: {rows:?}"))?;
        sandboxes(&store, "", 0).await?;
        keys(&store).await?;
        for audit in [Durability::Process, Durability::Power] {
            let mirror = Some(MirrorOptions::new(dir.join("latency-audit.jsonl")));
            let log =
                AuditLog::open(&store, AuditOptions { durability: audit, mirror, ..AuditOptions::default() })
                    .await?;
            for appenders in [1, 16] {
                append(&log, audit, appenders).await?;
            }
            // Latency of rows while the audit log is busy.
            let busy = async { loop_appends(&log, 16).await };
            let name = format!(", audit {audit:?} x16 at work");
            let first = if audit == Durability::Process { 1 } else { 2 };
            let work = sandboxes(&store, &name, first);
            futures::future::select(Box::pin(busy), Box::pin(work)).await;
            log.close().await;
        }
        store.close().await;
    }
    Ok(())
}

async fn sandboxes(store: &Store, name: &str, first: u8) -> Result<(), Box<dyn std::error::Error>> {
    let (mut inserts, mut updates, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..CALLS {
        let mut row = sandbox(first, number)?;
        inserts.push(time(store.sandboxes().insert(&row)).await?);
        row.state = SandboxState::Running;
        updates.push(time(store.sandboxes().update(&mut row)).await?);
        reads.push(time(store.sandboxes().get(&row.id)).await?);
    }
    report(&format!("sandboxes.insert{name}"), inserts)?;
    report(&format!("sandboxes.update{name}"), updates)?;
    report(&format!("sandboxes.get{name}"), reads)
}

async fn keys(store: &Store) -> Result<(), Box<dyn std::error::Error>> {
    let (mut inserts, mut finds) = (Vec::new(), Vec::new());
    for number in 0..500_u16 {
        let mut hash = [0; 32];
        hash[..2].copy_from_slice(&number.to_le_bytes());
        let row = KeyRow {
            id: format!("key-{number}"),
            hash,
            hint: String::new(),
            name: String::new(),
            tenant: "acme".to_owned(),
            role: Role::User,
            quotas: "{}".to_owned(),
            owner: None,
            approval: Approval::Never,
            created_at: Timestamp::now(),
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
        };
        inserts.push(time(store.keys().insert(&row)).await?);
        finds.push(time(store.keys().find_by_hash(&hash)).await?);
    }
    report("keys.insert", inserts)?;
    report("keys.find_by_hash", finds)
}

async fn append(
    log: &AuditLog,
    audit: Durability,
    appenders: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let begin = Instant::now();
    let tasks = (0..appenders).map(|_| async {
        let mut times = Vec::new();
        for _ in 0..CALLS / appenders {
            times.push(time(log.append(record())).await?);
        }
        Ok::<_, belljar_store::AuditError>(times)
    });
    let times: Result<Vec<_>, _> = join_all(tasks).await.into_iter().collect();
    let per_second = CALLS as f64 / begin.elapsed().as_secs_f64();
    report(&format!("audit.append {audit:?} x{appenders} ({per_second:.0}/s)"), times?.concat())
}

async fn loop_appends(log: &AuditLog, appenders: usize) {
    let tasks = (0..appenders).map(|_| async { while log.append(record()).await.is_ok() {} });
    join_all(tasks).await;
}

fn record() -> NewRecord {
    NewRecord {
        key_id: Some("key-1".to_owned()),
        actor: "10.0.0.1 belljar-python/0.1".to_owned(),
        request_id: "req-0123456789abcdef".to_owned(),
        code_digest: Some("ab".repeat(32)),
        details: Details::new().with("command", "pytest -q").with("exit_code", 0_i64),
        ..NewRecord::new(Timestamp::now(), "acme", "exec", "ok")
    }
}

fn sandbox(first: u8, number: usize) -> Result<SandboxRow, Box<dyn std::error::Error>> {
    let id: SandboxId = format!("s{first}{number:018}").parse()?;
    let now = Timestamp::now();
    Ok(SandboxRow {
        id,
        tenant: "acme".to_owned(),
        key_id: "key-1".to_owned(),
        keeper: "keeper-1".to_owned(),
        name: None,
        state: SandboxState::Creating,
        reason: None,
        template: "default".to_owned(),
        spec: "x".repeat(600),
        settings: "x".repeat(200),
        labels: [("job".to_owned(), "42".to_owned())].into(),
        created_at: now,
        updated_at: now,
        started_at: None,
        deadline_at: None,
        paused_at: None,
        ended_at: None,
        log: String::new(),
        generation: 1,
    })
}

async fn time<T, E>(call: impl Future<Output = Result<T, E>>) -> Result<Duration, E> {
    let begin = Instant::now();
    call.await?;
    Ok(begin.elapsed())
}

fn report(name: &str, mut times: Vec<Duration>) -> Result<(), Box<dyn std::error::Error>> {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    print_line(&format!("  {name:<55} p50 {:>8.0} µs   p99 {:>8.0} µs", at(50), at(99)))
}

fn print_line(text: &str) -> Result<(), Box<dyn std::error::Error>> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}
