//! A full disk that gets space again. The disk is a small tmpfs, which only root can mount.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_store::{
    AuditLog, AuditOptions, Durability, Expected, MirrorOptions, MirrorState, SandboxRow, Store, StoreError,
    StoreUrl, Verification, verify_export,
};

use futures::future::join_all;

use crate::audit::{export, fill, open, record, verify};
use crate::fixture::{Backend, Fixture, run_sql_at};
use crate::postgres::Server;
use crate::samples::{id, sandbox, time};
use crate::wait::until;

/// A tmpfs of 8 MiB, of which 5 MiB are taken. The freed space must hold SQLite's log a second time. Unmounted at the end, even
/// if the case fails.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn new(path: PathBuf, options: &str) -> Self {
        let disk = Self::empty(path, 8, options);
        // Removed to free space.
        fs::write(disk.ballast(), vec![1; 5 << 20]).unwrap();
        disk
    }

    /// Returns a disk of `size` MiB.
    fn empty(path: PathBuf, size: u32, options: &str) -> Self {
        fs::create_dir(&path).unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}m,nosuid,nodev{options}"), "belljar-store-test"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(status.success());
        Self { path }
    }

    /// Writes the ballast so large that only `rest` bytes are free.
    fn fill_up(&self, rest: u64) {
        let disk = rustix::fs::statvfs(&self.path).unwrap();
        let size = (disk.f_bavail * disk.f_frsize).checked_sub(rest).unwrap();
        fs::write(self.ballast(), vec![1; usize::try_from(size).unwrap()]).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }

    fn free_space(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Detached, as a server may still have files open there.
        let status = Command::new("umount").arg("--lazy").arg(&self.path).status();
        assert!(status.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// Reports whether the case must be skipped, and prints why.
fn is_skipped() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let can_mount = is_root
        && Command::new("unshare")
            .args(["--mount", "mount", "-t", "tmpfs", "none", "/mnt"])
            .status()
            .is_ok_and(|s| s.success());
    if !can_mount {
        println!("SKIPPED the full disk: it takes root, who may mount");
    }
    !can_mount
}

/// A store with its tables on a small disk. The disk must be unmounted before the server, which removes the directory it is in.
struct SmallStore {
    disk: SmallDisk,
    url: StoreUrl,
    _server: Option<Server>,
}

impl SmallStore {
    async fn new(fixture: &Fixture) -> Self {
        if fixture.backend == Backend::Sqlite {
            let disk = SmallDisk::new(fixture.dir.path().join("small"), "");
            let url = StoreUrl::sqlite(&disk.path.join("belljar.db")).unwrap();
            return Self { disk, url, _server: None };
        }
        // A separate server, as a full disk leaves it in a bad state.
        let server = Server::start().unwrap();
        let address = server.address("postgres");
        run_sql_at(&address, "SELECT 1").await.unwrap();
        let url: StoreUrl = address.parse().unwrap();
        Store::open(&url, &fixture.key()).await.unwrap().close().await;
        let owner = fs::metadata(server.dir()).unwrap();
        let options = format!(",uid={},gid={},mode=0700", owner.uid(), owner.gid());
        let disk = SmallDisk::new(server.dir().join("small"), &options);
        let place = format!("CREATE TABLESPACE small LOCATION '{}'", disk.path.display());
        run_sql_at(&address, &place).await.unwrap();
        let moved = "ALTER TABLE sandboxes SET TABLESPACE small; ALTER TABLE audit SET TABLESPACE small";
        run_sql_at(&address, moved).await.unwrap();
        Self { disk, url, _server: Some(server) }
    }
}

fn big(number: u32) -> SandboxRow {
    // Incompressible enough that it takes its space.
    let spec = (0..4000_u64)
        .map(|word| format!("{:x}", word.wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ u64::from(number))))
        .collect();
    SandboxRow { spec, ..sandbox(number) }
}

