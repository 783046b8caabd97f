//! Checks that the JSON Schemas in `docs/schema` and the code agree: every value that the code writes matches its schema, every
//! key that it writes is described there, and every part of a schema is covered by some value.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use belljar_model::{
    ChangeKind, EngineName, Event, FileChange, FilePath, Isolation, Layer, LayerState, LimitKind,
    LimitsGrade, Outcome, Phase, PhaseResult, RESULT_SCHEMA, RunResult, SandboxId, StreamOutput,
};
use serde_json::Value;

const RESULT: &str = include_str!("../../../docs/schema/result.schema.json");
const EVENT: &str = include_str!("../../../docs/schema/event.schema.json");

/// Validates values against the part of JSON Schema that our schemas use, and records which parts were covered.
struct Checker {
    documents: BTreeMap<&'static str, Value>,
    /// Places covered by some value.
    covered: BTreeSet<String>,
}

/// Position of a schema in a document.
#[derive(Clone)]
struct Position<'a> {
    document: &'a str,
    pointer: String,
}

impl Position<'_> {
    fn child(&self, step: &str) -> Self {
        Self { document: self.document, pointer: format!("{}/{step}", self.pointer) }
    }

    fn place(&self) -> String {
        format!("{}#{}", self.document, self.pointer)
    }
}

impl Checker {
    fn new() -> Self {
        let parse = |text| serde_json::from_str(text).unwrap();
        let documents = [("result.schema.json", parse(RESULT)), ("event.schema.json", parse(EVENT))]
            .into_iter()
            .collect();
        Self { documents, covered: BTreeSet::new() }
    }

    fn schema(&self, at: &Position<'_>) -> Value {
        self.documents[at.document]
            .pointer(&at.pointer)
            .unwrap_or_else(|| panic!("no {}", at.place()))
            .clone()
    }

    /// Validates a value that nothing else describes: all of its keys must be described here.
    fn check_whole(&mut self, at: &Position<'_>, value: &Value) -> Result<(), String> {
        let described = self.check(at, value)?;
        match value.as_object().and_then(|object| object.keys().find(|key| !described.contains(*key))) {
            Some(key) => Err(format!("{} does not describe the key {key}", at.place())),
            None => Ok(()),
        }
    }

    /// Validates a value, and returns those of its keys that are described.
    fn check(&mut self, at: &Position<'_>, value: &Value) -> Result<BTreeSet<String>, String> {
        let schema = self.schema(at);
        let wrong = |what: &str| Err(format!("{} does not take {value}: {what}", at.place()));
        let mut described = BTreeSet::new();
        self.covered.insert(at.place());
        for (keyword, rule) in schema.as_object().unwrap() {
            match keyword.as_str() {
                "$schema" | "$id" | "$defs" | "title" | "description" => {}
                "$ref" => {
                    let (document, pointer) = rule.as_str().unwrap().split_once('#').unwrap();
                    let document = if document.is_empty() { at.document } else { document };
                    described.extend(self.check(&Position { document, pointer: pointer.to_owned() }, value)?);
                }
                "anyOf" | "oneOf" => {
                    let before = self.covered.clone();
                    let mut fitting = Vec::new();
                    for index in 0..rule.as_array().unwrap().len() {
                        self.covered.clone_from(&before);
                        if let Ok(keys) = self.check(&at.child(&format!("{keyword}/{index}")), value) {
                            fitting.push((keys, self.covered.clone()));
                        }
                    }
                    if fitting.len() != 1 {
                        return wrong(&format!("{} of {keyword} fit", fitting.len()));
                    }
                    let (keys, covered) = fitting.remove(0);
                    described.extend(keys);
                    self.covered = covered;
                }
                "type" => {
                    let one_type = [rule.clone()];
                    let types = rule.as_array().map_or(&one_type[..], Vec::as_slice);
                    let Some(fit) = types.iter().find(|name| is_of_type(value, name.as_str().unwrap()))
                    else {
                        return wrong("type");
                    };
                    self.covered.insert(format!("{}/type={fit}", at.place()));
                }
                "const" if value == rule => {}
                "enum" if rule.as_array().unwrap().contains(value) => {
                    self.covered.insert(format!("{}/enum={value}", at.place()));
                }
                "required" => {
                    for key in rule.as_array().unwrap() {
                        if value.get(key.as_str().unwrap()).is_none() {
                            return wrong(&format!("{key} is missing"));
                        }
                    }
                }
                "properties" => {
                    for key in rule.as_object().unwrap().keys() {
                        if let Some(inner) = value.get(key) {
                            self.check_whole(&at.child(&format!("properties/{key}")), inner)?;
                            described.insert(key.clone());
                        }
                    }
                }
                "additionalProperties" => {
                    for (key, inner) in value.as_object().into_iter().flatten() {
                        self.check_whole(&at.child("additionalProperties"), inner)?;
                        described.insert(key.clone());
                    }
                }
                "items" => {
                    for inner in value.as_array().unwrap() {
                        self.check_whole(&at.child("items"), inner)?;
                    }
                }
                "minimum" if value.as_f64() >= rule.as_f64() || value.is_null() => {}
                "maximum" if value.as_f64() <= rule.as_f64() => {}
                "pattern" if rule == "^[a-z][a-z0-9]{19}$" => {
                    if value.as_str().unwrap().parse::<SandboxId>().is_err() {
                        return wrong("pattern");
                    }
                }
                "pattern" if rule == "^[a-z][a-z0-9-]{0,30}$" => {
                    if value.as_str().unwrap().parse::<EngineName>().is_err() {
                        return wrong("pattern");
                    }
                }
                "const" | "enum" | "minimum" | "maximum" => return wrong(keyword),
                other => panic!("{}: this test does not know {other}", at.place()),
            }
        }
        Ok(described)
    }

