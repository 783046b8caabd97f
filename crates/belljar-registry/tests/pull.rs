//! Pulls from a registry that this test plays, which keeps to the protocol, or does not.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_model::ImageReference;
use belljar_registry::{
    Credentials, Progress, PullLimits, RegistryClient, RegistryError, RegistryHosts, Resolved,
};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const LIMITS: PullLimits = PullLimits { max_bytes: 1 << 20, max_layers: 4 };
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// An answer, as it is sent.
#[derive(Clone)]
struct Answer {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Length that is announced, if it is not the body's.
    announced: Option<usize>,
    /// Size of the pieces of the body, and the time before each, if it is not sent at once.
    drip: Option<(usize, Duration)>,
}

fn answer(status: &'static str, body: impl Into<Vec<u8>>) -> Answer {
    Answer { status, headers: Vec::new(), body: body.into(), announced: None, drip: None }
}

impl Answer {
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A request: its path with its headers.
type Asked = (String, BTreeMap<String, String>);

/// A registry on a port of its own, and what it was asked for.
struct Registry {
    host: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Registry {
    async fn start(answers: impl Fn(&str, &Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (own, all, answers) = (host.clone(), Arc::clone(&asked), Arc::new(answers));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (own, all, answers) = (own.clone(), Arc::clone(&all), Arc::clone(&answers));
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(stream.read_u8().await.unwrap());
                    }
                    let head = String::from_utf8(head).unwrap();
                    let mut lines = head.lines();
                    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
                    let headers = lines.filter_map(|line| line.split_once(": "));
                    let headers =
                        headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
                    let one = (path, headers);
                    let Answer { status, headers, body, announced, drip } = answers(&own, &one);
                    all.lock().push(one);
                    let length = announced.unwrap_or(body.len());
                    let mut text = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n");
                    for (name, value) in headers {
                        text.push_str(&format!("{name}: {value}\r\n"));
                    }
                    let _ = stream.write_all(format!("{text}\r\n").as_bytes()).await;
                    let (piece, pause) = drip.unwrap_or((body.len().max(1), Duration::ZERO));
                    for piece in body.chunks(piece) {
                        tokio::time::sleep(pause).await;
                        let _ = stream.write_all(piece).await;
                    }
                });
            }
        });
        Self { host, asked }
    }

    fn client(&self, others: &[&str]) -> RegistryClient {
        let own = format!("http://{}", self.host);
        let registries =
            others.iter().copied().chain([own.as_str()]).map(|text| text.parse().unwrap()).collect();
        RegistryClient::new(RegistryHosts { registries, exceptions: Vec::new() }, None).unwrap()
    }

    fn reference(&self, rest: &str) -> ImageReference {
        format!("{}/{rest}", self.host).parse().unwrap()
    }

    async fn resolve(&self, rest: &str) -> Result<Resolved, RegistryError> {
        self.client(&[]).resolve(&self.reference(rest), None).await
    }

    async fn pull(&self, dir: &Path) -> Result<(), RegistryError> {
        let (client, reference) = (self.client(&[]), self.reference("a"));
        let resolved = client.resolve(&reference, None).await?;
        client.pull(&reference, &resolved, None, dir, LIMITS, &|_| {}).await
    }

    fn paths(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock()).into_iter().map(|(path, _)| path).collect()
    }
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(content)))
}

fn blob(content: &[u8]) -> String {
    format!(
        r#"{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{}","size":{}}}"#,
        digest(content),
        content.len()
    )
}

fn manifest(layers: &[&[u8]]) -> String {
    let layers: Vec<String> = layers.iter().map(|layer| blob(layer)).collect();
    format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{},"layers":[{}]}}"#,
        blob(b"{}"),
        layers.join(",")
    )
}

const LAYER: &[u8] = b"the content of a layer";

/// Answers requests for the image `a` with one layer; `blobs` may answer those for blobs otherwise.
fn image(path: &str, blobs: impl Fn(&str) -> Option<Answer>) -> Answer {
    if path.starts_with("/v2/a/manifests/") {
        return answer("200 OK", manifest(&[LAYER])).with("content-type", MANIFEST);
    }
    let Some(asked) = path.strip_prefix("/v2/a/blobs/") else { return answer("404 Not Found", "") };
    if let Some(given) = blobs(asked) {
        return given;
    }
    match [LAYER, b"{}"].into_iter().find(|content| digest(content) == asked) {
        Some(content) => answer("200 OK", content),
        None => answer("404 Not Found", ""),
    }
}

