use std::error::Error as _;

use super::*;
use crate::limits::{LimitsGrade, Memory, Pids};

const TOML: &str = r#"
engine = "process"
language = "python"
grade = "watched"
network = "disabled"
mounts = ["/data:/data", "/srv/out:/out:rw"]
hostname = "lab"
interactive = true
screening = "off"
approval = "never"

[limits]
memory = "256m"
cpus = 0.5
timeout = 30
pids = 64
tmp = 1048576
disk = "2g"
inodes = 1000
output = "1m"
log = 0
open_files = "256"

[env]
LANG = "C"
EMPTY = ""
"#;

const JSON: &str = r#"{
    "engine": "process", "language": "python", "grade": "watched", "network": "disabled",
    "mounts": ["/data:/data", "/srv/out:/out:rw"], "hostname": "lab", "interactive": true,
    "screening": "off", "approval": "never",
    "limits": {"memory": "256m", "cpus": 0.5, "timeout": 30, "pids": 64, "tmp": 1048576, "disk": "2g",
               "inodes": 1000, "output": "1m", "log": 0, "open_files": "256"},
    "env": {"LANG": "C", "EMPTY": ""}
}"#;

fn flags() -> SpecFile {
    let text = |text: &str| Some(text.to_owned());
    let mut limits = LimitsFile::default();
    let given = [
        ("memory", "256m"),
        ("cpus", "0.5"),
        ("timeout", "30"),
        ("pids", "64"),
        ("tmp", "1048576"),
        ("disk", "2g"),
        ("inodes", "1000"),
        ("output", "1m"),
        ("log", "0"),
        ("open_files", "256"),
    ];
    for (name, text) in given {
        assert!(limits.set(name, text).unwrap(), "{name}");
    }
    let mut spec = SpecFile {
        engine: text("process"),
        language: text("python"),
        limits,
        grade: text("watched"),
        network: Some("disabled".into()),
        hostname: text("lab"),
        interactive: Some(true),
        screening: Some(Screening::Off),
        approval: Some(Approval::Never),
        ..SpecFile::default()
    };
    spec.add_mount("/data:/data");
    spec.add_mount("/srv/out:/out:rw");
    spec.add_env("LANG=C").unwrap();
    spec.add_env("EMPTY=").unwrap();
    spec
}

#[test]
fn flags_toml_and_json_are_equivalent() {
    assert_eq!(SandboxSpec::from_toml(TOML).unwrap(), flags());
    assert_eq!(SandboxSpec::from_json(JSON).unwrap(), flags());
    assert_eq!(serde_json::from_str::<SpecFile>(JSON).unwrap(), flags());
    assert_eq!(SandboxSpec::from_json(&serde_json::to_string(&flags()).unwrap()).unwrap(), flags());

    let spec = flags().resolve().unwrap();
    assert_eq!(spec.engine, "process".parse().unwrap());
    assert_eq!(spec.grade, LimitsGrade::Watched);
    assert_eq!(spec.limits.memory.bytes(), 256 << 20);
    assert_eq!(spec.limits.cpus.millis(), 500);
    assert_eq!(spec.limits.timeout.duration().as_secs(), 30);
    assert_eq!(spec.limits.pids.get(), 64);
    assert_eq!(spec.limits.tmp.bytes(), 1 << 20);
    assert_eq!(spec.limits.disk.bytes(), 2 << 30);
    assert_eq!(spec.limits.inodes.get(), 1000);
    assert_eq!(spec.limits.output.bytes(), 1 << 20);
    assert_eq!(spec.limits.log.bytes(), 0);
    assert_eq!(spec.limits.open_files.get(), 256);
    let mounts: Vec<String> = spec.mounts.iter().map(ToString::to_string).collect();
    assert_eq!(mounts, ["/data:/data:ro", "/srv/out:/out:rw"]);
    let env: Vec<(&str, &str)> = spec.env.iter().map(|v| (v.name(), v.value())).collect();
    assert_eq!(env, [("EMPTY", ""), ("LANG", "C")]);
    assert_eq!(spec.hostname.as_str(), "lab");
    assert!(spec.interactive);
}

