//! Template builds under a network policy.

use crate::Case;
use crate::clients::cases;
use crate::fixture::Fixture;
use crate::headers::home;
use crate::home::Home;

cases![steps_reach_only_what_their_policy_allows,];

const TEMPLATE: &str = r#"
name = "tiny"
base = "host"
[[step]]
pip = ["tiny"]
network = { presets = ["pip"] }
[[step]]
run = "curl -s --max-time 20 http://pypi.org || echo closed > /opt/template/closed"
"#;

fn build(home: &Home, text: &str) -> crate::home::Done {
    home.write("tiny.toml", text);
    home.run("template build tiny.toml")
}

fn steps_reach_only_what_their_policy_allows(fixture: &Fixture) {
    // TLS to the preset's hosts is terminated: the gateway verifies them, and pip trusts the gateway.
    let home = home(fixture, "");
    let done = build(&home, TEMPLATE);
    done.good();
    let sandbox = home.create("--template tiny");
    let look = "cat /opt/template/closed; /opt/template/bin/python3 -c 'import tiny; print(tiny.WORD)'";
    assert_eq!(home.inside(&sandbox, look), "closed\ntiny\n");
    let reached = |address: &str| fixture.said().iter().filter(|said| said["connected"] == address).count();
    assert_eq!((reached("93.184.216.40"), reached("93.184.216.41")), (1, 1));
    // An unchanged step under the same policy is cached; under another policy it runs again.
    build(&home, TEMPLATE).good();
    assert_eq!(reached("93.184.216.40"), 1);
    build(&home, &TEMPLATE.replace("[\"pip\"]", "[\"pip\", \"npm\"]")).good();
    assert_eq!(reached("93.184.216.40"), 2);
    // A denied connection is reported with the step that failed.
    let narrow = TEMPLATE.replace("pip = [\"tiny\"]", "run = \"curl -sS https://files.pythonhosted.org/\"");
    let narrow = narrow.replace("{ presets = [\"pip\"] }", "{ allow = [\"pypi.org\"] }");
    let done = build(&home, &narrow);
    done.refused(125, &["step 1 of 2 (run)", "network: files.pythonhosted.org", "not allowed"]);
    assert_eq!(reached("93.184.216.41"), 2);
    // The audit log contains the policies' digest.
    let audit = home.good("audit tail");
    assert!(audit.contains("template.build") && audit.contains("network_digest"), "{audit}");
}
