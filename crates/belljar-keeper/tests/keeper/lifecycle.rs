//! Life cycle of sandboxes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use belljar_engine::v1;
use belljar_keeper::operation::Write;
use belljar_keeper::{
    AuditFilter, Caller, CreateSandbox, ExecEvent, ExecRequest, Idempotency, KeeperConfig, KeeperError,
    Labels, Lifetime, ListSandboxes, NewKey, OnShutdown, Part, Quotas, RunEvent, SandboxUpdate,
    SnapshotRequest, TimeoutAction,
};
use belljar_model::{Approval, Outcome, Role, SandboxState, SpecFile};
use belljar_testing::wait::DEADLINE;
use futures::StreamExt as _;
use jiff::Timestamp;

use crate::fixture::{Fixture, output_of, plain, shell, text, until, user};

/// Time limits of commands and code are suspended with the sandbox.
pub(crate) async fn time_limits_stop_while_paused(fixture: Fixture) {
    let caller = user("ann");
    let id = fixture.create(&caller).await.id.to_string();
    let limited =
        ExecRequest { timeout: Some(Duration::from_secs(4)), ..shell("echo begun; sleep 2; echo finished") };
    let running = fixture.keeper.exec(&caller, &id, limited);
    let pausing = async {
        until("the command runs", || async { fixture.running(&caller, &id).await > 0 }).await;
        fixture.keeper.pause(&caller, &id).await.unwrap();
        // Longer than the limit, and than what the host waits beyond it.
        tokio::time::sleep(Duration::from_secs(6)).await;
        fixture.keeper.resume(&caller, &id, None).await.unwrap();
    };
    let (result, ()) = futures::join!(running, pausing);
    let result = result.unwrap();
    assert_eq!(
        (&result.outcome, text(&result)),
        (&Outcome::Exited { code: 0 }, "begun\nfinished\n"),
        "{result:?}"
    );
}

pub(crate) async fn sandbox_lifecycle(fixture: Fixture) {
    let ann = user("ann");
    let info = fixture.create(&ann).await;
    assert_eq!(info.state, SandboxState::Running);
    assert!(info.expires_at.unwrap() > info.created_at && info.isolation.is_some());
    let result = fixture.sh(&ann, info.id.as_str(), "echo hello; echo bad >&2; exit 3").await;
    assert_eq!((text(&result), result.exit_code), ("hello\n", Some(3)));
    assert_eq!(output_of(&result.stderr).text.as_deref(), Some("bad\n"));
    fixture.keeper.kill(&ann, info.id.as_str()).await.unwrap();
    let gone = fixture.keeper.get(&ann, info.id.as_str()).await.unwrap_err();
    assert_eq!((gone.code(), gone.to_string().contains("on request")), ("sandbox_gone", true), "{gone}");
    let again = fixture.keeper.kill(&ann, info.id.as_str()).await.unwrap_err();
    assert_eq!(again.code(), "sandbox_gone");
}

pub(crate) async fn gone_sandbox_has_a_reason(fixture: Fixture) {
    let ann = user("ann");
    let info = fixture.create(&ann).await;
    fixture.keeper.kill(&ann, info.id.as_str()).await.unwrap();
    let page = fixture.keeper.list(&ann, listed(&[SandboxState::Gone])).await.unwrap();
    let gone = page.items.iter().find(|gone| gone.id == info.id).unwrap();
    assert_eq!(gone.reason.as_deref(), Some("ended on request of key key_ann"));
    assert!(gone.ended_at.is_some() && gone.isolation.is_none());
    let alive = fixture.keeper.list(&ann, listed(&[])).await.unwrap();
    assert!(alive.items.is_empty());
}

