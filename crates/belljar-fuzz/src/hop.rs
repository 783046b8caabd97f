//! HTTP messages that an intermediary passes on: what servers of several kinds make of them.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use belljar_http_hop::{FramingScan, Redactor, find_ambiguity, prepare_request, remove_alike};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use crate::data::text;

/// Checks the head of a request, to which `x-team: agents` is added: a CGI program reads only what may reach it.
pub(crate) fn next_hop(data: &[u8]) {
    check_scan(data);
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Request::new(&mut headers);
    if !matches!(head.parse(data), Ok(httparse::Status::Complete(_))) {
        return;
    }
    let mut map = HeaderMap::new();
    for header in head.headers.iter() {
        let value = HeaderValue::from_bytes(header.value);
        let (Ok(name), Ok(value)) = (header.name.parse::<HeaderName>(), value) else { return };
        map.append(name, value);
    }
    let version = if head.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let given = map.clone();
    if prepare_request(&mut map, version).is_err() {
        assert!(given.contains_key("transfer-encoding"), "{given:?}");
        return;
    }
    let team = HeaderName::from_static("x-team");
    remove_alike(&mut map, &team);
    map.insert(team, HeaderValue::from_static("agents"));

    let variables = variables(&map);
    let one = |name: &str| variables.get(name).map(Vec::as_slice).unwrap_or_default();
    for name in
        ["KEEP_ALIVE", "PROXY", "PROXY_AUTHORIZATION", "PROXY_CONNECTION", "HTTP2_SETTINGS", "TE", "TRAILER"]
    {
        assert!(one(name).is_empty(), "{name}: {map:?}");
    }
    assert_eq!(one("X_TEAM"), ["agents"]);
    match one("CONNECTION") {
        [] => assert!(one("UPGRADE").is_empty(), "{map:?}"),
        [connection] => {
            assert_eq!((connection.as_str(), one("UPGRADE")), ("upgrade", &["websocket".to_owned()][..]))
        }
        _ => panic!("{map:?}"),
    }
    match one("TRANSFER_ENCODING") {
        [] => {}
        [coding] => assert!(coding == "chunked" && one("CONTENT_LENGTH").is_empty(), "{map:?}"),
        _ => panic!("{map:?}"),
    }
    for name in ["host", "content-length"] {
        let values = |map: &HeaderMap| map.get_all(name).iter().cloned().collect::<Vec<_>>();
        let expected = values(&given);
        assert_eq!(values(&map), expected, "{name}");
        assert_eq!(one(&variable(name)).len(), expected.len(), "{name}: {map:?}");
    }
    // Nothing else is added or changed.
    for (name, value) in map.iter().filter(|(name, _)| {
        !["x-team", "connection", "upgrade", "transfer-encoding"].contains(&name.as_str())
    }) {
        assert!(given.get_all(name).iter().any(|given| given == value), "{name}");
    }
}

/// Checks the scan of a connection: a byte changes at most, the same in whatever parts the bytes arrive, and not without both headers.
fn check_scan(data: &[u8]) {
    let (mut whole, mut parts) = (data.to_vec(), data.to_vec());
    FramingScan::default().spoil(&mut whole);
    let mut scan = FramingScan::default();
    parts.chunks_mut(3).for_each(|part| scan.spoil(part));
    assert_eq!(whole, parts);
    let changed: Vec<_> = whole.iter().zip(data).filter(|(after, before)| after != before).collect();
    assert!(matches!(changed[..], [] | [(0, b'\n')]), "{changed:?}");
    let text = String::from_utf8_lossy(data).to_ascii_lowercase();
    let has_both = text.contains("transfer-encoding") && text.contains("content-length");
    assert!(changed.is_empty() || has_both, "{text:?}");
}

/// Returns the name of the variable for a header in CGI (RFC 3875, 4.1.18), as Apache makes it.
fn variable(name: &str) -> String {
    let upper = name.to_ascii_uppercase();
    upper.replace(|char: char| !char.is_ascii_alphanumeric(), "_")
}

fn variables(map: &HeaderMap) -> BTreeMap<String, Vec<String>> {
    let mut variables: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in map {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        variables.entry(variable(name.as_str())).or_default().push(value);
    }
    variables
}

/// Checks a path that passes as unambiguous: browsers, this machine's file system and servers that decode it read the same one.
pub(crate) fn request_path(data: &[u8]) {
    let path = text(data);
    if find_ambiguity(&path).is_some() {
        return;
    }
    let url = url::Url::parse(&format!("http://x.example{path}")).expect("a browser can parse it");
    assert_eq!((url.path(), url.query(), url.fragment()), (path.as_ref(), None, None));
    let uri: http::Uri = path.parse().expect("a server can parse it");
    assert_eq!((uri.path(), uri.authority()), (path.as_ref(), None));
    let decoded = percent_encoding::percent_decode_str(&path).decode_utf8().expect("it is UTF-8");
    assert!(!decoded.contains(['\\', '?', '#', '%']) && !decoded.contains(char::is_control), "{decoded:?}");
    let again = percent_encoding::percent_decode_str(&decoded).decode_utf8_lossy();
    assert_eq!(decoded, again, "it is encoded twice");
    assert_eq!(decoded.matches('/').count(), path.matches('/').count(), "{decoded:?}");
    // As on Tomcat, without parameters; as on Windows, without spaces around names.
    let stripped: Vec<&str> =
        decoded.split('/').map(|segment| segment.split(';').next().unwrap_or_default().trim()).collect();
    let stripped = stripped.join("/");
    let segments = stripped.trim_start_matches('/').split('/').filter(|segment| !segment.is_empty()).count();
    assert!(!stripped.contains("//"), "{stripped:?}");
    let components = Path::new(&stripped).components().skip(1);
    let names = components.map(|component| matches!(component, Component::Normal(_))).collect::<Vec<_>>();
    assert!(names.len() == segments && names.iter().all(|is_name| *is_name), "{stripped:?}");
}

const SECRET: &str = "s3cret/VALUE+1=";

/// Checks a header's value after redaction: no decoder finds the secret.
pub(crate) fn redaction(data: &[u8]) {
    let redactor = Redactor::new([SECRET.as_bytes()], "[redacted]");
    let Some(redacted) = redactor.redact_text(data) else { return check_without_secret(data) };
    assert!(redacted.windows(10).any(|part| part == b"[redacted]"));
    check_without_secret(&redacted);
}

fn check_without_secret(text: &[u8]) {
    let mut text = text.to_vec();
    for _ in 0..3 {
        let shown = String::from_utf8_lossy(&text).into_owned();
        let is_plain = |part: &[u8]| part.eq_ignore_ascii_case(SECRET.as_bytes());
        assert!(!text.windows(SECRET.len()).any(is_plain), "{shown:?}");
        let has = |text: &[u8]| text.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
        let config = GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let engine = GeneralPurpose::new(&STANDARD, config);
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
        for run in text.split(|byte| !is_base64(byte)) {
            let run: Vec<u8> = run
                .iter()
                .map(|byte| match byte {
                    b'-' => b'+',
                    b'_' => b'/',
                    other => *other,
                })
                .collect();
            for start in 0..run.len().min(4) {
                let run = &run[start..];
                // A single last character has less than a byte.
                let run = if run.len() % 4 == 1 { &run[..run.len() - 1] } else { run };
                assert!(!engine.decode(run).is_ok_and(|bytes| has(&bytes)), "{shown:?}");
            }
        }
        text = percent_encoding::percent_decode(&text).collect();
    }
}
