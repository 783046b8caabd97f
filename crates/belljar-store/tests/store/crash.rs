//! Kills a writing process at random points and checks that every acknowledged write is there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use belljar_store::{
    AuditFilter, AuditLog, AuditOptions, DetailValue, Expected, KeyFile, MirrorOptions, MirrorState, Store,
    StoreUrl, verify_files,
};
use futures::future::join_all;

use crate::archive::{archive, options};
use crate::audit::{export, record, verify};
use crate::fixture::Fixture;
use crate::samples::{id, sandbox};

/// First argument of the process to be killed. It is followed by the store's address, its key, the mirror file, and a number.
pub(crate) const FLAG: &str = "--belljar-store-crash-child";

/// First argument of a process to be killed that archives. It is followed by the store's address, its key, and a directory.
pub(crate) const ARCHIVE_FLAG: &str = "--belljar-store-archive-child";

const ROUNDS: u32 = 50;

/// Number of concurrent writers.
const WRITERS: u32 = 6;

/// Range of row numbers of one round.
const SPAN: u32 = 100_000;

/// Writes, and prints each acknowledgement, until it is killed.
pub(crate) fn child(arguments: &[String]) -> ExitCode {
    let [url, key, mirror, first] = arguments else { return ExitCode::from(2) };
    let first: u32 = first.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&url.parse::<StoreUrl>().unwrap(), &KeyFile::at(key)).await.unwrap();
        let options = AuditOptions { mirror: Some(MirrorOptions::new(mirror)), ..AuditOptions::default() };
        let log = AuditLog::open(&store, options).await.unwrap();
        print_line("ready");
        join_all((0..WRITERS).map(|writer| write(&store, &log, first + writer))).await;
    });
    ExitCode::SUCCESS
}

/// Appends records, and between them inserts sandboxes, each updated once.
async fn write(store: &Store, log: &AuditLog, first: u32) {
    for number in (first..).step_by(usize::try_from(WRITERS).unwrap()) {
        let seq = log.append(record(i64::from(number))).await.unwrap();
        print_line(&format!("record {seq} {number}"));
        let mut row = sandbox(number);
        store.sandboxes().insert(&row).await.unwrap();
        print_line(&format!("sandbox 1 {number}"));
        store.sandboxes().update(&mut row).await.unwrap();
        print_line(&format!("sandbox 2 {number}"));
    }
}

fn print_line(text: &str) {
    // In one write, so that a line is complete or absent. The test may be over already.
    drop(std::io::stdout().lock().write_all(format!("{text}\n").as_bytes()));
}

/// Returns the seed of the kill times: `BELLJAR_SEED`, or random.
fn seed() -> u64 {
    let given = std::env::var("BELLJAR_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
        u64::from_le_bytes(random)
    })
}

pub(crate) async fn acknowledged_writes_survive_sigkill(fixture: Fixture) {
    drop(fixture.store().await);
    let mirror = fixture.dir.path().join("audit.jsonl");
    let mut acknowledged = 0;
    let mut random = seed();
    print_line(&format!("BELLJAR_SEED={random}"));
    for round in 0..ROUNDS {
        // Knuth's MMIX generator.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mirror = fixture.dir.path().join("audit.jsonl").display().to_string();
        let arguments = [FLAG, &mirror, &(round * SPAN).to_string()];
        let printed =
            run_and_kill(&fixture, &arguments, Duration::from_micros((random >> 33) % 131_072)).await;
        acknowledged += printed.len();

        let store = fixture.store().await;
        let options = AuditOptions { mirror: Some(MirrorOptions::new(&mirror)), ..AuditOptions::default() };
        let log = AuditLog::open(&store, options).await.unwrap();
        let head = log.head().await.unwrap();
        assert_eq!(verify(&log).await, format!("verified {}", head.seq));
        for line in printed {
            let words: Vec<&str> = line.split(' ').collect();
            let (seq, number): (i64, u32) = (words[1].parse().unwrap(), words[2].parse().unwrap());
            if words[0] == "record" {
                let found = log.tail(&AuditFilter::default(), Some(seq - 1), 1).await.unwrap();
                assert_eq!(
                    found[0].details.get("number"),
                    Some(&DetailValue::Number(i64::from(number))),
                    "{line}"
                );
            } else {
                let row = store.sandboxes().get(&id(number)).await.unwrap().unwrap();
                assert!(row.generation >= seq, "{line}: {row:?}");
            }
        }
        // The file has caught up after the crash.
        assert_eq!(log.mirror(), MirrorState::Current { seq: head.seq });
        log.close().await;
        store.close().await;
    }
    let log = AuditLog::open(&fixture.store().await, AuditOptions::default()).await.unwrap();
    assert_eq!(std::fs::read_to_string(&mirror).unwrap(), export(&log).await);
    println!("{ROUNDS} kills, {acknowledged} acknowledgements, {} records", log.head().await.unwrap().seq);
}

