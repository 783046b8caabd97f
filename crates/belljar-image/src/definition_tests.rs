use super::*;

const GOOD: &str = r#"
name = "stats"
description = "numbers"
base = "debian"
suite = "bookworm"
start = "sleep 1000"
ready = "true"
warm = ["numpy", "pandas.core"]

[limits]
memory = "1g"
pids = 64

[[step]]
apt = ["python3", "g++", "libc6:amd64=2.36-9"]
[[step]]
pip = ["numpy>=1.26,<3", "pandas[excel]"]
[[step]]
npm = ["esbuild@0.25.0", "@types/node"]
[[step]]
run = "echo hi > /srv/hi"
[[step]]
copy = { from = "data/a.csv", to = "/srv/a.csv" }
[[step]]
env = { A = "1" }
[[step]]
user = "worker"
[[step]]
workdir = "/srv"
"#;

#[test]
fn full_definition_is_parsed() {
    let definition = Definition::parse(GOOD).unwrap();
    assert_eq!(definition.name, "stats");
    assert_eq!(definition.base, Base::Debian { suite: "bookworm".to_owned() });
    let kinds: Vec<&str> = definition.steps.iter().map(|step| step.kind.name()).collect();
    assert_eq!(kinds, ["apt", "pip", "npm", "run", "copy", "env", "user", "workdir"]);
    let env = definition.spec.env.unwrap();
    assert_eq!((env["A"].as_str(), env["USER"].as_str()), ("1", "worker"));
    assert_eq!(definition.spec.limits.memory, "1g".parse().ok());
    assert_eq!(definition.warm.len(), 2);
}

/// Parses invalid text, and returns the line, column, field and message of the error.
fn error(text: &str) -> (usize, usize, String, String) {
    let error = Definition::parse(text).unwrap_err();
    (error.line, error.column, error.field.clone(), error.to_string())
}

#[test]
fn errors_have_position_and_field() {
    let cases: &[(&str, &str, usize, usize, &str, &str)] = &[
        ("name = \"stats\"", "name = \"Stats\"", 2, 8, "name", "1 to 63"),
        ("name = \"stats\"", "name = \"default\"", 2, 8, "name", "1 to 63"),
        ("name = \"stats\"\n", "", 1, 1, "name", "missing field"),
        ("base = \"debian\"\n", "", 1, 1, "base", "missing field"),
        ("base = \"debian\"", "base = \"windows\"", 4, 8, "base", "not allowed"),
        ("suite = \"bookworm\"", "sweet = 1", 5, 1, "sweet", "unknown field"),
        ("suite = \"bookworm\"", "suite = \"../x\"", 5, 9, "suite", "release"),
        ("start = \"sleep 1000\"\n", "", 6, 9, "ready", "give `start`"),
        ("warm = [\"numpy\"", "warm = [\"os; rm\"", 8, 8, "warm", "not allowed in a list"),
        ("pids = 64", "pids = 0", 10, 1, "limits", "pids"),
        ("pids = 64", "pidz = 1", 10, 1, "limits.pidz", "unknown limit"),
        ("\"g++\"", "\"-o=x\"", 15, 7, "step.1.apt", "-o=x"),
        ("pandas[excel]", "x; rm -rf /", 17, 7, "step.2.pip", "not allowed in a list"),
        ("@types/node", "../up", 19, 7, "step.3.npm", "not allowed in a list"),
        ("run = \"echo hi > /srv/hi\"", "run = \"\"", 21, 7, "step.4.run", "command line"),
        ("data/a.csv\", to", "../a.csv\", to", 23, 8, "step.5.copy.from", "relative"),
        ("to = \"/srv/a.csv\"", "to = \"srv\"", 23, 8, "step.5.copy.to", "absolute"),
        ("env = { A = \"1\" }", "env = { \"A=B\" = \"1\" }", 25, 7, "step.6.env", "A=B"),
        ("user = \"worker\"", "user = \"Ro ot\"", 27, 8, "step.7.user", "user's name"),
        ("workdir = \"/srv\"", "workdir = \"/srv\"\nrun = \"true\"", 28, 1, "step.8", "exactly one"),
        ("workdir = \"/srv\"", "walkdir = \"/srv\"", 29, 1, "walkdir", "unknown field"),
        ("workdir = \"/srv\"", "workdir = 3", 29, 11, "template", "invalid type"),
        ("workdir = \"/srv\"", "workdir = ", 29, 11, "template", ""),
    ];
    for (from, to, line, column, field, expected) in cases {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let (at_line, at_column, about, message) = error(&text);
        assert_eq!(
            (at_line, at_column, about.as_str()),
            (*line, *column, *field),
            "{from} -> {to}: {message}"
        );
        assert!(message.contains(expected), "{message}");
        assert!(message.starts_with(&format!("line {line}, column {column}: ")), "{message}");
    }
}