pub(crate) async fn pause_freezes_processes_and_the_timeout(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    let count =
        ExecRequest { timeout: Some(Duration::ZERO), ..shell("while :; do echo; sleep 0.02; done > n") };
    fixture.keeper.start(&ann, &id, count).await.unwrap();
    let lines = async || text(&fixture.sh(&ann, &id, "wc -l < n").await).trim().parse::<u64>().unwrap_or(0);
    until("the counter counts", || async { lines().await > 1 }).await;
    let paused = fixture.keeper.pause(&ann, &id).await.unwrap();
    assert_eq!(paused.state, SandboxState::Paused);
    assert!(paused.expires_at.is_none() && paused.paused_at.is_some());
    assert_eq!(fixture.keeper.pause(&ann, &id).await.unwrap_err().code(), "wrong_state");
    // Only the host can measure the usage of a frozen sandbox.
    let cpu = fixture.keeper.metrics(&ann, &id).await.unwrap().cpu.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(fixture.keeper.metrics(&ann, &id).await.unwrap().cpu.unwrap(), cpu);
    let resumed = fixture.keeper.resume(&ann, &id, None).await.unwrap();
    assert_eq!(resumed.state, SandboxState::Running);
    let left = resumed.expires_at.unwrap().duration_since(jiff::Timestamp::now()).as_secs();
    assert!((295..=300).contains(&left), "{left} s are left of 300");
    let before = lines().await;
    until("it goes on counting", || async { lines().await > before }).await;
}

pub(crate) async fn use_resumes_a_sandbox_unless_disabled(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    fixture.keeper.pause(&ann, &id).await.unwrap();
    assert_eq!(fixture.sh(&ann, &id, "echo awake").await.exit_code, Some(0));
    assert_eq!(fixture.keeper.get(&ann, &id).await.unwrap().state, SandboxState::Running);
    let update = SandboxUpdate { auto_resume: Some(false), ..SandboxUpdate::default() };
    fixture.keeper.update(&ann, &id, update).await.unwrap();
    fixture.keeper.pause(&ann, &id).await.unwrap();
    let refused = fixture.keeper.exec(&ann, &id, shell("true")).await.unwrap_err();
    assert_eq!(refused.code(), "wrong_state");
    fixture.keeper.kill(&ann, &id).await.unwrap();
}

pub(crate) async fn ports_of_ended_sandboxes_are_not_published(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    // The second one finds it, and then waits for its end.
    let (killed, published) =
        futures::join!(fixture.keeper.kill(&ann, &id), fixture.keeper.publish_port(&ann, &id, 8000, true));
    killed.unwrap();
    assert_eq!(published.unwrap_err().code(), "sandbox_gone");
}

pub(crate) async fn running_processes_are_known(fixture: Fixture) {
    let ann = user("ann");
    let info = fixture.create(&ann).await;
    let id = info.id.as_str();
    let started = fixture.keeper.start(&ann, id, shell("until [ -e over ]; do sleep 0.01; done")).await;
    let process = started.unwrap().process;
    let may_run = async || fixture.keeper.may_run(&info.id, process).await;
    assert!(may_run().await);
    fixture.keeper.pause(&ann, id).await.unwrap();
    assert!(may_run().await, "it cannot say");
    assert_eq!(fixture.keeper.get(&ann, id).await.unwrap().state, SandboxState::Paused, "that is no use");
    fixture.sh(&ann, id, "touch over").await;
    until("it has ended", async || !may_run().await).await;
    fixture.keeper.kill(&ann, id).await.unwrap();
    assert!(!may_run().await);
}

pub(crate) async fn timeout_ends_a_sandbox(fixture: Fixture) {
    let ann = user("ann");
    let lifetime = Lifetime { timeout: Duration::from_secs(1), ..Lifetime::default() };
    let id = created(&fixture, lifetime).await;
    until("its time is over", || async { fixture.keeper.get(&ann, &id).await.is_err() }).await;
    let gone = fixture.keeper.get(&ann, &id).await.unwrap_err();
    assert!(gone.to_string().contains("timed out"), "{gone}");
}