/// Appends and archives, and prints each acknowledgement, until it is killed.
pub(crate) fn archiving_child(arguments: &[String]) -> ExitCode {
    let [url, key, dir] = arguments else { return ExitCode::from(2) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&url.parse::<StoreUrl>().unwrap(), &KeyFile::at(key)).await.unwrap();
        let log = AuditLog::open(&store, AuditOptions::default()).await.unwrap();
        print_line("ready");
        loop {
            for number in 0..7 {
                print_line(&log.append(record(number)).await.unwrap().to_string());
            }
            archive(&log, options(Path::new(dir), 3), i64::MAX).await;
        }
    })
}

pub(crate) async fn archive_survives_sigkill(fixture: Fixture) {
    drop(fixture.store().await);
    let dir = fixture.dir.path().join("archive");
    let (mut last, mut interrupted) = (0, 0);
    let mut random = seed();
    print_line(&format!("BELLJAR_SEED={random}"));
    for _ in 0..ROUNDS / 2 {
        // Knuth's MMIX generator.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let arguments = [ARCHIVE_FLAG, dir.to_str().unwrap()];
        let printed =
            run_and_kill(&fixture, &arguments, Duration::from_micros((random >> 33) % 65_536)).await;
        last = printed.last().map_or(last, |seq| seq.parse().unwrap());

        let store = fixture.store().await;
        let log = AuditLog::open(&store, AuditOptions::default()).await.unwrap();
        let (head, base) = (log.head().await.unwrap(), log.base().await.unwrap());
        assert!(head.seq >= last, "{head} {last}");
        assert_eq!(verify(&log).await, format!("verified {}", head.seq - base.seq));
        let files = || {
            let entries = std::fs::read_dir(&dir).into_iter().flatten().map(|entry| entry.unwrap().path());
            entries
                .filter(|path| path.extension().is_some_and(|suffix| suffix == "jsonl"))
                .collect::<Vec<_>>()
        };
        // The files have everything that the database lacks; a file too many is finished by the next archive.
        let archived = verify_files(&files(), Expected { first: None, head: Some(base) }).unwrap().unwrap();
        interrupted += u32::from(archived.head != base);
        archive(&log, options(&dir, 3), i64::MAX).await;
        let base = log.base().await.unwrap();
        let archived = verify_files(&files(), Expected { first: None, head: Some(base) }).unwrap().unwrap();
        assert_eq!(archived.head, base);
        assert_eq!(i64::try_from(archived.records).unwrap(), base.seq);
        log.close().await;
        store.close().await;
    }
    println!("{} kills, {interrupted} between file and removal, {last} records", ROUNDS / 2);
}

/// Returns the lines that the process printed until it was killed, `after` it was ready. Its first argument comes before the
/// store's address and key, the others after it.
async fn run_and_kill(fixture: &Fixture, arguments: &[&str], after: Duration) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(arguments[0])
        .arg(fixture.address().await)
        .arg(fixture.key().path())
        .args(&arguments[1..])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    // Its output is read meanwhile, or it would block on the pipe.
    let reader = std::thread::spawn(move || lines.map(Result::unwrap).collect::<Vec<_>>());
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}
