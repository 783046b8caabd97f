//! Cases of archived records.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::slice::from_ref;

use belljar_store::{
    ArchiveError, ArchiveOptions, ArchiveUntil, AuditFilter, AuditLog, AuditOptions, Expected, Head,
    MirrorOptions, MirrorState, Segment, Store, StoreError, Verification, verify_export, verify_files,
};
use futures::{StreamExt as _, TryStreamExt as _};

use crate::audit::{export, fill, open, python, record, verify, without_triggers};
use crate::fixture::Fixture;
use crate::samples::time;
use crate::wait::until;

pub(crate) fn options(dir: &Path, max_records: u32) -> ArchiveOptions {
    ArchiveOptions { max_records, ..ArchiveOptions::new(dir) }
}

fn dir(fixture: &Fixture) -> PathBuf {
    fixture.dir.path().join("archive")
}

/// Archives records, and returns the files.
pub(crate) async fn archive(log: &AuditLog, options: ArchiveOptions, through: i64) -> Vec<Segment> {
    let archive = log.archive(options).await.unwrap();
    let mut segments = Vec::new();
    while let Some(segment) = archive.write(through).await.unwrap() {
        archive.remove(&segment).await.unwrap();
        segments.push(segment);
    }
    segments
}

fn paths(segments: &[Segment]) -> Vec<PathBuf> {
    segments.iter().map(|segment| segment.path.clone()).collect()
}