pub(crate) async fn timeout_pauses_a_sandbox(fixture: Fixture) {
    let ann = user("ann");
    let lifetime =
        Lifetime { timeout: Duration::from_secs(1), on_timeout: TimeoutAction::Pause, ..Lifetime::default() };
    let id = created(&fixture, lifetime).await;
    fixture.sh(&ann, &id, "echo kept > f").await;
    let is_paused = || async { fixture.keeper.get(&ann, &id).await.unwrap().state == SandboxState::Paused };
    until("it is paused", is_paused).await;
    // Its timeout had expired: using it restarts the full timeout.
    assert_eq!(text(&fixture.sh(&ann, &id, "cat f").await), "kept\n");
    until("it is paused again", is_paused).await;
}

pub(crate) async fn idle_timeout_is_reset_by_use(fixture: Fixture) {
    let ann = user("ann");
    let lifetime = Lifetime { idle_timeout: Some(Duration::from_secs(1)), ..Lifetime::default() };
    let id = created(&fixture, lifetime).await;
    // In use for longer than its idle timeout, without a call in between.
    let begin = Instant::now();
    assert_eq!(fixture.sh(&ann, &id, "sleep 1.6; echo up").await.exit_code, Some(0));
    until("it is idle for too long", || async { fixture.keeper.get(&ann, &id).await.is_err() }).await;
    assert!(begin.elapsed() >= Duration::from_millis(2600), "it ended after {:?}", begin.elapsed());
}

pub(crate) async fn timeout_can_be_changed(fixture: Fixture) {
    let ann = user("ann");
    let lifetime = Lifetime { timeout: Duration::from_secs(1), ..Lifetime::default() };
    let id = created(&fixture, lifetime).await;
    let moved = fixture.keeper.set_timeout(&ann, &id, Duration::from_secs(60)).await.unwrap();
    assert!(moved.expires_at.unwrap().duration_since(jiff::Timestamp::now()).as_secs() > 50);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(fixture.keeper.get(&ann, &id).await.is_ok());
    for bad in [Duration::from_millis(1), Duration::from_secs(24 * 3600 + 1)] {
        let refused = fixture.keeper.set_timeout(&ann, &id, bad).await.unwrap_err();
        assert!(matches!(refused, KeeperError::Field { field: "timeout", .. }), "{refused}");
    }
    let _ = fixture.keeper.set_timeout(&ann, &id, Duration::ZERO).await;
    assert_eq!(fixture.keeper.get(&ann, &id).await.unwrap_err().code(), "sandbox_gone");
}

pub(crate) async fn silent_guest_ends_its_sandbox(fixture: Fixture) {
    let guest_timeout = Duration::from_secs(2);
    fixture.keeper.reconfigure(KeeperConfig { guest_timeout, ..fixture.config.clone() });
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    // One that answers is left alone, whatever was reported.
    let entered = fixture.keeper.enter(&ann, &id).await.unwrap();
    entered.hang().await.unwrap();
    fixture.keeper.pause(&ann, &id).await.unwrap();
    fixture.keeper.resume(&ann, &id, None).await.unwrap();
    tokio::time::sleep(guest_timeout * 2).await;
    assert_eq!(fixture.sh(&ann, &id, "echo here").await.exit_code, Some(0));
    let begin = Instant::now();
    entered.hang().await.unwrap();
    drop(entered);
    until("it is given up", || async { fixture.keeper.get(&ann, &id).await.is_err() }).await;
    assert!(begin.elapsed() >= guest_timeout, "{:?}", begin.elapsed());
    let gone = fixture.keeper.get(&ann, &id).await.unwrap_err();
    assert_eq!(gone.code(), "sandbox_gone");
    assert!(gone.to_string().contains("could not be reached any more"), "{gone}");
    assert_eq!(fixture.keeper.me(&ann).unwrap().usage.sandboxes, 0);
}