#[tokio::test]
async fn images_are_pulled_with_a_token_for_them() {
    let layers: [&[u8]; 2] = [LAYER, b"another"];
    let own = if std::env::consts::ARCH == "x86_64" { "amd64" } else { "arm64" };
    let registry = Registry::start(move |host, (path, headers)| {
        if let Some(query) = path.strip_prefix("/token?x=y&") {
            assert_eq!(query, "service=the%20service&scope=repository%3Aorg%2Fapp%3Apull");
            // "user:secret"
            assert_eq!(headers["authorization"], "Basic dXNlcjpzZWNyZXQ=");
            return answer("200 OK", r#"{"token":"t0ken","expires_in":60}"#);
        }
        if headers.get("authorization").map(String::as_str) != Some("Bearer t0ken") {
            let challenge = format!(r#"Bearer realm="http://{host}/token?x=y",service="the service",scope="registry:catalog:*""#);
            return answer("401 Unauthorized", "").with("www-authenticate", challenge);
        }
        let text = manifest(&layers);
        let index = format!(
            r#"{{"schemaVersion":2,"manifests":[
                {{"digest":"sha256:{}","size":1,"platform":{{"os":"linux","architecture":"s390x"}}}},
                {{"mediaType":"{MANIFEST}","digest":"{}","size":{},"platform":{{"os":"linux","architecture":"{own}"}}}}]}}"#,
            "0".repeat(64),
            digest(text.as_bytes()),
            text.len(),
        );
        match path.as_str() {
            "/v2/org/app/manifests/1.0" => {
                assert!(headers["accept"].contains(INDEX) && headers["accept"].contains(MANIFEST));
                answer("200 OK", index).with("content-type", INDEX)
            }
            path if path == format!("/v2/org/app/manifests/{}", digest(text.as_bytes())) => {
                answer("200 OK", text).with("content-type", format!("{MANIFEST}; charset=utf-8"))
            }
            path => {
                let blobs = [LAYER, b"another", b"{}"];
                let found = blobs.into_iter().find(|content| path == format!("/v2/org/app/blobs/{}", digest(content)));
                answer("200 OK", found.unwrap())
            }
        }
    })
    .await;
    let (client, reference) = (registry.client(&[]), registry.reference("org/app:1.0"));
    let credentials = Credentials { user: "user".to_owned(), password: "secret".to_owned() };
    let resolved = client.resolve(&reference, Some(&credentials)).await.unwrap();
    assert_eq!((resolved.digest.clone(), resolved.bytes()), (digest(manifest(&layers).as_bytes()), 31));
    let dir = tempfile::tempdir().unwrap();
    let seen = Mutex::new(Vec::new());
    let tell = |progress: Progress| seen.lock().push(progress);
    client.pull(&reference, &resolved, Some(&credentials), dir.path(), LIMITS, &tell).await.unwrap();
    let last = seen.lock().iter().map(|progress| progress.bytes).max();
    assert_eq!(last, Some(31));
    for content in layers.into_iter().chain([b"{}".as_slice(), manifest(&layers).as_bytes()]) {
        let path = dir.path().join("blobs/sha256").join(digest(content).trim_start_matches("sha256:"));
        assert_eq!(std::fs::read(path).unwrap(), content);
    }
    let index: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("index.json")).unwrap()).unwrap();
    assert_eq!(index["manifests"][0]["digest"], resolved.digest);
    assert_eq!(std::fs::read_dir(dir.path().join("blobs/sha256")).unwrap().count(), 4);
    // What is there is not fetched again.
    registry.paths();
    client.pull(&reference, &resolved, Some(&credentials), dir.path(), LIMITS, &tell).await.unwrap();
    assert_eq!(registry.paths(), Vec::<String>::new());
}

