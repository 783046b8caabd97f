//! The files of the console.

use crate::fixture::{Fixture, cases};

cases![console_is_served_with_its_policies];

async fn console_is_served_with_its_policies(fixture: Fixture) {
    let stranger = fixture.stranger();
    for (path, ancestors) in
        [("/console", "'none'"), ("/console/terminal", "'self'"), ("/console/result", "'self'")]
    {
        let page = stranger.get(path).await;
        assert_eq!(
            (page.status.as_u16(), page.header("x-content-type-options")),
            (200, "nosniff"),
            "{page:?}"
        );
        let policy = page.header("content-security-policy");
        assert!(policy.contains(&format!("frame-ancestors {ancestors}")), "{policy}");
        assert_eq!(page.header("cache-control"), "no-cache");
        let known = stranger.request("GET", path).header("if-none-match", page.header("etag"));
        assert_eq!(stranger.send(known, "").await.status, 304);
    }
    let page = stranger.get("/console").await;
    let script = page.text().split('"').find(|text| text.ends_with(".js")).unwrap().to_owned();
    let plain = stranger.get(&script).await;
    assert_eq!(plain.header("cache-control"), "public, max-age=31536000, immutable");
    assert_eq!(plain.header("content-type"), "text/javascript; charset=utf-8");
    let packed =
        stranger.send(stranger.request("GET", &script).header("accept-encoding", "gzip, br"), "").await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    for path in
        ["/console/assets/none.js", "/console/assets/..%2findex.html", "/console/index.html", "/consoles"]
    {
        let answer = stranger.get(path).await;
        assert_eq!(answer.status, 404, "{path} {answer:?}");
    }
    assert!(
        stranger
            .send(stranger.request("GET", "/").header("accept", "text/html"), "")
            .await
            .text()
            .contains("/console")
    );
}