fn read_all(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Verifies files. Returns `verified` with the number of records, or the name of the file and the fault.
fn verify_paths(paths: &[PathBuf], head: Option<Head>) -> String {
    match verify_files(paths, Expected { first: None, head }).unwrap() {
        Ok(verified) => format!("verified {}", verified.records),
        Err(broken) => {
            format!("{}: {}", broken.path.file_name().unwrap().to_str().unwrap(), broken.broken)
        }
    }
}

pub(crate) async fn records_move_to_files(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 25).await;
    let (before, head) = (export(&log).await, log.head().await.unwrap());
    let segments = archive(&log, options(&dir(&fixture), 8), 20).await;
    let names = ["audit-000000000001-000000000008", "audit-000000000009-000000000016"];
    let files = paths(&segments);
    assert_eq!(files.len(), 3);
    for (path, name) in files.iter().zip(names) {
        assert_eq!(*path, dir(&fixture).join(format!("{name}.jsonl")));
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(fs::metadata(dir(&fixture)).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(!dir(&fixture).join("audit.partial").exists());
    // The files and the database together are the same log.
    assert_eq!(read_all(&files) + &export(&log).await, before);
    assert_eq!((log.head().await.unwrap(), log.base().await.unwrap()), (head, segments[2].last));
    assert_eq!(verify_paths(&files, Some(segments[2].last)), "verified 20");
    assert_eq!(python(&read_all(&files), segments[2].last), "20 records, intact\n");
    assert_eq!(python(&before, head), "25 records, intact\n");
    // The database begins later, and says so.
    let Verification::Verified(verified) = log.verify(1, None).await.unwrap() else { panic!() };
    assert_eq!((verified.first, verified.records, verified.head), (21, 5, head));
    let found = log.tail(&AuditFilter::default(), Some(0), 100).await.unwrap();
    assert_eq!(found.iter().map(|record| record.seq).collect::<Vec<_>>(), (21..=25).collect::<Vec<_>>());
    // The chain goes on, also for another process. The last record always stays.
    assert_eq!(log.append(record(26)).await.unwrap(), 26);
    log.close().await;
    store.close().await;
    let log = open(&fixture.store().await).await;
    assert_eq!(log.append(record(27)).await.unwrap(), 27);
    let last = log.archive(options(&dir(&fixture), 8)).await.unwrap();
    assert_eq!(last.last(ArchiveUntil::Before(time(24))).await.unwrap(), 23);
    assert_eq!(last.last(ArchiveUntil::Before(time(99))).await.unwrap(), 26);
    assert_eq!(last.last(ArchiveUntil::Before(time(0))).await.unwrap(), 20);
    drop(last);
    let rest = archive(&log, options(&dir(&fixture), 100), i64::MAX).await;
    assert_eq!(rest.last().unwrap().last.seq, 26);
    assert_eq!(verify(&log).await, "verified 1");
    assert_eq!(archive(&log, options(&dir(&fixture), 100), i64::MAX).await, []);
    let all = [files, paths(&rest)].concat();
    assert_eq!(verify_paths(&all, Some(log.base().await.unwrap())), "verified 26");
}

pub(crate) async fn interrupted_archive_is_finished(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 10).await;
    let archiving = log.archive(options(&dir(&fixture), 4)).await.unwrap();
    let segment = archiving.write(9).await.unwrap().unwrap();
    drop(archiving);
    fs::write(dir(&fixture).join("audit.partial"), "{\"action\":\"ex").unwrap();
    assert_eq!(
        (verify(&log).await, verify_paths(&paths(from_ref(&segment)), None)),
        ("verified 10".to_owned(), "verified 4".to_owned())
    );
    log.close().await;
    store.close().await;
    // The file is not written again, even if less was to be archived.
    let inode = fs::metadata(&segment.path).unwrap().ino();
    let log = open(&fixture.store().await).await;
    assert_eq!(archive(&log, options(&dir(&fixture), 100), 2).await, from_ref(&segment));
    assert_eq!(fs::metadata(&segment.path).unwrap().ino(), inode);
    assert_eq!(verify(&log).await, "verified 6");
    // One that was damaged meanwhile is.
    let archiving = log.archive(options(&dir(&fixture), 2)).await.unwrap();
    let segment = archiving.write(9).await.unwrap().unwrap();
    drop(archiving);
    let text = fs::read_to_string(&segment.path).unwrap();
    fs::write(&segment.path, text.replacen("\"number\":5", "\"number\":6", 1)).unwrap();
    let segments = archive(&log, options(&dir(&fixture), 2), 9).await;
    assert_eq!(segments[0], segment);
    assert_eq!(fs::read_to_string(&segment.path).unwrap(), text);
    assert!(segment.path.with_extension("jsonl.put-aside-0").exists());
    assert_eq!(verify(&log).await, "verified 1");
}

/// After a restore the database has other records than the files.
pub(crate) async fn files_of_another_history_are_put_aside(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 3).await;
    log.close().await;
    store.close().await;
    let backup = fixture.copy().await;
    let log = open(&fixture.store().await).await;
    fill(&log, 9).await;
    let lost = archive(&log, options(&dir(&fixture), 5), 10).await;
    let lost = paths(&lost).iter().map(|path| path.with_extension("jsonl.put-aside-0")).collect::<Vec<_>>();

    let log = open(&backup.store().await).await;
    for number in 101..=108 {
        log.append(record(number)).await.unwrap();
    }
    let before = export(&log).await;
    let segments = archive(&log, options(&dir(&fixture), 4), 10).await;
    assert_eq!(read_all(&paths(&segments)) + &export(&log).await, before);
    assert_eq!(verify_paths(&lost, None), "verified 10");
    assert_eq!(verify_paths(&paths(&segments), Some(log.base().await.unwrap())), "verified 10");
}

