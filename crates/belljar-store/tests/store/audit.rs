use std::io::Write as _;
use std::process::{Command, Stdio};

use belljar_store::{
    AuditError, AuditFilter, AuditLog, AuditOptions, AuditRecord, Details, Expected, Head, MAX_FIELD_BYTES,
    NewRecord, Redacted, Store, Verification, verify_export,
};
use futures::TryStreamExt as _;
use futures::future::join_all;

use crate::fixture::{Backend, Fixture};
use crate::samples::{id, time};

pub(crate) fn record(number: i64) -> NewRecord {
    NewRecord {
        details: Details::new().with("number", number),
        ..NewRecord::new(time(number), "acme", "exec", "ok")
    }
}

pub(crate) async fn open(store: &Store) -> AuditLog {
    AuditLog::open(store, AuditOptions::default()).await.unwrap()
}

/// Appends records 1 to `count`, and waits until the database has them.
pub(crate) async fn fill(log: &AuditLog, count: i64) {
    for number in join_all((1..=count).map(|number| log.append(record(number)))).await {
        number.unwrap();
    }
    log.flush().await.unwrap();
}

pub(crate) async fn export(log: &AuditLog) -> String {
    log.export(1, None).map_ok(|line| line + "\n").try_collect().await.unwrap()
}

/// Verifies the log. Returns `verified` with the number of records, or the fault.
pub(crate) async fn verify(log: &AuditLog) -> String {
    describe(log.verify(1, None).await.unwrap())
}

fn describe(verification: Verification) -> String {
    match verification {
        Verification::Verified(verified) => format!("verified {}", verified.records),
        Verification::Broken(broken) => broken.to_string(),
    }
}

pub(crate) async fn records_round_trip_in_order(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    assert_eq!(log.head().await.unwrap(), Head::EMPTY);
    assert_eq!(verify(&log).await, "verified 0");
    let full = NewRecord {
        key_id: Some("key-1".to_owned()),
        actor: "10.0.0.1".to_owned(),
        sandbox: Some(id(1)),
        request_id: "r-1".to_owned(),
        isolation: Some("local".to_owned()),
        policy_digest: Some("aa".to_owned()),
        code_digest: Some("bb".to_owned()),
        output_digest: Some("cc".to_owned()),
        details: Details::new().with("path", "/home/user/ü").with("token", Redacted),
        ..NewRecord::new(time(5), "acme", "file.write", "ok")
    };
    assert_eq!(log.append(full.clone()).await.unwrap(), 1);
    assert_eq!(log.append(record(2)).await.unwrap(), 2);
    let records = log.tail(&AuditFilter::default(), Some(0), 10).await.unwrap();
    let [first, second] = records.as_slice() else { panic!("{records:?}") };
    let expected = AuditRecord {
        seq: 1,
        at: full.at,
        tenant: full.tenant,
        key_id: full.key_id,
        actor: full.actor,
        action: full.action,
        sandbox: full.sandbox,
        request_id: full.request_id,
        outcome: full.outcome,
        isolation: full.isolation,
        policy_digest: full.policy_digest,
        code_digest: full.code_digest,
        output_digest: full.output_digest,
        details: full.details,
        prev: [0; 32],
        hash: first.hash,
    };
    assert_eq!(*first, expected);
    assert_eq!((second.seq, second.prev), (2, first.hash));
    assert_eq!(log.head().await.unwrap(), second.head());
    assert_eq!(verify(&log).await, "verified 2");
    // Another process continues the same chain.
    log.close().await;
    assert!(matches!(log.append(record(3)).await, Err(AuditError::Closed)));
    store.close().await;
    let log = open(&fixture.store().await).await;
    assert_eq!(log.append(record(3)).await.unwrap(), 3);
    assert_eq!(verify(&log).await, "verified 3");
}