#[test]
fn steps_that_run_programs_have_variables_of_their_own() {
    let text = GOOD.replacen("run = \"echo", "env = { B = \"2\" }\nrun = \"echo", 1);
    let definition = Definition::parse(&text).unwrap();
    let env = |number: usize| {
        definition.steps[number - 1].env.iter().map(|(name, value)| format!("{name}={value}"))
    };
    assert_eq!(definition.steps[3].kind.name(), "run");
    assert_eq!(env(4).collect::<Vec<_>>(), ["B=2"]);
    assert_eq!(
        (env(6).count(), definition.steps[5].kind.name()),
        (0, "env"),
        "a step env is for all after it"
    );
    assert!(!definition.spec.env.unwrap().contains_key("B"), "sandboxes do not have it");
    let (line, _, field, message) = error(&text.replacen("B = \"2\"", "\"\" = \"2\"", 1));
    assert_eq!((line, field.as_str()), (21, "step.4.env"), "{message}");
    let (_, _, field, message) = error(&GOOD.replacen("user = ", "env = { B = \"2\" }\nuser = ", 1));
    assert_eq!(field, "step.7");
    assert!(message.contains("env is of that step alone"), "{message}");
}

#[test]
fn summaries_are_what_a_step_does() {
    for (script, expected) in [
        ("make install", "make install"),
        ("  make\n", "make"),
        ("set -eu\n# tools\n\nmake\nmake install\n", "make …"),
        ("set -ex; make\n", "set -ex; make"),
        ("cat > a <<EOF\nx\nEOF\n", "cat > a <<EOF …"),
        ("\nset -e\n", "set -e"),
        ("# nothing", "# nothing"),
    ] {
        assert_eq!(StepKind::Run(script.to_owned()).summary(), expected, "{script:?}");
    }
    assert_eq!(script_line(&"x".repeat(300)).len(), 200);
}

#[test]
fn invalid_bases_are_refused() {
    for (base, expected) in [
        ("base = \"oci\"", "needs the path"),
        ("base = \"host\"\nimage = \"x\"", "only allowed with base"),
        ("base = \"template:\"", "not allowed"),
        ("base = \"template:../x\"", "not allowed"),
        ("base = \"host:x\"", "not allowed"),
        ("base = \"host\"\n[[step]]\napt = [\"vim\"]", "machine's own tree"),
        ("base = \"host\"\n[[step]]\ncopy = { from = \"a\", to = \"/etc/a\" }", "/opt/template"),
        ("base = \"oci\"\nimage = \"a\"\nreference = \"a b\"", "tag"),
    ] {
        let message = Definition::parse(&format!("name = \"a\"\n{base}\n")).unwrap_err().to_string();
        assert!(message.contains(expected), "{base}: {message}");
    }
    let good = Definition::parse("name = \"a\"\nbase = \"template:b\"").unwrap();
    assert_eq!(good.base, Base::Template("b".to_owned()));
    let long = format!("name = \"a\"\nbase = \"host\"\n{}", "#".repeat(MAX_DEFINITION_BYTES));
    assert!(Definition::parse(&long).unwrap_err().to_string().contains("at most"));
    let many =
        format!("name = \"a\"\nbase = \"host\"\n{}", "[[step]]\nrun = \"true\"\n".repeat(MAX_STEPS + 1));
    assert_eq!(Definition::parse(&many).unwrap_err().field, "step");
}

#[test]
fn step_network_defaults_to_that_of_the_build() {
    let text = r#"
name = "a"
base = "host"
[build]
disk = "1g"
network = { presets = ["pip"] }
[[step]]
pip = ["requests"]
[[step]]
env = { A = "1" }
[[step]]
run = "true"
network = "disabled"
[[step]]
run = "true"
network = { allow = ["Good.Example."] }
"#;
    let definition = Definition::parse(text).unwrap();
    let networks: Vec<String> = definition.steps.iter().map(|step| step.network.canonical_json()).collect();
    let expected = [
        r#"{"mode":"whitelist","presets":["pip"]}"#,
        r#""disabled""#,
        r#""disabled""#,
        r#"{"mode":"whitelist","allow":["good.example"]}"#,
    ];
    assert_eq!(networks, expected);
    assert_eq!(definition.build.disk, "1g".parse().ok());
    let without = Definition::parse(GOOD).unwrap();
    assert!(without.steps.iter().all(|step| !step.has_network()), "there is none by default");
    for (from, to, line, field, expected) in [
        (
            "env = { A = \"1\" }",
            "env = { A = \"1\" }\nnetwork = \"open\"",
            11,
            "step.2.network",
            "leave it out",
        ),
        ("Good.Example.", "*", 16, "step.4.network", "network.allow"),
        ("\"disabled\"", "\"some\"", 13, "step.3.network", "disabled, whitelist or open"),
        ("\"disabled\"", "3", 13, "step.3.network", "network"),
        ("presets = [\"pip\"]", "presets = [\"pop\"]", 4, "build.network", "pop"),
        ("presets = [", "persets = [", 4, "build.network", "persets"),
    ] {
        let text = text.replacen(from, to, 1);
        let (at_line, _, about, message) = error(&text);
        assert_eq!((at_line, about.as_str()), (line, field), "{to}: {message}");
        assert!(message.contains(expected), "{message}");
    }
}
