use super::*;

#[test]
fn names_have_one_canonical_form() {
    let longest_label = "a".repeat(63);
    let longest = format!("{0}.{0}.{0}.{1}", longest_label, "a".repeat(61));
    let cases = [
        ("example.com", "example.com"),
        ("Example.ORG.", "example.org"),
        ("EXAMPLE.com", "example.com"),
        ("com", "com"),
        ("a-b--c.example", "a-b--c.example"),
        ("r3---sn-x.example", "r3---sn-x.example"),
        ("1.example", "1.example"),
        ("1e100.net", "1e100.net"),
        ("example.0xyz", "example.0xyz"),
        ("0x.example", "0x.example"),
        // Other scripts, and the same names in wire form.
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("bu\u{308}cher.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.Example", "xn--bcher-kva.example"),
        // Non-transitional: the sharp s is a distinct letter.
        ("straße.example", "xn--strae-oqa.example"),
        ("例え.テスト", "xn--r8jz45g.xn--zckzah"),
        ("example。com", "example.com"),
        ("example．com｡", "example.com"),
        ("ｅｘａｍｐｌｅ.com", "example.com"),
        ("exam\u{ad}ple.com", "example.com"),
        (&longest, &longest),
        (&format!("{longest}."), &longest),
    ];
    for (text, expected) in cases {
        assert_eq!(name(text).as_str(), expected, "{text:?}");
        assert_eq!(name(expected).to_string(), expected);
    }
}

#[test]
fn homoglyphs_are_different_names() {
    // A Cyrillic а in the place of the Latin one.
    assert_ne!(name("ex\u{430}mple.org"), name("example.org"));
    assert!(name("ex\u{430}mple.org").as_str().starts_with("xn--"));
}

#[test]
fn invalid_names_are_refused_with_a_reason() {
    let long_label = format!("{}.com", "a".repeat(64));
    let long_name = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "a".repeat(62));
    let long_256 = "a.".repeat(127) + "ab";
    let endless = "ü".repeat(100_000);
    let cases = [
        ("", "a name such as"),
        (".", "a name such as"),
        ("..", "without empty labels"),
        (".example.com", "without empty labels"),
        ("a..b", "without empty labels"),
        ("example.com..", "without empty labels"),
        ("a.\u{ad}.b", "without empty labels"),
        (&long_label, "at most 63 characters"),
        (&long_name, "at most 253 characters"),
        (&long_256, "at most 253 characters"),
        (&endless, "at most 253 characters"),
        ("-a.com", "hyphen"),
        ("a-.com", "hyphen"),
        ("a.b-。com", "hyphen"),
        ("a_b.com", "without _"),
        ("exa mple.com", "without spaces, line breaks and NULs"),
        ("example.com ", "without spaces, line breaks and NULs"),
        ("example.com\0.evil.com", "without spaces, line breaks and NULs"),
        ("example.com\r\nHost: x", "without spaces, line breaks and NULs"),
        ("example.com\n", "without spaces, line breaks and NULs"),
        ("example%00.com", "percent-encoding"),
        ("a%2eb", "percent-encoding"),
        ("user@example.com", "without @"),
        ("example.com/path", "without scheme and path"),
        ("example.com?x", "without scheme and path"),
        ("example.com#x", "without scheme and path"),
        ("example.com\\x", "without scheme and path"),
        ("example.com:443", "without port"),
        ("[example.org]", "brackets"),
        ("*", "the whole first label only"),
        ("*.example.com", "the whole first label only"),
        ("a,b", "without ,"),
        ("a;b", "without ;"),
        // Characters that map to ASCII characters that are invalid in names.
        ("example％00.com", "UTS 46"),
        ("a／b.com", "UTS 46"),
        ("a＠b.com", "UTS 46"),
        ("a\u{3000}b.com", "UTS 46"),
        ("＊.example.com", "UTS 46"),
        // Not the output of any encoder.
        ("xn--a.com", "UTS 46"),
        ("xn--.com", "hyphen"),
        ("xn--example-.com", "hyphen"),
        ("xn--zzzzzzzz999999.com", "UTS 46"),
        ("\u{202e}moc.elpmaxe", "UTS 46"),
        ("a\u{200d}b.com", "UTS 46"),
        ("localhost", "localhost is the sandbox itself"),
        ("LOCALHOST.", "localhost is the sandbox itself"),
        ("ｌｏｃａｌｈｏｓｔ", "localhost is the sandbox itself"),
        ("a.localhost", "localhost is the sandbox itself"),
    ];
    for (text, reason) in cases {
        let error = text.parse::<DomainName>().map(|name| name.to_string()).unwrap_err().to_string();
        assert!(error.starts_with("name: ") && error.contains(reason), "{text:?}: {error}");
        assert!(error.len() < 2000 && !error.contains(['\0', '\r', '\n']), "{text:?}: {error}");
    }
}