pub(crate) async fn tail_filters(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    let actions = ["sandbox.create", "sandbox.kill", "exec", "sandboxes", "auth.denied"];
    for (number, action) in (1..).zip(actions) {
        let new = NewRecord {
            tenant: if number == 3 { "other" } else { "acme" }.to_owned(),
            key_id: (number > 2).then(|| "key-1".to_owned()),
            sandbox: (number < 3).then(|| id(7)),
            action: action.to_owned(),
            ..record(number)
        };
        log.append(new).await.unwrap();
    }
    let all = AuditFilter::default;
    // Name, filter, start, limit, and expected records.
    type Case = (&'static str, AuditFilter, Option<i64>, u32, &'static [i64]);
    let cases: &[Case] = &[
        ("all", all(), Some(0), 100, &[1, 2, 3, 4, 5]),
        ("the last two", all(), None, 2, &[4, 5]),
        ("two after one", all(), Some(1), 2, &[2, 3]),
        ("after the end", all(), Some(5), 2, &[]),
        ("a tenant", AuditFilter { tenant: Some("other".to_owned()), ..all() }, None, 9, &[3]),
        ("a key", AuditFilter { key_id: Some("key-1".to_owned()), ..all() }, None, 9, &[3, 4, 5]),
        ("an action", AuditFilter { action: Some("exec".to_owned()), ..all() }, None, 9, &[3]),
        (
            "a family of actions",
            AuditFilter { action: Some("sandbox.".to_owned()), ..all() },
            None,
            9,
            &[1, 2],
        ),
        ("a sandbox", AuditFilter { sandbox: Some(id(7)), ..all() }, None, 1, &[2]),
        ("a time", AuditFilter { since: Some(time(2)), until: Some(time(4)), ..all() }, None, 9, &[2, 3]),
    ];
    for (name, filter, after, limit, expected) in cases {
        let found = log.tail(filter, *after, *limit).await.unwrap();
        assert_eq!(found.iter().map(|record| record.seq).collect::<Vec<_>>(), *expected, "{name}");
    }
}

pub(crate) async fn concurrent_appends_form_one_chain(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let logs = [open(&stores[0]).await, open(&stores[1]).await];
    let appends = (0..600).map(|number| logs[usize::try_from(number % 2).unwrap()].append(record(number)));
    let mut seqs: Vec<_> = join_all(appends).await.into_iter().map(Result::unwrap).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=600).collect::<Vec<_>>());
    for log in &logs {
        let verification = log.verify(1, None).await.unwrap();
        // Keepers' clocks differ here on purpose: the records are in the order in which they were appended.
        let Verification::Verified(verified) = verification else { panic!("{verification:?}") };
        assert_eq!((verified.records, verified.head), (600, log.head().await.unwrap()));
    }
    assert_eq!(describe(logs[0].verify(500, None).await.unwrap()), "verified 101");
}

/// Each writer's remembered head is stale after the other one wrote.
pub(crate) async fn alternating_writers_form_one_chain(fixture: Fixture) {
    let (first, second) = (fixture.store().await, fixture.store().await);
    let logs = [open(&first).await, open(&second).await];
    for number in 1..=12 {
        let turn = usize::try_from(number / 3 % 2).unwrap();
        assert_eq!(logs[turn].append(record(number)).await.unwrap(), number);
    }
    assert_eq!(verify(&logs[0]).await, "verified 12");
    assert_eq!(logs[0].head().await.unwrap(), logs[1].head().await.unwrap());
}

/// A forged head must not be authenticated, even where the writer does not need to read it.
pub(crate) async fn head_changed_under_writer_is_detected(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 3).await;
    for forged in [
        "UPDATE audit_head SET mac = hash",
        "UPDATE audit_head SET hash = mac",
        "UPDATE audit_head SET seq = 2",
    ] {
        fixture.run_sql(forged).await;
        // Several are written together, or none.
        drop(join_all((4..8).map(|number| log.append(record(number)))).await);
        let error = refused(&fixture, &log, 8).await;
        assert!(matches!(error, AuditError::HeadForged { .. }), "{forged}: {error:?}");
    }
    fixture.run_sql("DELETE FROM audit_head").await;
    assert!(matches!(log.append(record(4)).await, Err(AuditError::HeadForged { seq: 0 })));
    let records = log.tail(&AuditFilter::default(), Some(0), 10).await.unwrap();
    assert_eq!(records.len(), 3);
}

/// Appends a record to a log whose head was forged, and returns the error. With SQLite the journal may have acknowledged one
/// before: it is noticed when that is to be stored.
async fn refused(fixture: &Fixture, log: &AuditLog, number: i64) -> AuditError {
    match log.append(record(number)).await {
        Err(error) => error,
        Ok(_) => {
            assert!(fixture.backend == Backend::Sqlite);
            log.flush().await.unwrap();
            log.append(record(number + 1)).await.unwrap_err()
        }
    }
}

