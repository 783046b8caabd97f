use belljar_store::{StoreError, ToolRow};

use crate::fixture::Fixture;
use crate::samples::time;

pub(crate) fn tool(name: &str, version: i64) -> ToolRow {
    ToolRow {
        tenant: "acme".to_owned(),
        name: name.to_owned(),
        version,
        definition: format!("{{\"v\":{version}}}"),
        digest: format!("digest-{version}"),
        key_id: "key-1".to_owned(),
        created_at: time(version),
    }
}

pub(crate) async fn tools_have_versions(fixture: Fixture) {
    let store = fixture.store().await;
    let tools = store.tools();
    assert_eq!(tools.next_version("acme", "b").await.unwrap(), 1);
    for row in [tool("b", 1), tool("b", 2), tool("a", 1)] {
        tools.insert(&row).await.unwrap();
    }
    assert!(matches!(tools.insert(&tool("b", 2)).await, Err(StoreError::NameTaken { .. })));
    assert_eq!(tools.versions("acme", "b").await.unwrap(), [tool("b", 2), tool("b", 1)]);
    // A list has the newest versions.
    assert_eq!(tools.list("acme").await.unwrap(), [tool("a", 1), tool("b", 2)]);
    assert!(tools.list("other").await.unwrap().is_empty());
    assert!(tools.versions("other", "b").await.unwrap().is_empty());
    // Removed ones are not there, but their numbers are.
    assert_eq!(tools.remove("other", "b", None, time(9)).await.unwrap(), 0);
    assert_eq!(tools.remove("acme", "b", Some(2), time(9)).await.unwrap(), 1);
    assert_eq!(tools.remove("acme", "b", Some(2), time(9)).await.unwrap(), 0);
    assert_eq!(tools.list("acme").await.unwrap(), [tool("a", 1), tool("b", 1)]);
    assert_eq!(tools.next_version("acme", "b").await.unwrap(), 3);
    tools.insert(&tool("b", 3)).await.unwrap();
    assert_eq!(tools.remove("acme", "b", None, time(9)).await.unwrap(), 2);
    assert_eq!(tools.list("acme").await.unwrap(), [tool("a", 1)]);
    assert!(tools.versions("acme", "b").await.unwrap().is_empty());
}
