//! The network: policies, and the gateway's parsers of traffic. Other parsers of the same formats must agree.

use std::net::{IpAddr, Ipv4Addr};

use belljar_gateway::fuzzing;
use belljar_model::{DomainName, Matcher, NetworkFile, NetworkMode, NetworkPolicy, Rule};
use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::{Name, RData};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use crate::data::{Input, check_refusal, check_text, text};

/// Checks a policy as JSON, with a requested name and port on each line after it.
pub(crate) fn network_policy(data: &[u8]) {
    let text = text(data);
    let (policy, requests) = text.split_once('\n').unwrap_or((&text, ""));
    let policy: NetworkPolicy = match serde_json::from_str(policy) {
        Ok(policy) => policy,
        // Syntax errors come from the library and name no field.
        Err(error) if error.is_data() && error.to_string().contains("network") => {
            return check_refusal(&error.to_string(), &["network"]);
        }
        Err(_) => return,
    };
    let stored = serde_json::to_string(&policy).expect("a policy can be written");
    let again: NetworkPolicy = serde_json::from_str(&stored).expect("a written policy can be read");
    assert_eq!((again.canonical_json(), &again), (policy.canonical_json(), &policy));
    let matcher = Matcher::new(&policy, &[]);
    for line in requests.lines() {
        let Some((name, port)) = line.rsplit_once(':') else { continue };
        let (Ok(name), Ok(port)) = (name.parse::<DomainName>(), port.parse::<u16>()) else { continue };
        let decision = matcher.name(&name, port);
        check_text(&decision.reason);
        let listed =
            |rules: &[Rule], web| rules.iter().any(|rule| covers(&rule.to_string(), web, &name, port));
        let denied = listed(policy.deny(), false);
        if denied || policy.mode() == NetworkMode::Disabled {
            assert!(!decision.allowed, "{name}:{port}: {}", decision.reason);
        } else if policy.mode() == NetworkMode::Whitelist && policy.presets().is_empty() {
            let allowed = listed(policy.allow(), true);
            assert!(allowed || !decision.allowed, "{name}:{port}: {}", decision.reason);
            // Names of metadata services are always denied.
            assert!(
                decision.allowed || !allowed || name.as_str().contains("metadata"),
                "{}",
                decision.reason
            );
        }
        assert!(!decision.allowed || matcher.may_resolve(&name), "{name}:{port}");
    }
}

/// Reports whether a rule's text covers a host and port, implemented directly from the documentation.
fn covers(rule: &str, is_web: bool, name: &DomainName, port: u16) -> bool {
    let (pattern, ports) = rule.split_once(':').unwrap_or((rule, ""));
    let is_port = match ports {
        "" if is_web => port == 80 || port == 443,
        "" | "*" => true,
        one => one == port.to_string(),
    };
    let is_host = match pattern.strip_prefix('*') {
        Some(suffix) => name.as_str().len() > suffix.len() && name.as_str().ends_with(suffix),
        None => name.as_str() == pattern,
    };
    is_port && is_host
}

/// Checks flags: an accepted one can be written again from its file, and a refused one does not show a value given by mistake.
pub(crate) fn network_flag(data: &[u8]) {
    let text = text(data);
    let mut file = NetworkFile::default();
    match file.add_secret(&text) {
        Ok(()) => {
            let secrets = file.secrets.take().unwrap_or_default();
            let (name, secret) = secrets.first_key_value().expect("it was added");
            let [host, header] =
                [&secret.host, &secret.header].map(|part| part.as_deref().expect("it was given"));
            let written = format!("{name}={host}:{header}");
            let source = match (&secret.env, &secret.file, &secret.value) {
                (Some(env), None, None) => format!(":env={env}"),
                (None, Some(file), None) => format!(":file={file}"),
                _ => panic!("{secret:?} has no source"),
            };
            assert!(
                text == format!("{written}{source}") || text == written && source == format!(":env={name}")
            );
        }
        Err(error) => {
            let alike = text.split_once('=').map_or("x".to_owned(), |(name, _)| format!("{name}=x"));
            let other = file.add_secret(&alike).expect_err("there is no header").to_string();
            assert_eq!(error.to_string(), other, "{text:?}");
            check_refusal(&other, &["network.secrets"]);
        }
    }
    match file.add_request(&text) {
        Ok(()) => {
            let requests = file.requests.unwrap_or_default();
            let (host, rules) = requests.first_key_value().expect("it was added");
            assert_eq!(format!("{host}={}", rules.concat()), text);
        }
        Err(error) => check_refusal(&error.to_string(), &["network.requests"]),
    }
}

/// Checks a name: an accepted one is the same name to the parsers of a browser, a resolver, a web server and a TLS library.
pub(crate) fn network_name(data: &[u8]) {
    let text = text(data);
    let name = match text.parse::<DomainName>() {
        Ok(name) => name,
        Err(error) => return check_text(&error.to_string()),
    };
    let host = url::Host::parse(&text).map(|host| host.to_string());
    assert_eq!(
        host.as_deref().map(|host| host.strip_suffix('.').unwrap_or(host)),
        Ok(name.as_str()),
        "{text:?}"
    );
    let resolved = Name::from_ascii(name.as_str()).expect("a resolver accepts the name");
    assert_eq!(resolved.to_ascii().trim_end_matches('.'), name.as_str());
    let authority = name.as_str().parse::<http::uri::Authority>().expect("the name is a valid authority");
    assert_eq!((authority.host(), authority.port_u16()), (name.as_str(), None));
    let server = rustls::pki_types::ServerName::try_from(name.as_str());
    assert!(matches!(server, Ok(rustls::pki_types::ServerName::DnsName(_))), "{name}");
    assert!(name.as_str().parse::<std::net::IpAddr>().is_err());
}

