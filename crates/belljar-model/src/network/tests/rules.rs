use super::*;

#[test]
fn allow_rules_have_one_canonical_form() {
    let cases = [
        ("example.com", "example.com"),
        ("EXAMPLE.com.", "example.com"),
        ("Example.com.:5432", "example.com:5432"),
        ("example.com:443", "example.com:443"),
        ("example.com:*", "example.com:*"),
        ("*.Corp.Example:443", "*.corp.example:443"),
        ("*.corp.example", "*.corp.example"),
        ("bücher.example:1", "xn--bcher-kva.example:1"),
        ("example.com:65535", "example.com:65535"),
        ("192.0.2.0/24:443", "192.0.2.0/24:443"),
        ("192.0.2.1/32:*", "192.0.2.1/32:*"),
        ("0.0.0.0/0:22", "0.0.0.0/0:22"),
        ("10.0.0.0/8:5432", "10.0.0.0/8:5432"),
    ];
    for (text, expected) in cases {
        let rule = Rule::parse_allow(text).unwrap();
        assert_eq!(rule.to_string(), expected);
        assert_eq!(Rule::parse_allow(expected).unwrap(), rule);
    }
}

#[test]
fn deny_rule_without_port_denies_every_port() {
    let cases = [
        ("example.com", "example.com:*"),
        ("*.example.com", "*.example.com:*"),
        ("example.com:80", "example.com:80"),
        ("192.0.2.0/24", "192.0.2.0/24:*"),
        ("192.0.2.1/32:443", "192.0.2.1/32:443"),
        // Names that no rule can allow can still be denied.
        ("metadata.google.internal", "metadata.google.internal:*"),
    ];
    for (text, expected) in cases {
        let rule = Rule::parse_deny(text).unwrap();
        assert_eq!(rule.to_string(), expected);
        assert_eq!(Rule::parse_deny(expected).unwrap(), rule);
    }
}

#[test]
fn invalid_rules_are_refused_with_the_right_form() {
    let long = "a".repeat(5000);
    let cases = [
        ("", "a name such as example.com"),
        (":443", "a name such as example.com"),
        ("*", "only mode open reaches every name"),
        ("*:443", "only mode open reaches every name"),
        ("https://example.com", "a host name alone, without scheme and path"),
        ("https://example.com:443/x", "a host name alone, without scheme and path"),
        ("example.com/x", "a host name without a path"),
        ("example.com:", "a port from 1 to 65535"),
        ("example.com:0", "a port from 1 to 65535"),
        ("example.com:65536", "a port from 1 to 65535"),
        ("example.com:99999999999999999999", "a port from 1 to 65535"),
        ("example.com:0443", "a port from 1 to 65535"),
        ("example.com:+443", "a port from 1 to 65535"),
        ("example.com:-1", "a port from 1 to 65535"),
        ("example.com: 443", "a port from 1 to 65535"),
        ("example.com:443 ", "a port from 1 to 65535"),
        ("example.com:４４３", "a port from 1 to 65535"),
        ("example.com:80-90", "a port from 1 to 65535"),
        ("example.com:%34", "a port from 1 to 65535"),
        ("example.com:https", "a port from 1 to 65535"),
        ("example.com:**", "a port from 1 to 65535"),
        ("example.com:443:443", "one colon before the port"),
        ("192.0.2.1", "192.0.2.1/32:443: an address is a range of one"),
        ("192.0.2.1:5432", "192.0.2.1/32:5432: an address is a range of one"),
        // The given text is shown escaped, and only once.
        ("192.0.2.1:\u{1b}[31m", "192.0.2.1/32:443: an address is a range of one"),
        ("192.0.2.0/24", "192.0.2.0/24:443 or 192.0.2.0/24:*: a range needs its port"),
        ("192.0.2.1/24:443", "192.0.2.0/24: after the prefix every bit is zero"),
        ("192.0.2.1/0:443", "0.0.0.0/0: after the prefix every bit is zero"),
        ("192.0.2.0/33:443", "a prefix length from 0 to 32"),
        ("192.0.2.0/:443", "a prefix length from 0 to 32"),
        ("192.0.2.0/024:443", "a prefix length from 0 to 32"),
        ("192.0.2.0/+24:443", "a prefix length from 0 to 32"),
        ("192.0.2.0/255.255.255.0:443", "a prefix length from 0 to 32"),
        ("192.0.2/24:443", "an IPv4 range such as"),
        ("0xc0.0.2.0/24:443", "an IPv4 range such as"),
        ("192.0.02.0/24:443", "an IPv4 range such as"),
        ("2001:db8::/32", "no IPv6 in a sandbox"),
        ("[2001:db8::1]:443", "no IPv6 in a sandbox"),
        ("metadata.google.internal:80", "the metadata service of a cloud"),
        ("x.Metadata.goog", "the metadata service of a cloud"),
        ("*.metadata.goog", "the metadata service of a cloud"),
        (&long, "at most 253 characters"),
    ];
    for (text, reason) in cases {
        let error = Rule::parse_allow(text).unwrap_err().to_string();
        assert!(error.starts_with("network.allow: ") && error.contains(reason), "{text:?}: {error}");
        assert!(!error.contains(char::is_control), "{error:?}");
    }
    assert!(Rule::parse_deny("a..b").unwrap_err().to_string().starts_with("network.deny: \"a..b\""));
}

#[test]
fn ranges_parse_and_contain_their_addresses() {
    let range: Cidr = "192.0.2.128/25".parse().unwrap();
    assert_eq!(range.to_string(), "192.0.2.128/25");
    assert!(range.contains([192, 0, 2, 128].into()) && range.contains([192, 0, 2, 255].into()));
    assert!(!range.contains([192, 0, 2, 127].into()) && !range.contains([192, 0, 3, 0].into()));
    let all: Cidr = "0.0.0.0/0".parse().unwrap();
    assert!(all.contains([0, 0, 0, 0].into()) && all.contains([255, 255, 255, 255].into()));
    assert_eq!(Cidr::containing([192, 0, 2, 77].into(), 25).to_string(), "192.0.2.0/25");
    assert_eq!(Cidr::containing([192, 0, 2, 77].into(), 200).to_string(), "192.0.2.77/32");
    for bad in ["192.0.2.0", "192.0.2.1/24", "::/0", "a/8", "", "/", "1.2.3.4/"] {
        let error = bad.parse::<Cidr>().unwrap_err().to_string();
        assert!(error.starts_with("cidr: "), "{error}");
    }
}

#[test]
fn lists_are_bounded() {
    let rules = |count: usize| (0..count).map(|number| format!("h{number}.example")).collect::<Vec<_>>();
    for (allow, deny, field) in
        [(rules(MAX_RULES + 1), None, "allow"), (Vec::new(), Some(rules(MAX_RULES + 1)), "deny")]
    {
        let file = NetworkFile { allow: Some(allow), deny, ..NetworkFile::default() };
        let expected = format!("network.{field}: \"10001 rules\" is not allowed; give at most 10000");
        assert_eq!(file.resolve().unwrap_err().to_string(), expected);
    }
    let file = NetworkFile { allow: Some(rules(MAX_RULES)), ..NetworkFile::default() };
    assert_eq!(file.resolve().unwrap().allow().len(), MAX_RULES);
}
