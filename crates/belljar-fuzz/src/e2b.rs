//! Requests of E2B's clients. Each check parses them a second time, independently, as the protocol defines them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::Ipv4Addr;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use belljar_api::fuzzing::{self, Call};
use belljar_api::{Code, Problem};
use belljar_model::NetworkFile;
use bytes::Bytes;
use futures::executor::block_on;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::data::{Input, check_text, text};

/// Maximum length of a frame's message, in bytes.
const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// Checks that a refusal names the problem, in a bounded length.
fn check_problem(problem: &Problem) {
    let detail = problem.detail();
    assert!(!detail.is_empty() && detail.chars().count() <= 2049, "{detail:?}");
    assert!((400..=501).contains(&problem.code().status_number()), "{problem:?}");
    if problem.code() == Code::InvalidField {
        assert!(problem.body("").field.is_none_or(|field| detail.starts_with(&field)), "{problem:?}");
    }
}

/// Reads the length of pieces from the first byte, and takes the remaining bytes.
fn take_pieces(input: &mut Input<'_>) -> (usize, Bytes) {
    let length = usize::from(input.byte()).max(1);
    (length, Bytes::copy_from_slice(input.0))
}

fn split(bytes: &Bytes, length: usize) -> Vec<Bytes> {
    bytes.chunks(length).map(|piece| bytes.slice_ref(piece)).collect()
}

/// Checks frames of Connect; the first byte is the length of the pieces in which they arrive.
pub(crate) fn e2b_frames(data: &[u8]) {
    let (length, bytes) = take_pieces(&mut Input(data));
    let whole = block_on(fuzzing::frames(vec![bytes.clone()]));
    assert_eq!(
        block_on(fuzzing::frames(split(&bytes, length))),
        whole,
        "the result differs in pieces of {length}"
    );
    let (messages, refused) = whole;
    let mut rest = &bytes[..];
    for message in &messages {
        let (head, after) = rest.split_at(5);
        let claimed = usize::try_from(u32::from_be_bytes(head[1..].try_into().unwrap())).unwrap();
        assert!(head[0] & 0b11 == 0 && claimed <= MAX_MESSAGE_BYTES);
        assert_eq!(message, after.get(..claimed).unwrap());
        rest = &after[claimed..];
    }
    // The bytes after the last message are an end of the stream, or are refused.
    let claimed = rest.get(1..5).map(|length| u32::from_be_bytes(length.try_into().unwrap()));
    let claimed = claimed.map(|length| usize::try_from(length).unwrap());
    let is_end = claimed.is_some_and(|claimed| {
        rest[0] & 0b11 == 2 && claimed <= MAX_MESSAGE_BYTES && rest.len() - 5 >= claimed
    });
    match refused {
        None => assert!(rest.is_empty() || is_end, "{rest:?}"),
        Some(refused) => {
            check_text(&refused);
            let is_too_large = claimed.is_some_and(|claimed| claimed > MAX_MESSAGE_BYTES);
            let is_truncated = claimed.is_none_or(|claimed| rest.len() - 5 < claimed);
            assert!(!is_end && (is_too_large || is_truncated || rest[0] & 1 == 1), "{refused}");
        }
    }
}