#[test]
fn defaults_match_documentation() {
    for text in ["", "limits = {}"] {
        let spec = SandboxSpec::from_toml(text).unwrap().resolve().unwrap();
        assert_eq!(spec, SandboxSpec::default());
        let limits = spec.limits;
        assert_eq!(limits.memory.to_string(), "512 MiB");
        assert_eq!(limits.cpus.to_string(), "1");
        assert_eq!(limits.timeout.to_string(), "60 s");
        assert_eq!(limits.pids.to_string(), "128");
        assert_eq!(limits.tmp.to_string(), "480 MiB");
        assert_eq!(limits.disk.to_string(), "480 MiB");
        assert_eq!(limits.inodes.to_string(), "65536");
        assert_eq!(limits.output.to_string(), "8 MiB");
        assert_eq!(limits.log.to_string(), "256 MiB");
        assert_eq!(limits.open_files.to_string(), "1024");
    }
    let null = SandboxSpec::from_json(r#"{"engine": null, "limits": null}"#).unwrap();
    assert_eq!(null, SpecFile::default());
}

/// Returns a message with its causes, as they are printed.
fn message_with_causes(error: &ModelError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[test]
fn invalid_files_are_refused() {
    let top = "allowed here: approval, engine, env, grade, hostname, interactive, language, limits, machine, mounts, network, screening, user, volumes";
    let limits = "allowed here: cpus, disk, inodes, log, memory, open_files, output, pids, timeout, tmp";
    let cases = [
        (r#"{"memory": "1g"}"#, format!("\"memory\": unknown key; {top}")),
        (r#"{"engin": "local"}"#, format!("\"engin\": unknown key, did you mean engine?; {top}")),
        (
            r#"{"limits": {"memroy": 1}}"#,
            format!("\"limits.memroy\": unknown key, did you mean limits.memory?; {limits}"),
        ),
        (r#"{"limits": {"pids": 1, "pids": 2}}"#, "\"limits.pids\": this key is given twice".to_owned()),
        (r#"{"env": {"A": "1", "A": "2"}}"#, "\"env.A\": this key is given twice".to_owned()),
        (r#"{"engine": 1}"#, "\"engine\": a number is not allowed; give a text".to_owned()),
        (
            r#"{"limits": []}"#,
            "\"limits\": a list is not allowed; give a table of keys and values".to_owned(),
        ),
        (
            r#"{"limits": {"pids": [1]}}"#,
            "\"limits.pids\": a list is not allowed; give a text or a number".to_owned(),
        ),
        (r#"{"mounts": "/a:/b"}"#, "\"mounts\": a text is not allowed; give a list of texts".to_owned()),
        (r#"{"mounts": ["/a:/b", 7]}"#, "\"mounts[1]\": a number is not allowed; give a text".to_owned()),
        (r#"{"env": {"PORT": 8080}}"#, "\"env.PORT\": a number is not allowed; give a text".to_owned()),
        (
            r#"{"interactive": "yes"}"#,
            "\"interactive\": a text is not allowed; give true or false".to_owned(),
        ),
        ("[]", "\"the whole text\": a list is not allowed; give a table of keys and values".to_owned()),
        ("{", "the text is not valid JSON: EOF while parsing an object at line 1 column 1".to_owned()),
        ("{} {}", "the text is not valid JSON: trailing characters at line 1 column 4".to_owned()),
    ];
    for (text, expected) in cases {
        assert_eq!(message_with_causes(&SandboxSpec::from_json(text).unwrap_err()), expected, "{text}");
    }

    let message = message_with_causes(&SandboxSpec::from_toml("[limits]\nmemroy = 1").unwrap_err());
    assert_eq!(message, format!("\"limits.memroy\": unknown key, did you mean limits.memory?; {limits}"));
    let message =
        message_with_causes(&SandboxSpec::from_toml("engine = 'local'\nengine = 'none'").unwrap_err());
    assert!(message.starts_with("the text is not valid TOML: "), "{message}");
    assert!(message.contains("line 2"), "{message}");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(SandboxSpec::from_json(&deep), Err(ModelError::Json { .. })));
    assert!(matches!(SandboxSpec::from_toml(&format!("a = {deep}")), Err(ModelError::Toml { .. })));
}

#[test]
fn long_files_are_refused() {
    let text = format!("{}{{}}", " ".repeat(MAX_SPEC_BYTES - 1));
    let expected = "the specification has 1048577 bytes; at most 1048576 are allowed";
    assert_eq!(SandboxSpec::from_json(&text).unwrap_err().to_string(), expected);
    assert_eq!(SandboxSpec::from_toml(&text).unwrap_err().to_string(), expected);
    assert!(SandboxSpec::from_json(&text[1..]).is_ok());
}

#[test]
fn invalid_values_are_refused() {
    let cases = [
        ("limits.memory = 0", "memory: \"0\" is not allowed; give a size from 16 MiB to 1 TiB, such as 256m"),
        (
            "limits.memory = 1.5",
            "memory: \"1.5\" is not allowed; give a size from 16 MiB to 1 TiB, such as 256m",
        ),
        (
            "limits.pids = -1",
            "pids: \"-1\" is not allowed; give a whole number from 1 to 4194304, such as 64",
        ),
        (
            "limits.cpus = nan",
            "cpus: \"NaN\" is not allowed; give a number from 0.01 to 1024 with at most three decimals, such as 0.5",
        ),
        (
            "engine = 'A jail'",
            "engine: \"A jail\" is not allowed; give 1 to 31 characters from a to z, 0 to 9 and -, the first one a letter, such as local",
        ),
        ("network = 'on'", "network: \"on\" is not allowed; give disabled, whitelist or open"),
        ("screening = 'on'", "screening: \"on\" is not allowed; give off, report or refuse"),
        (
            "approval = 'on_risk'",
            "approval: \"on_risk\" is not allowed; give never, on-risk, on-medium-risk or always",
        ),
        ("screening = 'report'", "screening: \"report\" is not in this version; give off"),
        ("screening = 'refuse'", "screening: \"refuse\" is not in this version; give off"),
        ("approval = 'on-risk'", "approval: \"on-risk\" is not in this version; give never"),
        ("approval = 'always'", "approval: \"always\" is not in this version; give never"),
        ("grade = ''", "grade: \"\" is not allowed; give cgroup, or watched, which is weaker"),
        (
            "env = { 'A=B' = 'C' }",
            "env: \"A=B\" is not allowed; give a name that is not empty and has no = and no NUL in it, such as LANG",
        ),
        (
            "mounts = ['/:/host']",
            "mount source: \"/\" is not allowed; give a directory or a file below /, not / itself",
        ),
        (
            "mounts = ['/a:/x', '/b:/x']",
            "mounts: \"/a\" and \"/b\" are both mounted on \"/x\"; give each a path of its own",
        ),
    ];
    for (text, expected) in cases {
        let error = SandboxSpec::from_toml(text).and_then(SpecFile::resolve).unwrap_err();
        assert_eq!(error.to_string(), expected, "{text}");
    }
}

#[test]
fn users_are_those_of_machines() {
    let user = |json: &str| {
        let resolved = SandboxSpec::from_json(json).unwrap().resolve();
        resolved.map(|spec| spec.user).map_err(|error| error.to_string())
    };
    assert_eq!(user(r#"{"user": "root", "machine": true}"#).unwrap().as_deref(), Some("root"));
    assert_eq!(user(r#"{"user": "user"}"#).unwrap(), None);
    for (json, expected) in [
        (r#"{"user": "root"}"#, "user: \"root\" is not allowed; give \"user\", or make it a machine"),
        (r#"{"user": "a:b", "machine": true}"#, "user: \"a:b\" is not allowed; give a user's name or number"),
        (r#"{"user": "", "machine": true}"#, "user: \"\" is not allowed"),
    ] {
        let error = user(json).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn debug_does_not_show_environment_values() {
    let mut spec = SpecFile::default();
    spec.add_env("TOKEN=hunter2").unwrap();
    let shown = [format!("{spec:?}"), format!("{:?}", spec.resolve().unwrap())];
    assert!(shown.iter().all(|text| text.contains("TOKEN") && !text.contains("hunter2")), "{shown:?}");
}

#[test]
fn merge_prefers_over() {
    let file = SandboxSpec::from_toml(TOML).unwrap();
    let over = r#"{"engine": "none", "limits": {"pids": 8}, "mounts": ["/x:/x"], "env": {"LANG": "D", "B": "2"},
                   "interactive": false, "network": "disabled", "grade": "cgroup", "hostname": "h", "language": "sh"}"#;
    let merged = file.clone().merge(SandboxSpec::from_json(over).unwrap());
    assert_eq!(merged.engine.as_deref(), Some("none"));
    assert_eq!(merged.language.as_deref(), Some("sh"));
    assert_eq!(merged.hostname.as_deref(), Some("h"));
    assert_eq!(merged.grade.as_deref(), Some("cgroup"));
    assert_eq!(merged.interactive, Some(false));
    assert_eq!(merged.limits.pids, Pids::new(8).ok());
    assert_eq!(merged.limits.memory, Memory::new(256 << 20).ok());
    assert_eq!(merged.mounts.unwrap(), ["/data:/data", "/srv/out:/out:rw", "/x:/x"]);
    let env: Vec<(String, String)> = merged.env.unwrap().into_iter().collect();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(env, [pair("B", "2"), pair("EMPTY", ""), pair("LANG", "D")]);

    let strict = SandboxSpec::from_toml("screening = 'refuse'\napproval = 'on-risk'").unwrap();
    for merged in [strict.clone().merge(file.clone()), file.clone().merge(strict.clone())] {
        assert_eq!((merged.screening, merged.approval), (strict.screening, strict.approval));
    }
    assert_eq!(file.clone().merge(SpecFile::default()), file);
    assert_eq!(SpecFile::default().merge(file.clone()), file);
}
