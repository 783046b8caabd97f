//! One case: `case.toml`, read strictly.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_linux::Wall;
use belljar_model::Languages;
use serde::{Deserialize, Serialize};

use crate::error::CaseError;

/// The longest time that a case may ask for.
const MOST_BUDGET: Duration = Duration::from_secs(300);

/// Languages that a case of the self-test may be in: they are on every machine, or nearly.
const SELF_TEST_LANGUAGES: [&str; 2] = ["sh", "python"];

/// The groups of the corpus, by their letter.
pub(crate) const GROUPS: [&str; 6] = ["C", "F", "K", "N", "R", "X"];

/// The worst that could come of an attack, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Class {
    /// Code outside of the sandbox.
    Escape,
    /// Something of the host is read or changed.
    HostLeak,
    /// Data goes to a network against the policy.
    Exfil,
    /// Another sandbox is reached.
    Lateral,
    /// The host is of no use any more.
    HostDoS,
    /// Another sandbox is of no use any more.
    PeerDoS,
    /// More rights inside of the sandbox.
    InternalEsc,
    /// Something inside is read that should not be.
    InternalRead,
    /// The sandbox is of no use any more.
    SelfDoS,
    /// What the host is told is not what happened.
    Integrity,
}

/// An engine that the case must hold on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The engine `local`.
    Local,
}

/// How limits must be held for the case to mean anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// By control groups.
    Cgroup,
}

/// Walls that are taken away to see that the attack then gets through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mutation {
    /// The walls, by their names in `belljar_linux::Wall`.
    #[serde(default)]
    pub without: Vec<String>,
    /// Walls that stop the same attack. They are taken away on both sides.
    #[serde(default)]
    pub also: Vec<String>,
    /// Probes that must answer differently then; if there are none, anything that does not hold will do.
    #[serde(default)]
    pub breaks: Vec<String>,
    /// Why nothing can be taken away, instead of all the others.
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
    /// Where it is.
    pub dir: PathBuf,
    /// Its id in the corpus, such as `K01`.
    pub id: String,
    /// Its directory's name without the id, such as `new-namespaces`.
    pub name: String,
    /// What it tries, in one sentence.
    pub tries: String,
    /// The worst that could come of it.
    pub class: Class,
    /// The engines that it must hold on.
    pub engines: Vec<Engine>,
    /// What contains it, for the table.
    pub walls: Vec<String>,
    /// How long it may take, from the start of the sandbox to its end.
    pub budget: Duration,
    /// Whether `belljar doctor --self-test` runs it.
    pub self_test: bool,
    /// How limits must be held, if that matters.
    pub grade: Option<Grade>,
    /// Language of the program.
    pub language: Option<String>,
    /// File name of the program.
    pub program: Option<String>,
    /// Arguments for the program.
    pub args: Vec<String>,
    /// Flags for `belljar run`.
    pub flags: Vec<String>,
    /// Files that are put in beside the program, as `-f` takes them.
    pub files: Vec<String>,
    /// Whether lines that are no probe are passed over.
    pub noise: bool,
    /// Whether it judges times nearer than a busy machine can keep them.
    pub clock: bool,
    /// What each probe may answer.
    pub expect: BTreeMap<String, Vec<String>>,
    /// What the result must hold; if there is nothing, the program must end by itself with 0.
    pub result: Option<toml::Table>,
    /// The walls whose absence must show.
    pub mutations: Vec<Mutation>,
}

impl Case {
    /// Reads the case in `dir`, whose parent is named after the group.
    ///
    /// # Errors
    /// A file is missing, `case.toml` is not of the form, or it says something that does not go together.
    pub fn read(dir: &Path) -> Result<Self, CaseError> {
        let path = dir.join("case.toml");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| CaseError::Read { path: path.clone(), source })?;
        let file: CaseFile = toml::from_str(&text)
            .map_err(|source| CaseError::Form { path: path.clone(), source: Box::new(source) })?;
        let name = |path: Option<&Path>| {
            path.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let (group, full_name) = (name(dir.parent()), name(Some(dir)));
        let case = Self::sensible(dir, &group, &full_name, file)
            .map_err(|reason| CaseError::Sense { path, reason })?;
        Ok(case)
    }

