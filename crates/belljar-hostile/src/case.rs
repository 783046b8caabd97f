//! A case: `case.toml`, parsed strictly.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_linux::Wall;
use belljar_model::Languages;
use serde::{Deserialize, Serialize};

use crate::error::CaseError;

/// Maximum budget of a case.
const MAX_BUDGET: Duration = Duration::from_secs(300);

/// Languages allowed in the self-test: almost every machine has them.
const SELF_TEST_LANGUAGES: [&str; 2] = ["sh", "python"];

/// The groups of the corpus, by their letter.
pub(crate) const GROUPS: [&str; 6] = ["C", "F", "K", "N", "R", "X"];

/// Worst possible outcome of an attack, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Class {
    /// Code runs outside of the sandbox.
    Escape,
    /// Data of the host is read or changed.
    HostLeak,
    /// Data is sent to a network against the policy.
    Exfil,
    /// Another sandbox is reached.
    Lateral,
    /// The host becomes unusable.
    HostDoS,
    /// Another sandbox becomes unusable.
    PeerDoS,
    /// Privileges are gained inside of the sandbox.
    InternalEsc,
    /// Protected data inside of the sandbox is read.
    InternalRead,
    /// The sandbox becomes unusable.
    SelfDoS,
    /// The host receives a false report of events.
    Integrity,
}

/// An engine on which a case must be contained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The engine `local`.
    Local,
    /// The engine `docker`.
    Docker,
    /// The engine `gvisor`.
    Gvisor,
}

impl Engine {
    /// Returns its name, if it is not the default.
    #[must_use]
    pub const fn other(self) -> Option<&'static str> {
        match self {
            Self::Local => None,
            Self::Docker => Some("docker"),
            Self::Gvisor => Some("gvisor"),
        }
    }
}

/// Enforcement of limits that a case requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Enforcement by control groups.
    Cgroup,
}

/// Walls to disable, to check that the attack then succeeds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mutation {
    /// The walls, by their names in `belljar_linux::Wall`.
    #[serde(default)]
    pub without: Vec<String>,
    /// Walls that stop the same attack. They are disabled in both runs.
    #[serde(default)]
    pub also: Vec<String>,
    /// Probes that must then give an answer that is not allowed; if there are none, any breach is enough.
    #[serde(default)]
    pub breaks: Vec<String>,
    /// The reason why no wall can be disabled; excludes all other fields.
    pub none: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CaseFile {
    id: String,
    tries: String,
    class: Class,
    engines: Vec<Engine>,
    walls: Vec<String>,
    budget: String,
    #[serde(default)]
    self_test: bool,
    grade: Option<Grade>,
    language: Option<String>,
    program: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    files: Vec<String>,
    #[serde(default)]
    noise: bool,
    #[serde(default)]
    clock: bool,
    #[serde(default)]
    expect: BTreeMap<String, String>,
    result: Option<toml::Table>,
    #[serde(default)]
    mutation: Vec<Mutation>,
}

/// One case.
#[derive(Debug, Clone)]
pub struct Case {
    /// The case's directory.
    pub dir: PathBuf,
    /// Id in the corpus, such as `K01`.
    pub id: String,
    /// Name of the directory without the id, such as `new-namespaces`.
    pub name: String,
    /// The attack, in one sentence.
    pub tries: String,
    /// Worst possible outcome of the attack.
    pub class: Class,
    /// The engines on which it must be contained.
    pub engines: Vec<Engine>,
    /// The walls that contain it, for the table.
    pub walls: Vec<String>,
    /// Maximum duration, from the start of the sandbox to its end.
    pub budget: Duration,
    /// True if `belljar doctor --self-test` runs it.
    pub self_test: bool,
    /// The required enforcement of limits, if any.
    pub grade: Option<Grade>,
    /// Language of the program.
    pub language: Option<String>,
    /// File name of the program.
    pub program: Option<String>,
    /// Arguments for the program.
    pub args: Vec<String>,
    /// Flags for `belljar run`.
    pub flags: Vec<String>,
    /// Files placed beside the program, in the form that `-f` takes.
    pub files: Vec<String>,
    /// True if lines that are not a probe are ignored.
    pub noise: bool,
    /// True if it checks times more precisely than a busy machine can keep them.
    pub clock: bool,
    /// The allowed answers of each probe.
    pub expect: BTreeMap<String, Vec<String>>,
    /// Expected fields of the result; if `None`, the program must exit with 0.
    pub result: Option<toml::Table>,
    /// The mutations, each of which must let the attack succeed.
    pub mutations: Vec<Mutation>,
}

impl Case {
    /// Reads the case in `dir`, whose parent is named after the group.
    ///
    /// # Errors
    /// Fails if a file is missing, or `case.toml` cannot be parsed or is inconsistent.
    pub fn read(dir: &Path) -> Result<Self, CaseError> {
        let path = dir.join("case.toml");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| CaseError::Read { path: path.clone(), source })?;
        let file: CaseFile = toml::from_str(&text)
            .map_err(|source| CaseError::Syntax { path: path.clone(), source: Box::new(source) })?;
        let name = |path: Option<&Path>| {
            path.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let (group, full_name) = (name(dir.parent()), name(Some(dir)));
        let case = Self::validate(dir, &group, &full_name, file)
            .map_err(|reason| CaseError::Invalid { path, reason })?;
        Ok(case)
    }