/// N03 of the hostile corpus: every spelling of an address is an address, not a name.
#[test]
fn addresses_are_not_names_in_any_spelling() {
    let numbers = [
        "0.0.0.0",
        "0",
        "127.1",
        "127.0.1",
        "127.0.0.1",
        "127.0.0.1.",
        "2130706433",
        "0x7f000001",
        "0X7F000001",
        "0x7f.1",
        "0x7f.0x0.0x0.0x1",
        "0x",
        "017700000001",
        "0177.0.0.1",
        "①②⑦.⓪.⓪.①",
        "１２７.０.０.１",
        "127。0。0。1",
        "127．0．0．1",
        "127｡0｡0｡1",
        "𝟏𝟐𝟕.0.0.𝟏",
        "1.2.3.4.5",
        "999.999.999.999",
        "4294967296",
        "example.127",
        "example.0x7f",
    ];
    for text in numbers {
        let error = text.parse::<DomainName>().unwrap_err().to_string();
        assert!(error.contains("a rule for an address"), "{text}: {error}");
        for rule in [text.to_owned(), format!("{text}:443"), format!("*.{text}")] {
            assert!(Rule::parse_allow(&rule).is_err(), "{rule}");
            assert!(Rule::parse_deny(&rule).is_err(), "{rule}");
        }
    }
    for text in
        ["::1", "[::1]", "::ffff:127.0.0.1", "[::ffff:127.0.0.1]:443", "fd00:ec2::254", "64:ff9b::1/96"]
    {
        assert!(text.parse::<DomainName>().is_err(), "{text}");
        for rule in [Rule::parse_allow(text), Rule::parse_deny(text)] {
            assert!(rule.unwrap_err().to_string().contains("no IPv6 in a sandbox"), "{text}");
        }
    }
}

/// N17 of the hostile corpus.
#[test]
fn wildcard_matches_only_subdomains() {
    let pattern: DomainPattern = "*.Example.ORG.".parse().unwrap();
    assert_eq!(pattern.to_string(), "*.example.org");
    for matched in
        ["a.example.org", "a.b.example.org", "A.EXAMPLE.org.", "xn--bcher-kva.example.org", "a。example。org"]
    {
        assert!(pattern.matches(&name(matched)), "{matched}");
    }
    let others = [
        "example.org",
        "evilexample.org",
        "example.org.evil.com",
        "a.example.org.evil.com",
        "org",
        "a.example.com",
    ];
    for other in others {
        assert!(!pattern.matches(&name(other)), "{other}");
    }
    let exact: DomainPattern = "example.org".parse().unwrap();
    assert!(exact.matches(&name("Example.ORG.")) && !exact.matches(&name("a.example.org")));
}

#[test]
fn invalid_patterns_are_refused() {
    for text in [
        "*", "*.", "*.*", "*.*.com", "a.*.com", "*a.com", "a*.com", "**.com", "*com", ".com", "*..com",
        "?.com",
    ] {
        let error = text.parse::<DomainPattern>().unwrap_err().to_string();
        assert!(error.starts_with("name: "), "{text}: {error}");
    }
    let error = "*".parse::<DomainPattern>().unwrap_err().to_string();
    assert!(error.contains("only mode open reaches every name"), "{error}");
}

#[test]
fn parents_are_nearest_first() {
    assert_eq!(
        name("a.b.example.com").parents().collect::<Vec<_>>(),
        ["b.example.com", "example.com", "com"]
    );
    assert_eq!(name("com").parents().count(), 0);
}

#[test]
fn names_and_patterns_are_checked_by_serde() {
    assert_eq!(serde_json::from_str::<DomainName>("\"A.Example\"").unwrap(), name("a.example"));
    assert_eq!(serde_json::to_string(&name("A.Example")).unwrap(), "\"a.example\"");
    assert!(serde_json::from_str::<DomainName>("\"127.1\"").is_err());
    assert!(serde_json::from_str::<DomainPattern>("\"*\"").is_err());
}

#[test]
fn invalid_names_stay_below_the_same_names() {
    let below: DomainPattern = "*.evil.example".parse().unwrap();
    for text in [
        "a_b.evil.example",
        "A.EVIL.example.",
        "-a-.evil.example",
        "a..evil.example",
        "xn--0.evil.example",
        "\u{ffff}.evil.example",
        &format!("{}.evil.example", "a".repeat(64)),
    ] {
        assert!(below.matches(&DomainName::lenient(text).unwrap()), "{text}");
    }
    assert_eq!(DomainName::lenient("Evil.Example"), Some(name("evil.example")));
    for text in ["", "127.0.0.1", "localhost", &"a.".repeat(200)] {
        assert_eq!(DomainName::lenient(text), None, "{text}");
    }
}