pub(crate) async fn tampering_with_the_base_is_detected(fixture: Fixture) {
    let cases = [
        ("UPDATE audit_base SET mac = hash", "record 6: records before it may be missing: the base"),
        ("UPDATE audit_base SET seq = 7", "record 8: records before it may be missing: the base"),
        ("UPDATE audit_base SET seq = -7", "record 1: records before it may be missing: the base"),
        // Removed as if archived, with the MAC of the head.
        (
            "UPDATE audit_base SET seq = 10, hash = (SELECT hash FROM audit_head), mac = (SELECT mac FROM audit_head); \
             DELETE FROM audit",
            "record 11: records before it may be missing: the base",
        ),
        ("DELETE FROM audit_base", "record 1: it is missing; record 6 is the first one, and no base"),
        (
            "DELETE FROM audit_base; DELETE FROM audit",
            "record 1: it is missing; the chain went on to record 10",
        ),
        ("DELETE FROM audit WHERE seq = 6", "record 6: it is missing; record 7"),
        ("DELETE FROM audit WHERE seq < 8", "record 6: it is missing; record 8"),
        ("DELETE FROM audit WHERE seq > 8", "record 9: it is missing; the chain went on to record 10"),
        ("DELETE FROM audit", "record 6: it is missing; the chain went on to record 10"),
        ("UPDATE audit_head SET seq = 3", "record 4: it is missing; the chain went on to record 5"),
        (
            "DELETE FROM audit; DELETE FROM audit_head",
            "record 1: it is missing; the chain went on to record 5",
        ),
        (
            "INSERT INTO audit SELECT 2, at, tenant, key_id, action, sandbox, body, hash FROM audit WHERE seq = 7",
            "record 2: it was added from outside: it is archived",
        ),
    ];
    let first = fixture.store().await;
    let log = open(&first).await;
    fill(&log, 10).await;
    archive(&log, options(&dir(&fixture), 100), 5).await;
    log.close().await;
    first.close().await;
    for (statement, expected) in cases {
        let copy = fixture.copy().await;
        copy.run_sql(&without_triggers(copy.backend, statement)).await;
        // Neither a restart nor another archive covers it up.
        let store = copy.store().await;
        let log = open(&store).await;
        let archiving = log.archive(options(&dir(&copy), 100)).await.unwrap();
        let refused = archiving.write(9).await;
        assert!(matches!(refused, Err(ArchiveError::Broken(_))), "{statement}\n{refused:?}");
        drop(archiving);
        let found = verify(&log).await;
        assert!(found.starts_with(expected), "{statement}\n{found}");
        log.close().await;
        store.close().await;
    }
}

pub(crate) async fn only_archived_records_can_be_deleted(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 10).await;
    archive(&log, options(&dir(&fixture), 100), 5).await;
    for statement in ["DELETE FROM audit WHERE seq = 6", "DELETE FROM audit", "UPDATE audit SET tenant = 'x'"]
    {
        let error = fixture.try_run_sql(statement).await.unwrap_err().to_string();
        assert!(error.contains("records of the audit are never"), "{error}");
    }
    assert_eq!(verify(&log).await, "verified 5");
}

pub(crate) async fn broken_log_is_not_archived(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 10).await;
    log.close().await;
    store.close().await;
    let cases = [
        ("UPDATE audit SET body = REPLACE(body, '\"ok\"', '\"no\"') WHERE seq = 3", 3),
        ("DELETE FROM audit WHERE seq = 4", 4),
        ("DELETE FROM audit WHERE seq = 10", 10),
        ("UPDATE audit_head SET mac = hash", 11),
    ];
    for (statement, seq) in cases {
        let copy = fixture.copy().await;
        copy.run_sql(&without_triggers(copy.backend, statement)).await;
        let log = open(&copy.store().await).await;
        let archiving = log.archive(options(&dir(&copy), 100)).await.unwrap();
        match archiving.write(9).await {
            Err(ArchiveError::Broken(broken)) => assert_eq!(broken.seq, seq, "{statement}"),
            other => panic!("{statement}: {other:?}"),
        }
        let names: Vec<_> =
            fs::read_dir(dir(&copy)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["audit.lock"]);
    }
}