/// Verifies an export with the program of docs/audit.md, and returns what it prints. Its exit status agrees with that.
pub(crate) fn python(text: &str, head: Head) -> String {
    let page = include_str!("../../../../docs/audit.md");
    let program = page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let mut child = Command::new("python3")
        .args(["-c", program, &head.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!said.ends_with(" records, intact\n"))), "{said}");
    said
}

/// The program detects changes.
pub(crate) async fn documented_program_verifies_export(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 20).await;
    let odd = "\n\u{1b}[31m\u{7f}ü\u{2028}😀\\\"/";
    log.append(NewRecord { actor: odd.to_owned(), ..record(21) }).await.unwrap();
    let text = export(&log).await;
    let head = log.head().await.unwrap();
    let python = |text: &str| python(text, head);
    assert_eq!(python(&text), "21 records, intact\n");
    assert_eq!(python(&text.replacen("\"number\":7", "\"number\":8", 1)), "record 7: changed\n");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(python(&(lines[..12].join("\n") + "\n")), "record 13: missing\n");
    assert_eq!(python(&([&lines[..4], &lines[5..]].concat().join("\n") + "\n")), "record 5: missing\n");
}

pub(crate) async fn export_is_verified_without_database(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 1200).await;
    let head = log.head().await.unwrap();
    let text = export(&log).await;
    let expected = Expected { first: Some(1), head: Some(head) };
    assert_eq!(describe(verify_export(text.as_bytes(), expected).unwrap()), "verified 1200");
    let part: Vec<String> = log.export(501, Some(502)).try_collect().await.unwrap();
    assert_eq!(part, text.lines().skip(500).take(2).collect::<Vec<_>>());
}

pub(crate) async fn hostile_strings_stay_one_record(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    let evil =
        format!("\n{{\"seq\":2}}\r\n\u{1b}[2J\u{9b}\u{0}\u{202e}'; DROP TABLE audit; --{}", "x".repeat(5000));
    let new = NewRecord {
        actor: evil.clone(),
        request_id: evil.clone(),
        outcome: evil.clone(),
        action: evil.clone(),
        key_id: Some(evil.clone()),
        details: Details::new().with("path", evil.as_str()),
        ..NewRecord::new(time(1), &evil, &evil, &evil)
    };
    log.append(new).await.unwrap();
    let text = export(&log).await;
    assert_eq!(text.lines().count(), 1);
    assert!(text.trim_end_matches('\n').bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    let record = log.tail(&AuditFilter::default(), None, 1).await.unwrap().remove(0);
    assert_eq!(record.actor.len(), MAX_FIELD_BYTES);
    assert!(record.actor.ends_with(&format!("x… [cut: {} bytes]", evil.len())), "{}", record.actor);
    assert_eq!(verify(&log).await, "verified 1");
}

pub(crate) fn without_triggers(backend: Backend, statement: &str) -> String {
    let drop = match backend {
        Backend::Sqlite => "DROP TRIGGER IF EXISTS audit_no_update; DROP TRIGGER IF EXISTS audit_no_delete",
        Backend::Postgres => "DROP TRIGGER IF EXISTS audit_no_change ON audit",
    };
    format!("{drop}; {statement}")
}

pub(crate) async fn database_tampering_is_detected(fixture: Fixture) {
    let swap = "UPDATE audit SET seq = -1 WHERE seq = 4; UPDATE audit SET seq = 4 WHERE seq = 7; \
                UPDATE audit SET seq = 7 WHERE seq = -1";
    let added = "INSERT INTO audit SELECT 11, at, tenant, key_id, action, sandbox, body, hash FROM audit WHERE seq = 10";
    let rolled_back = "DELETE FROM audit WHERE seq > 6; \
                       UPDATE audit_head SET seq = 6, hash = (SELECT hash FROM audit WHERE seq = 6)";
    let cases = [
        (
            "UPDATE audit SET body = REPLACE(body, '\"ok\"', '\"no\"') WHERE seq = 3",
            "record 3: it was changed: its content",
        ),
        ("UPDATE audit SET tenant = 'other' WHERE seq = 3", "record 3: it was changed: the column tenant"),
        ("UPDATE audit SET at = at + 1 WHERE seq = 3", "record 3: it was changed: the column at"),
        ("UPDATE audit SET sandbox = 'x' WHERE seq = 3", "record 3: it was changed: the column sandbox"),
        (
            "UPDATE audit SET hash = (SELECT hash FROM audit WHERE seq = 1) WHERE seq = 3",
            "record 3: it was changed: its con",
        ),
        ("DELETE FROM audit WHERE seq = 5", "record 5: it is missing; record 6"),
        ("DELETE FROM audit WHERE seq < 3", "record 1: it is missing; record 3"),
        ("DELETE FROM audit WHERE seq > 8", "record 9: it is missing; the chain went on to record 10"),
        ("DELETE FROM audit", "record 1: it is missing; the chain went on to record 10"),
        (swap, "record 4: it was changed: the column seq"),
        (added, "record 11: it was added"),
        (rolled_back, "record 7: it may be missing"),
        (
            "DELETE FROM audit; DELETE FROM audit_head",
            "record 1: it is missing; the chain went on to record 10",
        ),
        ("UPDATE audit_head SET seq = 0", "record 1: it may be missing"),
    ];
    let first = fixture.store().await;
    let log = open(&first).await;
    fill(&log, 10).await;
    log.close().await;
    first.close().await;
    for (statement, expected) in cases {
        let copy = fixture.copy().await;
        let store = copy.store().await;
        let log = open(&store).await;
        assert_eq!(verify(&log).await, "verified 10");
        copy.run_sql(&without_triggers(copy.backend, statement)).await;
        let found = verify(&log).await;
        assert!(found.starts_with(expected), "{statement}\n{found}");
        store.close().await;
    }
}

pub(crate) async fn records_cannot_be_updated_or_deleted(fixture: Fixture) {
    let store = fixture.store().await;
    fill(&open(&store).await, 3).await;
    let mut refused = vec!["UPDATE audit SET tenant = 'x'", "DELETE FROM audit WHERE seq = 2"];
    if fixture.backend == Backend::Postgres {
        refused.push("TRUNCATE audit");
    }
    for statement in refused {
        let error = fixture.try_run_sql(statement).await.unwrap_err().to_string();
        assert!(error.contains("records of the audit are never"), "{error}");
    }
}

/// Otherwise the next record would authenticate a truncated chain.
pub(crate) async fn append_to_forged_head_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 5).await;
    let text = "DELETE FROM audit WHERE seq > 3; UPDATE audit_head SET seq = 3, hash = (SELECT hash FROM audit WHERE seq = 3)";
    fixture.run_sql(&without_triggers(fixture.backend, text)).await;
    let error = refused(&fixture, &log, 6).await;
    assert!(matches!(error, AuditError::HeadForged { seq: 3 }), "{error:?}");
    assert!(verify(&log).await.starts_with("record 4: it may be missing"));
    log.close().await;
    // A server with another secret refuses as well.
    let other = AuditOptions { secret: Some([7; 32]), ..AuditOptions::default() };
    let log = AuditLog::open(&store, other).await.unwrap();
    assert!(matches!(log.append(record(6)).await, Err(AuditError::HeadForged { .. })));
}

