use super::*;

#[test]
fn presets_are_sorted_by_name() {
    let names: Vec<&str> = presets().iter().map(Preset::name).collect();
    assert_eq!(names, ["apt", "brew", "cargo", "docker", "gem", "go", "maven", "npm", "nuget", "pip"]);
    assert!(presets_version() > 0);
    assert_eq!(Preset::find("pip").unwrap().name(), "pip");
    assert!(Preset::find("Pip").is_none());
}

#[test]
fn hosts_are_unique_and_have_ports_and_purpose() {
    for preset in presets() {
        assert!(!preset.purpose().is_empty() && !preset.hosts().is_empty(), "{}", preset.name());
        let mut rules: Vec<String> =
            preset.hosts().iter().flat_map(PresetHost::rules).map(|rule| rule.to_string()).collect();
        for rule in &rules {
            assert_eq!(Rule::parse_allow(rule).unwrap().to_string(), *rule, "{}", preset.name());
        }
        let count = rules.len();
        rules.sort();
        rules.dedup();
        assert_eq!(rules.len(), count, "{}", preset.name());
        for host in preset.hosts() {
            assert!(!host.purpose().is_empty() && !host.purpose().ends_with('.'), "{}", host.name());
            assert!(!host.ports().is_empty() && host.ports().is_sorted(), "{}", host.name());
            if let Some(risk) = host.risk() {
                let kind =
                    risk.starts_with("Data can be carried out: ") || risk.starts_with("Foreign content: ");
                assert!(kind && risk.ends_with('.'), "{}: {risk}", host.name());
            }
        }
    }
}

#[test]
fn multi_tenant_hosts_are_marked_as_risk() {
    let tenants = [
        "github.com",
        "githubusercontent.com",
        "ghcr.io",
        "googleapis.com",
        "launchpad",
        "keyserver",
        "docker.io",
    ];
    for preset in presets() {
        for host in preset.hosts() {
            let many_tenants = tenants.iter().any(|tenant| host.name().to_string().contains(tenant));
            let tokens_only = host.purpose().starts_with("tokens");
            assert!(host.risk().is_some() || !many_tenants || tokens_only, "{}", host.name());
        }
    }
}

/// Kinds of hosts that such lists often miss.
#[test]
fn presets_have_easily_forgotten_hosts() {
    let needed = [
        ("apt", "security.debian.org", 80),
        ("apt", "security.ubuntu.com", 443),
        ("apt", "ppa.launchpadcontent.net", 443),
        ("apt", "de.archive.ubuntu.com", 80),
        ("brew", "pkg-containers.githubusercontent.com", 443),
        ("cargo", "index.crates.io", 443),
        ("cargo", "static.crates.io", 443),
        ("docker", "production.cloudflare.docker.com", 443),
        ("docker", "production.cloudfront.docker.com", 443),
        ("gem", "index.rubygems.org", 443),
        ("go", "sum.golang.org", 443),
        ("go", "storage.googleapis.com", 443),
        ("maven", "plugins-artifacts.gradle.org", 443),
        ("npm", "registry.npmjs.org", 443),
        ("nuget", "globalcdn.nuget.org", 443),
        ("pip", "files.pythonhosted.org", 443),
    ];
    for (preset, host, port) in needed {
        let policy = policy(&format!(r#"{{"presets": [{preset:?}]}}"#)).unwrap();
        let matcher = Matcher::new(&policy, &[]);
        let decision = matcher.name(&name(host), port);
        assert!(decision.allowed, "{preset}: {}", decision.reason);
        assert!(!matcher.name(&name(host), 22).allowed, "{host}");
        assert!(!matcher.name(&name("example.com"), port).allowed, "{preset}");
        assert!(
            matches!(decision.by, DecidedBy::Preset { preset: by, .. } if by == preset),
            "{:?}",
            decision.by
        );
    }
}

#[test]
fn some_presets_terminate_tls() {
    let terminated: Vec<&str> =
        presets().iter().filter(|preset| preset.tls() == TlsMode::Terminate).map(Preset::name).collect();
    assert_eq!(terminated, ["cargo", "gem", "go", "npm", "pip"]);
    let hosts = |text: &str| -> Vec<String> {
        policy(text).unwrap().read_hosts().iter().map(ToString::to_string).collect()
    };
    assert_eq!(hosts(r#"{"presets": ["pip", "apt"]}"#), ["files.pythonhosted.org", "pypi.org"]);
    assert_eq!(hosts(r#"{"presets": ["pip"], "tls": {"pypi.org": "pass"}}"#), ["files.pythonhosted.org"]);
    assert!(
        hosts(r#"{"presets": ["pip"], "tls": {"*.pythonhosted.org": "pass", "pypi.org": "pass"}}"#)
            .is_empty()
    );
    // Hosts that have to be read are read nevertheless.
    assert!(policy(r#"{"presets": ["pip"]}"#).unwrap().required_hosts().is_empty());
}
