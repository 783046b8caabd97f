//! A process that writes is killed at any instant. What it had acknowledged is there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use belljar_store::{
    AuditFilter, AuditLog, AuditOptions, DetailValue, KeyFile, MirrorOptions, MirrorState, Store, StoreUrl,
};
use futures::future::join_all;

use crate::audit::{export, record, verdict};
use crate::ground::Ground;
use crate::samples::{id, sandbox};

/// The first argument of the process that is going to be killed. Then come the store's address, its key, the file, and a number.
pub(crate) const FLAG: &str = "--belljar-store-crash-child";

const ROUNDS: u32 = 50;

/// How many write at once.
const WRITERS: u32 = 6;

/// Numbers of one round.
const SPAN: u32 = 100_000;

/// Writes, and says so after each acknowledgement, until it is killed.
pub(crate) fn child(arguments: &[String]) -> ExitCode {
    let [url, key, mirror, first] = arguments else { return ExitCode::from(2) };
    let first: u32 = first.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&url.parse::<StoreUrl>().unwrap(), &KeyFile::at(key)).await.unwrap();
        let options = AuditOptions { mirror: Some(MirrorOptions::new(mirror)), ..AuditOptions::default() };
        let log = AuditLog::open(&store, options).await.unwrap();
        say("ready");
        join_all((0..WRITERS).map(|writer| write(&store, &log, first + writer))).await;
    });
    ExitCode::SUCCESS
}

/// Adds records, and in between sandboxes, which it changes once.
async fn write(store: &Store, log: &AuditLog, first: u32) {
    for number in (first..).step_by(usize::try_from(WRITERS).unwrap()) {
        let seq = log.append(record(i64::from(number))).await.unwrap();
        say(&format!("record {seq} {number}"));
        let mut row = sandbox(number);
        store.sandboxes().insert(&row).await.unwrap();
        say(&format!("sandbox 1 {number}"));
        store.sandboxes().update(&mut row).await.unwrap();
        say(&format!("sandbox 2 {number}"));
    }
}

fn say(text: &str) {
    // In one write, so that a line is whole or not there. Nobody hears it any more when the test is at an end.
    drop(std::io::stdout().lock().write_all(format!("{text}\n").as_bytes()));
}

/// Where the instants begin: at `BELLJAR_SEED`, or anywhere.
fn seed() -> u64 {
    let given = std::env::var("BELLJAR_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
        u64::from_le_bytes(random)
    })
}

pub(crate) async fn what_was_acknowledged_survives_sigkill(ground: Ground) {
    drop(ground.store().await);
    let mirror = ground.dir.path().join("audit.jsonl");
    let mut acknowledged = 0;
    let mut random = seed();
    say(&format!("BELLJAR_SEED={random}"));
    for round in 0..ROUNDS {
        // Knuth's MMIX generator.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let said = run_and_kill(&ground, round, Duration::from_micros((random >> 33) % 131_072)).await;
        acknowledged += said.len();

        let store = ground.store().await;
        let options = AuditOptions { mirror: Some(MirrorOptions::new(&mirror)), ..AuditOptions::default() };
        let log = AuditLog::open(&store, options).await.unwrap();
        let head = log.head().await.unwrap();
        assert_eq!(verdict(&log).await, format!("verified {}", head.seq));
        for line in said {
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
        // The file has caught up with whatever the crash left.
        assert_eq!(log.mirror(), MirrorState::Current { seq: head.seq });
        log.close().await;
        store.close().await;
    }
    let log = AuditLog::open(&ground.store().await, AuditOptions::default()).await.unwrap();
    assert_eq!(std::fs::read_to_string(&mirror).unwrap(), export(&log).await);
    println!("{ROUNDS} kills, {acknowledged} acknowledgements, {} records", log.head().await.unwrap().seq);
}

/// What the process had said when it was killed, this long after it was ready.
async fn run_and_kill(ground: &Ground, round: u32, after: Duration) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(FLAG)
        .arg(ground.address().await)
        .arg(ground.key().path())
        .arg(ground.dir.path().join("audit.jsonl"))
        .arg((round * SPAN).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    // It goes on to be read meanwhile, or it would wait for the pipe.
    let reader = std::thread::spawn(move || lines.map(Result::unwrap).collect::<Vec<_>>());
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}
