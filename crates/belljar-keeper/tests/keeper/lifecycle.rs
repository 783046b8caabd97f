//! The life of a sandbox.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use belljar_engine::v1;
use belljar_keeper::operation::Write;
use belljar_keeper::{
    AuditFilter, Caller, CreateSandbox, ExecEvent, ExecRequest, KeeperError, Labels, Leave, Lifetime,
    ListSandboxes, NewKey, Quotas, SandboxUpdate, SnapshotRequest, TimeoutAction,
};
use belljar_model::{Outcome, Role, SandboxState, SpecFile};
use belljar_testing::wait::DEADLINE;
use futures::StreamExt as _;

use crate::world::{World, kept, plain, shell, text, until, user};

pub(crate) async fn created_used_and_ended(world: World) {
    let ann = user("ann");
    let info = world.create(&ann).await;
    assert_eq!(info.state, SandboxState::Running);
    assert!(info.expires_at.unwrap() > info.created_at && info.isolation.is_some());
    let result = world.sh(&ann, info.id.as_str(), "echo hello; echo bad >&2; exit 3").await;
    assert_eq!((text(&result), result.exit_code), ("hello\n", Some(3)));
    assert_eq!(kept(&result.stderr).text.as_deref(), Some("bad\n"));
    world.keeper.kill(&ann, info.id.as_str()).await.unwrap();
    let gone = world.keeper.get(&ann, info.id.as_str()).await.unwrap_err();
    assert_eq!((gone.code(), gone.to_string().contains("on request")), ("sandbox_gone", true), "{gone}");
    let again = world.keeper.kill(&ann, info.id.as_str()).await.unwrap_err();
    assert_eq!(again.code(), "sandbox_gone");
}

pub(crate) async fn a_gone_one_says_why(world: World) {
    let ann = user("ann");
    let info = world.create(&ann).await;
    world.keeper.kill(&ann, info.id.as_str()).await.unwrap();
    let page = world.keeper.list(&ann, listed(&[SandboxState::Gone])).await.unwrap();
    let gone = page.items.iter().find(|gone| gone.id == info.id).unwrap();
    assert_eq!(gone.reason.as_deref(), Some("ended on request of key key_ann"));
    assert!(gone.ended_at.is_some() && gone.isolation.is_none());
    let alive = world.keeper.list(&ann, listed(&[])).await.unwrap();
    assert!(alive.items.is_empty());
}

pub(crate) async fn paused_stands_still_and_its_clock_too(world: World) {
    let ann = user("ann");
    let id = world.create(&ann).await.id.to_string();
    let count =
        ExecRequest { timeout: Some(Duration::ZERO), ..shell("while :; do echo; sleep 0.02; done > n") };
    world.keeper.start(&ann, &id, count).await.unwrap();
    let lines = async || text(&world.sh(&ann, &id, "wc -l < n").await).trim().parse::<u64>().unwrap_or(0);
    until("the counter counts", || async { lines().await > 1 }).await;
    let paused = world.keeper.pause(&ann, &id).await.unwrap();
    assert_eq!(paused.state, SandboxState::Paused);
    assert!(paused.expires_at.is_none() && paused.paused_at.is_some());
    assert_eq!(world.keeper.pause(&ann, &id).await.unwrap_err().code(), "wrong_state");
    // What it costs to stand still is known from outside only.
    let cpu = world.keeper.metrics(&ann, &id).await.unwrap().cpu.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.keeper.metrics(&ann, &id).await.unwrap().cpu.unwrap(), cpu);
    let resumed = world.keeper.resume(&ann, &id, None).await.unwrap();
    assert_eq!(resumed.state, SandboxState::Running);
    let left = resumed.expires_at.unwrap().duration_since(jiff::Timestamp::now()).as_secs();
    assert!((295..=300).contains(&left), "{left} s are left of 300");
    let before = lines().await;
    until("it goes on counting", || async { lines().await > before }).await;
}

pub(crate) async fn a_use_resumes_it_if_it_may(world: World) {
    let ann = user("ann");
    let id = world.create(&ann).await.id.to_string();
    world.keeper.pause(&ann, &id).await.unwrap();
    assert_eq!(world.sh(&ann, &id, "echo awake").await.exit_code, Some(0));
    assert_eq!(world.keeper.get(&ann, &id).await.unwrap().state, SandboxState::Running);
    let update = SandboxUpdate { auto_resume: Some(false), ..SandboxUpdate::default() };
    world.keeper.update(&ann, &id, update).await.unwrap();
    world.keeper.pause(&ann, &id).await.unwrap();
    let refused = world.keeper.exec(&ann, &id, shell("true"), None).await.unwrap_err();
    assert_eq!(refused.code(), "wrong_state");
    world.keeper.kill(&ann, &id).await.unwrap();
}