/// Checks the message of a call; the line before it is the procedure.
pub(crate) fn e2b_call(data: &[u8]) {
    let line = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (procedure, message) = (text(&data[..line]), data.get(line + 1..).unwrap_or_default());
    let call = match fuzzing::call(&procedure, message) {
        None => return,
        Some(Err(refused)) => {
            assert!(!refused.is_empty() && refused.chars().count() <= 2049, "{refused:?}");
            return;
        }
        Some(Ok(call)) => call,
    };
    let message = if message.is_empty() { b"{}" } else { message };
    let sent: Value = serde_json::from_slice(message).expect("an accepted message is JSON");
    let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match call {
        Call::Start(request, tag) => {
            let process = &sent["process"];
            let args = process["args"].as_array().cloned().unwrap_or_default();
            let argv: Vec<String> = std::iter::once(&process["cmd"]).chain(&args).map(string).collect();
            assert_eq!(request.argv, argv, "{sent}");
            let env: BTreeMap<_, _> =
                request.env.iter().map(|pair| (&pair.name[..], &pair.value[..])).collect();
            for (name, value) in process["envs"].as_object().into_iter().flatten() {
                assert_eq!(env.get(name.as_bytes()), Some(&string(value).as_bytes()), "{name}");
            }
            let own = request.env.iter().take(2).map(|pair| &pair.name[..]);
            assert!(own.eq([&b"E2B_SANDBOX"[..], b"E2B_SANDBOX_ID"]));
            let cwd = string(&process["cwd"]);
            match cwd.is_empty() {
                true => assert!(request.cwd.is_empty()),
                false => check_path(&text(&request.cwd), &cwd),
            }
            assert_eq!(request.terminal.is_set(), sent["pty"].is_object());
            assert!(request.stdin_open || sent["stdin"] == Value::Bool(false));
            assert_eq!(tag.clone().unwrap_or_default(), string(&sent["tag"]));
            assert!(tag.is_none_or(|tag| (1..=256).contains(&tag.len())));
        }
        Call::Input(data) => {
            let input = &sent["input"];
            let bytes = input.get("stdin").filter(|bytes| !bytes.is_null()).unwrap_or(&input["pty"]);
            assert_eq!(STANDARD.encode(data), string(bytes));
        }
        Call::Signal(number) => {
            let name = if number == 9 { "SIGNAL_SIGKILL" } else { "SIGNAL_SIGTERM" };
            assert!(
                matches!(number, 9 | 15) && (sent["signal"] == name || sent["signal"] == number),
                "{sent}"
            );
        }
        Call::Paths(paths) => {
            let names: &[&str] = if procedure == "Move" { &["source", "destination"] } else { &["path"] };
            assert_eq!(paths.len(), names.len());
            for (path, name) in paths.iter().zip(names) {
                check_path(path, &string(&sent[*name]));
            }
        }
    }
}

/// Checks the absolute path that a client's path resolves to.
fn check_path(path: &str, given: &str) {
    assert!(path.starts_with('/'), "{path:?}");
    if path != "/" {
        assert!(path.split('/').skip(1).all(|part| !matches!(part, "" | "." | "..")), "{path:?}");
    }
    let is_absolute = given.starts_with('/');
    let climbs = given.split('/').any(|part| part == "..");
    assert!(is_absolute || climbs || path == "/home/user" || path.starts_with("/home/user/"), "{path:?}");
    let last = given.rsplit('/').next().unwrap_or_default();
    assert!(matches!(last, "" | "." | ".." | "~") || path.ends_with(&format!("/{last}")), "{path:?}");
}

/// Checks a request for a sandbox, and a change of a running one's network.
pub(crate) fn e2b_sandbox(data: &[u8]) {
    let sent = serde_json::from_slice::<Value>(data).unwrap_or_default();
    match fuzzing::new_sandbox(data, true) {
        Err(problem) => check_problem(&problem),
        Ok(request) => {
            assert!(sent["templateID"].is_string());
            assert_eq!(request.lifetime.timeout.as_secs(), sent["timeout"].as_u64().unwrap_or(300));
            for refused in ["mcp", "iam"] {
                assert!(sent[refused].is_null(), "{refused} is ignored");
            }
            let metadata: BTreeMap<String, String> =
                serde_json::from_value(sent["metadata"].clone()).unwrap_or_default();
            assert_eq!(fuzzing::from_labels(request.labels.get()), metadata);
            let env = request.spec.env.unwrap_or_default();
            assert_eq!(env.len(), sent["envVars"].as_object().map_or(0, serde_json::Map::len));
            let network = &sent["network"];
            let internet = [&sent["allow_internet_access"], &network["allow_internet_access"]];
            let internet = internet.into_iter().find_map(Value::as_bool);
            check_network(request.spec.network, network, internet == Some(false));
        }
    }
    match fuzzing::network(data) {
        Err(problem) => check_problem(&problem),
        Ok(network) => check_network(network, &sent, sent["allow_internet_access"] == Value::Bool(false)),
    }
}

