//! Files.

use axum::body::Body;
use belljar_testing::wait::until;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::client::{Answer, Client, escaped};
use crate::fixture::{Fixture, cases, sandbox, sh};

cases![
    files_are_uploaded_and_downloaded,
    ranges_and_conditions_work,
    names_of_any_bytes_work,
    broken_upload_keeps_the_old_file,
    directories_are_made_listed_moved_and_removed,
    non_files_are_refused,
    forms_carry_many_files,
    trees_are_transferred_as_archives,
    changes_are_streamed,
    signed_links_open_one_file,
    files_are_searched_and_modes_are_set,
    large_files_stream,
];

fn content(id: &str, path: &str) -> String {
    format!("/v1/sandboxes/{id}/files/content?path={path}")
}

async fn files_are_uploaded_and_downloaded(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let written = user.put(&format!("{}&mode=0750", content(&id, "a/b/c.txt")), "hello\n").await;
    assert_eq!(written.status, 200, "{written:?}");
    let entry = written.json();
    assert_eq!(
        (&entry["path"], &entry["bytes"], &entry["mode"], &entry["kind"]),
        (&json!("a/b/c.txt"), &json!(6), &json!("0750"), &json!("file"))
    );
    let read = user.get(&content(&id, "a/b/c.txt")).await;
    assert_eq!((read.status.as_u16(), read.text()), (200, "hello\n"));
    assert_eq!(read.header("content-length"), "6");
    assert_eq!(read.header("content-disposition"), "attachment; filename=\"c.txt\"");
    assert_eq!(read.header("content-type"), "application/octet-stream");
    assert_eq!(read.header("x-content-type-options"), "nosniff");
    assert!(read.header("etag").starts_with('"') && read.header("last-modified").ends_with("GMT"));
    let head = user.call("HEAD", &content(&id, "a/b/c.txt")).await;
    assert_eq!((head.status.as_u16(), head.header("content-length"), head.body.len()), (200, "6", 0));
    assert_eq!(head.header("etag"), read.header("etag"));

    user.put(&format!("{}&append=true", content(&id, "a/b/c.txt")), "more\n").await;
    assert_eq!(user.get(&content(&id, "a/b/c.txt")).await.text(), "hello\nmore\n");
    let exclusive = user.put(&format!("{}&exclusive=true", content(&id, "a/b/c.txt")), "x").await;
    exclusive.refused(409, "path_exists", None);
    let orphan = user.put(&format!("{}&make_parents=false", content(&id, "no/such/dir")), "x").await;
    orphan.refused(404, "path_not_found", None);
    let placed = user.request("PUT", &content(&id, "a/b/c.txt")).header("content-range", "bytes 1-3/*");
    let placed = user.send_request(placed.body("EY ".into()).unwrap()).await;
    assert_eq!(placed.status, 200, "{placed:?}");
    assert_eq!(user.get(&content(&id, "a/b/c.txt")).await.text(), "hEY o\nmore\n");
    let wrong = user.request("PUT", &content(&id, "a/b/c.txt")).header("content-range", "bytes 1-3/*");
    user.send_request(wrong.body("too long".into()).unwrap()).await.refused(
        400,
        "invalid_field",
        Some("Content-Range"),
    );
    // The kernel reports files of /proc as empty.
    let status = user.get(&content(&id, "/proc/self/status")).await;
    assert!(status.text().starts_with("Name:"), "{status:?}");
    assert_eq!(user.put(&content(&id, "empty"), "").await.json()["bytes"], 0);
    let empty = user.get(&content(&id, "empty")).await;
    assert_eq!((empty.status.as_u16(), empty.body.len()), (200, 0));
}

