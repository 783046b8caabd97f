use std::time::{Duration, Instant};

use super::*;

fn matcher(json: &str, exceptions: &[&str]) -> Matcher {
    let exceptions: Vec<Cidr> = exceptions.iter().map(|range| range.parse().unwrap()).collect();
    Matcher::new(&policy(json).unwrap(), &exceptions)
}

const WHITELIST: &str = r#"{
    "presets": ["pip"],
    "allow": ["a.example", "db.example:5432", "any.example:*", "*.corp.example:443", "x.corp.example:22",
              "8.8.8.0/24:53", "8.8.8.8/32:443", "10.1.0.0/16:5432", "both.example"],
    "deny": ["secret.corp.example", "both.example:80", "*.down.example", "8.8.8.9/32", "1.2.3.0/24"]
}"#;

#[test]
fn whitelist_allows_listed_hosts() {
    let matcher = matcher(WHITELIST, &[]);
    let cases = [
        ("a.example", 443, "allow: a.example"),
        ("a.example", 80, "allow: a.example"),
        ("db.example", 5432, "allow: db.example:5432"),
        ("any.example", 1, "allow: any.example:*"),
        ("b.corp.example", 443, "allow: *.corp.example:443"),
        ("x.corp.example", 443, "allow: *.corp.example:443"),
        ("x.corp.example", 22, "allow: x.corp.example:22"),
        ("pypi.org", 443, "preset pip: pypi.org:443"),
        ("both.example", 443, "allow: both.example"),
    ];
    for (host, port, by) in cases {
        let decision = matcher.name(&name(host), port);
        assert!(decision.allowed, "{host}: {}", decision.reason);
        assert_eq!(decision.by.to_string(), by);
        assert_eq!(decision.reason, format!("{host}:{port} is allowed ({by})"));
    }
}

/// N17 and N18 of the hostile corpus, and hosts excluded by deny rules.
#[test]
fn whitelist_denies_other_hosts() {
    let matcher = matcher(WHITELIST, &[]);
    let cases = [
        ("a.example", 22, "not in the allow list"),
        ("sub.a.example", 443, "not in the allow list"),
        ("eviladb.example", 5432, "not in the allow list"),
        ("db.example", 443, "not in the allow list"),
        ("corp.example", 443, "not in the allow list"),
        ("b.corp.example", 80, "not in the allow list"),
        ("evilcorp.example", 443, "not in the allow list"),
        ("corp.example.evil.com", 443, "not in the allow list"),
        ("pypi.org", 80, "not in the allow list"),
        ("secret.corp.example", 443, "deny: secret.corp.example:*"),
        ("both.example", 80, "deny: both.example:80"),
        ("x.down.example", 443, "deny: *.down.example:*"),
        ("metadata.google.internal", 80, "always denied: metadata service"),
    ];
    for (host, port, by) in cases {
        let decision = matcher.name(&name(host), port);
        assert!(!decision.allowed, "{host}: {}", decision.reason);
        assert_eq!(decision.by.to_string(), by, "{host}");
        assert!(decision.reason.starts_with(&format!("{host}:{port} is ")), "{}", decision.reason);
    }
}