pub(crate) async fn its_time_ends_it(world: World) {
    let ann = user("ann");
    let lifetime = Lifetime { timeout: Duration::from_secs(1), ..Lifetime::default() };
    let id = created(&world, lifetime).await;
    until("its time is over", || async { world.keeper.get(&ann, &id).await.is_err() }).await;
    let gone = world.keeper.get(&ann, &id).await.unwrap_err();
    assert!(gone.to_string().contains("timed out"), "{gone}");
}

pub(crate) async fn its_time_pauses_it(world: World) {
    let ann = user("ann");
    let lifetime =
        Lifetime { timeout: Duration::from_secs(1), on_timeout: TimeoutAction::Pause, ..Lifetime::default() };
    let id = created(&world, lifetime).await;
    world.sh(&ann, &id, "echo kept > f").await;
    let is_paused = || async { world.keeper.get(&ann, &id).await.unwrap().state == SandboxState::Paused };
    until("it is paused", is_paused).await;
    // Its time had run out: a use gives it the whole of it anew.
    assert_eq!(text(&world.sh(&ann, &id, "cat f").await), "kept\n");
    until("it is paused again", is_paused).await;
}

pub(crate) async fn idle_ends_it_and_use_keeps_it(world: World) {
    let ann = user("ann");
    let lifetime = Lifetime { idle_timeout: Some(Duration::from_secs(1)), ..Lifetime::default() };
    let id = created(&world, lifetime).await;
    // In use for longer than its idle time, without a call in between.
    let begin = Instant::now();
    assert_eq!(world.sh(&ann, &id, "sleep 1.6; echo up").await.exit_code, Some(0));
    until("it is idle for too long", || async { world.keeper.get(&ann, &id).await.is_err() }).await;
    assert!(begin.elapsed() >= Duration::from_millis(2600), "it ended after {:?}", begin.elapsed());
}

pub(crate) async fn a_timeout_can_be_moved(world: World) {
    let ann = user("ann");
    let lifetime = Lifetime { timeout: Duration::from_secs(1), ..Lifetime::default() };
    let id = created(&world, lifetime).await;
    let moved = world.keeper.set_timeout(&ann, &id, Duration::from_secs(60)).await.unwrap();
    assert!(moved.expires_at.unwrap().duration_since(jiff::Timestamp::now()).as_secs() > 50);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(world.keeper.get(&ann, &id).await.is_ok());
    for bad in [Duration::from_millis(1), Duration::from_secs(24 * 3600 + 1)] {
        let refused = world.keeper.set_timeout(&ann, &id, bad).await.unwrap_err();
        assert!(matches!(refused, KeeperError::Field { field: "timeout", .. }), "{refused}");
    }
    let _ = world.keeper.set_timeout(&ann, &id, Duration::ZERO).await;
    assert_eq!(world.keeper.get(&ann, &id).await.unwrap_err().code(), "sandbox_gone");
}

pub(crate) async fn one_that_ends_by_itself_is_gone(world: World) {
    let ann = user("ann");
    let id = world.create(&ann).await.id.to_string();
    let entered = world.keeper.enter(&ann, &id).await.unwrap();
    entered.crash();
    until("its end is seen", || async { world.keeper.get(&ann, &id).await.is_err() }).await;
    assert_eq!(world.keeper.get(&ann, &id).await.unwrap_err().code(), "sandbox_gone");
    assert_eq!(world.keeper.me(&ann).unwrap().usage.sandboxes, 0);
}

/// A request is dropped where it stands when its client goes away. Sandboxes were left between two states by that, until their
/// time was over: `creating` and `stopping` for nobody, and `paused` while they ran.
pub(crate) async fn callers_that_go_away_leave_nothing_half_done(world: World) {
    let ann = user("ann");
    let keeper = &world.keeper;
    let settled = || async {
        let page = keeper.list(&ann, listed(&[])).await.unwrap();
        page.items.iter().all(|info| matches!(info.state, SandboxState::Running | SandboxState::Paused))
    };
    for polls in 0..12 {
        drop_after(polls, keeper.create(&ann, plain())).await;
        let id = world.create(&ann).await.id.to_string();
        drop_after(polls, keeper.pause(&ann, &id)).await;
        // It may be paused already; either way it stands still then, and goes on when it is used.
        let again = keeper.pause(&ann, &id).await;
        assert!(again.as_ref().err().is_none_or(|error| error.code() == "wrong_state"), "{again:?}");
        let went_on = tokio::time::timeout(DEADLINE, world.sh(&ann, &id, "echo on")).await.unwrap();
        assert_eq!(text(&went_on), "on\n");
        drop_after(polls, keeper.kill(&ann, &id)).await;
        until("nothing is half done", settled).await;
    }
    // Each that was begun is there and can be used, or is not there at all.
    for info in keeper.list(&ann, listed(&[])).await.unwrap().items {
        assert_eq!(text(&world.sh(&ann, info.id.as_str(), "echo on").await), "on\n");
    }
}