pub(crate) async fn sandbox_that_ends_by_itself_is_gone(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    let entered = fixture.keeper.enter(&ann, &id).await.unwrap();
    entered.crash();
    until("its end is seen", || async { fixture.keeper.get(&ann, &id).await.is_err() }).await;
    assert_eq!(fixture.keeper.get(&ann, &id).await.unwrap_err().code(), "sandbox_gone");
    assert_eq!(fixture.keeper.me(&ann).unwrap().usage.sandboxes, 0);
}

/// The future of a request is dropped when its client disconnects. That used to leave sandboxes in transitional states until their
/// timeout: `creating` and `stopping` without a task, and `paused` while they ran.
pub(crate) async fn cancelled_calls_leave_nothing_half_done(fixture: Fixture) {
    let ann = user("ann");
    let keeper = &fixture.keeper;
    let settled = || async {
        let page = keeper.list(&ann, listed(&[])).await.unwrap();
        page.items.iter().all(|info| matches!(info.state, SandboxState::Running | SandboxState::Paused))
    };
    for polls in 0..12 {
        drop_after(polls, keeper.create(&ann, plain())).await;
        let id = fixture.create(&ann).await.id.to_string();
        drop_after(polls, keeper.pause(&ann, &id)).await;
        // It may be paused already; either way it is frozen then, and resumes when it is used.
        let again = keeper.pause(&ann, &id).await;
        assert!(again.as_ref().err().is_none_or(|error| error.code() == "wrong_state"), "{again:?}");
        let went_on = tokio::time::timeout(DEADLINE, fixture.sh(&ann, &id, "echo on")).await.unwrap();
        assert_eq!(text(&went_on), "on\n");
        drop_after(polls, keeper.kill(&ann, &id)).await;
        until("nothing is half done", settled).await;
    }
    // Each sandbox either exists and can be used, or does not exist.
    for info in keeper.list(&ann, listed(&[])).await.unwrap().items {
        assert_eq!(text(&fixture.sh(&ann, info.id.as_str(), "echo on").await), "on\n");
    }
}

/// An administrator who disconnected at the right moment used to get a key without an audit record.
pub(crate) async fn keys_of_cancelled_calls_are_audited(fixture: Fixture) {
    let operator = Caller::operator("t", "r");
    let keeper = &fixture.keeper;
    let records = async |action: &str| {
        let filter = AuditFilter { action: Some(action.to_owned()), ..AuditFilter::default() };
        keeper.audit_records(&operator, &filter, Some(0), 100).await.unwrap().len()
    };
    let key = || NewKey {
        name: "k".to_owned(),
        role: Role::User,
        tenant: "t".to_owned(),
        expires: None,
        quotas: Quotas::default(),
        owner: None,
        approval: Approval::Never,
    };
    for polls in 0..12 {
        drop_after(polls, keeper.create_key(&operator, key())).await;
    }
    // Each call was polled at least once.
    until("each key is made and on record", || async {
        keeper.keys(&operator, &Part::default()).await.unwrap().items.len() == 11
            && records("key.create").await == 11
    })
    .await;
    for (polls, key) in (1..).zip(keeper.keys(&operator, &Part::default()).await.unwrap().items) {
        drop_after(polls, keeper.revoke_key(&operator, &key.id)).await;
    }
    until("each is revoked and on record", || async {
        let revoked = keeper
            .keys(&operator, &Part::default())
            .await
            .unwrap()
            .items
            .iter()
            .all(|key| key.revoked_at.is_some());
        revoked && records("key.revoke").await == 11
    })
    .await;
}