/// A new chain would hide that there was another one.
pub(crate) async fn removal_of_the_whole_chain_is_noticed(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 5).await;
    log.close().await;
    let text = "DELETE FROM audit; DELETE FROM audit_head; DELETE FROM audit_base";
    fixture.run_sql(&without_triggers(fixture.backend, text)).await;
    if fixture.backend == Backend::Sqlite {
        std::fs::remove_file(fixture.file().with_extension("db.audit")).unwrap();
    }
    let log = open(&store).await;
    assert_eq!(verify(&log).await, "record 1: it is missing; the chain went on to record 5");
    assert!(matches!(log.append(record(6)).await, Err(AuditError::HeadForged { seq: 0 })));
}

pub(crate) async fn noted_head_reveals_rewritten_chain(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 5).await;
    let noted = log.head().await.unwrap();
    fill(&log, 5).await;
    assert_eq!(describe(log.verify(1, Some(noted)).await.unwrap()), "verified 10");
    log.close().await;
    store.close().await;
    // An attacker who can write the database, and so read its secret, can rewrite the chain. The noted head reveals it.
    let text = "DELETE FROM audit; DELETE FROM audit_head; DELETE FROM meta WHERE name = 'audit.head'";
    fixture.run_sql(&without_triggers(fixture.backend, text)).await;
    let log = open(&fixture.store().await).await;
    for number in 101..113 {
        log.append(record(number)).await.unwrap();
    }
    assert_eq!(verify(&log).await, "verified 12");
    let found = describe(log.verify(1, Some(noted)).await.unwrap());
    assert!(found.starts_with("record 5: it was replaced"), "{found}");
}
