use belljar_model::SandboxState::{Creating, Gone, Paused, Running, Stopping};
use belljar_store::{Cursor, ListQuery, Order, SandboxRow, StoreError};

use crate::fixture::Fixture;
use crate::samples::{id, labels, sandbox, time};

pub(crate) async fn row_round_trip(fixture: Fixture) {
    let store = fixture.store().await;
    let full = SandboxRow {
        name: Some("Büro ☃".to_owned()),
        reason: Some("it was \"asked\" for".to_owned()),
        labels: labels([("job", "42"), ("", ""), ("a.b/c", "ü\n\u{1b}[31m")]),
        started_at: Some(time(2)),
        deadline_at: Some(time(3)),
        paused_at: Some(time(4)),
        ended_at: Some(time(5)),
        generation: 7,
        state: Gone,
        ..sandbox(1)
    };
    let plain = sandbox(2);
    for row in [&full, &plain] {
        store.sandboxes().insert(row).await.unwrap();
        assert_eq!(store.sandboxes().get(&row.id).await.unwrap().as_ref(), Some(row));
    }
    assert_eq!(store.sandboxes().get(&id(3)).await.unwrap(), None);
    let error = store.sandboxes().insert(&plain).await.unwrap_err();
    assert!(matches!(error, StoreError::Exists { what: "sandbox", .. }), "{error:?}");
}

pub(crate) async fn update_of_stale_generation_conflicts(fixture: Fixture) {
    let store = fixture.store().await;
    let mut mine = sandbox(1);
    store.sandboxes().insert(&mine).await.unwrap();
    let mut theirs = mine.clone();
    mine.state = Running;
    mine.started_at = Some(time(9));
    mine.labels = labels([("a", "b")]);
    store.sandboxes().update(&mut mine).await.unwrap();
    assert_eq!(mine.generation, 2);
    assert_eq!(store.sandboxes().get(&mine.id).await.unwrap(), Some(mine.clone()));

    theirs.state = Stopping;
    let error = store.sandboxes().update(&mut theirs).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { generation: 1, .. }), "{error:?}");
    assert_eq!(store.sandboxes().get(&mine.id).await.unwrap(), Some(mine));
    let error = store.sandboxes().update(&mut sandbox(5)).await.unwrap_err();
    assert!(matches!(error, StoreError::NotFound { .. }), "{error:?}");
}

pub(crate) async fn name_is_reusable_once_sandbox_is_gone(fixture: Fixture) {
    let store = fixture.store().await;
    let named = |number| SandboxRow { name: Some("web".to_owned()), ..sandbox(number) };
    let mut first = named(1);
    store.sandboxes().insert(&first).await.unwrap();
    let assert_taken = |error: StoreError| match error {
        StoreError::NameTaken { what: "sandbox", name } => assert_eq!(name, "web"),
        other => panic!("{other:?}"),
    };
    assert_taken(store.sandboxes().insert(&named(2)).await.unwrap_err());
    store.sandboxes().insert(&SandboxRow { tenant: "other".to_owned(), ..named(3) }).await.unwrap();
    // Also by an update.
    let mut renamed = sandbox(4);
    store.sandboxes().insert(&renamed).await.unwrap();
    renamed.name = Some("web".to_owned());
    assert_taken(store.sandboxes().update(&mut renamed).await.unwrap_err());
    assert_eq!(renamed.generation, 1);

    first.state = Gone;
    store.sandboxes().update(&mut first).await.unwrap();
    store.sandboxes().insert(&named(2)).await.unwrap();
}

pub(crate) async fn list_filters(fixture: Fixture) {
    let store = fixture.store().await;
    let rows = [
        SandboxRow { labels: labels([("job", "1"), ("who", "a")]), ..sandbox(1) },
        SandboxRow { labels: labels([("job", "1"), ("who", "b")]), state: Running, ..sandbox(2) },
        SandboxRow {
            labels: labels([("job", "2")]),
            state: Paused,
            name: Some("n".to_owned()),
            ..sandbox(3)
        },
        SandboxRow { tenant: "other".to_owned(), state: Running, ..sandbox(4) },
    ];
    for row in &rows {
        store.sandboxes().insert(row).await.unwrap();
    }
    let everything = ListQuery { order: Order::OldestFirst, ..ListQuery::default() };
    let acme = ListQuery { tenant: Some("acme".to_owned()), ..everything.clone() };
    let cases: &[(&str, ListQuery, &[u32])] = &[
        ("everything", everything.clone(), &[1, 2, 3, 4]),
        ("a tenant", acme.clone(), &[1, 2, 3]),
        ("newest first", ListQuery { order: Order::NewestFirst, ..acme.clone() }, &[3, 2, 1]),
        ("one state", ListQuery { states: vec![Running], ..everything.clone() }, &[2, 4]),
        ("two states", ListQuery { states: vec![Creating, Paused], ..acme.clone() }, &[1, 3]),
        ("a label", ListQuery { labels: labels([("job", "1")]), ..acme.clone() }, &[1, 2]),
        ("two labels", ListQuery { labels: labels([("job", "1"), ("who", "b")]), ..acme.clone() }, &[2]),
        ("no such label", ListQuery { labels: labels([("job", "3")]), ..acme.clone() }, &[]),
        ("a name", ListQuery { name: Some("n".to_owned()), ..acme.clone() }, &[3]),
        ("a limit", ListQuery { limit: 2, ..acme.clone() }, &[1, 2]),
        ("nothing", ListQuery { limit: 0, ..acme.clone() }, &[]),
        (
            "all at once",
            ListQuery { states: vec![Paused, Running], labels: labels([("job", "1")]), limit: 1, ..acme },
            &[2],
        ),
    ];
    for (name, query, expected) in cases {
        let found = store.sandboxes().list(query).await.unwrap();
        let expected: Vec<_> = expected.iter().map(|number| id(*number)).collect();
        assert_eq!(found.into_iter().map(|row| row.id).collect::<Vec<_>>(), expected, "{name}");
    }
}