/// An administrator who goes away at the right moment had a key that no record tells of.
pub(crate) async fn keys_of_callers_that_go_away_are_on_record(world: World) {
    let operator = Caller::operator("t", "r");
    let keeper = &world.keeper;
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
    };
    for polls in 0..12 {
        drop_after(polls, keeper.create_key(&operator, key())).await;
    }
    // What was begun was polled once.
    until("each key is made and on record", || async {
        keeper.keys(&operator).await.unwrap().len() == 11 && records("key.create").await == 11
    })
    .await;
    for (polls, key) in (1..).zip(keeper.keys(&operator).await.unwrap()) {
        drop_after(polls, keeper.revoke_key(&operator, &key.id)).await;
    }
    until("each is revoked and on record", || async {
        let revoked = keeper.keys(&operator).await.unwrap().iter().all(|key| key.revoked_at.is_some());
        revoked && records("key.revoke").await == 11
    })
    .await;
}

/// What is audited is on record whoever waits for it, and callers that come and go pile up no more than the bound.
pub(crate) async fn what_is_begun_is_on_record_without_its_caller(world: World) {
    const BOUND: usize = 64;
    let ann = user("ann");
    let id = world.create(&ann).await.id.to_string();
    let entered = world.keeper.enter(&ann, &id).await.unwrap();
    // Nothing else runs before the first wait below: none of them can have ended.
    for number in 0..BOUND + 6 {
        let request = v1::MakeDirRequest { path: format!("d{number}").into(), ..Default::default() };
        let call = tokio::task::unconstrained(world.keeper.perform_in(&ann, &entered, request));
        assert!(futures::poll!(Box::pin(call)).is_pending());
    }
    let operator = Caller::operator("test", "request");
    let told = || async {
        let filter = AuditFilter { sandbox: Some(entered.id().clone()), ..AuditFilter::default() };
        let records = world.keeper.audit_records(&operator, &filter, Some(0), 1000).await.unwrap();
        let told = records.iter().map(|record| format!("{} {}", record.action, record.outcome));
        told.collect::<Vec<_>>()
    };
    until("what was begun is on record", || async { told().await.len() > BOUND }).await;
    let made = v1::ListRequest { path: ".".into(), depth: 1, limit: 1000, ..Default::default() };
    let made = world.keeper.perform_in(&ann, &entered, made).await.unwrap().entries;
    let made = made.iter().filter(|entry| entry.path.starts_with(b"d")).count();
    assert_eq!((made, told().await.len()), (BOUND, BOUND + 1), "{:?}", told().await);
    // An upload whose caller is gone comes to nothing, and is on record as that.
    let open = v1::WriteOpen { path: "half".into(), ..Default::default() };
    let write = Write::new(open, futures::stream::iter([Ok("x".into())]).chain(futures::stream::pending()));
    assert!(futures::poll!(Box::pin(world.keeper.perform_in(&ann, &entered, write))).is_pending());
    until("it is on record", || async {
        told().await.last().is_some_and(|last| last == "file.write upload_failed")
    })
    .await;
    let stat = v1::StatRequest { path: "half".into(), ..Default::default() };
    assert_eq!(world.keeper.perform_in(&ann, &entered, stat).await.unwrap_err().code(), "path_not_found");
}

/// Lets a call come as far as its `polls`th step, and drops it there.
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

pub(crate) async fn names_are_unique_and_found(world: World) {
    let (ann, bob) = (user("ann"), user("bob"));
    let keeper = world.again(|config| config.share_host_tree = true).await;
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
    keeper.close(Leave::Nothing).await.unwrap();
}