pub(crate) async fn broken_files_are_named(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 20).await;
    let segments = archive(&log, options(&dir(&fixture), 6), 18).await;
    let files = paths(&segments);
    let [a, b, c] = files.as_slice() else { panic!("{files:?}") };
    let base = Some(log.base().await.unwrap());
    assert_eq!(verify_paths(&[c.clone(), a.clone(), b.clone()], base), "verified 18");
    assert_eq!(verify_paths(&[b.clone(), c.clone()], base), "verified 12");
    let [name_a, name_b, name_c] = [a, b, c].map(|path| path.file_name().unwrap().to_str().unwrap());
    let expect = |files: &[&PathBuf], expected: String| {
        let files: Vec<_> = files.iter().map(|path| (*path).clone()).collect();
        let found = verify_paths(&files, base);
        assert!(found.starts_with(&expected), "{found}\n{expected}");
    };
    // Files that are missing, or given twice.
    expect(&[a, c], format!("{name_c}: record 7: it is missing: no file has the records up to 12"));
    expect(&[a, b], format!("{name_b}: record 13: it is missing; the chain went on to record 18"));
    expect(&[a, b, c, b], format!("{name_b}: record 7: an earlier file has it too"));
    let text = fs::read_to_string(b).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let join = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let changed = [
        (text.replacen("\"number\":9", "\"number\":8", 1), "record 9: it was changed"),
        (text.replacen("\"number\":7", "\"number\":8", 1), "record 7: it was changed"),
        (
            join(&[lines[0], lines[2], lines[1], lines[3], lines[4], lines[5]]),
            "record 8: it is missing; record 9",
        ),
        (join(&lines[1..]), "record 7: it is missing; record 8"),
        (join(&lines[..5]), "record 12: it is missing; the chain went on to record 12"),
        (join(&[lines[0], lines[1], lines[1], lines[2]]), "record 9: it is missing; record 8"),
        (text[..text.len() - 1].to_owned(), "record 12: it was changed: its line has no end"),
        (String::new(), "record 7: it is missing; the chain went on to record 12"),
        (
            text.clone() + fs::read_to_string(c).unwrap().lines().next().unwrap() + "\n",
            "record 13: it was added",
        ),
    ];
    for (changed, expected) in changed {
        fs::write(b, changed).unwrap();
        expect(&[a, b, c], format!("{name_b}: {expected}"));
        expect(&[b], format!("{name_b}: {expected}"));
    }
    fs::write(b, &text).unwrap();
    // Renamed: their content is in order, but not where the names say.
    let aside = dir(&fixture).join("aside");
    for (from, to) in [(a, &aside), (b, a), (&aside, b)] {
        fs::rename(from, to).unwrap();
    }
    expect(&[a, b, c], format!("{name_b}: record 7: it is missing; record 1 is in its place"));
    expect(&[a], format!("{name_a}: record 1: it is missing; record 7 is in its place"));
    // Without such names the content decides.
    for (from, to) in [(a, "x"), (b, "y")] {
        fs::rename(from, dir(&fixture).join(to)).unwrap();
    }
    let (x, y) = (dir(&fixture).join("x"), dir(&fixture).join("y"));
    expect(&[&x, c, &y], "verified 18".to_owned());
    fs::write(&x, "what is this?\n").unwrap();
    expect(&[&x, &y, c], "x: record 1: it was changed".to_owned());
    // Of another log.
    let other = open(&Store::in_memory().await.unwrap()).await;
    for number in 50..58 {
        other.append(record(number)).await.unwrap();
    }
    let foreign = archive(&other, options(&fixture.dir.path().join("other"), 6), 6).await;
    expect(
        &[
            &foreign[0].path,
            &{
                fs::write(&x, &text).unwrap();
                x.clone()
            },
            c,
        ],
        format!("{name_a}: record 6: it was replaced"),
    );
}

pub(crate) async fn archived_heads_are_compared_with_files(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 3).await;
    let noted = log.head().await.unwrap();
    fill(&log, 7).await;
    let segments = archive(&log, options(&dir(&fixture), 5), 5).await;
    let error = log.verify(1, Some(noted)).await.unwrap_err();
    assert!(matches!(error, StoreError::Archived { seq: 3, base: 5 }), "{error}");
    assert_eq!(verify_paths(&paths(&segments), Some(noted)), "verified 5");
    let base = log.base().await.unwrap();
    assert!(matches!(log.verify(1, Some(base)).await.unwrap(), Verification::Verified(_)));
    let other = Head { hash: [7; 32], ..base };
    let Verification::Broken(broken) = log.verify(1, Some(other)).await.unwrap() else { panic!() };
    assert!(broken.to_string().starts_with("record 5: it was replaced"), "{broken}");
}

