use super::*;
use crate::spec::SandboxSpec;

fn json(text: &str) -> String {
    policy(text).unwrap().canonical_json()
}

fn refusal(text: &str) -> String {
    policy(text).unwrap_err().to_string()
}

#[test]
fn equal_policies_have_equal_canonical_json() {
    let cases = [
        (r#""disabled""#, r#""disabled""#),
        (r#""open""#, r#""open""#),
        (r#""whitelist""#, r#""whitelist""#),
        (r#"{"mode": "open", "presets": [], "allow": [], "deny": [], "secrets": {}}"#, r#""open""#),
        (
            r#"{"presets": ["pip", "npm", "pip"], "allow": ["B.example.", "a.example", "b.example"]}"#,
            r#"{"mode":"whitelist","presets":["npm","pip"],"allow":["a.example","b.example"]}"#,
        ),
        (
            r#"{"deny": ["*.Bad.example", "192.0.2.0/24"], "mode": "open"}"#,
            r#"{"mode":"open","deny":["*.bad.example:*","192.0.2.0/24:*"]}"#,
        ),
        // A name without a port means 443 and 80; `*` covers every port.
        (r#"{"allow": ["a.example:443", "a.example:80"]}"#, r#"{"mode":"whitelist","allow":["a.example"]}"#),
        (r#"{"allow": ["a.example", "a.example:80"]}"#, r#"{"mode":"whitelist","allow":["a.example"]}"#),
        (
            r#"{"allow": ["a.example:443", "a.example:22"]}"#,
            r#"{"mode":"whitelist","allow":["a.example:22","a.example:443"]}"#,
        ),
        (
            r#"{"allow": ["a.example", "a.example:*", "a.example:9"]}"#,
            r#"{"mode":"whitelist","allow":["a.example:*"]}"#,
        ),
        // In the deny list a name without a port means every port, so that 443 and 80 stay as they are.
        (
            r#"{"mode": "open", "deny": ["a.example:443", "a.example:80"]}"#,
            r#"{"mode":"open","deny":["a.example:443","a.example:80"]}"#,
        ),
        (
            r#"{"allow": ["192.0.2.0/24:443", "192.0.2.0/24:80"]}"#,
            r#"{"mode":"whitelist","allow":["192.0.2.0/24:443","192.0.2.0/24:80"]}"#,
        ),
        // In mode open, hosts can be allowed: the operator may make exceptions for their addresses.
        (
            r#"{"mode": "open", "allow": ["192.0.2.0/24:1", "a.example"]}"#,
            r#"{"mode":"open","allow":["192.0.2.0/24:1","a.example"]}"#,
        ),
        (
            r#"{"mode": "open", "allow": ["10.1.0.0/16:5432"]}"#,
            r#"{"mode":"open","allow":["10.1.0.0/16:5432"]}"#,
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(json(text), expected, "{text}");
        assert_eq!(json(expected), expected);
        let stored: NetworkPolicy = serde_json::from_str(expected).unwrap();
        assert_eq!(stored, policy(text).unwrap());
        assert_eq!(serde_json::to_string(&stored).unwrap(), expected);
        assert_eq!(NetworkFile::from(&stored).resolve().unwrap(), stored);
    }
}

/// N22 of the hostile corpus: an empty list reaches nothing, and so does a missing one.
#[test]
fn empty_or_missing_lists_reach_nothing() {
    let cases = [
        ("{}", "disabled"),
        (r#"{"mode": null}"#, "disabled"),
        (r#"{"presets": null, "allow": null, "deny": null, "secrets": null}"#, "disabled"),
        (r#"{"deny": []}"#, "disabled"),
        (r#"{"allow": []}"#, "whitelist"),
        (r#"{"presets": []}"#, "whitelist"),
        (r#"{"mode": "whitelist", "deny": ["a.example"]}"#, "whitelist"),
        (r#"{"mode": "disabled", "presets": [], "allow": [], "deny": [], "secrets": {}}"#, "disabled"),
    ];
    for (text, mode) in cases {
        let policy = policy(text).unwrap();
        assert_eq!((policy.as_str(), policy.to_string().as_str()), (mode, mode), "{text}");
        assert_eq!(serde_json::from_str::<NetworkPolicy>(&policy.canonical_json()).unwrap(), policy);
        let matcher = Matcher::new(&policy, &["0.0.0.0/0".parse().unwrap()]);
        assert!(!matcher.name(&name("b.example"), 443).allowed, "{text}");
        assert!(!matcher.address([8, 8, 8, 8].into(), 443).allowed, "{text}");
        assert!(!matcher.may_resolve(&name("b.example")), "{text}");
    }
    assert_eq!(NetworkPolicy::default().as_str(), "disabled");
    assert_eq!(NetworkPolicy::default().canonical_json(), "\"disabled\"");
    let missing = ["{}", r#"{"network": null}"#, r#"{"network": {}}"#, r#"{"network": "disabled"}"#];
    for spec in missing.map(|text| SandboxSpec::from_json(text).unwrap().resolve().unwrap()) {
        assert_eq!(spec, SandboxSpec::default());
    }
}

#[test]
fn wrong_keys_and_types_are_refused_with_their_path() {
    let keys = "allowed here: allow, deny, headers, mode, presets, requests, secrets, tls";
    let cases = [
        ("7", "\"network\": a number is not allowed; give a text or a table".to_owned()),
        ("[]", "\"network\": a list is not allowed; give a text or a table".to_owned()),
        (r#"{"alow": []}"#, format!("\"network.alow\": unknown key, did you mean network.allow?; {keys}")),
        (r#"{"allow": [], "allow": []}"#, "\"network.allow\": this key is given twice".to_owned()),
        (r#"{"presets": "pip"}"#, "\"network.presets\": a text is not allowed; give a list of texts".to_owned()),
        (r#"{"allow": [443]}"#, "\"network.allow[0]\": a number is not allowed; give a text".to_owned()),
        (r#"{"mode": 1}"#, "\"network.mode\": a number is not allowed; give a text".to_owned()),
        (
            r#"{"secrets": []}"#,
            "\"network.secrets\": a list is not allowed; give a table of keys and values".to_owned(),
        ),
        (
            r#"{"secrets": {"A": "x"}}"#,
            "\"network.secrets.A\": a text is not allowed; give a table of keys and values".to_owned(),
        ),
        (
            r#"{"headers": {}}"#,
            "\"network.headers\": a table is not allowed; give a list of tables".to_owned(),
        ),
        (
            r#"{"headers": [{"hosts": "x"}]}"#,
            "\"network.headers[0].hosts\": unknown key, did you mean network.headers[0].host?; allowed here: env, file, \
             header, host, value"
                .to_owned(),
        ),
        (
            r#"{"secrets": {"A": {"hosts": "x"}}}"#,
            "\"network.secrets.A.hosts\": unknown key, did you mean network.secrets.A.host?; allowed here: env, file, \
             header, host, value"
                .to_owned(),
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(refusal(text), expected, "{text}");
        let error = serde_json::from_str::<NetworkPolicy>(text).unwrap_err().to_string();
        assert!(error.contains(&expected), "{text}: {error}");
        let whole = format!("{{\"network\": {text}}}");
        assert_eq!(SandboxSpec::from_json(&whole).unwrap_err().to_string(), expected);
    }
}

#[test]
fn contradictions_are_refused_with_their_field() {
    let disabled = "give mode whitelist with it: mode disabled reaches nothing";
    let either = "give mode whitelist or open (--net open) with it: mode disabled reaches nothing";
    let host = "give its host in network.allow (--allow a.example) as well: mode disabled reaches nothing";
    let open = "give mode whitelist with it: mode open reaches every public name already";
    let cases = [
        (r#"{"mode": "disabled", "presets": ["pip"]}"#, "network.presets: \"pip\"", disabled),
        (r#"{"mode": "disabled", "allow": ["a.example"]}"#, "network.allow: \"a.example\"", disabled),
        (r#"{"mode": "disabled", "deny": ["a.example"]}"#, "network.deny: \"a.example:*\"", either),
        (r#"{"deny": ["a.example"]}"#, "network.deny: \"a.example:*\"", either),
        (
            r#"{"secrets": {"A": {"host": "a.example", "header": "x", "value": "v"}}}"#,
            "network.secrets: \"A\"",
            host,
        ),
        (
            r#"{"headers": [{"host": "*.a.example", "header": "x", "value": "v"}]}"#,
            "network.headers: \"*.a.example\"",
            "give its host in network.allow (--allow '*.a.example') as well: mode disabled reaches nothing",
        ),
        (r#"{"tls": {"a.example": "terminate"}}"#, "network.tls: \"a.example\"", host),
        (r#"{"mode": "open", "presets": ["pip"]}"#, "network.presets: \"pip\"", open),
        (
            r#"{"mode": "disabled", "requests": {"a.example": ["GET /*"]}}"#,
            "network.requests: \"a.example\"",
            host,
        ),
        (
            r#"{"allow": ["b.example"], "requests": {"a.example": ["GET /*"]}}"#,
            "network.requests: \"a.example\"",
            "give a host that the policy allows on port 443 or 80; it is none, as it is not in network.allow (--allow a.example)",
        ),
        (
            r#"{"allow": ["*.example"], "deny": ["a.example"], "requests": {"a.example": ["GET /*"]}}"#,
            "network.requests: \"a.example\"",
            "give a host that the policy allows on port 443 or 80; it is none",
        ),
        (
            r#"{"mode": "open", "requests": {"a.example": ["GET /*"]}}"#,
            "network.requests: \"a.example\"",
            "give mode whitelist with it: in mode open code reaches hosts by their addresses, where requests are not read",
        ),
    ];
    for (text, field, allowed) in cases {
        assert_eq!(refusal(text), format!("{field} is not allowed; {allowed}"), "{text}");
    }
}

#[test]
fn unknown_presets_are_refused_with_the_nearest() {
    let known = "apt, brew, cargo, docker, gem, go, maven, npm, nuget, pip";
    let cases = [
        ("pipp", "pip, if that is meant, or another of"),
        ("NPM", "npm, if that is meant, or another of"),
        ("pypi", "pip, if that is meant, or another of"),
        ("pypi.org", "pip, if that is meant, or another of"),
        ("python", "pip, if that is meant, or another of"),
        ("npmjs", "npm, if that is meant, or another of"),
        ("rust", "cargo, if that is meant, or another of"),
        ("debian", "apt, if that is meant, or another of"),
        ("github", "one of"),
        ("packages", "one of"),
        ("conda", "one of"),
        ("", "one of"),
    ];
    for (preset, choice) in cases {
        let expected = format!("network.presets: {preset:?} is not allowed; give {choice} {known}");
        assert_eq!(refusal(&format!(r#"{{"presets": [{preset:?}]}}"#)), expected);
    }
}

#[test]
fn unknown_modes_are_refused_with_their_field() {
    assert_eq!(refusal("\"on\""), "network: \"on\" is not allowed; give disabled, whitelist or open");
    for (text, meant) in [
        ("off", "disabled"),
        ("None", "disabled"),
        ("host", "open"),
        ("opne", "open"),
        ("whitelst", "whitelist"),
    ] {
        let expected = format!(
            "network: {text:?} is not allowed; give {meant}, if that is meant, or another of disabled, whitelist, open"
        );
        assert_eq!(refusal(&format!("{text:?}")), expected);
    }
    assert_eq!(
        refusal(r#"{"mode": "on", "allow": []}"#),
        "network.mode: \"on\" is not allowed; give disabled, whitelist or open"
    );
    assert_eq!(
        "".parse::<NetworkMode>().unwrap_err().to_string(),
        "network: \"\" is not allowed; give disabled, whitelist or open"
    );
    for mode in [NetworkMode::Disabled, NetworkMode::Whitelist, NetworkMode::Open] {
        assert_eq!(mode.to_string().parse::<NetworkMode>().unwrap(), mode);
        assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
    }
}

#[test]
fn policy_is_checked_before_secrets_are_required() {
    let secret = r#"{"host": "a.example", "header": "x", "env": "V"}"#;
    let with_secret = format!(r#"{{"allow": ["a.example"], "secrets": {{"API_KEY": {secret}}}}}"#);
    let cases = [
        (
            with_secret.as_str(),
            "network.secrets: \"API_KEY\" is not allowed; give its value here; what env names is read",
        ),
        (
            r#"{"allow": ["a..b"]}"#,
            "network.allow: \"a..b\" is not allowed; give a name without empty labels",
        ),
        (r#"{"presets": ["pipp"]}"#, "network.presets: \"pipp\" is not allowed; give pip"),
    ];
    for (text, expected) in cases {
        let file = SandboxSpec::from_json(&format!("{{\"network\": {text}}}")).unwrap();
        let error = file.resolve().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
        let stored = serde_json::to_string(&SandboxSpec::default()).unwrap().replace("\"disabled\"", text);
        let error = serde_json::from_str::<SandboxSpec>(&stored).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    NetworkPolicy::default().check_available().unwrap();
}

#[test]
fn merged_network_replaces_the_base_entirely() {
    let spec = |text: &str| SandboxSpec::from_json(text).unwrap();
    let template = spec(r#"{"network": {"presets": ["pip"], "allow": ["a.example"]}}"#);
    let request = spec(r#"{"network": {"allow": ["b.example"]}}"#);
    assert_eq!(template.clone().merge(request.clone()).network, request.network);
    assert_eq!(template.clone().merge(spec("{}")).network, template.network);
    assert_eq!(template.clone().merge(spec(r#"{"network": null}"#)).network, template.network);
    assert_eq!(template.merge(spec(r#"{"network": {}}"#)).network, Some(NetworkFile::default()));
}

#[test]
fn toml_and_json_are_equivalent() {
    let toml = r#"
        [network]
        mode = "whitelist"
        presets = ["pip"]
        allow = ["A.example:443"]
        deny = ["b.example"]
        [network.secrets.API_KEY]
        host = "a.example"
        header = "Authorization"
        env = "KEY"
    "#;
    let json = r#"{"network": {"mode": "whitelist", "presets": ["pip"], "allow": ["A.example:443"], "deny": ["b.example"],
        "secrets": {"API_KEY": {"host": "a.example", "header": "Authorization", "env": "KEY"}}}}"#;
    let file = SandboxSpec::from_toml(toml).unwrap();
    assert_eq!(SandboxSpec::from_json(json).unwrap(), file);
    assert_eq!(SandboxSpec::from_json(&serde_json::to_string(&file).unwrap()).unwrap(), file);
    let plain = SandboxSpec::from_toml("network = 'disabled'").unwrap();
    assert_eq!(serde_json::to_value(&plain).unwrap()["network"], "disabled");
}

#[test]
fn treatment_of_tls_is_checked() {
    let of = |text: &str| policy(&format!(r#"{{"allow": ["*.example"], {text}}}"#));
    let read =
        of(r#""tls": {"A.example.": "terminate", "*.b.example": "terminate", "c.example": "pass"}"#).unwrap();
    let shown = r#"{"mode":"whitelist","allow":["*.example"],"tls":{"*.b.example":"terminate","a.example":"terminate","c.example":"pass"}}"#;
    assert_eq!(read.canonical_json(), shown);
    assert_eq!(serde_json::from_str::<NetworkPolicy>(shown).unwrap(), read);
    let hosts: Vec<String> = read.read_hosts().iter().map(ToString::to_string).collect();
    assert_eq!(hosts, ["a.example", "*.b.example"]);
    for (text, part) in [
        (
            r#""tls": {"a.example": "end"}"#,
            "network.tls: \"a.example=end\" is not allowed; give terminate or pass",
        ),
        (r#""tls": {"a.example:443": "pass"}"#, "network.tls: \"a.example:443\""),
        (r#""tls": {"a.example": "pass", "A.example": "pass"}"#, "give each host once"),
        (
            r#""tls": {"a.example": "pass"}, "requests": {"a.example": ["GET /"]}"#,
            "network.tls: \"a.example=pass\"",
        ),
        (r#""tls": {"a.example": "terminate", "*.example": "pass"}"#, "network.tls: \"*.example=pass\""),
        (r#""mode": "disabled", "tls": {"a.example": "pass"}"#, "network"),
    ] {
        let error = of(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let mut file = NetworkFile::default();
    file.add_tls("a.example=terminate").unwrap();
    for wrong in ["a.example", "a.example=pass"] {
        assert!(file.add_tls(wrong).unwrap_err().to_string().contains("network.tls"), "{wrong}");
    }
}