/// N01, N02 and N18 of the hostile corpus.
#[test]
fn addresses_need_their_own_rule() {
    let whitelist = matcher(WHITELIST, &[]);
    let excepted = matcher(WHITELIST, &["10.1.2.0/24", "192.168.0.0/16"]);
    let open = matcher(
        r#"{"mode": "open", "deny": ["1.2.3.0/24"], "allow": ["10.1.0.0/16:5432"]}"#,
        &["10.0.0.0/8"],
    );
    let disabled = matcher(r#""disabled""#, &["0.0.0.0/0"]);
    let cases = [
        (&whitelist, "8.8.8.8", 53, Some("allow: 8.8.8.0/24:53")),
        (&whitelist, "8.8.8.8", 443, Some("allow: 8.8.8.8/32:443")),
        (&whitelist, "8.8.8.7", 443, None),
        (&whitelist, "8.8.8.9", 53, None),
        (&whitelist, "9.9.9.9", 53, None),
        (&whitelist, "10.1.2.3", 5432, None),
        (&whitelist, "169.254.169.254", 80, None),
        (&excepted, "10.1.2.3", 5432, Some("allow: 10.1.0.0/16:5432")),
        (&excepted, "10.1.2.3", 80, None),
        (&excepted, "10.1.3.3", 5432, None),
        (&excepted, "192.168.0.1", 80, None),
        (&open, "9.9.9.9", 53, Some("mode open")),
        (&open, "1.2.3.4", 443, None),
        (&open, "127.0.0.1", 443, None),
        (&open, "100.100.100.200", 80, None),
        (&open, "168.63.129.16", 80, None),
        (&open, "10.1.2.3", 5432, Some("allow: 10.1.0.0/16:5432")),
        // In mode open, an exception applies only if the policy names the range.
        (&open, "10.1.2.3", 80, None),
        (&open, "10.2.0.1", 5432, None),
        (&disabled, "8.8.8.8", 443, None),
    ];
    for (matcher, address, port, by) in cases {
        let decision = matcher.address(address.parse().unwrap(), port);
        assert_eq!(decision.allowed, by.is_some(), "{}", decision.reason);
        if let Some(by) = by {
            assert_eq!(decision.by.to_string(), by);
        }
    }
}

/// N05 of the hostile corpus: an allowed name gives no access to a denied address.
#[test]
fn resolved_address_and_name_are_both_checked() {
    let whitelist = matcher(WHITELIST, &["10.1.2.0/24"]);
    let open =
        matcher(r#"{"mode": "open", "allow": ["10.1.2.3/32:443", "named.example"]}"#, &["10.1.2.0/24"]);
    let cases = [
        (&whitelist, "a.example", "93.184.216.34", Some("allow: a.example")),
        (&whitelist, "a.example", "10.1.2.3", Some("allow: a.example")),
        (&whitelist, "a.example", "10.9.9.9", None),
        (&whitelist, "a.example", "127.0.0.1", None),
        (&whitelist, "a.example", "169.254.169.254", None),
        (&whitelist, "a.example", "1.2.3.4", None),
        (&whitelist, "b.example", "93.184.216.34", None),
        (&open, "b.example", "93.184.216.34", Some("mode open")),
        (&open, "b.example", "10.1.2.3", Some("mode open")),
        (&open, "b.example", "10.1.2.4", None),
        (&open, "named.example", "93.184.216.34", Some("allow: named.example")),
        (&open, "named.example", "10.1.2.4", Some("allow: named.example")),
        (&open, "named.example", "192.168.0.1", None),
        (&open, "b.example", "192.168.0.1", None),
    ];
    for (matcher, host, address, by) in cases {
        let decision = matcher.resolved(&name(host), address.parse().unwrap(), 443);
        assert_eq!(decision.allowed, by.is_some(), "{host} {address}: {}", decision.reason);
        if let Some(by) = by {
            assert_eq!(decision.by.to_string(), by);
        }
    }
}

#[test]
fn only_reachable_names_resolve() {
    let whitelist = matcher(WHITELIST, &[]);
    let cases = [
        ("a.example", true),
        ("db.example", true),
        ("b.corp.example", true),
        ("both.example", true),
        ("corp.example", false),
        ("secret.corp.example", false),
        ("x.down.example", false),
        ("data.in.labels.evil.example", false),
    ];
    for (host, resolves) in cases {
        assert_eq!(whitelist.may_resolve(&name(host)), resolves, "{host}");
    }
    let open = matcher(r#"{"mode": "open", "deny": ["a.example", "b.example:80"]}"#, &[]);
    let resolves = |host| open.may_resolve(&name(host));
    assert!(!resolves("a.example") && resolves("b.example") && resolves("c.example"));
    assert!(!resolves("metadata.google.internal"));
}

#[test]
fn denial_reason_suggests_a_fix() {
    let cases = [
        (
            WHITELIST,
            "c.example",
            "c.example:443 is not allowed by the network policy, which allows the preset pip, *.corp.example:443, \
             10.1.0.0/16:5432, 8.8.8.0/24:53 and 6 more; ask whoever created the sandbox to allow c.example:443",
        ),
        (
            r#""whitelist""#,
            "c.example",
            "c.example:443 is not allowed by the network policy, which allows nothing; ask whoever created the sandbox to \
             allow c.example:443",
        ),
        (
            r#""disabled""#,
            "c.example",
            "c.example:443 cannot be reached: this sandbox has no network; ask whoever created it to allow c.example:443",
        ),
        (
            r#"{"mode": "open", "deny": ["c.example"]}"#,
            "c.example",
            "c.example:443 is denied by the rule c.example:* of the network policy; ask whoever created the sandbox to \
             remove it",
        ),
    ];
    for (policy, host, reason) in cases {
        assert_eq!(matcher(policy, &[]).name(&name(host), 443).reason, reason);
    }
    let address = |policy, address: &str| matcher(policy, &[]).address(address.parse().unwrap(), 80).reason;
    assert_eq!(
        address(r#""open""#, "10.0.0.1"),
        "10.0.0.1:80 is denied in every mode, as 10.0.0.0/8 is not public (private, RFC 1918); only the operator's \
         configuration can make an exception (sandboxes.network.exceptions of a server, network.exceptions of a policy file), after which the policy has to allow 10.0.0.1/32:80"
    );
    assert!(address(r#"{"mode": "open", "allow": ["10.0.0.0/8:80"]}"#, "10.0.0.1").ends_with(
        "make an exception (sandboxes.network.exceptions of a server, network.exceptions of a policy file)"
    ));
    // With the exception, the rule alone is missing: one for the name, if code used one.
    let excepted = matcher(r#""open""#, &["10.0.0.0/8"]);
    let lacks = |rule| {
        format!(
            "10.0.0.1:80 is not allowed by the network policy, which allows public hosts; ask whoever created the sandbox to \
             allow {rule}"
        )
    };
    let private = [10, 0, 0, 1].into();
    assert_eq!(excepted.address(private, 80).reason, lacks("10.0.0.1/32:80"));
    assert_eq!(excepted.resolved(&name("c.example"), private, 80).reason, lacks("c.example:80"));
    // Without one, a policy that allows the name lacks nothing else.
    let reason = |policy| matcher(policy, &[]).resolved(&name("c.example"), private, 80).reason;
    assert!(reason(r#""open""#).ends_with("after which the policy has to allow c.example:80"));
    assert!(reason(r#"{"allow": ["c.example"]}"#).ends_with(
        "make an exception (sandboxes.network.exceptions of a server, network.exceptions of a policy file)"
    ));
    assert_eq!(
        address(r#"{"presets": ["pip", "npm"]}"#, "8.8.8.8"),
        "8.8.8.8:80 is not allowed by the network policy, which allows the presets npm, pip; ask whoever created the \
         sandbox to allow 8.8.8.8/32:80"
    );
}

#[test]
fn decision_time_is_bounded_with_ten_thousand_rules() {
    let names = (0..MAX_RULES).map(|number| format!("*.h{number}.example:{}", 1 + number % 1000));
    let ranges = (0..MAX_RULES)
        .map(|number| format!("9.{}.{}.0/24:{}", number / 250, number % 250, 1 + number % 1000));
    let ports = (0..MAX_RULES).map(|number| format!("one.example:{}", number + 1));
    let lists: [Vec<String>; 3] = [names.collect(), ranges.collect(), ports.collect()];
    let deep = format!("{}h5000.example", "a.".repeat(110));
    for list in lists {
        let file = NetworkFile { allow: Some(list.clone()), deny: Some(list), ..NetworkFile::default() };
        let matcher = Matcher::new(&file.resolve().unwrap(), &[]);
        let begin = Instant::now();
        for _ in 0..100 {
            assert!(!matcher.name(&name(&deep), 1).allowed);
            assert!(!matcher.name(&name("one.example"), 9999).allowed);
            assert!(!matcher.address([9, 20, 0, 1].into(), 1).allowed);
        }
        // One millisecond each, for an unoptimized build on a busy machine.
        assert!(begin.elapsed() < Duration::from_millis(300), "{:?}", begin.elapsed());
    }
}

#[test]
fn names_within_connections_are_compared_with_deny() {
    let of = |text: &str| Matcher::new(&policy(text).unwrap(), &[]);
    let open = of(
        r#"{"mode": "open", "deny": ["evil.example", "*.below.example:443"], "tls": {"read.example": "terminate"}}"#,
    );
    for (text, port, denied) in [
        ("evil.example", 80, true),
        ("a.evil.example", 80, false),
        ("a.below.example", 443, true),
        ("a.below.example", 80, false),
        ("metadata.google.internal", 80, true),
        ("read.example", 443, true),
        ("good.example", 443, false),
    ] {
        assert_eq!(open.named(&name(text), port).is_some(), denied, "{text}:{port}");
        // Another name may lead to a host whose requests are read: it is not read by that name.
        let is_read = text == "read.example";
        let alias = open.alias(&name("good.example"), &name(text), port);
        assert_eq!(alias.is_some(), denied && !is_read, "{text}:{port}");
        assert!(alias.is_none_or(|alias| !alias.allowed && alias.reason.contains(text)), "{text}");
    }
    for (text, read) in [
        (r#"{"mode": "open"}"#, false),
        (r#"{"mode": "open", "deny": ["10.0.0.0/8"]}"#, false),
        (r#"{"mode": "open", "deny": ["evil.example:22"]}"#, true),
        (r#"{"allow": ["a.example"], "requests": {"a.example": []}}"#, true),
        (r#"{"mode": "open", "tls": {"a.example": "terminate"}}"#, true),
        (r#"{"mode": "open", "tls": {"a.example": "pass"}}"#, false),
    ] {
        assert_eq!(of(text).must_read_names(), read, "{text}");
    }
}
