use belljar_model::{ApprovalState, BudgetScope, Role};
use belljar_store::{ApprovalQuery, ApprovalRow, Covered, DecisionRow, KeyRow};
use jiff::Timestamp;

use crate::fixture::Fixture;
use crate::samples::{key, time};

fn approval(id: &str, at: i64) -> ApprovalRow {
    ApprovalRow {
        id: id.to_owned(),
        tenant: "acme".to_owned(),
        keeper: "local".to_owned(),
        state: ApprovalState::Pending,
        request: "{\"code\":\"print('ü')\"}".to_owned(),
        digest: "d1".to_owned(),
        tool: Some("sh@1".to_owned()),
        tool_digest: Some("t1".to_owned()),
        key_id: "key-1".to_owned(),
        requester: "bob".to_owned(),
        sandbox: Some("s1".to_owned()),
        created_at: time(at),
        expires_at: time(at + 100),
        decision: None,
        grant_id: None,
        started_at: None,
        ended_at: None,
        outcome: None,
    }
}

fn decision(max_uses: i64, at: i64) -> DecisionRow {
    DecisionRow {
        at: time(at),
        key_id: "key-2".to_owned(),
        person: "ann".to_owned(),
        note: "fine".to_owned(),
        scope: BudgetScope::Call,
        max_uses,
        uses: max_uses.min(1),
        usable_until: if max_uses > 1 { time(at + 50) } else { Timestamp::UNIX_EPOCH },
    }
}

pub(crate) async fn decisions_are_made_once(fixture: Fixture) {
    let store = fixture.store().await;
    let approvals = store.approvals();
    for id in ["a", "b", "c", "d"] {
        assert!(approvals.insert(&approval(id, 1), 9, 9).await.unwrap());
    }
    assert_eq!(approvals.get(Some("acme"), "a").await.unwrap(), Some(approval("a", 1)));
    assert_eq!(approvals.get(Some("other"), "a").await.unwrap(), None);
    // Nothing begins before the decision, which the deadline precludes, and which holds for good.
    assert!(!approvals.start("a", time(2)).await.unwrap());
    assert!(!approvals.decide("a", &decision(1, 101)).await.unwrap());
    assert!(approvals.decide("a", &decision(1, 100)).await.unwrap());
    assert!(!approvals.decide("a", &decision(0, 3)).await.unwrap());
    assert!(!approvals.close("a", ApprovalState::Expired, "late", time(3)).await.unwrap());
    assert!(!approvals.end("a", ApprovalState::Approved, "ok", time(3)).await.unwrap());
    assert!(approvals.start("a", time(3)).await.unwrap());
    assert!(!approvals.start("a", time(4)).await.unwrap());
    assert!(!approvals.close("a", ApprovalState::Cancelled, "late", time(4)).await.unwrap());
    assert_eq!(approvals.list_open("local").await.unwrap().len(), 4);
    assert!(approvals.end("a", ApprovalState::Approved, "ok", time(5)).await.unwrap());
    assert!(!approvals.end("a", ApprovalState::OutcomeUnknown, "late", time(6)).await.unwrap());
    let expected = ApprovalRow {
        state: ApprovalState::Approved,
        decision: Some(decision(1, 100)),
        started_at: Some(time(3)),
        ended_at: Some(time(5)),
        outcome: Some("ok".to_owned()),
        ..approval("a", 1)
    };
    assert_eq!(approvals.get(None, "a").await.unwrap(), Some(expected));
    assert!(approvals.decide("b", &decision(0, 2)).await.unwrap());
    assert!(!approvals.start("b", time(3)).await.unwrap());
    assert_eq!(approvals.get(None, "b").await.unwrap().unwrap().state, ApprovalState::Denied);
    assert!(approvals.close("c", ApprovalState::Expired, "late", time(200)).await.unwrap());
    assert!(!approvals.decide("c", &decision(1, 2)).await.unwrap());
    // An approved call that has not begun can be cancelled.
    assert!(approvals.decide("d", &decision(1, 2)).await.unwrap());
    assert!(approvals.close("d", ApprovalState::Cancelled, "gone", time(3)).await.unwrap());
    assert!(!approvals.start("d", time(4)).await.unwrap());
    assert!(approvals.list_open("local").await.unwrap().is_empty());
}

pub(crate) async fn budgets_are_counted(fixture: Fixture) {
    let store = fixture.store().await;
    let approvals = store.approvals();
    let covered = |digest: &'static str, tool_digest, requester: &'static str, at| Covered {
        tenant: "acme",
        requester,
        digest,
        tool_digest,
        now: time(at),
    };
    approvals.insert(&approval("a", 1), 9, 9).await.unwrap();
    approvals.decide("a", &decision(3, 2)).await.unwrap();
    for (digest, requester, at) in [("d2", "bob", 3), ("d1", "carl", 3), ("d1", "bob", 52)] {
        assert!(approvals.use_budget(covered(digest, Some("t1"), requester, at)).await.unwrap().is_none());
    }
    let uses = (0..5).map(|_| approvals.use_budget(covered("d1", None, "bob", 51)));
    let used = futures::future::join_all(uses).await;
    assert_eq!(used.into_iter().filter(|used| used.as_ref().unwrap().is_some()).count(), 2);
    // One for the tool covers other calls of it, but none without a tool.
    approvals.insert(&approval("b", 1), 9, 9).await.unwrap();
    approvals.decide("b", &DecisionRow { scope: BudgetScope::Tool, ..decision(9, 2) }).await.unwrap();
    assert!(approvals.use_budget(covered("d2", Some("t2"), "bob", 3)).await.unwrap().is_none());
    assert!(approvals.use_budget(covered("d2", None, "bob", 3)).await.unwrap().is_none());
    assert_eq!(approvals.use_budget(covered("d2", Some("t1"), "bob", 3)).await.unwrap().unwrap().id, "b");
    assert!(approvals.end_budget("b", time(4)).await.unwrap());
    assert!(!approvals.end_budget("b", time(5)).await.unwrap());
    assert!(approvals.use_budget(covered("d2", Some("t1"), "bob", 3)).await.unwrap().is_some());
    assert!(approvals.use_budget(covered("d2", Some("t1"), "bob", 5)).await.unwrap().is_none());
}