/// Audited actions are recorded even if their caller disconnects, and disconnecting callers cannot exceed the bound of pending actions.
pub(crate) async fn actions_of_cancelled_calls_are_audited(fixture: Fixture) {
    const BOUND: usize = 64;
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    let entered = fixture.keeper.enter(&ann, &id).await.unwrap();
    // No other task runs before the first await below, so none of them can have ended.
    for number in 0..BOUND + 6 {
        let request = v1::MakeDirRequest { path: format!("d{number}").into(), ..Default::default() };
        let call = tokio::task::unconstrained(fixture.keeper.perform_in(&ann, &entered, request));
        assert!(futures::poll!(Box::pin(call)).is_pending());
    }
    let operator = Caller::operator("test", "request");
    let list_records = || async {
        let filter = AuditFilter { sandbox: Some(entered.id().clone()), ..AuditFilter::default() };
        let records = fixture.keeper.audit_records(&operator, &filter, Some(0), 1000).await.unwrap();
        let lines = records.iter().map(|record| format!("{} {}", record.action, record.outcome));
        lines.collect::<Vec<_>>()
    };
    until("what was begun is on record", || async { list_records().await.len() > BOUND }).await;
    let made = v1::ListRequest { path: ".".into(), depth: 1, limit: 1000, ..Default::default() };
    let made = fixture.keeper.perform_in(&ann, &entered, made).await.unwrap().entries;
    let made = made.iter().filter(|entry| entry.path.starts_with(b"d")).count();
    assert_eq!((made, list_records().await.len()), (BOUND, BOUND + 1), "{:?}", list_records().await);
    // An upload whose caller has disconnected is discarded and recorded as failed.
    let open = v1::WriteOpen { path: "half".into(), ..Default::default() };
    let write = Write::new(open, futures::stream::iter([Ok("x".into())]).chain(futures::stream::pending()));
    assert!(futures::poll!(Box::pin(fixture.keeper.perform_in(&ann, &entered, write))).is_pending());
    until("it is on record", || async {
        list_records().await.last().is_some_and(|last| last == "file.write upload_failed")
    })
    .await;
    let stat = v1::StatRequest { path: "half".into(), ..Default::default() };
    assert_eq!(fixture.keeper.perform_in(&ann, &entered, stat).await.unwrap_err().code(), "path_not_found");
}

/// Polls a call `polls` times, and drops it.
async fn drop_after<T>(polls: u32, call: impl Future<Output = T>) {
    let mut call = std::pin::pin!(call);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(());
        }
        left -= 1;
        call.as_mut().poll(context).map(drop)
    })
    .await;
}