    fn validate(dir: &Path, group: &str, full_name: &str, file: CaseFile) -> Result<Self, String> {
        let (id, name) = full_name.split_once('-').ok_or_else(|| {
            format!("the name of the directory {full_name:?} is not ID-name, such as K01-namespaces")
        })?;
        check_id(group, id, name)?;
        if file.id != id {
            return Err(format!("id is {:?}, but the directory says {id}", file.id));
        }
        let budget = duration(&file.budget)?;
        if file.tries.trim().is_empty() || file.tries.contains('\n') {
            return Err("tries must be one sentence on one line".to_owned());
        }
        if file.engines.is_empty() || file.walls.is_empty() {
            return Err("engines and walls each need an entry".to_owned());
        }
        let has_expect = dir.join("expect.py").is_file();
        match (&file.language, &file.program) {
            (Some(language), Some(program)) => {
                if !Languages::builtin().iter().any(|known| known.name == *language) {
                    return Err(format!("unknown language {language:?}; belljar languages lists them"));
                }
                check_file(dir, program)?;
            }
            (None, None) if has_expect => {}
            _ => return Err("language and program are both needed, unless there is an expect.py".to_owned()),
        }
        for name in &file.files {
            check_file(dir, name.split(':').next().unwrap_or_default())?;
        }
        if has_expect && (file.result.is_some() || !file.args.is_empty() || file.noise) {
            return Err("a case with an expect.py cannot have result, args or noise".to_owned());
        }
        if file.self_test && has_expect {
            return Err("a case of the self-test has no expect.py".to_owned());
        }
        if file.self_test && !SELF_TEST_LANGUAGES.contains(&file.language.as_deref().unwrap_or_default()) {
            return Err(format!("a case of the self-test is in one of {}", SELF_TEST_LANGUAGES.join(", ")));
        }
        if file.expect.is_empty() && file.result.as_ref().is_none_or(toml::Table::is_empty) {
            return Err("expect names no probe, and result no field: nothing would be checked".to_owned());
        }
        let expect = file
            .expect
            .into_iter()
            .map(|(probe, allowed)| Ok((probe.clone(), alternatives(&probe, &allowed)?)))
            .collect::<Result<BTreeMap<_, _>, String>>()?;
        check_mutations(&file.mutation, &expect)?;
        Ok(Self {
            dir: dir.to_owned(),
            id: file.id,
            name: name.to_owned(),
            tries: file.tries,
            class: file.class,
            engines: file.engines,
            walls: file.walls,
            budget,
            self_test: file.self_test,
            grade: file.grade,
            language: file.language,
            program: file.program,
            args: file.args,
            flags: file.flags,
            files: file.files,
            noise: file.noise,
            clock: file.clock,
            expect,
            result: file.result,
            mutations: file.mutation,
        })
    }

    /// Returns the script on the host that runs the case, if it has one.
    #[must_use]
    pub fn expect_script(&self) -> Option<PathBuf> {
        Some(self.dir.join("expect.py")).filter(|path| path.is_file())
    }

    /// Returns the name of its test, such as `K01_new_namespaces`, or `clock::R14_past_its_time` for one that checks times.
    #[must_use]
    pub fn test_name(&self) -> String {
        let clock = if self.clock { "clock::" } else { "" };
        format!("{clock}{}_{}", self.id, self.name.replace('-', "_"))
    }

    /// Returns the group's letter.
    #[must_use]
    pub fn group(&self) -> &str {
        self.id.get(..1).unwrap_or_default()
    }
}

fn check_id(group: &str, id: &str, name: &str) -> Result<(), String> {
    if !GROUPS.contains(&group) {
        return Err(format!("unknown group {group:?}; the groups are {}", GROUPS.join(", ")));
    }
    // A letter after the number distinguishes several cases of one idea.
    let number = id
        .strip_prefix(group)
        .unwrap_or_default()
        .trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    let is_id = number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit()) && id.len() <= 4;
    if !is_id {
        return Err(format!(
            "invalid id {id:?}: it must be {group}, two digits and at most one lower-case letter"
        ));
    }
    let is_kebab = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    if name.is_empty() || !name.bytes().all(is_kebab) {
        return Err(format!("invalid name {name:?}: use lower-case letters, digits and -"));
    }
    Ok(())
}

fn check_file(dir: &Path, name: &str) -> Result<(), String> {
    if name.contains('/') || !dir.join(name).is_file() {
        return Err(format!("file {name:?} not found beside case.toml"));
    }
    Ok(())
}