    /// Collects every place of a document that a value can cover.
    fn places(&self, at: &Position<'_>, places: &mut BTreeSet<String>) {
        let schema = self.schema(at);
        places.insert(at.place());
        for (keyword, rule) in schema.as_object().unwrap() {
            match keyword.as_str() {
                "$defs" | "properties" => {
                    for key in rule.as_object().unwrap().keys() {
                        self.places(&at.child(&format!("{keyword}/{key}")), places);
                    }
                }
                "anyOf" | "oneOf" => {
                    for index in 0..rule.as_array().unwrap().len() {
                        self.places(&at.child(&format!("{keyword}/{index}")), places);
                    }
                }
                "items" | "additionalProperties" => self.places(&at.child(keyword), places),
                "enum" | "type" => {
                    let one_value = [rule.clone()];
                    for value in rule.as_array().map_or(&one_value[..], Vec::as_slice) {
                        places.insert(format!("{}/{keyword}={value}", at.place()));
                    }
                }
                _ => {}
            }
        }
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("this test does not know the type {other}"),
    }
}

fn outcomes() -> Vec<Outcome> {
    use LimitKind::{Cpu, Disk, Inodes, OpenFiles, Output, Pids, Tmp};
    let limits = [Pids, Disk, Tmp, Inodes, Output, OpenFiles, Cpu].map(|limit| Outcome::Limit { limit });
    let others = [
        Outcome::Exited { code: 3 },
        Outcome::signalled(11),
        Outcome::TimedOut,
        Outcome::OutOfMemory,
        Outcome::Denied { rule: "no shells".into() },
        Outcome::Infrastructure { cause: "no cgroup".into() },
    ];
    others.into_iter().chain(limits).collect()
}

fn isolation(engine: EngineName, grade: LimitsGrade) -> Isolation {
    let layer = |state| Layer { name: "seccomp".into(), state, detail: "allow-list".into() };
    let layers = [LayerState::InForce, LayerState::Weaker, LayerState::Absent].map(layer).to_vec();
    Isolation { engine, grade, tree: "host".into(), layers }
}

fn id() -> SandboxId {
    SandboxId::from_entropy([9; 20])
}

/// Returns a result with all optional parts, and one without.
fn full_and_bare(outcome: Outcome, engine: EngineName) -> [RunResult; 2] {
    let change = |kind, path: &[u8]| FileChange { path: FilePath::new(path), kind, size: 7 };
    let phase = |phase, cpu_ms| PhaseResult {
        phase,
        outcome: outcome.clone(),
        wall_ms: 1.5,
        cpu_ms,
        stdout: StreamOutput::default(),
        stderr: StreamOutput::default(),
    };
    let full = RunResult {
        schema: RESULT_SCHEMA,
        id: id(),
        language: "c".into(),
        outcome: outcome.clone(),
        exit_code: Some(3),
        signal: Some("SIGSEGV".into()),
        exit_status: outcome.exit_status(),
        stdout: StreamOutput::new(b"\xff", b"\xfe", 100).with_log("/run/x/stdout"),
        stderr: StreamOutput::new(b"text", b"", 4),
        compile: Some(phase(Phase::Compile, Some(1.0))),
        wall_ms: 12.345,
        cpu_ms: Some(3.0),
        peak_memory_bytes: Some(1 << 20),
        files: vec![
            change(ChangeKind::Created, b"a"),
            change(ChangeKind::Changed, b"\xff"),
            change(ChangeKind::Removed, b"b"),
        ],
        files_truncated: true,
        isolation: isolation(engine, LimitsGrade::Watched),
        hint: Some("Do this.".into()),
        timings: Some([("walls".to_owned(), 0.5)].into()),
    };
    let bare = RunResult {
        exit_code: None,
        signal: None,
        compile: Some(phase(Phase::Run, None)),
        cpu_ms: None,
        peak_memory_bytes: None,
        files: Vec::new(),
        isolation: isolation(engine, LimitsGrade::Cgroup),
        hint: None,
        timings: None,
        ..full.clone()
    };
    [full, bare]
}