pub(crate) async fn names_are_unique_and_can_be_looked_up(fixture: Fixture) {
    let (ann, bob) = (user("ann"), user("bob"));
    let keeper = fixture.reopen(|config| config.share_host_tree = true).await;
    let named = |return_existing| CreateSandbox {
        name: Some("analysis".parse().unwrap()),
        return_existing,
        ..plain()
    };
    let first = keeper.create(&ann, named(false)).await.unwrap();
    assert!(!first.existing);
    let clash = keeper.create(&ann, named(false)).await.unwrap_err();
    assert!(
        matches!(&clash, KeeperError::NameTaken { owner, .. } if *owner == format!("sandbox {}", first.info.id)),
        "{clash}"
    );
    let same = keeper.create(&ann, named(true)).await.unwrap();
    assert!(same.existing && same.info.id == first.info.id);
    assert_eq!(keeper.get(&ann, "analysis").await.unwrap().id, first.info.id);
    let other = keeper.create(&bob, named(false)).await.unwrap();
    assert_ne!(other.info.id, first.info.id);
    keeper.kill(&ann, "analysis").await.unwrap();
    assert!(!keeper.create(&ann, named(true)).await.unwrap().existing);
    for bad in ["", "-a", "A", "a_b", "a.b", &"a".repeat(64), "abcdefghij0123456789"] {
        assert!(bad.parse::<belljar_keeper::SandboxName>().is_err(), "{bad}");
    }
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn list_is_filtered_by_label_and_paginated(fixture: Fixture) {
    let ann = user("ann");
    let labelled = |job: &str| CreateSandbox {
        labels: Labels::new(BTreeMap::from([("job".to_owned(), job.to_owned())])).unwrap(),
        ..plain()
    };
    let mut made = Vec::new();
    for job in ["1", "2", "1", "1"] {
        made.push(fixture.keeper.create(&ann, labelled(job)).await.unwrap().info.id);
    }
    let mut query = ListSandboxes {
        labels: BTreeMap::from([("job".to_owned(), "1".to_owned())]),
        ascending: true,
        limit: 2,
        ..ListSandboxes::default()
    };
    let first = fixture.keeper.list(&ann, query.clone()).await.unwrap();
    query.cursor = first.next_cursor.clone();
    let second = fixture.keeper.list(&ann, query.clone()).await.unwrap();
    let ids: Vec<_> = first.items.iter().chain(&second.items).map(|info| info.id.clone()).collect();
    assert_eq!(ids, [made[0].clone(), made[2].clone(), made[3].clone()]);
    assert!(first.next_cursor.is_some() && second.next_cursor.is_none());
    query.cursor = Some("nonsense".to_owned());
    assert!(matches!(
        fixture.keeper.list(&ann, query).await.unwrap_err(),
        KeeperError::Field { field: "cursor", .. }
    ));
}

pub(crate) async fn pooled_sandbox_matches_the_request(fixture: Fixture) {
    let ann = user("ann");
    let keeper = fixture.reopen(|config| config.pool = 2).await;
    until("the pool is full", || async { keeper.prometheus().contains("belljar_pool_ready 2") }).await;
    let spec = SpecFile::from_json(r#"{"env":{"WHO":"ann"}}"#).unwrap();
    let file = belljar_keeper::NewFile { path: "in.txt".into(), mode: 0o600, content: "there".into() };
    let request = CreateSandbox { spec, files: vec![file], ..plain() };
    let info = keeper.create(&ann, request).await.unwrap().info;
    assert!(info.pooled);
    let id = info.id.to_string();
    let result = keeper.exec(&ann, &id, shell("echo $WHO; cat in.txt")).await.unwrap();
    assert_eq!(text(&result), "ann\nthere");
    // Requests for other limits are not served from the pool, whose sandboxes would show its own.
    let seen =
        "head -1 /proc/meminfo; cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/cpu.max; nproc; echo $GOMAXPROCS";
    let two = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(2);
    for (limits, expected) in [
        (r#""disk":"8m""#, "MemTotal:         524288 kB\n128\n100000 100000\n1\n1\n"),
        (
            r#""memory":"64m","disk":"480m","tmp":"480m","pids":"20","cpus":"2""#,
            &format!("MemTotal:          65536 kB\n20\n200000 100000\n{two}\n{two}\n"),
        ),
    ] {
        let spec = SpecFile::from_json(&format!(r#"{{"limits":{{{limits}}}}}"#)).unwrap();
        let info = keeper.create(&ann, CreateSandbox { spec, ..plain() }).await.unwrap().info;
        assert!(!info.pooled, "{limits}");
        let result = keeper.exec(&ann, info.id.as_str(), shell(seen)).await.unwrap();
        assert_eq!(text(&result), expected, "{limits}");
    }
    until("it is full again", || async { keeper.prometheus().contains("belljar_pool_ready 2") }).await;
    assert!(keeper.prometheus().contains("belljar_pool_hits_total 1"), "{}", keeper.prometheus());
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn recently_used_templates_are_pre_warmed(fixture: Fixture) {
    let ann = user("ann");
    let keeper = fixture
        .reopen(|config| {
            config.pool = 1;
            config.template_pool = 2;
        })
        .await;
    let ready = async |count: usize| {
        let figure = format!("belljar_pool_ready {count}\n");
        until("the pools have what they should", || async { keeper.prometheus().contains(&figure) }).await;
    };
    let id = keeper.create(&ann, plain()).await.unwrap().info.id.to_string();
    keeper.exec(&ann, &id, shell("echo kept > f")).await.unwrap();
    let named = SnapshotRequest { name: Some("mine".parse().unwrap()), note: None };
    let template = keeper.snapshot(&ann, &id, named).await.unwrap();
    ready(1).await;
    let of_mine = || CreateSandbox { template: Some("mine".to_owned()), ..plain() };
    // The first use is launched on demand; from then on, sandboxes are pre-warmed.
    assert!(!keeper.create(&ann, of_mine()).await.unwrap().info.pooled);
    ready(3).await;
    let made = keeper.create(&ann, of_mine()).await.unwrap().info;
    assert!(made.pooled && made.template == "mine");
    let seen = keeper.exec(&ann, made.id.as_str(), shell("cat f")).await.unwrap();
    assert_eq!(text(&seen), "kept\n");
    // A pre-warmed sandbox with the template's files does not serve a request without it.
    ready(3).await;
    let empty = keeper.create(&ann, plain()).await.unwrap().info;
    assert!(empty.pooled);
    let seen = keeper.exec(&ann, empty.id.as_str(), shell("ls -A")).await.unwrap();
    assert_eq!(text(&seen), "");
    ready(3).await;
    keeper.remove_template(&ann, &template.id).await.unwrap();
    ready(1).await;
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn missing_sandboxes_are_ended_at_start(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    // Sandboxes of the local engine end with their process, so a second keeper finds only the record.
    let second = fixture.reopen(|_| {}).await;
    let gone = second.get(&ann, &id).await.unwrap_err();
    assert!(gone.to_string().contains("while no server was running"), "{gone}");
    second.close(OnShutdown::Keep).await.unwrap();
    // The first keeper detects that it no longer owns the record.
    assert!(fixture.keeper.pause(&ann, &id).await.is_err());
}

pub(crate) async fn answers_are_removed_with_their_sandbox(fixture: Fixture) {
    let ann = user("ann");
    let stored = || async { fixture.store.idempotency().count_expired(Timestamp::MAX).await.unwrap() };
    let mut ids = Vec::new();
    for number in 0..3 {
        let id = fixture.create(&ann).await.id.to_string();
        let idempotency = Some(Idempotency { key: number.to_string(), request_digest: [1; 32] });
        let request = ExecRequest { idempotency: idempotency.filter(|_| number > 0), ..shell("true") };
        fixture.keeper.exec(&ann, &id, request).await.unwrap();
        ids.push(id);
    }
    assert_eq!(stored().await, 2);
    fixture.keeper.kill(&ann, &ids[0]).await.unwrap();
    assert_eq!(stored().await, 2);
    fixture.keeper.kill(&ann, &ids[1]).await.unwrap();
    assert_eq!(stored().await, 1);
    // A second keeper, which has stored none, ends the third, as it does not run for it.
    let second = fixture.reopen(|_| {}).await;
    assert_eq!(stored().await, 0);
    second.close(OnShutdown::Keep).await.unwrap();
}

pub(crate) async fn limits_can_be_changed_while_running(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    let set =
        |memory: &str| SandboxUpdate { memory: Some(memory.parse().unwrap()), ..SandboxUpdate::default() };
    let eat = || shell("python3 -c 'x = bytearray(300 << 20)'");
    assert_eq!(fixture.keeper.exec(&ann, &id, eat()).await.unwrap().exit_code, Some(0));
    let info = fixture.keeper.update(&ann, &id, set("100m")).await.unwrap();
    assert_eq!(info.spec.limits.memory.bytes(), 100 << 20);
    assert_eq!(fixture.keeper.exec(&ann, &id, eat()).await.unwrap().outcome, Outcome::OutOfMemory);
    assert_eq!(fixture.keeper.me(&ann).unwrap().usage.memory_bytes, 100 << 20);
}

pub(crate) async fn commands_of_cancelled_calls_are_ended(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    let operator = Caller::operator("test", "request");
    let records = || async {
        let filter = AuditFilter { sandbox: Some(id.parse().unwrap()), ..AuditFilter::default() };
        let all = fixture.keeper.audit_records(&operator, &filter, Some(0), 100).await.unwrap();
        all.into_iter().filter(|record| record.action == "exec").collect::<Vec<_>>()
    };
    // Dropped at its start, whatever it has done by then: it has one record, or was never begun.
    for polls in [1, 2, 5, 20] {
        drop_after(polls, fixture.keeper.exec(&ann, &id, shell("sleep 1000"))).await;
        // So is one in the background, whose number nobody has got.
        let mut start = std::pin::pin!(fixture.keeper.start(&ann, &id, shell("sleep 1000")));
        for _ in 0..polls {
            if futures::poll!(start.as_mut()).is_ready() {
                break;
            }
        }
    }
    until("they have ended", || async { fixture.running(&ann, &id).await == 0 }).await;
    let idempotency = Some(Idempotency { key: "once".to_owned(), request_digest: [1; 32] });
    let asked = || ExecRequest { idempotency: idempotency.clone(), ..shell("echo up; sleep 1000") };
    let mut running = fixture.keeper.stream_exec(&ann, &id, asked());
    let seen = async {
        while !matches!(running.next().await, Some(RunEvent::Progress(ExecEvent::Output { .. }))) {}
    };
    tokio::time::timeout(DEADLINE, seen).await.unwrap();
    let before = records().await.len();
    drop(running);
    until("it is on record", || async { records().await.len() == before + 1 }).await;
    assert_eq!(fixture.running(&ann, &id).await, 0);
    for record in records().await {
        let text = format!("{record:?}");
        assert!(text.contains("abandoned"), "{text}");
    }
    // It is not run again: its end is the result.
    let again = fixture.keeper.exec(&ann, &id, asked()).await.unwrap();
    assert_eq!((&again.outcome, text(&again).trim()), (&Outcome::signalled(9), "up"));
}

pub(crate) async fn session_keeps_its_state(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    let session = fixture.keeper.perform(&ann, &id, v1::SessionOpen::default()).await.unwrap().id;
    let run = async |line: &str| {
        let request = ExecRequest { session: Some(session), ..shell(line) };
        fixture.keeper.exec(&ann, &id, request).await
    };
    assert_eq!(run("x=1; cd /tmp; false").await.unwrap().exit_code, Some(1));
    let result = run("echo $x $PWD").await.unwrap();
    assert_eq!((text(&result), result.session_kept), ("1 /tmp\n", Some(true)));
    assert_eq!(run("exit 7").await.unwrap().session_kept, Some(false));
    assert_eq!(run("true").await.unwrap_err().code(), "session_not_found");
    let odd = ExecRequest { session: Some(session), cwd: Some("/".into()), ..shell("true") };
    let refused = fixture.keeper.exec(&ann, &id, odd).await.unwrap_err();
    assert!(matches!(refused, KeeperError::Field { field: "cwd", .. }), "{refused}");
}

pub(crate) async fn large_input_and_output_are_complete(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    let input = vec![b'x'; 500_000];
    let request = ExecRequest {
        stdin: input.into(),
        keep_bytes: Some(1000),
        ..shell("tee copy | cat; wc -c < copy >&2")
    };
    let result = fixture.keeper.exec(&ann, &id, request).await.unwrap();
    assert_eq!(result.stdout.total_bytes(), 500_000);
    assert!(output_of(&result.stdout).truncated && text(&result).len() == 1000);
    assert_eq!(output_of(&result.stderr).text.as_deref().map(str::trim), Some("500000"));
    let late = ExecRequest { timeout: Some(Duration::from_millis(200)), ..shell("sleep 10") };
    let result = fixture.keeper.exec(&ann, &id, late).await.unwrap();
    assert_eq!(result.outcome, Outcome::TimedOut);
    assert!(result.hint.as_deref().is_some_and(|hint| hint.contains("after 200 ms")), "{result:?}");
}

async fn created(fixture: &Fixture, lifetime: Lifetime) -> String {
    let request = CreateSandbox { lifetime, ..plain() };
    fixture.keeper.create(&user("ann"), request).await.unwrap().info.id.to_string()
}

fn listed(states: &[SandboxState]) -> ListSandboxes {
    ListSandboxes { states: states.to_vec(), limit: 100, ..ListSandboxes::default() }
}
