use belljar_store::SessionRow;

use crate::fixture::Fixture;
use crate::samples::time;

fn row(number: u8, token: Option<u8>) -> SessionRow {
    SessionRow {
        hash: [number; 32],
        token: token.map(|token| [token; 32]),
        key: "key_1".to_owned(),
        created_at: time(i64::from(number)),
        expires_at: time(1000),
    }
}

pub(crate) async fn sessions_end_once(fixture: Fixture) {
    let store = fixture.store().await;
    let sessions = store.sessions();
    let (session, link) = (row(1, Some(7)), row(2, None));
    for row in [&session, &link] {
        sessions.insert(row).await.unwrap();
    }
    assert_eq!(sessions.get(&session.hash).await.unwrap(), Some(session.clone()));
    assert_eq!(sessions.get(&link.hash).await.unwrap(), Some(link.clone()));
    sessions.extend(&session.hash, time(2000)).await.unwrap();
    sessions.forget_expired(time(1000)).await.unwrap();
    assert_eq!(sessions.get(&link.hash).await.unwrap(), None);
    let extended = SessionRow { expires_at: time(2000), ..session.clone() };
    assert_eq!(sessions.get(&session.hash).await.unwrap(), Some(extended));
    assert!(sessions.remove(&session.hash).await.unwrap());
    assert!(!sessions.remove(&session.hash).await.unwrap());
}

pub(crate) async fn sessions_of_a_key_are_bounded(fixture: Fixture) {
    let store = fixture.store().await;
    let sessions = store.sessions();
    sessions.insert(&SessionRow { key: "key_2".to_owned(), ..row(200, None) }).await.unwrap();
    for number in 1..=33 {
        sessions.insert(&row(number, Some(1))).await.unwrap();
    }
    // The oldest gave way, and another key's stays.
    assert_eq!(sessions.get(&[1; 32]).await.unwrap(), None);
    assert!(sessions.get(&[2; 32]).await.unwrap().is_some());
    // Links end no session, and of sessions the one stays that was used lately.
    for number in 40..=80 {
        sessions.insert(&row(number, None)).await.unwrap();
    }
    assert!(
        sessions.get(&[40; 32]).await.unwrap().is_none() && sessions.get(&[2; 32]).await.unwrap().is_some()
    );
    sessions.extend(&[2; 32], time(10_000)).await.unwrap();
    sessions.insert(&row(34, Some(1))).await.unwrap();
    assert!(
        sessions.get(&[3; 32]).await.unwrap().is_none() && sessions.get(&[2; 32]).await.unwrap().is_some()
    );
    assert_eq!(sessions.remove_all("key_1").await.unwrap(), 64);
    assert!(sessions.get(&[200; 32]).await.unwrap().is_some());
}