/// Checks a sandbox's network: if everything is denied, only the allowed hosts are reachable.
fn check_network(network: Option<NetworkFile>, sent: &Value, is_off: bool) {
    let list = |name: &str| -> BTreeSet<String> {
        let list = sent[name].as_array().into_iter().flatten();
        list.map(|rule| rule.as_str().unwrap_or_default().to_owned()).collect()
    };
    let (allowed, denied) = (list("allowOut"), list("denyOut"));
    let rules = sent["rules"].as_object().into_iter().flatten();
    let has_headers = rules
        .flat_map(|(_, rules)| rules.as_array().into_iter().flatten())
        .any(|rule| rule["transform"]["headers"].as_object().is_some_and(|headers| !headers.is_empty()));
    let denies_all = is_off || denied.contains("0.0.0.0/0") || denied.contains("::/0");
    let Some(network) = network else {
        assert!(!denies_all && allowed.is_empty() && denied.is_empty() && !has_headers, "{sent}");
        return;
    };
    assert_eq!(network.headers.is_some(), has_headers, "{sent}");
    // An address or a range is meant with all its ports.
    let ranged = |rules: BTreeSet<String>| -> BTreeSet<String> {
        let ranged = |rule: String| {
            let (address, length) = rule.split_once('/').unwrap_or((&rule, "32"));
            let is_range = address.parse::<Ipv4Addr>().is_ok() && !length.contains(':');
            if is_range { format!("{address}/{length}:*") } else { rule }
        };
        rules.into_iter().map(ranged).collect()
    };
    let allowed = ranged(allowed);
    let file_allow: BTreeSet<String> = network.allow.clone().unwrap_or_default().into_iter().collect();
    assert_eq!(file_allow, allowed, "{sent}");
    let file_deny: BTreeSet<String> = network.deny.clone().unwrap_or_default().into_iter().collect();
    let specific: BTreeSet<String> =
        ranged(denied.into_iter().filter(|rule| rule != "0.0.0.0/0" && rule != "::/0").collect());
    match network.mode.as_deref() {
        Some("open") => assert!(!denies_all && file_deny == specific, "{sent}"),
        Some("whitelist") => {
            assert!(denies_all && (!allowed.is_empty() || has_headers) && file_deny == specific, "{sent}");
        }
        Some("disabled") => assert!(denies_all && allowed.is_empty() && !has_headers, "{sent}"),
        mode => panic!("{mode:?}"),
    }
    if let Ok(policy) = network.clone().resolve() {
        assert_eq!(Some(policy.mode().as_str()), network.mode.as_deref());
    }
}

