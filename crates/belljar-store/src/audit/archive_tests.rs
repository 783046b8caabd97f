use futures::TryStreamExt as _;
use proptest::prelude::*;

use super::*;
use crate::audit::{AuditLog, AuditOptions, Expected, NewRecord, verify_files};
use crate::store::Store;

/// Step of a sequence.
#[derive(Debug, Clone)]
enum Step {
    /// Append so many records.
    Append(u8),
    /// Archive up to so many records before the head, in files of so many.
    Archive { spare: u8, max_records: u8 },
    /// Write a file, and stop before its records are removed.
    Interrupt { spare: u8, max_records: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..9_u8).prop_map(Step::Append),
        (0..9_u8, 1..9_u8).prop_map(|(spare, max_records)| Step::Archive { spare, max_records }),
        (0..9_u8, 1..9_u8).prop_map(|(spare, max_records)| Step::Interrupt { spare, max_records }),
    ]
}

async fn open() -> AuditLog {
    AuditLog::open(&Store::in_memory().await.unwrap(), AuditOptions::default()).await.unwrap()
}

async fn export(log: &AuditLog) -> String {
    log.export(1, None).map_ok(|line| line + "\n").try_collect().await.unwrap()
}

async fn archive(log: &AuditLog, dir: &Path, spare: u8, max_records: u8, is_interrupted: bool) {
    let options = ArchiveOptions { max_records: max_records.into(), ..ArchiveOptions::new(dir) };
    let archive = log.archive(options).await.unwrap();
    let last = log.head().await.unwrap().seq - i64::from(spare);
    while let Some(segment) = archive.write(last).await.unwrap() {
        if is_interrupted {
            return;
        }
        archive.remove(&segment).await.unwrap();
    }
}

/// Runs the steps on a log, and on one that is never archived.
async fn run(steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let (log, plain) = (open().await, open().await);
    let mut number = 0;
    for step in steps {
        match *step {
            Step::Append(count) => {
                for _ in 0..count {
                    number += 1;
                    let at = Timestamp::from_second(number % 7).unwrap();
                    let record = NewRecord::new(at, "acme", "exec", "ok");
                    log.append(record.clone()).await.unwrap();
                    plain.append(record).await.unwrap();
                }
            }
            Step::Archive { spare, max_records } => {
                archive(&log, dir.path(), spare, max_records, false).await;
            }
            Step::Interrupt { spare, max_records } => {
                archive(&log, dir.path(), spare, max_records, true).await;
            }
        }
        assert!(matches!(log.verify(1, None).await.unwrap(), crate::Verification::Verified(_)));
    }
    assert_eq!(log.head().await.unwrap(), plain.head().await.unwrap());
    let base = log.base().await.unwrap();
    // A file after the base has records that are in the database too.
    let mut paths: Vec<_> = list(dir.path(), 0).unwrap_or_default().into_iter().rev().collect();
    let (archived, left): (Vec<_>, Vec<_>) = paths.drain(..).partition(|one| one.last.seq <= base.seq);
    assert!(left.len() <= 1, "{left:?}");
    let paths: Vec<_> = archived.into_iter().map(|segment| segment.path).collect();
    let head = Some(base).filter(|base| *base != Head::EMPTY);
    let verified = verify_files(&paths, Expected { first: None, head }).unwrap().unwrap();
    assert_eq!(verified.head, base);
    let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
    let archived: String = paths.iter().rev().map(read).collect();
    assert_eq!(archived + &export(&log).await, export(&plain).await);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is appended and archived, the files and the database together are the log that was never archived.
    #[test]
    fn archived_log_equals_plain_log(steps in prop::collection::vec(step(), 1..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(&steps));
    }
}

#[test]
fn only_names_of_archived_files_are_parsed() {
    let parse = |name: &str| parse_name(Path::new("/archive").join(name).as_path());
    assert_eq!(parse(&file_name(1, 50_000)), Some((1, 50_000)));
    assert_eq!(parse(&file_name(1, i64::MAX)), Some((1, i64::MAX)));
    for other in [
        "audit.jsonl",
        "audit-00000000000000000001.jsonl",
        "audit-00000000000000000001-2.jsonl",
        "audit-000000000002-000000000001.jsonl",
        "audit-000000000000-000000000001.jsonl",
        "audit-000000000001-00000000000x.jsonl",
        "audit-000000000001-99999999999999999999.jsonl",
        "audit-000000000001-000000000002.jsonl.put-aside-0",
    ] {
        assert_eq!(parse(other), None, "{other}");
    }
}