pub(crate) async fn labels_filter_and_pages_follow(world: World) {
    let ann = user("ann");
    let labelled = |job: &str| CreateSandbox {
        labels: Labels::new(BTreeMap::from([("job".to_owned(), job.to_owned())])).unwrap(),
        ..plain()
    };
    let mut made = Vec::new();
    for job in ["1", "2", "1", "1"] {
        made.push(world.keeper.create(&ann, labelled(job)).await.unwrap().info.id);
    }
    let mut query = ListSandboxes {
        labels: BTreeMap::from([("job".to_owned(), "1".to_owned())]),
        ascending: true,
        limit: 2,
        ..ListSandboxes::default()
    };
    let first = world.keeper.list(&ann, query.clone()).await.unwrap();
    query.cursor = first.next_cursor.clone();
    let second = world.keeper.list(&ann, query.clone()).await.unwrap();
    let ids: Vec<_> = first.items.iter().chain(&second.items).map(|info| info.id.clone()).collect();
    assert_eq!(ids, [made[0].clone(), made[2].clone(), made[3].clone()]);
    assert!(first.next_cursor.is_some() && second.next_cursor.is_none());
    query.cursor = Some("nonsense".to_owned());
    assert!(matches!(
        world.keeper.list(&ann, query).await.unwrap_err(),
        KeeperError::Field { field: "cursor", .. }
    ));
}

