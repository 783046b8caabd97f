use super::*;

const ALLOW: &str =
    r#""allow": ["a.example", "plain.example:80", "*.wild.example"], "deny": ["denied.wild.example"]"#;

fn with_secret(name: &str, secret: &str) -> Result<NetworkPolicy, ModelError> {
    policy(&format!(r#"{{{ALLOW}, "secrets": {{{name:?}: {secret}}}}}"#))
}

#[test]
fn a_secret_is_bound_to_one_host_and_header() {
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
        ("A", at("other.example"), "a host that the policy allows on port 443; other.example is none"),
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
fn the_value_of_a_secret_is_stored_but_not_shown() {
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
