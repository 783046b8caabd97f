//! `belljar net`: presets, and checks of network policies.

use serde_json::Value;

use crate::host::Host;

const PRESETS: [&str; 10] = ["apt", "brew", "cargo", "docker", "gem", "go", "maven", "npm", "nuget", "pip"];

#[test]
fn presets_are_listed_with_their_hosts_and_risks() {
    let host = Host::new();
    let all = host.run(&["net", "presets", "--json"]);
    let presets: Vec<Value> = all.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = presets.iter().map(|preset| preset["name"].as_str().unwrap()).collect();
    assert_eq!((all.status, names.as_slice()), (0, PRESETS.as_slice()));
    for preset in &presets {
        assert!(preset["version"].as_u64() >= Some(1), "{preset}");
        for host in preset["hosts"].as_array().unwrap() {
            assert!(!host["purpose"].as_str().unwrap().is_empty(), "{host}");
            assert!(host["risk"].is_null() || host["risk"].as_str().unwrap().ends_with('.'), "{host}");
        }
    }
    let words = host.run(&["net", "presets", "npm", "gem"]);
    let heads: Vec<&str> = words.text().lines().filter(|line| !line.starts_with([' ', '\n'])).collect();
    assert!(heads[0].starts_with("gem: ") && heads.last().unwrap().starts_with("npm: "), "{heads:?}");
    assert!(words.text().contains("      risk: "), "{}", words.text());
    let unknown = host.run(&["net", "presets", "npn"]);
    assert_eq!((unknown.status, unknown.text()), (2, ""));
    assert!(unknown.stderr.contains("give npm, if that is meant, or another of"), "{}", unknown.stderr);
}

#[test]
fn policy_is_checked_without_running_anything() {
    let host = Host::new();
    let check = |args: &[&str]| {
        let done = host.run(&[&["net", "check"], args].concat());
        assert_eq!(done.stderr, "", "{args:?}");
        (done.status, done.text().to_owned())
    };
    let allowed = "allowed  x.example:443  (allow: x.example)\n";
    assert_eq!(check(&["--allow", "x.example", "x.example:443"]), (0, allowed.to_owned()));
    let (status, output) = check(&["--allow", "x.example", "X.example.", "x.example:22", "10.0.0.1:443"]);
    let begins = [
        allowed.trim_end(),
        "denied   x.example:22 is not allowed",
        "denied   10.0.0.1:443 is denied in every mode",
    ];
    assert_eq!((status, output.lines().count()), (1, 3));
    assert!(output.lines().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{output}");
    // The default is no network; a file can set a policy, and flags replace it.
    assert_eq!(check(&["x.example"]).0, 1);
    host.write("net.toml", "[network]\npresets = [\"pip\"]\ndeny = [\"*.y.example\"]\nallow = [\"*.y.example:8443\", \"z.example:*\"]\n");
    let (_, output) = check(&["--spec", "net.toml", "--json", "a.y.example:8443", "z.example:9"]);
    let results: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let verdicts: Vec<_> = results.iter().map(|one| (one["allowed"].as_bool(), one["by"].as_str())).collect();
    assert_eq!(
        verdicts,
        [(Some(false), Some("deny: *.y.example:*")), (Some(true), Some("allow: z.example:*"))]
    );
    assert_eq!(check(&["--spec", "net.toml", "--allow", "x.example", "z.example:9"]).0, 1);
    // The operator's exceptions are those of a run.
    host.write("policy.toml", "[network]\nexceptions = [\"10.0.0.0/8\"]\n");
    let open = ["--policy", "policy.toml", "--net", "open", "--allow", "10.0.0.0/24:443"];
    let (status, output) = check(&[&open[..], &["10.0.0.1:443", "10.0.0.1:22", "192.168.0.1:443"]].concat());
    let begins = [
        "allowed  10.0.0.1:443  (allow: 10.0.0.0/24:443)",
        "denied   10.0.0.1:22 is not allowed by the network policy, which allows public hosts, 10.0.0.0/24:443; ask",
        "denied   192.168.0.1:443 is denied in every mode",
    ];
    assert_eq!((status, output.lines().count()), (1, 3));
    assert!(output.lines().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{output}");
}

#[test]
fn invalid_policy_is_refused_by_name() {
    let host = Host::new();
    for (args, begin) in [
        (&["--preset", "pipp", "x.example"][..], "network.presets: \"pipp\" is not allowed"),
        (&["--allow", "*", "x.example"], "network.allow: \"*\" is not allowed"),
        (&["--allow", "127.0.0.1:80", "x.example"], "network.allow: \"127.0.0.1:80\" is not allowed"),
        (&["--net", "open", "--preset", "pip", "x.example"], "network.presets: \"pip\" is not allowed"),
        (&["--net", "disabled", "--deny", "x.example", "x.example"], "network.deny: "),
        (&["--net", "open", "x..example"], "\"x..example\" is not allowed"),
        (&["--net", "open", "x.example:0"], "\"x.example:0\" is not allowed"),
        (&["--net", "open", "x.example:+443"], "\"x.example:+443\" is not allowed"),
        (&["--net", "open", "0x7f.1"], "\"0x7f.1\" is not allowed"),
    ] {
        let done = host.run(&[&["net", "check"], args].concat());
        assert_eq!((done.status, done.text()), (2, ""), "{args:?}: {done:?}");
        assert!(done.stderr.starts_with(&format!("belljar: {begin}")), "{args:?}: {}", done.stderr);
    }
}

#[test]
fn documented_commands_work() {
    let host = Host::new();
    let page = include_str!("../../../../docs/network.md");
    let commands = page.lines().filter_map(|line| line.strip_prefix("$ belljar "));
    let needs_sandbox = |command: &str| command.starts_with("net probe ") || command.contains("--sandbox");
    let is_local = |command: &&str| command.starts_with("net ") && !needs_sandbox(command);
    let commands: Vec<&str> = commands.filter(is_local).collect();
    assert_eq!(commands.len(), 5);
    let policy =
        page.split_once("$ cat policy.toml\n").and_then(|(_, rest)| rest.split_once("$ ")).unwrap().0;
    host.write("policy.toml", policy);
    for command in commands {
        let words: Vec<String> = command.split(' ').map(|word| word.trim_matches('\'').to_owned()).collect();
        let done = host.run(&words);
        // One of its hosts is denied.
        let status = i32::from(command.contains("--policy"));
        assert_eq!((done.status, done.stderr.as_str()), (status, ""), "{command}");
        let text = done.text();
        assert!(!text.is_empty() && (status == 0 || page.contains(text)), "{command}: {text}");
    }
    // The example file of the page does what its text says.
    let file = page.split("```toml\n").nth(1).and_then(|rest| rest.split_once("```")).unwrap().0;
    host.write("page.toml", file);
    let check = |goal: &str| host.run(&["net", "check", "--spec", "page.toml", goal]).status;
    let allowed = ["api.example.com:80", "git.corp.example", "db.example.com:5432"];
    let denied =
        ["api.example.com:22", "corp.example", "admin.corp.example", "db.example.com:443", "192.0.2.9:80"];
    assert!(allowed.iter().all(|goal| check(goal) == 0) && denied.iter().all(|goal| check(goal) == 1));
}
