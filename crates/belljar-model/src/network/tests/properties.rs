use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

const PORTS: [&str; 5] = ["", ":80", ":443", ":22", ":*"];

/// Names from a small alphabet, so that many collide.
fn host() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "ab"]), 1..4)
        .prop_map(|labels| labels.join(".") + ".test")
}

fn name_rule() -> impl Strategy<Value = String> {
    (any::<bool>(), host(), prop::sample::select(PORTS.to_vec()))
        .prop_map(|(below, host, port)| format!("{}{host}{port}", if below { "*." } else { "" }))
}

fn address() -> impl Strategy<Value = Ipv4Addr> {
    (prop::sample::select(vec![8, 9, 10, 127]), 0..2_u8, 0..2_u8, 0..4_u8)
        .prop_map(|(a, b, c, d)| Ipv4Addr::new(a, b, c, d))
}

fn range() -> impl Strategy<Value = Cidr> {
    (address(), prop::sample::select(vec![0, 7, 8, 16, 24, 31, 32]))
        .prop_map(|(base, len)| Cidr::containing(base, len))
}

fn range_rule() -> impl Strategy<Value = String> {
    (range(), prop::sample::select(PORTS[1..].to_vec())).prop_map(|(range, port)| format!("{range}{port}"))
}

fn rules() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(prop_oneof![name_rule(), range_rule()], 0..8)
}

fn build(open: bool, allow: Vec<String>, deny: Vec<String>) -> NetworkPolicy {
    let mode = if open { "open" } else { "whitelist" };
    NetworkFile { allow: Some(allow), deny: Some(deny), ..mode.into() }.resolve().unwrap()
}

/// Reports whether some rule covers a name, by comparing texts, rule by rule.
fn covers_name(rules: &[Rule], name: &DomainName, port: u16) -> bool {
    rules.iter().any(|rule| {
        let text = rule.to_string();
        let (target, ports) = text.split_once(':').unwrap_or((&text, "web"));
        let name_fits = match target.strip_prefix('*') {
            Some(dot_suffix) => name.as_str().ends_with(dot_suffix),
            None => target == name.as_str(),
        };
        name_fits
            && (ports == "*" || ports == port.to_string() || (ports == "web" && [80, 443].contains(&port)))
    })
}

/// Reports whether some rule covers an address, bit by bit, rule by rule.
fn covers_address(rules: &[Rule], address: Ipv4Addr, port: u16) -> bool {
    rules.iter().any(|rule| {
        let text = rule.to_string();
        let Some((base, rest)) = text.split_once('/') else { return false };
        let (len, ports) = rest.split_once(':').unwrap();
        let (base, len): (Ipv4Addr, u32) = (base.parse().unwrap(), len.parse().unwrap());
        let same =
            (0..len).all(|bit| (base.to_bits() >> (31 - bit)) & 1 == (address.to_bits() >> (31 - bit)) & 1);
        same && (ports == "*" || ports == port.to_string())
    })
}

fn port() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![22, 80, 443, 8080])
}

/// Rewrites a rule to an equivalent one: with some letters in upper case, and with a trailing dot.
fn rewrite(rule: &str, upper: &[bool], dot: bool) -> String {
    let (target, port) = match rule.split_once(':') {
        Some((target, port)) => (target, format!(":{port}")),
        None => (rule, String::new()),
    };
    let cased = target.chars().zip(upper.iter().cycle());
    let cased: String =
        cased.map(|(char, upper)| if *upper { char.to_ascii_uppercase() } else { char }).collect();
    let dot = if dot && !target.contains('/') { "." } else { "" };
    format!("{cased}{dot}{port}")
}