/// An export that was overtaken must not look complete.
pub(crate) async fn overtaken_export_fails(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 1200).await;
    let mut exported = Box::pin(log.export(1, None));
    assert!(exported.next().await.unwrap().is_ok());
    archive(&log, ArchiveOptions::new(dir(&fixture)), 1000).await;
    let rest: Result<Vec<String>, StoreError> = exported.try_collect().await;
    assert!(matches!(rest, Err(StoreError::Archived { base: 1000, .. })), "{rest:?}");
    assert_eq!(export(&log).await.lines().count(), 200);
}

pub(crate) async fn mirror_continues_after_an_archive(fixture: Fixture) {
    let mirror = fixture.dir.path().join("audit.jsonl");
    let store = fixture.store().await;
    let mirrored = || async {
        let options = AuditOptions { mirror: Some(MirrorOptions::new(&mirror)), ..AuditOptions::default() };
        AuditLog::open(&store, options).await.unwrap()
    };
    let read = || fs::read_to_string(&mirror).unwrap();
    let log = mirrored().await;
    fill(&log, 10).await;
    let before = export(&log).await;
    // Archived in the same directory: the mirror takes none of these files for its own.
    archive(&log, options(fixture.dir.path(), 3), 9).await;
    fill(&log, 2).await;
    assert_eq!(log.flush().await.unwrap(), MirrorState::Current { seq: 12 });
    assert!(read().starts_with(&before));
    log.close().await;
    // The file ends with the base.
    let text: String = read().lines().take(9).map(|line| format!("{line}\n")).collect();
    fs::write(&mirror, text).unwrap();
    let log = mirrored().await;
    assert_eq!((log.mirror(), read().lines().count()), (MirrorState::Current { seq: 12 }, 12));
    log.close().await;
    // It ends before the base: a new file begins after it.
    let log = open(&store).await;
    fill(&log, 8).await;
    archive(&log, options(fixture.dir.path(), 100), 18).await;
    log.close().await;
    let old = read();
    let log = mirrored().await;
    assert_eq!(log.mirror(), MirrorState::Current { seq: 20 });
    assert_eq!(fs::read_to_string(fixture.dir.path().join("audit-00000000000000000001.jsonl")).unwrap(), old);
    assert_eq!(read(), export(&log).await);
    let expected = Expected { first: Some(19), head: Some(log.head().await.unwrap()) };
    assert!(matches!(verify_export(read().as_bytes(), expected).unwrap(), Verification::Verified(_)));
    assert!(!fixture.dir.path().join("audit-put-aside-0.jsonl").exists());
    // There is none.
    log.close().await;
    fs::remove_file(&mirror).unwrap();
    fs::remove_file(fixture.dir.path().join("audit-00000000000000000001.jsonl")).unwrap();
    let log = mirrored().await;
    assert_eq!((log.mirror(), read()), (MirrorState::Current { seq: 20 }, export(&log).await));
}

pub(crate) async fn servers_take_turns_to_archive(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let logs = [open(&stores[0]).await, open(&stores[1]).await];
    fill(&logs[0], 10).await;
    let first = logs[0].archive(options(&dir(&fixture), 4)).await.unwrap();
    let error = logs[1].archive(options(&dir(&fixture), 4)).await.unwrap_err();
    assert!(error.is_busy(), "{error}");
    // In another directory it can, and the slower one removes nothing.
    let segment = first.write(9).await.unwrap().unwrap();
    let other = archive(&logs[1], options(&fixture.dir.path().join("other"), 3), 6).await;
    let late = first.remove(&segment).await;
    assert!(matches!(&late, Err(ArchiveError::Store(error)) if error.is_busy()), "{late:?}");
    assert_eq!(verify(&logs[0]).await, "verified 4");
    assert_eq!(verify_paths(&paths(&other), Some(logs[0].base().await.unwrap())), "verified 6");
}

pub(crate) async fn database_file_shrinks_after_an_archive(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 8000).await;
    let size = || fs::metadata(fixture.file()).unwrap().len();
    until("it is in the file", || size() > 3 << 20).await;
    archive(&log, ArchiveOptions::new(dir(&fixture)), i64::MAX).await;
    store.shrink().await.unwrap();
    until("it has shrunk", || size() < 1 << 20).await;
}