/// Checks the query of a file's signed address. The first four lines are signed: operation, path, user and expiration.
pub(crate) fn e2b_signature(data: &[u8]) {
    const TOKEN: &str = "bj_0123456789abcdef";
    let all = text(data);
    let mut lines = all.splitn(5, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (operation, path, user, end, query) = (line(), line(), line(), line(), line());
    let operation = if operation == "write" { "write" } else { "read" };
    let user = if user.is_empty() { "" } else { "user" };
    let end = end.parse::<i64>().ok();
    let signature = sign(path, operation, user, TOKEN, end);
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let address = |path: &str, signature: &str| {
        let end = end.map(|end| format!("&signature_expiration={end}")).unwrap_or_default();
        let user = if user.is_empty() { String::new() } else { format!("&username={user}") };
        format!("path={}{user}&signature={}{end}", encode(path), encode(signature))
    };
    let good = address(path, &signature);
    if good.len() <= 16 * 1024 {
        assert_eq!(fuzzing::is_signed(&good, operation, TOKEN), Ok(Some(true)));
        assert_eq!(fuzzing::is_signed(&good, operation, "bj_another"), Ok(Some(false)));
        let other = if operation == "write" { "read" } else { "write" };
        assert_eq!(fuzzing::is_signed(&good, other, TOKEN), Ok(Some(false)));
        let forged = address(&format!("{path}x"), &signature);
        assert_ne!(fuzzing::is_signed(&forged, operation, TOKEN), Ok(Some(true)));
    }
    // A query that is accepted has the signature for its own values.
    match fuzzing::is_signed(query, operation, TOKEN) {
        Err(problem) => check_problem(&problem),
        Ok(Some(true)) => {
            let pairs: BTreeMap<_, _> = query.split('&').filter_map(pair).collect();
            let value = |name: &str| pairs.get(name).map(String::as_str).unwrap_or_default();
            let end = value("signature_expiration").parse().ok();
            let expected = sign(value("path"), operation, value("username"), TOKEN, end);
            assert_eq!(value("signature"), expected, "{query:?}");
        }
        Ok(_) => {}
    }
}

/// Parses a pair of a query.
fn pair(text: &str) -> Option<(String, String)> {
    let text = text.replace('+', " ");
    let (name, value) = text.split_once('=')?;
    decode(name).zip(decode(value))
}

fn decode(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

/// Returns a signature, as E2B's clients compute it.
fn sign(path: &str, operation: &str, user: &str, token: &str, end: Option<i64>) -> String {
    let end = end.map(|end| format!(":{end}")).unwrap_or_default();
    let digest = Sha256::digest(format!("{path}:{operation}:{user}:{token}{end}"));
    format!("v1_{}", STANDARD_NO_PAD.encode(digest))
}

/// Checks metadata, one pair per line, and the same bytes as a filter.
pub(crate) fn e2b_filter(data: &[u8]) {
    let all = text(data);
    match fuzzing::filter(&all) {
        Ok(labels) => {
            let pairs = all
                .split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
            let twice = |text: &str| decode(&decode(&text.replace('+', " "))?);
            let pairs: Vec<_> = pairs.filter_map(|(key, value)| twice(key).zip(twice(value))).collect();
            let metadata: BTreeMap<_, _> = pairs.iter().cloned().collect();
            match fuzzing::to_labels(&metadata) {
                Ok(all) if metadata.len() == pairs.len() => assert_eq!(labels, all),
                _ => drop(fuzzing::from_labels(&labels)),
            }
        }
        Err(problem) => check_problem(&problem),
    }
    let pairs = all.lines().map(|line| line.split_once('=').unwrap_or((line, "")));
    let metadata: BTreeMap<String, String> =
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let labels = match fuzzing::to_labels(&metadata) {
        Ok(labels) => labels,
        Err(problem) => return check_problem(&problem),
    };
    assert_eq!(fuzzing::from_labels(&labels), metadata);
    // As clients encode it: twice, of which the query's own decoding removes one.
    let encode = |text: &str| {
        let once = utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        utf8_percent_encode(&once, NON_ALPHANUMERIC).to_string()
    };
    let query = metadata.iter().map(|(key, value)| format!("{}={}", encode(key), encode(value)));
    assert_eq!(fuzzing::filter(&query.collect::<Vec<_>>().join("&")), Ok(labels));
}

/// Checks an upload: the length of the pieces in which it arrives, the `Content-Type`, headers up to an empty line, and the
/// body.
pub(crate) fn e2b_upload(data: &[u8]) {
    let (length, bytes) = take_pieces(&mut Input(data));
    let head = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap_or(bytes.len());
    let body = bytes.slice((head + 2).min(bytes.len())..);
    let head = text(&bytes[..head]);
    let mut lines = head.lines();
    let kind = lines.next().unwrap_or_default();
    check_metadata(lines);
    let Some(boundary) = fuzzing::boundary(kind) else { return };
    let upload = |body: &Bytes, is_gzip| block_on(fuzzing::upload(split(body, length), &boundary, is_gzip));
    let files = upload(&body, false);
    match &files {
        Err(problem) => check_problem(problem),
        Ok(files) => {
            assert!((1..=1000).contains(&files.len()));
            for (path, content) in files {
                assert!(path.starts_with('/') && !path.split('/').any(|part| part == ".."), "{path:?}");
                assert!(content.is_empty() || body.windows(content.len()).any(|part| part == content));
            }
            assert!(files.iter().map(|(_, content)| content.len()).sum::<usize>() < body.len());
        }
    }
    // The result is the same in one piece, and compressed.
    let whole = block_on(fuzzing::upload(vec![body.clone()], &boundary, false));
    assert_eq!(whole.as_ref().ok(), files.as_ref().ok());
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&body).expect("memory can be written");
    let compressed = Bytes::from(encoder.finish().expect("memory can be written"));
    assert_eq!(upload(&compressed, true).as_ref().ok(), files.as_ref().ok());
    if let Err(problem) = upload(&body, true) {
        check_problem(&problem);
    }
}

/// Checks headers of an upload, one per line.
fn check_metadata<'a>(lines: impl Iterator<Item = &'a str>) {
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers: Vec<_> = headers.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).collect();
    match fuzzing::file_metadata(&headers) {
        None => {}
        Some(Err(problem)) => check_problem(&problem),
        Some(Ok(kept)) => {
            let is_kept =
                |(name, _): &&(String, Vec<u8>)| name.to_ascii_lowercase().starts_with("x-metadata-");
            assert_eq!(headers.iter().filter(is_kept).count(), kept.len());
            assert!(kept.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() <= 4096);
            for (key, value) in &kept {
                assert!((1..=246).contains(&key.len()), "{key:?}");
                assert!(value.iter().all(|byte| (b' '..=b'~').contains(byte)), "{value:?}");
            }
        }
    }
}