proptest! {
    #[test]
    fn policy_within_ceiling_reaches_no_more(
        ceiling_policy in rules(), requested in rules(), name in host(), address in address(), port in port(),
    ) {
        let (ceiling_policy, requested) = (build(false, ceiling_policy, Vec::new()), build(false, requested, Vec::new()));
        // Lists, even if they are empty.
        let file = NetworkFile { presets: Some(Vec::new()), ..NetworkFile::from(&ceiling_policy) };
        let is_within = NetworkCeiling::try_from(file).unwrap().check(&requested).is_ok();
        let name: DomainName = name.parse().unwrap();
        if is_within {
            let names = |policy: &NetworkPolicy| covers_name(policy.allow(), &name, port);
            prop_assert!(!names(&requested) || names(&ceiling_policy), "{}:{}", name, port);
            let addresses = |policy: &NetworkPolicy| covers_address(policy.allow(), address, port);
            prop_assert!(!addresses(&requested) || addresses(&ceiling_policy), "{}:{}", address, port);
        }
    }

    #[test]
    fn policy_is_within_itself(rules in rules(), more in rules()) {
        let ceiling_policy = build(false, [rules.clone(), more].concat(), Vec::new());
        let file = NetworkFile { presets: Some(Vec::new()), ..NetworkFile::from(&ceiling_policy) };
        let ceiling = NetworkCeiling::try_from(file).unwrap();
        prop_assert_eq!(ceiling.check(&build(false, rules, Vec::new())), Ok(()));
        prop_assert_eq!(ceiling.check(&ceiling_policy), Ok(()));
    }

    #[test]
    fn canonical_name_is_a_fixed_point(text in "\\PC{0,40}") {
        if let Ok(name) = text.parse::<DomainName>() {
            prop_assert_eq!(name.as_str().parse::<DomainName>().unwrap(), name.clone());
            prop_assert!(name.as_str().len() <= 253);
            let fine = |label: &str| {
                (1..=63).contains(&label.len())
                    && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            };
            prop_assert!(name.as_str().split('.').all(fine), "{}", name);
            prop_assert!(name.as_str().parse::<Ipv4Addr>().is_err());
        }
    }

    #[test]
    fn almost_valid_names_have_a_canonical_form(text in "[a-zA-Z0-9ßüÜé例。．.-]{1,30}") {
        if let Ok(name) = text.parse::<DomainName>() {
            prop_assert_eq!(name.as_str().parse::<DomainName>().unwrap(), name.clone());
            prop_assert_eq!(text.to_ascii_uppercase().parse::<DomainName>().unwrap(), name.clone());
            let rooted = format!("{name}.");
            prop_assert_eq!(rooted.parse::<DomainName>().unwrap(), name);
        }
    }

    #[test]
    fn parsers_accept_or_refuse_any_text(text in "\\PC{0,60}") {
        for rule in [Rule::parse_allow(&text), Rule::parse_deny(&text)] {
            if let Err(error) = rule {
                prop_assert!(error.to_string().starts_with("network."));
            }
        }
        let _ = text.parse::<Cidr>();
        let _ = text.parse::<DomainPattern>();
    }

    #[test]
    fn rule_round_trip(text in prop_oneof![name_rule(), range_rule()]) {
        let (allow, deny) = (Rule::parse_allow(&text).unwrap(), Rule::parse_deny(&text).unwrap());
        prop_assert_eq!(Rule::parse_allow(&allow.to_string()).unwrap(), allow);
        prop_assert_eq!(Rule::parse_deny(&deny.to_string()).unwrap(), deny);
    }

    #[test]
    fn order_case_and_repetition_do_not_matter(
        (allow, shuffled) in rules().prop_flat_map(|rules| (Just(rules.clone()), Just(rules).prop_shuffle())),
        deny in rules(),
        upper in prop::collection::vec(any::<bool>(), 1..20),
        dot: bool,
    ) {
        let again = |rules: &[String]| -> Vec<String> {
            rules.iter().map(|rule| rewrite(rule, &upper, dot)).chain(rules.iter().cloned()).collect()
        };
        let policy = build(false, allow, deny.clone());
        let other = build(false, again(&shuffled), again(&deny));
        prop_assert_eq!(policy.canonical_json(), other.canonical_json());
        prop_assert_eq!(&policy, &other);
        let stored = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(serde_json::from_str::<NetworkPolicy>(&stored).unwrap(), policy);
    }

    #[test]
    fn wildcard_never_matches_its_suffix_or_a_look_alike(suffix in host(), other in host(), letters in "[a-z]{1,5}") {
        let pattern: DomainPattern = format!("*.{suffix}").parse().unwrap();
        let (prefixed, surrounded) = (format!("{letters}{suffix}"), format!("x.{suffix}.{letters}"));
        for outside in [suffix.clone(), prefixed, surrounded] {
            prop_assert!(!pattern.matches(&name(&outside)));
        }
        let below = format!("{letters}.{suffix}");
        prop_assert!(pattern.matches(&name(&below)));
        let dot_suffix = format!(".{suffix}");
        prop_assert_eq!(pattern.matches(&name(&other)), other.ends_with(&dot_suffix));
    }

    #[test]
    fn matcher_agrees_with_linear_scan(
        open: bool,
        allow in rules(),
        deny in rules(),
        exceptions in prop::collection::vec(range(), 0..2),
        host in host(),
        address in address(),
        port in port(),
    ) {
        let policy = build(open, allow, deny);
        let matcher = Matcher::new(&policy, &exceptions);
        let name = name(&host);
        let name_denied = covers_name(policy.deny(), &name, port);
        let name_allowed = !name_denied && (open || covers_name(policy.allow(), &name, port));
        let by_name = matcher.name(&name, port);
        prop_assert_eq!(by_name.allowed, name_allowed, "{}", by_name.reason);
        prop_assert!(!by_name.allowed || matcher.may_resolve(&name));

        let private = address.is_private() || address.is_loopback();
        let refused = covers_address(policy.deny(), address, port)
            || (private && !exceptions.iter().any(|range| range.contains(address)));
        let listed = covers_address(policy.allow(), address, port);
        let address_allowed = !refused && (listed || (open && !private));
        prop_assert_eq!(matcher.address(address, port).allowed, address_allowed);

        let named = covers_name(policy.allow(), &name, port);
        let resolved_allowed = name_allowed && !refused && (!open || !private || listed || named);
        prop_assert_eq!(matcher.resolved(&name, address, port).allowed, resolved_allowed);
    }

    #[test]
    fn deny_always_wins(open: bool, allow in rules(), deny in rules(), host in host(), address in address(), port in port()) {
        let all: Vec<Cidr> = vec!["0.0.0.0/0".parse().unwrap()];
        let mut denied = deny;
        denied.extend([format!("{host}:{port}"), format!("{address}/32:{port}")]);
        let mut allowed = allow;
        allowed.extend([format!("{host}:{port}"), format!("{host}:*"), format!("{address}/32:{port}")]);
        let matcher = Matcher::new(&build(open, allowed, denied), &all);
        let public = Ipv4Addr::new(93, 184, 216, 34);
        for decision in [
            matcher.name(&name(&host), port),
            matcher.address(address, port),
            matcher.resolved(&name(&host), public, port),
            matcher.resolved(&name("other.test"), address, port),
        ] {
            prop_assert!(!decision.allowed, "{}", decision.reason);
        }
    }
}