fn results() -> Vec<RunResult> {
    let mut results: Vec<RunResult> =
        outcomes().into_iter().flat_map(|outcome| full_and_bare(outcome, EngineName::LOCAL)).collect();
    for engine in ["local", "process", "another-1"].map(EngineName::known) {
        results.extend(full_and_bare(Outcome::TimedOut, engine));
    }
    let [mut without_compiler, _] = full_and_bare(Outcome::TimedOut, EngineName::LOCAL);
    without_compiler.compile = None;
    results.push(without_compiler);
    results
}

fn events() -> Vec<Event> {
    let [full, bare] = full_and_bare(Outcome::TimedOut, EngineName::LOCAL);
    let mut events: Vec<Event> = ["local", "process", "another-1"]
        .map(EngineName::known)
        .into_iter()
        .map(|engine| Event::Started { id: id(), engine })
        .collect();
    events.extend([
        Event::Phase { phase: Phase::Compile },
        Event::Phase { phase: Phase::Run },
        Event::stdout(0, b"a"),
        Event::stdout(1, b"\xff"),
        Event::stderr(0, b"b"),
        Event::Warning { message: "Mind this.".into() },
        Event::Result(Box::new(full)),
        Event::Result(Box::new(bare)),
    ]);
    events
}

/// Checks values against a document, and that every place of the document is covered by one of them.
fn check_all(document: &'static str, values: &[Value]) {
    let mut checker = Checker::new();
    let root = Position { document, pointer: String::new() };
    for value in values {
        checker.check_whole(&root, value).unwrap();
    }
    let mut places = BTreeSet::new();
    checker.places(&root, &mut places);
    let missed: Vec<&String> = places.difference(&checker.covered).collect();
    assert!(missed.is_empty(), "no value covers {missed:#?}");
}

#[test]
fn results_and_their_schema_agree() {
    let values: Vec<Value> = results().iter().map(|result| serde_json::to_value(result).unwrap()).collect();
    check_all("result.schema.json", &values);
}

#[test]
fn events_and_their_schema_agree() {
    let values: Vec<Value> = events().iter().map(|event| serde_json::to_value(event).unwrap()).collect();
    check_all("event.schema.json", &values);
}

#[test]
fn json_round_trip() {
    for result in results() {
        let json = serde_json::to_string(&result).unwrap();
        assert_eq!(serde_json::from_str::<RunResult>(&json).unwrap(), result);
    }
    for event in events() {
        let json = serde_json::to_string(&event).unwrap();
        assert!(!json.contains('\n'), "an event has to fit on a line: {json}");
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
    }
}

#[test]
fn checker_detects_mistakes() {
    let [full, _] = full_and_bare(Outcome::TimedOut, EngineName::LOCAL);
    let good = serde_json::to_value(full).unwrap();
    let root = Position { document: "result.schema.json", pointer: String::new() };
    let cases: [(&str, Option<Value>); 8] = [
        ("/id", None),
        ("/id", Some("UPPER".into())),
        ("/exit_status", Some(256.into())),
        ("/new_key", Some(1.into())),
        ("/schema", Some(2.into())),
        ("/outcome/kind", Some("vanished".into())),
        ("/stdout/encoding", Some("utf-16".into())),
        ("/isolation/layers/0/state", Some(1.into())),
    ];
    assert_eq!(Checker::new().check_whole(&root, &good), Ok(()));
    for (pointer, bad) in cases {
        let mut value = good.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let object = value.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match bad {
            Some(bad) => drop(object.insert(key.to_owned(), bad)),
            None => drop(object.remove(key)),
        }
        assert!(Checker::new().check_whole(&root, &value).is_err(), "{pointer}");
    }
}