pub(crate) async fn writes_resume_when_space_is_freed(fixture: Fixture) {
    if is_skipped() {
        return;
    }
    for durability in [Durability::Process, Durability::Power] {
        let SmallStore { _server, disk, url } = SmallStore::new(&fixture).await;
        let store = Store::open_with(&url, durability, &fixture.key()).await.unwrap();
        let mut row = big(0);
        store.sandboxes().insert(&row).await.unwrap();
        let mut number = 0;
        let error = loop {
            number += 1;
            match store.sandboxes().insert(&big(number)).await {
                Ok(()) => assert!(number < 1000, "the disk does not fill up"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StoreError::Full { action: "write a sandbox" }), "{error:?}");
        assert!(number > 5, "only {number} rows fit");
        // Repeatedly, as the state after a failed write matters too.
        for _ in 0..20 {
            let error = store.sandboxes().insert(&big(number)).await.unwrap_err();
            assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
        }
        for kept in 0..number {
            assert_eq!(store.sandboxes().get(&id(kept)).await.unwrap(), Some(big(kept)));
        }
        disk.free_space();
        store.sandboxes().insert(&big(number)).await.unwrap();
        row.updated_at = time(9);
        store.sandboxes().update(&mut row).await.unwrap();
        store.close().await;
        let store = Store::open_with(&url, durability, &fixture.key()).await.unwrap();
        for kept in 1..=number {
            assert_eq!(store.sandboxes().get(&id(kept)).await.unwrap(), Some(big(kept)));
        }
        store.close().await;
        if fixture.backend == Backend::Postgres {
            // PostgreSQL has its own durability settings.
            return;
        }
        drop(disk);
        fs::remove_dir(fixture.dir.path().join("small")).unwrap();
    }
}

pub(crate) async fn audit_resumes_when_space_is_freed(fixture: Fixture) {
    if is_skipped() {
        return;
    }
    let SmallStore { _server, disk, url } = SmallStore::new(&fixture).await;
    let store = Store::open(&url, &fixture.key()).await.unwrap();
    let log = open(&store).await;
    // The disk is too small for a journal: records wait for the database.
    assert_eq!(fs::metadata(disk.path.join("belljar.db.audit")).map_or(0, |file| file.len()), 0);
    let mut acknowledged = 0;
    let error = loop {
        let results = join_all((0..100).map(|number| log.append(record(number)))).await;
        acknowledged += i64::try_from(results.iter().filter(|result| result.is_ok()).count()).unwrap();
        if let Some(error) = results.into_iter().find_map(Result::err) {
            break error;
        }
    };
    assert!(error.is_full(), "{error:?}");
    assert!(acknowledged > 100, "{acknowledged}");
    let number = acknowledged + 1;
    assert_eq!(verify(&log).await, format!("verified {acknowledged}"));
    disk.free_space();
    assert_eq!(log.append(record(number)).await.unwrap(), number);
    assert_eq!(verify(&log).await, format!("verified {number}"));
    log.close().await;
    store.close().await;
}

pub(crate) async fn journalled_audit_resumes_when_space_is_freed(fixture: Fixture) {
    if is_skipped() {
        return;
    }
    let disk = SmallDisk::empty(fixture.dir.path().join("small"), 48, "");
    let path = disk.path.join("belljar.db");
    let url = StoreUrl::sqlite(&path).unwrap();
    let store = Store::open(&url, &fixture.key()).await.unwrap();
    let log = open(&store).await;
    assert_eq!(fs::metadata(path.with_extension("db.audit")).unwrap().len(), 2 << 20);
    disk.fill_up(256 << 10);
    let mut acknowledged = 0;
    let error = loop {
        match log.append(record(acknowledged + 1)).await {
            Ok(seq) => assert_eq!(seq, acknowledged + 1),
            Err(error) => break error,
        }
        acknowledged += 1;
        assert!(acknowledged < 100_000, "the disk does not fill up");
    };
    assert!(error.is_full(), "{error:?}");
    // It is refused each time; what was acknowledged is in the journal.
    assert!(log.append(record(acknowledged + 1)).await.unwrap_err().is_full());
    disk.free_space();
    assert_eq!(log.append(record(acknowledged + 1)).await.unwrap(), acknowledged + 1);
    assert_eq!(verify(&log).await, format!("verified {}", acknowledged + 1));
    log.close().await;
    store.close().await;
}

pub(crate) async fn audit_file_catches_up_when_space_is_freed(fixture: Fixture) {
    if is_skipped() {
        return;
    }
    let disk = SmallDisk::new(fixture.dir.path().join("small"), "");
    let path = disk.path.join("audit.jsonl");
    let store = fixture.store().await;
    let mirror = MirrorOptions { max_bytes: 1 << 20, ..MirrorOptions::new(&path) };
    let options = AuditOptions { mirror: Some(mirror), ..AuditOptions::default() };
    let log = AuditLog::open(&store, options).await.unwrap();
    let mut number = 0;
    let reason = loop {
        // The database has space, and continues.
        fill(&log, 200).await;
        number += 200;
        match log.flush().await.unwrap() {
            MirrorState::Current { seq } => assert_eq!(seq, number),
            MirrorState::Behind { reason, .. } => break reason,
            other => panic!("{other:?}"),
        }
    };
    assert!(reason.contains("No space left"), "{reason}");
    assert_eq!(log.append(record(number + 1)).await.unwrap(), number + 1);
    // No line is partial.
    assert!(fs::read_to_string(&path).unwrap().ends_with("}\n"));
    disk.free_space();
    until("the file is complete again", || log.mirror() == MirrorState::Current { seq: number + 1 }).await;
    let text = all_files(&disk.path);
    assert_eq!(text, export(&log).await);
    let expected = Expected { first: Some(1), head: Some(log.head().await.unwrap()) };
    let verification = verify_export(text.as_bytes(), expected).unwrap();
    assert!(matches!(verification, Verification::Verified(_)), "{verification:?}");
    log.close().await;
}

/// Returns the records of all files, oldest first.
fn all_files(dir: &Path) -> String {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("audit-0")));
    names.sort();
    names.push(dir.join("audit.jsonl"));
    names.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}