async fn ranges_and_conditions_work(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    user.put(&content(&id, "f"), "0123456789").await;
    let with = |headers: Vec<(&'static str, String)>| {
        let (user, path) = (user.clone(), content(&id, "f"));
        async move {
            let mut request = user.request("GET", &path);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            user.send_request(request.body(Body::empty()).unwrap()).await
        }
    };
    let range = |text: &str| with(vec![("range", text.to_owned())]);
    for (asked, status, body, said) in [
        ("bytes=2-4", 206, "234", "bytes 2-4/10"),
        ("bytes=-3", 206, "789", "bytes 7-9/10"),
        ("bytes=8-", 206, "89", "bytes 8-9/10"),
        ("bytes=0-0", 206, "0", "bytes 0-0/10"),
        ("bytes=5-2", 200, "0123456789", ""),
        ("bytes=0-1,3-4", 200, "0123456789", ""),
        ("rows=0-1", 200, "0123456789", ""),
    ] {
        let answer = range(asked).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text(), answer.header("content-range")),
            (status, body, said),
            "{asked}"
        );
        assert_eq!(answer.header("content-length"), body.len().to_string());
    }
    let beyond = range("bytes=10-").await;
    beyond.refused(416, "range_not_satisfiable", Some("Range"));
    assert_eq!(beyond.header("content-range"), "bytes */10");

    let tag = user.get(&content(&id, "f")).await.header("etag").to_owned();
    let date = user.get(&content(&id, "f")).await.header("last-modified").to_owned();
    for (name, value, status) in [
        ("if-none-match", tag.clone(), 304),
        ("if-none-match", format!("\"x\", W/{tag}"), 304),
        ("if-none-match", "\"x\"".to_owned(), 200),
        ("if-modified-since", date.clone(), 304),
        ("if-modified-since", "Thu, 01 Jan 1970 00:00:00 GMT".to_owned(), 200),
        ("if-modified-since", "nonsense".to_owned(), 200),
    ] {
        let answer = with(vec![(name, value.clone())]).await;
        assert_eq!(answer.status, status, "{name}: {value}");
        assert_eq!(answer.header("etag"), tag);
    }
    for (same, status) in [(tag, 206), (date, 206), ("\"x\"".to_owned(), 200)] {
        let answer = with(vec![("range", "bytes=0-1".to_owned()), ("if-range", same.clone())]).await;
        assert_eq!(answer.status, status, "{same}");
    }
}

async fn names_of_any_bytes_work(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    for name in ["with space", "ü.txt", "a\"b\\c", "%41", "a&b=c#d?e", "line\nfeed", "…", "-rf"] {
        let path = content(&id, &escaped(name.as_bytes()));
        let written = user.put(&path, name.to_owned()).await;
        assert_eq!((written.status.as_u16(), &written.json()["path"]), (200, &json!(name)), "{written:?}");
        let read = user.get(&path).await;
        assert_eq!(
            (read.text(), read.header("content-disposition").starts_with("attachment; filename=")),
            (name, true)
        );
    }
    // Not UTF-8: the byte ff, in base64.
    let odd = format!("/v1/sandboxes/{id}/files/content?path_base64=%2Fw%3D%3D");
    let written = user.put(&odd, "odd").await.json();
    assert_eq!((&written["path"], &written["path_base64"]), (&json!("\u{fffd}"), &json!("/w==")));
    assert_eq!(user.get(&odd).await.text(), "odd");
    let listed = user.get(&format!("/v1/sandboxes/{id}/files")).await.json();
    assert!(
        listed["entries"].as_array().unwrap().iter().any(|entry| entry["path_base64"] == "/w=="),
        "{listed}"
    );
    user.get(&content(&id, "%ff")).await.refused(400, "invalid_field", Some("path"));
    user.get(&content(&id, "%00")).await.refused(400, "invalid_field", Some("path"));
    user.get(&content(&id, &"x".repeat(4097))).await.refused(400, "invalid_field", Some("path"));
    user.get(&format!("{odd}&path=x")).await.refused(400, "invalid_field", Some("path_base64"));
    user.get(&format!("/v1/sandboxes/{id}/files/content")).await.refused(400, "invalid_field", Some("path"));
}

