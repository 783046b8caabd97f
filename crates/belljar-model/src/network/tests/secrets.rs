use std::collections::BTreeMap;

use super::*;

const ALLOW: &str =
    r#""allow": ["a.example", "plain.example:80", "*.wild.example"], "deny": ["denied.wild.example"]"#;

fn with_secret(name: &str, secret: &str) -> Result<NetworkPolicy, ModelError> {
    policy(&format!(r#"{{{ALLOW}, "secrets": {{{name:?}: {secret}}}}}"#))
}

#[test]
fn secret_is_bound_to_one_host_and_header() {
    let policy =
        with_secret("API_KEY", r#"{"host": "A.Example.", "header": "Authorization", "value": "hunter2"}"#)
            .unwrap();
    let secret = &policy.secrets()["API_KEY"];
    assert_eq!((secret.host(), secret.header()), (&name("a.example"), "authorization"));
    assert_eq!(secret.source(), &SecretSource::Value("hunter2".to_owned()));
    let sources = [("env", "\"KEY\""), ("file", "\"/run/key\""), ("value", "\"a b~\"")];
    for (kind, value) in sources {
        let secret = format!(r#"{{"host": "x.wild.example", "header": "x-key", "{kind}": {value}}}"#);
        assert_eq!(with_secret("K", &secret).unwrap().secrets()["K"].source().kind(), kind);
    }
    let null = with_secret("K", "null").unwrap();
    assert!(null.secrets().is_empty());
}

#[test]
fn invalid_secrets_are_refused() {
    let good = r#""host": "a.example", "header": "x", "value": "v""#;
    let at = |host: &str| format!(r#"{{"host": {host:?}, "header": "x", "value": "v"}}"#);
    let header = |header: &str| format!(r#"{{"host": "a.example", "header": {header:?}, "value": "v"}}"#);
    let value = |value: &str| format!(r#"{{"host": "a.example", "header": "x", "value": {value}}}"#);
    let long = format!("{:?}", "v".repeat(8193));
    let framing = "a header that does not frame or route the message";
    let one = "exactly one of value, env and file for it";
    let cases = [
        ("", format!("{{{good}}}"), "a name as of an environment variable"),
        ("1A", format!("{{{good}}}"), "a name as of an environment variable"),
        ("A-B", format!("{{{good}}}"), "a name as of an environment variable"),
        ("Ä", format!("{{{good}}}"), "a name as of an environment variable"),
        (
            "A",
            r#"{"header": "x", "value": "v"}"#.to_owned(),
            "\"network.secrets.A.host\": this key is missing",
        ),
        (
            "A",
            r#"{"host": "a.example", "value": "v"}"#.to_owned(),
            "\"network.secrets.A.header\": this key is missing",
        ),
        ("A", r#"{"host": "a.example", "header": "x"}"#.to_owned(), one),
        ("A", format!(r#"{{{good}, "env": "B"}}"#), one),
        ("A", format!(r#"{{{good}, "file": "/b"}}"#), one),
        ("A", at("*.wild.example"), "the whole first label only"),
        ("A", at("127.0.0.1"), "a rule for an address"),
        (
            "A",
            at("other.example"),
            "a host that the policy allows on port 443; other.example is none, as it is not in network.allow (--allow other.example)",
        ),
        ("A", at("plain.example"), "a host that the policy allows on port 443"),
        ("A", at("denied.wild.example"), "a host that the policy allows on port 443"),
        ("A", header(""), "the name of a header"),
        ("A", header("a b"), "the name of a header"),
        ("A", header("a:b"), "the name of a header"),
        ("A", header("ä"), "the name of a header"),
        ("A", header("Host"), framing),
        ("A", header("content-length"), framing),
        ("A", header("Transfer-Encoding"), framing),
        ("A", header("connection"), framing),
        ("A", header("TE"), framing),
        ("A", header("trailer"), framing),
        ("A", header("upgrade"), framing),
        ("A", header("Proxy-Authorization"), framing),
        ("A", value("\"\""), "1 to 8192 visible ASCII characters"),
        ("A", value(r#""hunter2\r\nHost: x""#), "1 to 8192 visible ASCII characters"),
        ("A", value(r#""hunter2\u0000""#), "1 to 8192 visible ASCII characters"),
        ("A", value("\" hunter2\""), "1 to 8192 visible ASCII characters"),
        ("A", value("\"hünter2\""), "1 to 8192 visible ASCII characters"),
        ("A", value(&long), "1 to 8192 visible ASCII characters"),
        (
            "A",
            r#"{"host": "a.example", "header": "x", "env": "B=C"}"#.to_owned(),
            "the name of an environment variable",
        ),
        ("A", r#"{"host": "a.example", "header": "x", "file": "key"}"#.to_owned(), "an absolute path"),
    ];
    for (name, secret, reason) in cases {
        let error = with_secret(name, &secret).unwrap_err().to_string();
        assert!(error.contains("network.secrets") && error.contains(reason), "{secret}: {error}");
        assert!(!error.contains("nter2"), "{error}");
    }
}

#[test]
fn secret_value_is_stored_but_not_shown() {
    let text = r#"{"host": "a.example", "header": "x-key", "value": "hunter2"}"#;
    let policy = with_secret("KEY", text).unwrap();
    let stored = serde_json::to_string(&policy).unwrap();
    assert!(stored.contains("hunter2"));
    assert_eq!(serde_json::from_str::<NetworkPolicy>(&stored).unwrap(), policy);

    let json = policy.canonical_json();
    assert!(
        json.ends_with(r#""secrets":{"KEY":{"host":"a.example","header":"x-key","value":""}}}"#),
        "{json}"
    );
    let file = NetworkFile::from(&policy);
    let matcher = Matcher::new(&policy, &[]);
    let shown =
        [json, policy.to_string(), format!("{policy:?}"), format!("{file:?}"), format!("{matcher:?}")];
    assert!(shown.iter().all(|text| !text.contains("hunter2")), "{shown:?}");
}

#[test]
fn flags_name_the_source_of_a_value_only() {
    let read = |flag: &str| {
        let mut file = NetworkFile { allow: Some(vec!["a.example".to_owned()]), ..NetworkFile::default() };
        file.add_secret(flag)?;
        file.resolve()
    };
    for (flag, source) in [
        ("KEY=A.Example:Authorization", SecretSource::Env("KEY".to_owned())),
        ("KEY=a.example:authorization:env=OTHER", SecretSource::Env("OTHER".to_owned())),
        ("KEY=a.example:authorization:file=/a:b=c", SecretSource::File("/a:b=c".into())),
    ] {
        let policy = read(flag).unwrap();
        let secret = &policy.secrets()["KEY"];
        assert_eq!((secret.host(), secret.header()), (&name("a.example"), "authorization"));
        assert_eq!(secret.source(), &source, "{flag}");
    }
    for wrong in [
        "",
        "KEY",
        "KEY=hunter2",
        "KEY=a.example:authorization:hunter2",
        "KEY=a.example:authorization:value=hunter2",
        "KEY=a.example:env=hunter2",
        "KEY=a.example:file=/hunter2:x",
    ] {
        let error = read(wrong).unwrap_err().to_string();
        assert!(error.contains("network.secrets") && !error.contains("nter2"), "{wrong}: {error}");
    }
    let mut file = NetworkFile::default();
    file.add_secret("KEY=a.example:a").unwrap();
    assert!(file.add_secret("KEY=b.example:b").unwrap_err().to_string().contains("each name once"));
}

#[test]
fn flags_add_rules_for_requests() {
    let mut file = NetworkFile { allow: Some(vec!["a.example".to_owned()]), ..NetworkFile::default() };
    for flag in ["a.example=GET /v1/*", "a.example=* /a=b", "a.example=GET /v1/*"] {
        file.add_request(flag).unwrap();
    }
    let policy = file.clone().resolve().unwrap();
    let rules = policy.requests()[&name("a.example")].iter().map(ToString::to_string);
    assert_eq!(rules.collect::<Vec<_>>(), ["* /a=b", "GET /v1/*"]);
    for wrong in ["GET /v1/*", "a.example=", "a.example=GET", "b.example=GET /", "=GET /"] {
        let mut file = file.clone();
        let error = file.add_request(wrong).map_or_else(Err, |()| file.resolve()).unwrap_err().to_string();
        assert!(error.contains("network.requests"), "{wrong}: {error}");
    }
}

#[test]
fn headers_have_one_form() {
    let headers = r#"[
        {"host": "*.Wild.example", "header": "X-B", "value": "hunter2"},
        {"host": "a.example", "header": "x-b", "value": "Bearer ${secrets.one}"},
        {"host": "a.example", "header": "Authorization", "env": "KEY"}
    ]"#;
    let policy = policy(&format!(r#"{{{ALLOW}, "headers": {headers}}}"#)).unwrap();
    let set = |set: &SetHeader| format!("{}:{} {}", set.host(), set.header(), set.source().kind());
    let all: Vec<String> = policy.headers().iter().map(set).collect();
    assert_eq!(all, ["a.example:authorization env", "a.example:x-b value", "*.wild.example:x-b value"]);
    let stored = serde_json::to_string(&policy).unwrap();
    assert_eq!(serde_json::from_str::<NetworkPolicy>(&stored).unwrap(), policy);
    let shown = serde_json::to_string(&policy.without_values()).unwrap();
    assert!(shown.contains("…${secrets.one}"), "{shown}");
    for text in [shown, policy.canonical_json(), format!("{policy:?}")] {
        assert!(!text.contains("hunter2") && !text.contains("Bearer") && !text.contains("KEY"), "{text}");
    }
}

#[test]
fn invalid_headers_are_refused() {
    let one = r#"{"host": "a.example", "header": "x", "value": "hunter2"}"#;
    let twice = format!("[{one}, {}]", one.replace("\"x\"", "\"X\""));
    let with = |key: &str, value: &str| format!("[{}]", one.replace(key, value));
    for (more, headers, reason) in [
        (ALLOW, twice.as_str(), "each header of a host once"),
        (ALLOW, &with("a.example", "*"), "network.headers"),
        (ALLOW, &with("a.example", "127.0.0.1"), "a rule for an address"),
        (ALLOW, &with("\"x\"", "\"Host\""), "a header that does not frame or route the message"),
        (ALLOW, &with("hunter2", "hunter2\\n"), "1 to 8192 visible ASCII characters"),
        (ALLOW, &with("hunter2", "${secrets.A}"), "the name of a secret stored on the server"),
        (ALLOW, &with("hunter2", "${secrets.a"), "the name of a secret stored on the server"),
        (
            r#""mode": "disabled""#,
            &format!("[{one}]"),
            "its host in network.allow (--allow a.example) as well",
        ),
    ] {
        let error = policy(&format!(r#"{{{more}, "headers": {headers}}}"#)).unwrap_err().to_string();
        assert!(error.contains("network.headers") && error.contains(reason), "{headers}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn stored_secrets_are_filled_in() {
    let named = r#"{"host": "a.example", "header": "x", "value": "${secrets.one}"}"#;
    let other = r#"{"host": "a.example", "header": "y", "value": "${secrets.one}-${secrets.two}"}"#;
    let policy =
        policy(&format!(r#"{{{ALLOW}, "secrets": {{"KEY": {named}}}, "headers": [{other}]}}"#)).unwrap();
    assert_eq!(policy.stored_secrets().into_iter().collect::<Vec<_>>(), ["one", "two"]);
    let error = policy.check_filled().unwrap_err().to_string();
    assert!(error.contains("secrets are stored on servers only"), "{error}");
    let mut values = BTreeMap::from([("one".to_owned(), "1".to_owned())]);
    let filled = policy.fill(&values);
    assert_eq!(filled.secrets()["KEY"].source(), &SecretSource::Value("1".to_owned()));
    assert!(filled.headers().is_empty(), "a header without its secret is left out");
    values.insert("two".to_owned(), "2".to_owned());
    let filled = policy.fill(&values);
    assert_eq!(filled.headers()[0].source(), &SecretSource::Value("1-2".to_owned()));
    filled.check_filled().unwrap();
    assert!(policy.fill(&BTreeMap::new()).secrets().is_empty());
}

#[test]
fn policies_as_they_are_shown_keep_their_values() {
    let text = format!(
        r#"{{{ALLOW}, "secrets": {{"A": {{"host": "a.example", "header": "x", "value": "v"}}}}, "headers": [
            {{"host": "a.example", "header": "y", "value": "Bearer ${{secrets.key}}"}},
            {{"host": "*.wild.example", "header": "y", "value": "w"}}]}}"#
    );
    let old = policy(&text).unwrap();
    let mut shown = old.without_values();
    shown.allow.as_mut().unwrap().push("b.example:443".to_owned());
    assert!(shown.clone().resolve().is_err());
    shown.keep_values(&old);
    let new = shown.resolve().unwrap();
    assert_eq!((new.secrets(), new.headers()), (old.secrets(), old.headers()));
    // What was changed is as given.
    for (key, value) in [("host", "x.wild.example"), ("header", "z")] {
        let mut other = old.without_values();
        let secret = other.secrets.as_mut().unwrap().get_mut("A").unwrap();
        match key {
            "host" => secret.host = Some(value.to_owned()),
            _ => secret.header = Some(value.to_owned()),
        }
        other.keep_values(&old);
        assert!(other.resolve().is_err(), "{key}");
    }
    let mut other = old.without_values();
    other.secrets.as_mut().unwrap().get_mut("A").unwrap().value = Some("another".to_owned());
    other.keep_values(&old);
    let new = other.resolve().unwrap();
    assert_eq!(new.secrets()["A"].source(), &SecretSource::Value("another".to_owned()));
}
