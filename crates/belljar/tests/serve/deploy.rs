//! Checks of the files in `deploy/`.

use crate::fixture::{Home, repository};

fn read(name: &str) -> String {
    std::fs::read_to_string(repository().join("deploy").join(name)).unwrap()
}

#[test]
fn configurations_are_valid() {
    let home = Home::new();
    for name in ["belljar.toml", "compose/belljar.toml", "debian/belljar.toml"] {
        let path = repository().join("deploy").join(name);
        let output = home.belljar(&["config", "check", path.to_str().unwrap()]).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn unit_allows_what_sandboxes_need() {
    let unit = read("systemd/belljar.service");
    for line in [
        "Type=notify",
        "Delegate=yes",
        "KillMode=process",
        "NotifyAccess=main",
        "ExecStart=/usr/local/bin/belljar serve",
    ] {
        assert!(unit.lines().any(|known| known == line), "{line}");
    }
    // Each of these settings would break the walls.
    for word in [
        "RestrictNamespaces",
        "PrivateUsers=yes",
        "ProtectControlGroups",
        "NoNewPrivileges=yes",
        "MemoryDenyWriteExecute",
    ] {
        let is_set = unit.lines().any(|line| !line.starts_with('#') && line.contains(word));
        assert!(!is_set, "{word}");
    }
}

#[test]
fn yaml_json_and_units_are_parsable() {
    let python = r"
import configparser, json, sys
root = sys.argv[1]
json.load(open(root + '/grafana/belljar.json'))
units = configparser.RawConfigParser(strict=False, delimiters=('=',)); units.optionxform = str
units.read_file(open(root + '/systemd/belljar.service'))
assert {'Unit', 'Service', 'Install'} <= set(units.sections()), units.sections()
try:
    import yaml
except ImportError:
    print('no yaml here')
else:
    compose = yaml.safe_load(open(root + '/compose/compose.yaml'))
    assert set(compose['services']) == {'belljar', 'caddy'}, compose['services']
";
    let deploy = repository().join("deploy");
    let output =
        std::process::Command::new("/usr/bin/python3").args(["-c", python]).arg(&deploy).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