    fn sensible(dir: &Path, group: &str, full_name: &str, file: CaseFile) -> Result<Self, String> {
        let (id, name) = full_name.split_once('-').ok_or_else(|| {
            format!("the directory {full_name:?} is not called ID-name, such as K01-namespaces")
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
                    return Err(format!("no language is called {language:?}; belljar languages lists them"));
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
            return Err("result, args and noise are not for a case with an expect.py".to_owned());
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

    /// The script on the host that runs the case, if it has one.
    #[must_use]
    pub fn expect_script(&self) -> Option<PathBuf> {
        Some(self.dir.join("expect.py")).filter(|path| path.is_file())
    }

    /// The name of its test, such as `K01_new_namespaces`, or `clock::R14_past_its_time` for one that judges times.
    #[must_use]
    pub fn test_name(&self) -> String {
        let clock = if self.clock { "clock::" } else { "" };
        format!("{clock}{}_{}", self.id, self.name.replace('-', "_"))
    }

    /// The group's letter.
    #[must_use]
    pub fn group(&self) -> &str {
        self.id.get(..1).unwrap_or_default()
    }
}

fn check_id(group: &str, id: &str, name: &str) -> Result<(), String> {
    if !GROUPS.contains(&group) {
        return Err(format!("it is in the directory {group:?}; groups are {}", GROUPS.join(", ")));
    }
    // A letter after the number tells cases apart that the corpus has as one.
    let number = id
        .strip_prefix(group)
        .unwrap_or_default()
        .trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    let is_id = number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit()) && id.len() <= 4;
    if !is_id {
        return Err(format!("the id {id:?} is not {group}, two digits and at most one small letter"));
    }
    let is_kebab = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    if name.is_empty() || !name.bytes().all(is_kebab) {
        return Err(format!("the name {name:?} is not of small letters, digits and -"));
    }
    Ok(())
}

fn check_file(dir: &Path, name: &str) -> Result<(), String> {
    if name.contains('/') || !dir.join(name).is_file() {
        return Err(format!("there is no file {name:?} beside case.toml"));
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
                return Err("none gives a reason, and stands in place of every mutation".to_owned());
            }
            continue;
        }
        if mutation.without.is_empty() {
            return Err("a mutation needs walls in without, or a reason in none".to_owned());
        }
        for wall in mutation.without.iter().chain(&mutation.also) {
            if !Wall::ALL.iter().any(|(_, known)| known == wall) {
                let known: Vec<&str> = Wall::ALL.iter().map(|(_, name)| *name).collect();
                return Err(format!("no wall is called {wall:?}; walls are {}", known.join(", ")));
            }
        }
        if let Some(probe) = mutation.breaks.iter().find(|probe| !expect.contains_key(*probe)) {
            return Err(format!("breaks names {probe:?}, which expect does not"));
        }
    }
    Ok(())
}

fn alternatives(probe: &str, allowed: &str) -> Result<Vec<String>, String> {
    let answers: Vec<String> = allowed.split('|').map(|answer| answer.trim().to_owned()).collect();
    if probe.trim() != probe || probe.is_empty() || probe.contains(": ") {
        return Err(format!("a probe cannot be called {probe:?}"));
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
    budget.filter(|budget| !budget.is_zero() && *budget <= MOST_BUDGET).ok_or_else(|| {
        format!("budget is {text:?}; write it like 20s or 500ms, at most {} s", MOST_BUDGET.as_secs())
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
    fn a_case_is_read() {
        let case = read("K/K01-new-namespaces", GOOD, &["program.sh"]).unwrap();
        assert_eq!(case.test_name(), "K01_new_namespaces");
        assert_eq!(case.expect["a probe"], ["EPERM", "ENOSYS"]);
        assert_eq!((case.budget, case.class), (Duration::from_secs(20), Class::Escape));
        assert_eq!(case.group(), "K");
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let check = |dir: &str, from: &str, to: &str, expected: &str| {
            let error = read(dir, &GOOD.replace(from, to), &["program.sh", "probe.bin"]).unwrap_err();
            assert!(error.contains(expected), "{from} as {to}: {error}");
        };
        let dir = "K/K01-new-namespaces";
        check("K/K02-other", "", "", "the directory says K02");
        check("F/K01-other", "", "", "is not F, two digits");
        check("Z/Z01-other", "", "", "groups are");
        check("K/K01-Other", "", "", "small letters");
        check(dir, "budget = \"20s\"", "budget = \"20\"", "budget is");
        check(dir, "budget = \"20s\"", "budget = \"20s\"\nwhat = 1", "unknown field");
        check(dir, "\"Escape\"", "\"Bad\"", "unknown variant");
        check(dir, "\"local\"", "\"docker\"", "unknown variant");
        check(dir, "\"sh\"", "\"cobol\"", "no language is called");
        check(dir, "program.sh", "gone.sh", "there is no file");
        check(dir, "program.sh", "../K01-new-namespaces/program.sh", "there is no file");
        check(dir, "without = [\"seccomp\"]", "without = [\"moat\"]", "no wall is called");
        check(dir, "without = [\"seccomp\"]", "without = []", "needs walls");
        check(dir, "without = [\"seccomp\"]", "none = \" \"", "gives a reason");
        check(dir, "without = [\"seccomp\"]", "without = [\"seccomp\"]\nnone = \"x\"", "in place of");
        check(dir, "[[mutation]]\nwithout = [\"seccomp\"]", "", "there is no [[mutation]]");
        check(dir, "[\"seccomp\"]\n", "[\"seccomp\"]\nbreaks = [\"b\"]\n", "breaks");
        check(dir, "\"EPERM | ENOSYS\"", "\"EPERM|\"", "empty answer");
        check(dir, "\"a probe\" = \"EPERM | ENOSYS\"", "", "nothing would be checked");
        check(dir, "program = \"program.sh\"", "", "both needed");
    }
}