fn check_mutations(mutations: &[Mutation], expect: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    if mutations.is_empty() {
        return Err("there is no [[mutation]]: name walls in without, or say why not in none".to_owned());
    }
    for mutation in mutations {
        if let Some(reason) = &mutation.none {
            let is_alone = mutations.len() == 1
                && mutation.without.is_empty()
                && mutation.also.is_empty()
                && mutation.breaks.is_empty();
            if reason.trim().is_empty() || !is_alone {
                return Err("none must give a reason, and must be the only mutation".to_owned());
            }
            continue;
        }
        if mutation.without.is_empty() {
            return Err("a mutation needs walls in without, or a reason in none".to_owned());
        }
        for wall in mutation.without.iter().chain(&mutation.also) {
            if !Wall::ALL.iter().any(|(_, known)| known == wall) {
                let known: Vec<&str> = Wall::ALL.iter().map(|(_, name)| *name).collect();
                return Err(format!("unknown wall {wall:?}; walls are {}", known.join(", ")));
            }
        }
        if let Some(probe) = mutation.breaks.iter().find(|probe| !expect.contains_key(*probe)) {
            return Err(format!("breaks names {probe:?}, which is not in expect"));
        }
    }
    Ok(())
}

fn alternatives(probe: &str, allowed: &str) -> Result<Vec<String>, String> {
    let answers: Vec<String> = allowed.split('|').map(|answer| answer.trim().to_owned()).collect();
    if probe.trim() != probe || probe.is_empty() || probe.contains(": ") {
        return Err(format!("invalid name of a probe: {probe:?}"));
    }
    if answers.iter().any(String::is_empty) {
        return Err(format!("the probe {probe:?} has an empty answer in {allowed:?}"));
    }
    Ok(answers)
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, Duration::from_millis(1)),
        None => (text.strip_suffix('s').unwrap_or_default(), Duration::from_secs(1)),
    };
    let budget = number.parse::<u32>().ok().and_then(|number| unit.checked_mul(number));
    budget.filter(|budget| !budget.is_zero() && *budget <= MAX_BUDGET).ok_or_else(|| {
        format!("invalid budget {text:?}: write it like 20s or 500ms, at most {} s", MAX_BUDGET.as_secs())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
id = "K01"
tries = "Something."
class = "Escape"
engines = ["local"]
walls = ["seccomp"]
budget = "20s"
language = "sh"
program = "program.sh"

[expect]
"a probe" = "EPERM | ENOSYS"

[[mutation]]
without = ["seccomp"]
"#;

    fn read(dir_name: &str, text: &str, files: &[&str]) -> Result<Case, String> {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join(dir_name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("case.toml"), text).unwrap();
        for file in files {
            std::fs::write(dir.join(file), "x").unwrap();
        }
        Case::read(&dir).map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            format!("{error} {source}")
        })
    }

    #[test]
    fn valid_case_is_read() {
        let case = read("K/K01-new-namespaces", GOOD, &["program.sh"]).unwrap();
        assert_eq!(case.test_name(), "K01_new_namespaces");
        assert_eq!(case.expect["a probe"], ["EPERM", "ENOSYS"]);
        assert_eq!((case.budget, case.class), (Duration::from_secs(20), Class::Escape));
        assert_eq!(case.group(), "K");
    }

    #[test]
    fn invalid_cases_are_refused() {
        let check = |dir: &str, from: &str, to: &str, expected: &str| {
            let error = read(dir, &GOOD.replace(from, to), &["program.sh", "probe.bin"]).unwrap_err();
            assert!(error.contains(expected), "{from} as {to}: {error}");
        };
        let dir = "K/K01-new-namespaces";
        check("K/K02-other", "", "", "the directory says K02");
        check("F/K01-other", "", "", "must be F, two digits");
        check("Z/Z01-other", "", "", "the groups are");
        check("K/K01-Other", "", "", "lower-case letters");
        check(dir, "budget = \"20s\"", "budget = \"20\"", "invalid budget");
        check(dir, "budget = \"20s\"", "budget = \"20s\"\nwhat = 1", "unknown field");
        check(dir, "\"Escape\"", "\"Bad\"", "unknown variant");
        check(dir, "\"local\"", "\"process\"", "unknown variant");
        check(dir, "\"sh\"", "\"cobol\"", "unknown language");
        check(dir, "program.sh", "gone.sh", "not found");
        check(dir, "program.sh", "../K01-new-namespaces/program.sh", "not found");
        check(dir, "without = [\"seccomp\"]", "without = [\"moat\"]", "unknown wall");
        check(dir, "without = [\"seccomp\"]", "without = []", "needs walls");
        check(dir, "without = [\"seccomp\"]", "none = \" \"", "must give a reason");
        check(dir, "without = [\"seccomp\"]", "without = [\"seccomp\"]\nnone = \"x\"", "the only mutation");
        check(dir, "[[mutation]]\nwithout = [\"seccomp\"]", "", "there is no [[mutation]]");
        check(dir, "[\"seccomp\"]\n", "[\"seccomp\"]\nbreaks = [\"b\"]\n", "breaks");
        check(dir, "\"EPERM | ENOSYS\"", "\"EPERM|\"", "empty answer");
        check(dir, "\"a probe\" = \"EPERM | ENOSYS\"", "", "nothing would be checked");
        check(dir, "program = \"program.sh\"", "", "both needed");
    }
}