async fn broken_upload_keeps_the_old_file(fixture: Fixture) {
    use tokio::io::AsyncWriteExt as _;
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    user.put(&content(&id, "f"), "old").await;
    let mut stream = tokio::net::TcpStream::connect(fixture.address).await.unwrap();
    let head = format!(
        "PUT {} HTTP/1.1\r\nhost: {}\r\nx-api-key: {}\r\ncontent-length: 1000000\r\n\r\n{}",
        content(&id, "f"),
        fixture.address,
        user.key.as_ref().unwrap(),
        "x".repeat(100_000),
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    until("the upload has begun", || async {
        sh(&user, &id, "ls -A | wc -l").await["stdout"]["data"] != "1\n"
    })
    .await;
    drop(stream);
    until("nothing of it is left", || async {
        sh(&user, &id, "ls -A | wc -l").await["stdout"]["data"] == "1\n"
    })
    .await;
    assert_eq!(user.get(&content(&id, "f")).await.text(), "old");
}

async fn directories_are_made_listed_moved_and_removed(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let files = format!("/v1/sandboxes/{id}/files");
    let made = user.post(&format!("{files}/mkdir"), &json!({"path": "d/e/f"})).await;
    assert_eq!((made.status.as_u16(), &made.json()["kind"]), (201, &json!("directory")), "{made:?}");
    user.post(&format!("{files}/mkdir"), &json!({"path": "x/y", "parents": false})).await.refused(
        404,
        "path_not_found",
        None,
    );
    sh(&user, &id, "ln -s d link; echo 1 > d/one; echo 2 > d/e/two").await;
    let link = user.get(&format!("{files}/stat?path=link&follow=false")).await.json();
    assert_eq!((&link["kind"], &link["symlink_target"]), (&json!("symlink"), &json!("d")));
    assert_eq!(user.get(&format!("{files}/stat?path=link")).await.json()["kind"], "directory");
    let names = |answer: &Value| -> Vec<String> {
        answer["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["path"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&user.get(&files).await.json()), ["d", "link"]);
    let deep = user.get(&format!("{files}?path=d&depth=3")).await.json();
    assert_eq!(names(&deep), ["e", "e/f", "e/two", "one"]);
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = user.get(&format!("{files}?path=d&depth=3&limit=1{cursor}")).await.json();
        found.extend(names(&page));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found, names(&deep));
    let moved = user.post(&format!("{files}/move"), &json!({"from": "d/one", "to": "two"})).await;
    assert_eq!((moved.status.as_u16(), &moved.json()["path"]), (200, &json!("two")), "{moved:?}");
    sh(&user, &id, "echo 3 > three").await;
    user.post(&format!("{files}/move"), &json!({"from": "three", "to": "two"})).await.refused(
        409,
        "path_exists",
        None,
    );
    let over =
        user.post(&format!("{files}/move"), &json!({"from": "three", "to": "two", "overwrite": true})).await;
    assert_eq!(over.status, 200);
    user.delete(&format!("{files}?path=d")).await.refused(409, "failed_precondition", None);
    assert_eq!(user.delete(&format!("{files}?path=d&recursive=true")).await.status, 204);
    user.get(&format!("{files}/stat?path=d")).await.refused(404, "path_not_found", None);
    user.delete(&files).await.refused(400, "invalid_field", Some("path"));
}

async fn non_files_are_refused(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    sh(&user, &id, "mkfifo fifo; mkdir dir; ln -s /etc/shadow secret").await;
    for path in ["fifo", "dir", "/dev/null", "/"] {
        let begin = std::time::Instant::now();
        user.get(&content(&id, path)).await.refused(409, "not_regular", Some("path"));
        assert!(begin.elapsed().as_secs() < 2, "{path}");
    }
    let refused = user.put(&content(&id, "dir"), "x").await;
    assert!(matches!(refused.status.as_u16(), 400 | 409), "{refused:?}");
    let secret = user.get(&content(&id, "secret")).await;
    assert!(matches!(secret.status.as_u16(), 403 | 404), "{secret:?}");
    let read_only = user.put(&content(&id, "/etc/passwd"), "x").await;
    assert!(matches!(read_only.status.as_u16(), 403 | 409), "{read_only:?}");
    let full =
        user.post(&format!("/v1/sandboxes/{id}/files/move"), &json!({"from": "dir", "to": "dir/x"})).await;
    assert_eq!(full.status, 409, "{full:?}");
}

async fn form(user: &Client, id: &str, query: &str, body: impl Into<Body>) -> Answer {
    let request = user.request("POST", &format!("/v1/sandboxes/{id}/files/upload{query}"));
    user.send_request(
        request.header("content-type", "multipart/form-data; boundary=B").body(body.into()).unwrap(),
    )
    .await
}

fn part(name: &str, filename: &str, content: &str) -> String {
    format!(
        "--B\r\ncontent-disposition: form-data; name=\"{name}\"; filename=\"{filename}\"\r\n\r\n{content}\r\n"
    )
}

async fn forms_carry_many_files(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let body =
        [part("file", "a.txt", "one"), part("file", "sub/b.txt", "two"), "--B--\r\n".to_owned()].concat();
    let done = form(&user, &id, "?path=up", body).await;
    assert_eq!(done.status, 200, "{done:?}");
    assert_eq!(done.json()["files"][1]["path"], "up/sub/b.txt");
    assert_eq!(sh(&user, &id, "cat up/a.txt up/sub/b.txt").await["stdout"]["data"], "onetwo");

    let end = "--B--\r\n";
    form(&user, &id, "", part("file", "../x", "y") + end).await.refused(
        400,
        "invalid_field",
        Some("filename"),
    );
    form(&user, &id, "", part("file", "/etc/x", "y") + end).await.refused(
        400,
        "invalid_field",
        Some("filename"),
    );
    form(&user, &id, "", part("other", "x", "y") + end).await.refused(400, "invalid_field", Some("other"));
    form(&user, &id, "", part("file", "cut", "y")).await.refused(400, "upload_failed", None);
    for whose in [&*id, "nobody-s"] {
        form(&user, whose, "", end).await.refused(400, "invalid_field", Some("file"));
    }
    form(&user, &id, "", "nonsense").await.refused(400, "invalid_request", None);
    let plain = user.request("POST", &format!("/v1/sandboxes/{id}/files/upload")).body("x".into()).unwrap();
    user.send_request(plain).await.refused(415, "unsupported_media_type", Some("Content-Type"));
    let many: String = (0..1001).map(|number| part("file", &format!("many/{number}"), "")).collect();
    form(&user, &id, "", many + end).await.refused(400, "invalid_field", Some("file"));
    assert_eq!(sh(&user, &id, "ls; ls many | wc -l").await["stdout"]["data"], "many\nup\n1000\n");
}

async fn trees_are_transferred_as_archives(fixture: Fixture) {
    let user = fixture.user().await;
    let (from, to) = (sandbox(&user).await, sandbox(&user).await);
    sh(&user, &from, "mkdir -p t/sub; echo one > t/a; echo two > t/sub/b; chmod 750 t/sub/b; ln -s a t/link")
        .await;
    for format in ["tar", "tar.gz"] {
        let packed = user.get(&format!("/v1/sandboxes/{from}/files/archive?path=t&format={format}")).await;
        assert_eq!(packed.status, 200, "{packed:?}");
        assert_eq!(packed.header("content-disposition"), format!("attachment; filename=\"t.{format}\""));
        let put = format!("/v1/sandboxes/{to}/files/archive?path={format}-out");
        let unpacked = user.put(&put, packed.body.clone()).await;
        assert_eq!(unpacked.status, 200, "{unpacked:?}");
        assert!(
            unpacked.json()["entries"].as_u64().unwrap() >= 4 && unpacked.json()["bytes"] == 8,
            "{unpacked:?}"
        );
        let look = format!("cd {format}-out && cat a sub/b link && stat -c %a sub/b");
        assert_eq!(sh(&user, &to, &look).await["stdout"]["data"], "one\ntwo\none\n750\n");
    }
    user.get(&format!("/v1/sandboxes/{from}/files/archive?path=none")).await.refused(
        404,
        "path_not_found",
        None,
    );
    user.get(&format!("/v1/sandboxes/{from}/files/archive?format=rar")).await.refused(
        400,
        "invalid_field",
        Some("format"),
    );
    user.put(&format!("/v1/sandboxes/{to}/files/archive?path=bad"), "no archive").await.refused(
        400,
        "invalid_argument",
        None,
    );
    assert_eq!(sh(&user, &to, "ls").await["stdout"]["data"], "tar-out\ntar.gz-out\n");
}

async fn changes_are_streamed(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let request =
        user.request("GET", &format!("/v1/sandboxes/{id}/files/watch?path=.")).body(Body::empty()).unwrap();
    let mut events = user.events(request).await;
    assert_eq!(events.next().await.unwrap().0, "ready");
    sh(&user, &id, "mkdir new; mv new old; rmdir old").await;
    let mut names = Vec::new();
    while names.last().map(String::as_str) != Some("removed") {
        let (name, data) = events.next().await.unwrap();
        assert!(data["path"] == "new" || data["path"] == "old", "{data}");
        names.push(name);
    }
    assert_eq!(names, ["created", "moved_from", "moved_to", "removed"]);
    let refused = user.get(&format!("/v1/sandboxes/{id}/files/watch?path=none")).await;
    refused.refused(404, "path_not_found", None);
}

async fn signed_links_open_one_file(fixture: Fixture) {
    let user = fixture.user().await;
    let stranger = fixture.stranger();
    let id = sandbox(&user).await;
    let sign = |operation: &'static str| {
        let body = json!({"path": "s.txt", "operation": operation, "expires": 60});
        let (user, path) = (user.clone(), format!("/v1/sandboxes/{id}/files/sign"));
        async move {
            let made = user.post(&path, &body).await;
            assert_eq!(made.status, 201, "{made:?}");
            let url = made.json()["url"].as_str().unwrap().to_owned();
            let (_, path) = url.split_once(&user.address.to_string()).unwrap();
            path.to_owned()
        }
    };
    let (write, read, archive) = (sign("write").await, sign("read").await, sign("archive").await);
    let written = stranger.put(&write, "signed").await;
    assert_eq!(written.status, 200, "{written:?}");
    let found = stranger.get(&read).await;
    assert_eq!((found.status.as_u16(), found.text()), (200, "signed"));
    assert_eq!(stranger.call("HEAD", &read).await.header("content-length"), "6");
    let part = stranger
        .send_request(
            stranger.request("GET", &read).header("range", "bytes=0-1").body(Body::empty()).unwrap(),
        )
        .await;
    assert_eq!((part.status.as_u16(), part.text()), (206, "si"));
    stranger.put(&read, "x").await.refused(401, "unauthenticated", None);
    stranger.put(&archive, "x").await.refused(401, "unauthenticated", None);
    sh(&user, &id, "rm s.txt; mkdir s.txt; echo packed > s.txt/a").await;
    let packed = stranger.get(&archive).await;
    assert_eq!(
        (packed.status.as_u16(), packed.header("content-disposition"), packed.header("content-type")),
        (200, "attachment; filename=\"s.txt.tar.gz\"", "application/gzip")
    );
    assert_eq!(packed.body[..2], [0x1f, 0x8b]);
    stranger.get(&write).await.refused(401, "unauthenticated", None);
    let mut forged = read.clone();
    forged.pop();
    stranger.get(&forged).await.refused(401, "unauthenticated", None);
    stranger.get("/v1/signed/nonsense").await.refused(401, "unauthenticated", None);
    user.delete(&format!("/v1/sandboxes/{id}")).await;
    stranger.get(&read).await.refused(410, "sandbox_gone", None);
}

async fn large_files_stream(fixture: Fixture) {
    let user = fixture.user().await;
    let made = user.post("/v1/sandboxes", &json!({"limits": {"disk": "200m"}})).await.json();
    let id = made["id"].as_str().unwrap().to_owned();
    let piece = Bytes::from(vec![b'z'; 1 << 20]);
    let pieces = futures::stream::iter((0..64).map(move |_| Ok::<_, std::io::Error>(piece.clone())));
    let written = user.put(&content(&id, "big"), Body::from_stream(pieces)).await;
    assert_eq!(written.json()["bytes"], 64 << 20, "{written:?}");
    let read = user.get(&content(&id, "big")).await;
    assert_eq!((read.body.len(), read.header("content-length")), (64 << 20, "67108864"));
    let piece = Bytes::from(vec![b'z'; 1 << 20]);
    let pieces = futures::stream::iter((0..300).map(move |_| Ok::<_, std::io::Error>(piece.clone())));
    let full = user.put(&content(&id, "full"), Body::from_stream(pieces)).await;
    full.refused(409, "resource_exhausted", None);
    assert_eq!(sh(&user, &id, "ls").await["stdout"]["data"], "big\n");
}

async fn files_are_searched_and_modes_are_set(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let files = format!("/v1/sandboxes/{id}/files");
    sh(&user, &id, "mkdir -p d/e .h; echo 'one two' > d/a.py; echo 'x Two' > d/e/b.py; echo two > d/c.txt; echo two > .h/z.py").await;
    let find = |body: Value| {
        let (user, path) = (user.clone(), format!("{files}/search"));
        async move { user.post(&path, &body).await.json() }
    };
    let by_name = find(json!({"name": "*.py"})).await;
    assert_eq!(by_name, json!({"matches": [{"path": "d/a.py"}, {"path": "d/e/b.py"}], "truncated": false}));
    let by_content = find(json!({"path": "d", "name": "*.py", "content": "two"})).await;
    let expected = json!([{"path": "a.py", "line_number": 1, "line": "one two", "column": 5}]);
    assert_eq!((&by_content["matches"], &by_content["truncated"]), (&expected, &json!(false)));
    let paths = |found: &Value| found["matches"].as_array().unwrap().len();
    assert_eq!(paths(&find(json!({"content": "two", "ignore_case": true})).await), 3);
    assert_eq!(paths(&find(json!({"content": "^t.o$", "regex": true, "hidden": true})).await), 2);
    let first = find(json!({"content": "two", "limit": 1})).await;
    assert_eq!((paths(&first), &first["truncated"]), (1, &json!(true)));
    sh(&user, &id, "python3 -c \"open('long', 'w').write(('a' * 1000 + '\\\\n') * 8000)\"").await;
    let long = find(json!({"path": "long", "content": "a", "limit": 10000})).await;
    let mebibytes = (paths(&long) * 1000) >> 20;
    assert_eq!((mebibytes, &long["truncated"]), (3, &json!(true)), "{} matches", paths(&long));
    user.post(&format!("{files}/search"), &json!({"limit": 0})).await.refused(
        400,
        "invalid_field",
        Some("limit"),
    );
    user.post(&format!("{files}/search"), &json!({"content": "(", "regex": true})).await.refused(
        400,
        "invalid_argument",
        None,
    );
    user.post(&format!("{files}/search"), &json!({"path": "none"})).await.refused(
        404,
        "path_not_found",
        None,
    );

    let changed = user.post(&format!("{files}/chmod"), &json!({"path": "d/a.py", "mode": "0500"})).await;
    assert_eq!((changed.status.as_u16(), &changed.json()["mode"]), (200, &json!("0500")), "{changed:?}");
    user.post(&format!("{files}/chmod"), &json!({"path": "d/a.py", "mode": "0999"})).await.refused(
        400,
        "invalid_field",
        Some("mode"),
    );
    let made = user.post(&format!("{files}/mkdir"), &json!({"path": "m", "mode": "0700"})).await;
    assert_eq!((made.status.as_u16(), &made.json()["mode"]), (201, &json!("0700")), "{made:?}");
}