pub(crate) async fn pages_list_each_sandbox_once(fixture: Fixture) {
    let store = fixture.store().await;
    // Several were created at the same time.
    for number in 0..25 {
        store
            .sandboxes()
            .insert(&SandboxRow { created_at: time(i64::from(number / 4)), ..sandbox(number) })
            .await
            .unwrap();
    }
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let query =
                ListQuery { after, limit: 7, order, tenant: Some("acme".to_owned()), ..ListQuery::default() };
            let page = store.sandboxes().list(&query).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(Cursor { created_at: last.created_at, id: last.id.clone() });
            seen.extend(page.into_iter().map(|row| row.id));
        }
        if order == Order::NewestFirst {
            seen.reverse();
        }
        assert_eq!(seen, (0..25).map(id).collect::<Vec<_>>(), "{order:?}");
    }
}

pub(crate) async fn live_sandboxes_are_listed_by_keeper(fixture: Fixture) {
    let store = fixture.store().await;
    for (number, keeper, state) in
        [(1, "a", Running), (2, "b", Running), (3, "a", Gone), (4, "a", Stopping), (5, "a", Creating)]
    {
        store
            .sandboxes()
            .insert(&SandboxRow { keeper: keeper.to_owned(), state, ..sandbox(number) })
            .await
            .unwrap();
    }
    let live = store.sandboxes().list_live("a").await.unwrap();
    assert_eq!(live.into_iter().map(|row| row.id).collect::<Vec<_>>(), [id(1), id(4), id(5)]);
}

pub(crate) async fn old_gone_sandboxes_are_deleted(fixture: Fixture) {
    let store = fixture.store().await;
    for (number, state, ended) in
        [(1, Gone, Some(10)), (2, Gone, Some(20)), (3, Stopping, Some(1)), (4, Running, None)]
    {
        store
            .sandboxes()
            .insert(&SandboxRow { state, ended_at: ended.map(time), ..sandbox(number) })
            .await
            .unwrap();
    }
    assert_eq!(store.sandboxes().count_before(time(20)).await.unwrap(), 1);
    assert_eq!(store.sandboxes().forget_before(time(20)).await.unwrap(), 1);
    assert_eq!(store.sandboxes().count_before(time(20)).await.unwrap(), 0);
    assert_eq!(store.sandboxes().forget_before(time(20)).await.unwrap(), 0);
    let left = store
        .sandboxes()
        .list(&ListQuery { order: Order::OldestFirst, ..ListQuery::default() })
        .await
        .unwrap();
    assert_eq!(left.into_iter().map(|row| row.id).collect::<Vec<_>>(), [id(2), id(3), id(4)]);
}

pub(crate) async fn hostile_strings_are_stored_verbatim(fixture: Fixture) {
    let store = fixture.store().await;
    let evil = "'; DROP TABLE sandboxes; -- $1 ? \\ %_ {\"$\": [0]} \u{202e}";
    let row = SandboxRow {
        name: Some(evil.to_owned()),
        tenant: evil.to_owned(),
        reason: Some(evil.to_owned()),
        labels: labels([(evil, evil)]),
        ..sandbox(1)
    };
    store.sandboxes().insert(&row).await.unwrap();
    let query = ListQuery {
        tenant: Some(evil.to_owned()),
        name: Some(evil.to_owned()),
        labels: labels([(evil, evil)]),
        ..ListQuery::default()
    };
    assert_eq!(store.sandboxes().list(&query).await.unwrap(), [row]);
    let query = ListQuery { labels: labels([("$.x\"", "%")]), ..ListQuery::default() };
    assert_eq!(store.sandboxes().list(&query).await.unwrap(), []);
    for row in [
        SandboxRow { tenant: "a\0b".to_owned(), ..sandbox(2) },
        SandboxRow { name: Some("\0".to_owned()), ..sandbox(2) },
        SandboxRow { labels: labels([("a", "\0")]), ..sandbox(2) },
    ] {
        let error = store.sandboxes().insert(&row).await.unwrap_err();
        assert!(matches!(error, StoreError::Nul { .. }), "{error:?}");
    }
}