pub(crate) async fn the_pool_gives_what_was_asked_for(world: World) {
    let ann = user("ann");
    let keeper = world.again(|config| config.pool = 2).await;
    until("the pool is full", || async { keeper.prometheus().contains("belljar_pool_ready 2") }).await;
    let spec = SpecFile::from_json(r#"{"env":{"WHO":"ann"},"limits":{"memory":"64m","pids":"20"}}"#).unwrap();
    let file = belljar_keeper::NewFile { path: "in.txt".into(), mode: 0o600, content: "there".into() };
    let request = CreateSandbox { spec, files: vec![file], ..plain() };
    let info = keeper.create(&ann, request).await.unwrap().info;
    assert!(info.pooled);
    let id = info.id.to_string();
    let result = keeper.exec(&ann, &id, shell("echo $WHO; cat in.txt"), None).await.unwrap();
    assert_eq!(text(&result), "ann\nthere");
    let hungry = shell("python3 -c 'x = bytearray(200 << 20)'");
    let result = keeper.exec(&ann, &id, hungry, None).await.unwrap();
    assert_eq!(result.outcome, Outcome::OutOfMemory, "{result:?}");
    // What cannot be changed is made to measure.
    let odd = SpecFile::from_json(r#"{"limits":{"disk":"8m"}}"#).unwrap();
    assert!(!keeper.create(&ann, CreateSandbox { spec: odd, ..plain() }).await.unwrap().info.pooled);
    until("it is full again", || async { keeper.prometheus().contains("belljar_pool_ready 2") }).await;
    assert!(keeper.prometheus().contains("belljar_pool_hits_total 1"), "{}", keeper.prometheus());
    keeper.close(Leave::Nothing).await.unwrap();
}

pub(crate) async fn templates_in_use_have_pools(world: World) {
    let ann = user("ann");
    let keeper = world
        .again(|config| {
            config.pool = 1;
            config.template_pool = 2;
        })
        .await;
    let ready = async |count: usize| {
        let figure = format!("belljar_pool_ready {count}\n");
        until("the pools have what they should", || async { keeper.prometheus().contains(&figure) }).await;
    };
    let id = keeper.create(&ann, plain()).await.unwrap().info.id.to_string();
    keeper.exec(&ann, &id, shell("echo kept > f"), None).await.unwrap();
    let named = SnapshotRequest { name: Some("mine".parse().unwrap()), note: None };
    let template = keeper.snapshot(&ann, &id, named).await.unwrap();
    ready(1).await;
    let of_mine = || CreateSandbox { template: Some("mine".to_owned()), ..plain() };
    // The first use makes one to measure, and from then on there are some.
    assert!(!keeper.create(&ann, of_mine()).await.unwrap().info.pooled);
    ready(3).await;
    let made = keeper.create(&ann, of_mine()).await.unwrap().info;
    assert!(made.pooled && made.template == "mine");
    let seen = keeper.exec(&ann, made.id.as_str(), shell("cat f"), None).await.unwrap();
    assert_eq!(text(&seen), "kept\n");
    // What has its files is nothing for who wants none.
    ready(3).await;
    let empty = keeper.create(&ann, plain()).await.unwrap().info;
    assert!(empty.pooled);
    let seen = keeper.exec(&ann, empty.id.as_str(), shell("ls -A"), None).await.unwrap();
    assert_eq!(text(&seen), "");
    ready(3).await;
    keeper.remove_template(&ann, &template.id).await.unwrap();
    ready(1).await;
    keeper.close(Leave::Nothing).await.unwrap();
}

pub(crate) async fn a_new_keeper_ends_what_is_not_there(world: World) {
    let ann = user("ann");
    let id = world.create(&ann).await.id.to_string();
    // The local engine's sandboxes end with their process: for a second keeper there is nothing behind the record.
    let second = world.again(|_| {}).await;
    let gone = second.get(&ann, &id).await.unwrap_err();
    assert!(gone.to_string().contains("while no server was running"), "{gone}");
    second.close(Leave::Running).await.unwrap();
    // The first one finds that the record is not its own any more.
    assert!(world.keeper.pause(&ann, &id).await.is_err());
}

pub(crate) async fn limits_change_while_it_runs(world: World) {
    let ann = user("ann");
    let id = world.create(&ann).await.id.to_string();
    let set =
        |memory: &str| SandboxUpdate { memory: Some(memory.parse().unwrap()), ..SandboxUpdate::default() };
    let eat = || shell("python3 -c 'x = bytearray(300 << 20)'");
    assert_eq!(world.keeper.exec(&ann, &id, eat(), None).await.unwrap().exit_code, Some(0));
    let info = world.keeper.update(&ann, &id, set("100m")).await.unwrap();
    assert_eq!(info.spec.limits.memory.bytes(), 100 << 20);
    assert_eq!(world.keeper.exec(&ann, &id, eat(), None).await.unwrap().outcome, Outcome::OutOfMemory);
    assert_eq!(world.keeper.me(&ann).unwrap().usage.memory_bytes, 100 << 20);
}

pub(crate) async fn commands_end_with_their_caller(world: World) {
    let ann = user("ann");
    let id = world.create(&ann).await.id.to_string();
    let (sender, mut events) = tokio::sync::mpsc::channel(16);
    let running = world.keeper.exec(&ann, &id, shell("echo up; sleep 1000"), Some(sender));
    let seen = async {
        while let Some(event) = events.recv().await {
            if matches!(event, ExecEvent::Output { .. }) {
                return;
            }
        }
    };
    tokio::select! {
        _ = running => panic!("it does not end by itself"),
        () = seen => {}
        () = tokio::time::sleep(DEADLINE) => panic!("it did not start"),
    }
    until("it has ended", || async { world.running(&ann, &id).await == 0 }).await;
}

pub(crate) async fn a_session_remembers(world: World) {
    let ann = user("ann");
    let id = world.create(&ann).await.id.to_string();
    let session = world.keeper.perform(&ann, &id, v1::SessionOpen::default()).await.unwrap().id;
    let run = async |line: &str| {
        let request = ExecRequest { session: Some(session), ..shell(line) };
        world.keeper.exec(&ann, &id, request, None).await
    };
    assert_eq!(run("x=1; cd /tmp; false").await.unwrap().exit_code, Some(1));
    let result = run("echo $x $PWD").await.unwrap();
    assert_eq!((text(&result), result.session_kept), ("1 /tmp\n", Some(true)));
    assert_eq!(run("exit 7").await.unwrap().session_kept, Some(false));
    assert_eq!(run("true").await.unwrap_err().code(), "path_not_found");
    let odd = ExecRequest { session: Some(session), cwd: Some("/".into()), ..shell("true") };
    let refused = world.keeper.exec(&ann, &id, odd, None).await.unwrap_err();
    assert!(matches!(refused, KeeperError::Field { field: "cwd", .. }), "{refused}");
}

pub(crate) async fn big_input_and_output_come_through(world: World) {
    let ann = user("ann");
    let id = world.create(&ann).await.id.to_string();
    let input = vec![b'x'; 500_000];
    let request = ExecRequest {
        stdin: input.into(),
        keep_bytes: Some(1000),
        ..shell("tee copy | cat; wc -c < copy >&2")
    };
    let result = world.keeper.exec(&ann, &id, request, None).await.unwrap();
    assert_eq!(result.stdout.total_bytes(), 500_000);
    assert!(kept(&result.stdout).truncated && text(&result).len() == 1000);
    assert_eq!(kept(&result.stderr).text.as_deref().map(str::trim), Some("500000"));
    let late = ExecRequest { timeout: Some(Duration::from_millis(200)), ..shell("sleep 10") };
    let result = world.keeper.exec(&ann, &id, late, None).await.unwrap();
    assert_eq!(result.outcome, Outcome::TimedOut);
    assert!(result.hint.as_deref().is_some_and(|hint| hint.contains("after 200 ms")), "{result:?}");
}

async fn created(world: &World, lifetime: Lifetime) -> String {
    let request = CreateSandbox { lifetime, ..plain() };
    world.keeper.create(&user("ann"), request).await.unwrap().info.id.to_string()
}

fn listed(states: &[SandboxState]) -> ListSandboxes {
    ListSandboxes { states: states.to_vec(), limit: 100, ..ListSandboxes::default() }
}