pub(crate) async fn old_ones_are_removed(fixture: Fixture) {
    let store = fixture.store().await;
    let approvals = store.approvals();
    for (at, id) in (1..).zip(["a", "b", "c", "d"]) {
        assert!(approvals.insert(&approval(id, at), 7, 2).await.unwrap());
    }
    // The fifth of a person that waits is not inserted, of seven in all; one that does not wait is.
    assert!(!approvals.insert(&approval("e", 5), 7, 2).await.unwrap());
    let granted = ApprovalRow { state: ApprovalState::Approved, ..approval("f", 6) };
    assert!(approvals.insert(&granted, 0, 2).await.unwrap());
    let ids = async |filter: ApprovalQuery| {
        let listed = approvals.list(&ApprovalQuery { limit: 9, ..filter }).await.unwrap();
        listed.into_iter().map(|row| row.id).collect::<Vec<_>>().concat()
    };
    let all = ApprovalQuery::default;
    assert_eq!(ids(all()).await, "fdcba");
    assert_eq!(ids(ApprovalQuery { state: Some(ApprovalState::Approved), ..all() }).await, "f");
    assert_eq!(ids(ApprovalQuery { before: Some((time(3), "c".to_owned())), ..all() }).await, "ba");
    assert_eq!(ids(ApprovalQuery { requester: Some("ann".to_owned()), ..all() }).await, "");
    assert_eq!(ids(ApprovalQuery { tenant: Some("other".to_owned()), ..all() }).await, "");
    for id in ["a", "b", "c"] {
        approvals.close(id, ApprovalState::Expired, "late", time(10)).await.unwrap();
    }
    approvals.decide("d", &decision(5, 10)).await.unwrap();
    approvals.start("d", time(11)).await.unwrap();
    approvals.end("d", ApprovalState::Approved, "ok", time(12)).await.unwrap();
    // Of those that are over, the newest two stay about which somebody decided, of others a quarter for each person, and those whose budget lasts.
    approvals
        .insert(&ApprovalRow { state: ApprovalState::Approved, ..approval("g", 13) }, 4, 2)
        .await
        .unwrap();
    assert_eq!(ids(all()).await, "gfdc");
    for (at, id) in (14..).zip(["h", "i", "j"]) {
        approvals.insert(&approval(id, at), 4, 2).await.unwrap();
        approvals.close(id, ApprovalState::Cancelled, "gone", time(at + 1)).await.unwrap();
    }
    assert_eq!(ids(all()).await, "jigfd");
    // Those that end without a decision push out none that ran within a budget.
    let granted = ApprovalRow {
        state: ApprovalState::Approved,
        grant_id: Some("d".to_owned()),
        started_at: Some(time(20)),
        ..approval("k", 20)
    };
    approvals.insert(&granted, 4, 2).await.unwrap();
    approvals.end("k", ApprovalState::Approved, "ok", time(21)).await.unwrap();
    for (at, id) in (22..).zip(["l", "m"]) {
        approvals.insert(&approval(id, at), 4, 2).await.unwrap();
        approvals.close(id, ApprovalState::Cancelled, "gone", time(at + 1)).await.unwrap();
    }
    assert_eq!(ids(all()).await, "mlkgfd");
    assert_eq!(approvals.forget_before(time(99)).await.unwrap(), 4);
}

pub(crate) async fn approvers_are_other_persons(fixture: Fixture) {
    let store = fixture.store().await;
    let keys = store.keys();
    let has = async |person: &str| keys.has_approver("acme", person, time(50)).await.unwrap();
    let owned = |number, role, owner: &str| KeyRow { role, owner: Some(owner.to_owned()), ..key(number) };
    keys.insert(&owned(1, Role::User, "bob")).await.unwrap();
    keys.insert(&KeyRow { tenant: "other".to_owned(), ..owned(2, Role::Approver, "carl") }).await.unwrap();
    keys.insert(&KeyRow { expires_at: Some(time(50)), ..owned(3, Role::Approver, "carl") }).await.unwrap();
    keys.insert(&KeyRow { revoked_at: Some(time(1)), ..owned(4, Role::Admin, "carl") }).await.unwrap();
    assert!(!has("bob").await);
    keys.insert(&owned(5, Role::Approver, "ann")).await.unwrap();
    assert!(has("bob").await && !has("ann").await);
    // An administrator of any tenant may decide, and a key without an owner is a person.
    keys.insert(&KeyRow { role: Role::Admin, tenant: "other".to_owned(), ..key(6) }).await.unwrap();
    assert!(has("ann").await);
    keys.revoke("key-5", time(40)).await.unwrap();
    assert!(has("ann").await && !has("key-6").await);
}