/// As under a service manager with UMask=0077.
#[tokio::test]
async fn layouts_are_readable_for_the_sandbox_that_unpacks_them() {
    use std::os::unix::fs::PermissionsExt as _;
    let registry = Registry::start(|_, (path, _)| image(path, |_| None)).await;
    let dir = tempfile::tempdir().unwrap();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    registry.pull(&dir.path().join("layout")).await.unwrap();
    let mut left = vec![dir.path().join("layout")];
    while let Some(path) = left.pop() {
        let metadata = std::fs::metadata(&path).unwrap();
        let expected = if metadata.is_dir() { 0o755 } else { 0o644 };
        assert_eq!(metadata.permissions().mode() & 0o777, expected, "{}", path.display());
        if metadata.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

#[tokio::test]
async fn broken_pulls_go_on_where_they_were() {
    let registry = Registry::start(|_, (path, headers)| {
        image(path, |asked| {
            let from = headers
                .get("range")
                .map(|range| range["bytes=".len()..].trim_end_matches('-').parse().unwrap());
            let from: usize = from.unwrap_or(0);
            let rest = &LAYER[from..];
            (asked == digest(LAYER)).then(|| {
                // Five bytes at a time, and then the connection breaks.
                let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
                Answer { announced: Some(rest.len()), ..answer(status, &rest[..rest.len().min(5)]) }
            })
        })
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    registry.pull(dir.path()).await.unwrap();
    let name = digest(LAYER).trim_start_matches("sha256:").to_owned();
    assert_eq!(std::fs::read(dir.path().join("blobs/sha256").join(&name)).unwrap(), LAYER);
    // So they do in another process, also if the registry gives all of it again.
    for (before, expected) in [(&LAYER[..7], 15), (&LAYER[..0], 22), (b"not the content of the layer", 22)] {
        let registry = Registry::start(|_, (path, headers)| {
            image(path, |asked| {
                let from = headers
                    .get("range")
                    .map_or(0, |range| range["bytes=".len()..].trim_end_matches('-').parse().unwrap());
                let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
                (asked == digest(LAYER)).then(|| answer(status, &LAYER[from..]))
            })
        })
        .await;
        let dir = tempfile::tempdir().unwrap();
        let blobs = dir.path().join("blobs/sha256");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join(format!("{name}.partial")), before).unwrap();
        registry.pull(dir.path()).await.unwrap();
        assert_eq!(std::fs::read(blobs.join(&name)).unwrap(), LAYER);
        let asked = registry.asked.lock();
        let from = asked.iter().filter_map(|(_, headers)| headers.get("range")).count();
        assert_eq!(from, usize::from(expected == 15));
    }
}

#[tokio::test(start_paused = true)]
async fn registries_that_send_a_byte_now_and_then_are_left() {
    let registry = Registry::start(|_, (path, _)| {
        image(path, |asked| {
            let drip = Some((1, Duration::from_secs(50)));
            (asked == digest(LAYER)).then(|| Answer { drip, ..answer("200 OK", LAYER) })
        })
    })
    .await;
    let (begin, dir) = (tokio::time::Instant::now(), tempfile::tempdir().unwrap());
    let error = registry.pull(dir.path()).await.unwrap_err();
    assert!(matches!(error, RegistryError::Connection { .. }), "{error}");
    // The second attempt begins anew, and brings no more than the first.
    let (took, asked) = (begin.elapsed().as_secs(), registry.paths());
    assert!((120..130).contains(&took), "{took} s");
    assert_eq!(asked.iter().filter(|path| path.ends_with(&digest(LAYER))).count(), 2, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn pulls_have_a_time_for_the_whole() {
    const PIECE: usize = 512 << 10;
    let layer = vec![b'x'; 16 * PIECE];
    // Each blob arrives at a pace that is allowed.
    for (pause, seconds) in [(58, 632..640), (20, 320..340)] {
        let content = layer.clone();
        let registry = Registry::start(move |_, (path, _)| {
            if path.starts_with("/v2/a/manifests/") {
                return answer("200 OK", manifest(&[&content])).with("content-type", MANIFEST);
            }
            let drip = Some((PIECE, Duration::from_secs(pause)));
            image(path, |asked| {
                (asked == digest(&content)).then(|| Answer { drip, ..answer("200 OK", content.clone()) })
            })
        })
        .await;
        let (client, reference) = (registry.client(&[]), registry.reference("a"));
        let resolved = client.resolve(&reference, None).await.unwrap();
        let limits = PullLimits { max_bytes: 16 << 20, ..LIMITS };
        let (begin, dir) = (tokio::time::Instant::now(), tempfile::tempdir().unwrap());
        let pulled = client.pull(&reference, &resolved, None, dir.path(), limits, &|_| {}).await;
        assert_eq!(pulled.is_ok(), pause == 20, "{pulled:?}");
        if let Err(error) = pulled {
            let reason = std::error::Error::source(&error).unwrap().to_string();
            assert_eq!(reason, "the image has not arrived within 10 minutes");
        }
        let took = begin.elapsed().as_secs();
        assert!(seconds.contains(&took), "{took} s");
    }
}

#[tokio::test]
async fn other_bytes_than_those_of_the_digest_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (content, reason) in [
        (b"the content of a liar!".as_slice(), "has the digest"),
        (b"the content of a layer and more".as_slice(), "is longer than its 22 bytes"),
    ] {
        let registry = Registry::start(move |_, (path, _)| {
            image(path, |asked| (asked == digest(LAYER)).then(|| answer("200 OK", content)))
        })
        .await;
        let error = registry.pull(dir.path()).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    // Nothing of it stays, and it does not hinder the next attempt.
    let registry = Registry::start(|_, (path, _)| image(path, |_| None)).await;
    registry.pull(dir.path()).await.unwrap();
    // A manifest by its digest.
    let name = format!("a@{}", digest(b"other"));
    let error = registry.resolve(&name).await.unwrap_err().to_string();
    assert!(error.contains("has the digest"), "{error}");
}

#[tokio::test]
async fn registries_refer_to_allowed_places_only() {
    for (location, expected) in [
        ("http://127.0.0.1:1/blob", "it has no TLS"),
        ("https://169.254.169.254/latest", "which is"),
        ("https://metadata.google.internal/", "metadata service"),
        ("https://127.0.0.1:1/blob", "which is"),
        ("https://user@evil.example/", "is not a host name"),
        ("//evil.example/blob", "is not a host name"),
        ("ftp://evil.example/blob", "neither https nor http"),
        ("", "redirects to"),
        ("/v2/a/blobs/again", "more than 5 times"),
    ] {
        let registry = Registry::start(move |_, (path, _)| {
            let given = answer("307 Temporary Redirect", "").with("location", location);
            if path.ends_with("/again") { given } else { image(path, |_| Some(given.clone())) }
        })
        .await;
        let dir = tempfile::tempdir().unwrap();
        let error = registry.pull(dir.path()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{location}: {error}");
        let registry = Registry::start(move |_, _| {
            answer("401 Unauthorized", "").with("www-authenticate", format!(r#"Bearer realm="{location}""#))
        })
        .await;
        let error = registry.resolve("a").await.unwrap_err().to_string();
        assert!(!error.is_empty() && registry.paths().len() == 1, "{location}: {error}");
    }
}

#[tokio::test]
async fn credentials_stay_with_the_registry() {
    let store = Registry::start(|_, (_, headers)| {
        assert!(!headers.contains_key("authorization"), "{headers:?}");
        answer("200 OK", LAYER)
    })
    .await;
    let place = format!("http://{}/place", store.host);
    let registry = Registry::start(move |_, (path, headers)| {
        if headers.get("authorization").is_none() {
            return answer("401 Unauthorized", "").with("www-authenticate", "Basic realm=a");
        }
        image(path, |asked| {
            (asked == digest(LAYER))
                .then(|| answer("307 Temporary Redirect", "").with("location", place.clone()))
        })
    })
    .await;
    let client = registry.client(&[&format!("http://{}", store.host)]);
    let reference = registry.reference("a");
    let error = client.resolve(&reference, None).await.unwrap_err().to_string();
    assert!(error.contains("it wants a user and a password"), "{error}");
    let credentials = Credentials { user: "user".to_owned(), password: "secret".to_owned() };
    let resolved = client.resolve(&reference, Some(&credentials)).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    client.pull(&reference, &resolved, Some(&credentials), dir.path(), LIMITS, &|_| {}).await.unwrap();
    assert_eq!(store.paths(), ["/place"]);
    assert!(!format!("{credentials:?}").contains("secret"));
}

#[tokio::test]
async fn accounts_are_checked_without_an_image() {
    let registry = Registry::start(|host, (path, headers)| {
        let account = headers.get("authorization").map(String::as_str).unwrap_or_default();
        match (path.as_str(), account) {
            // "user:secret"
            ("/token?service=a", "Basic dXNlcjpzZWNyZXQ=") => answer("200 OK", r#"{"access_token":"t0ken"}"#),
            ("/token?service=a", _) => answer("401 Unauthorized", r#"{"errors":[{"code":"DENIED"}]}"#),
            ("/v2/", "Bearer t0ken") => answer("200 OK", "{}"),
            ("/v2/", _) => {
                let challenge = format!(r#"Bearer realm="http://{host}/token",service="a""#);
                answer("401 Unauthorized", "").with("www-authenticate", challenge)
            }
            _ => panic!("{path}"),
        }
    })
    .await;
    let client = registry.client(&[]);
    let check = async |host: &str, password: &str| {
        let credentials = Credentials { user: "user".to_owned(), password: password.to_owned() };
        client.check_login(host, &credentials).await
    };
    check(&registry.host, "secret").await.unwrap();
    let error = check(&registry.host, "wrong").await.unwrap_err();
    assert!(matches!(error, RegistryError::Login { .. }), "{error}");
    assert_eq!(error.to_string(), format!("{} refuses the account: DENIED", registry.host));
    let error = check("ghcr.io", "secret").await.unwrap_err();
    assert!(matches!(error, RegistryError::NotAllowed { .. }), "{error}");
}

#[tokio::test]
async fn refusals_say_what_failed() {
    let no_layer = r#"{"schemaVersion":2,"config":{"digest":"sha256:00","size":1},"layers":[]}"#;
    let windows = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"digest":"sha256:{}","size":1,"platform":{{"os":"windows","architecture":"amd64"}}}}]}}"#,
        "0".repeat(64)
    );
    let foreign =
        manifest(&[LAYER]).replace(r#""size":22"#, r#""size":22,"urls":["https://evil.example/layer"]"#);
    let lists = format!(r#"{{"manifests":[{{"digest":"sha256:{}","size":1}}]}}"#, "0".repeat(64));
    let errors = r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest\u001b[31m unknown"}]}"#;
    for (given, expected) in [
        (answer("404 Not Found", errors), "there is no image 127.0.0.1:"),
        (answer("404 Not Found", errors), "or it is private: manifest [31m unknown"),
        (answer("403 Forbidden", "<html>"), "refuses access to a: 403 Forbidden"),
        (answer("429 Too Many Requests", "").with("retry-after", "17"), "try again in 17 s"),
        (answer("500 Internal Server Error", ""), "500 Internal Server Error"),
        (answer("401 Unauthorized", ""), "it wants \"\", which is not supported"),
        (answer("401 Unauthorized", "").with("www-authenticate", "Digest realm=a"), "Digest realm=a"),
        (answer("200 OK", ""), "cannot be read"),
        (answer("200 OK", "[]"), "cannot be read"),
        (answer("200 OK", "{}"), "has no config"),
        (answer("200 OK", no_layer), "is not a SHA-256 digest"),
        (answer("200 OK", r#"{"schemaVersion":1}"#), "version 1 of the format"),
        (answer("200 OK", windows), "it is for windows/amd64"),
        (answer("200 OK", foreign), "is elsewhere"),
        (answer("200 OK", lists), "has the digest"),
        (answer("200 OK", vec![b' '; (4 << 20) + 1]), "longer than 4194304 bytes"),
    ] {
        let registry = Registry::start(move |_, _| given.clone()).await;
        let error = registry.resolve("a").await.unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let registry = Registry::start(|_, (path, _)| image(path, |_| None)).await;
    let (client, reference) = (registry.client(&[]), registry.reference("a"));
    let resolved = client.resolve(&reference, None).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    for limits in [PullLimits { max_bytes: 23, max_layers: 4 }, PullLimits { max_bytes: 24, max_layers: 0 }] {
        let error = client.pull(&reference, &resolved, None, dir.path(), limits, &|_| {}).await.unwrap_err();
        assert!(error.to_string().contains("has 24 bytes in 1 layers"), "{error}");
    }
    let elsewhere: ImageReference = "ghcr.io/a".parse().unwrap();
    let error = client.resolve(&elsewhere, None).await.unwrap_err().to_string();
    assert!(error.contains("ghcr.io are not allowed here") && error.contains("images.registries"), "{error}");
    let gone = Registry { host: "127.0.0.1:1".to_owned(), asked: Arc::default() };
    assert!(gone.resolve("a").await.unwrap_err().to_string().contains("cannot connect to 127.0.0.1:1"));
}