/// Checks a query to the resolver of a sandbox with some allowed names.
pub(crate) fn dns_query(data: &[u8]) {
    let policy = r#"{"allow": ["a.example", "*.b.example:22"], "deny": ["x.b.example"]}"#;
    let policy = serde_json::from_str(policy).expect("a valid policy");
    let Some(bytes) = fuzzing::resolve(policy, data) else { return };
    assert!(bytes.len() <= 4096, "{} bytes for {}", bytes.len(), data.len());
    let answer = Message::from_vec(&bytes).expect("the answer can be parsed");
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert_eq!(Some(answer.metadata.id.to_be_bytes().as_slice()), data.get(..2));
    assert!(answer.answers.len() <= 1 && answer.authorities.is_empty());
    for record in &answer.answers {
        let name = record.name.to_ascii().to_ascii_lowercase();
        let name = name.trim_end_matches('.');
        let is_allowed = name == "a.example" || (name.ends_with(".b.example") && name != "x.b.example");
        assert!(is_allowed, "{name} has an address");
        let RData::A(address) = &record.data else { panic!("{record} is not an address") };
        let range = Ipv4Addr::new(198, 18, 0, 0).to_bits();
        assert_eq!(
            address.0.to_bits() & (u32::MAX << 17),
            range,
            "{address} is outside of the synthetic range"
        );
    }
}

/// Checks a first flight of TLS; the first byte is the length of the pieces in which it arrives.
pub(crate) fn client_hello(data: &[u8]) {
    let mut input = Input(data);
    let length = usize::from(input.byte()).max(1);
    let Some(name) = fuzzing::server_name([input.0]) else { return };
    let in_pieces = fuzzing::server_name(input.0.chunks(length));
    assert_eq!(in_pieces, Some(name.clone()), "the name differs in pieces of {length}");
    let handshake = handshake(input.0);
    // Names are case-insensitive, and an address is not a name (RFC 6066, 3).
    let other = sni(&handshake).map(|name| String::from_utf8_lossy(name).to_ascii_lowercase());
    let other = other.filter(|name| name.parse::<IpAddr>().is_err());
    assert_eq!(name.map(|name| name.to_ascii_lowercase()), other, "another parser reads another name");
}

/// Takes a piece that is prefixed by its length in `length_bytes` bytes.
fn piece<'a>(bytes: &mut &'a [u8], length_bytes: usize) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_at_checked(length_bytes)?;
    let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    let (piece, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(piece)
}

/// Returns the content of all complete records (RFC 8446, 5.1).
fn handshake(mut records: &[u8]) -> Vec<u8> {
    let mut handshake = Vec::new();
    while let Some((_, mut rest)) = records.split_at_checked(3) {
        let Some(fragment) = piece(&mut rest, 2) else { break };
        handshake.extend_from_slice(fragment);
        records = rest;
    }
    handshake
}

/// Returns the server's name in a handshake that begins with a ClientHello (RFC 8446, 4.1.2; RFC 6066, 3).
fn sni(handshake: &[u8]) -> Option<&[u8]> {
    let mut message = handshake.get(1..)?;
    let mut hello = piece(&mut message, 3)?.get(34..)?;
    // The session, the ciphers, the compression.
    for length_bytes in [1, 2, 1] {
        piece(&mut hello, length_bytes)?;
    }
    let mut extensions = piece(&mut hello, 2)?;
    while let Some((kind, mut rest)) = extensions.split_at_checked(2) {
        let mut extension = piece(&mut rest, 2)?;
        if kind == [0, 0] {
            let mut host = piece(&mut extension, 2)?.get(1..)?;
            return piece(&mut host, 2);
        }
        extensions = rest;
    }
    None
}

/// Checks the head of a request to `x.example` on port 80.
pub(crate) fn request_head(data: &[u8]) {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Request::new(&mut headers);
    if !matches!(head.parse(data), Ok(httparse::Status::Complete(_))) {
        return;
    }
    let (Some(method), Some(path), Some(version)) = (head.method, head.path, head.version) else { return };
    let (Ok(method), Ok(uri)) = (method.parse::<Method>(), path.parse::<Uri>()) else { return };
    let version = if version == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    let mut map = HeaderMap::new();
    for header in head.headers.iter() {
        let value = HeaderValue::from_bytes(header.value);
        let (Ok(name), Ok(value)) = (header.name.parse::<HeaderName>(), value) else { return };
        map.append(name, value);
    }
    let name: DomainName = "x.example".parse().expect("a valid name");
    if !fuzzing::is_for(&method, &uri, &map, version, &name) {
        return;
    }
    // Every reading of the request gives this host.
    let hosts: Vec<_> =
        head.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host")).collect();
    assert_eq!(hosts.len(), 1, "{hosts:?}");
    assert_ne!(method, Method::CONNECT);
    let in_headers = hosts.iter().map(|host| String::from_utf8_lossy(host.value).into_owned());
    for authority in in_headers.chain(uri.authority().map(ToString::to_string)) {
        let url = url::Url::parse(&format!("http://{authority}/")).expect("a browser can parse it");
        let host = url.host_str().map(|host| host.trim_end_matches('.'));
        assert_eq!((host, url.port_or_known_default()), (Some("x.example"), Some(80)), "{authority:?}");
        assert_eq!((url.username(), url.password()), ("", None), "{authority:?}");
    }
}
