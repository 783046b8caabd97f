//! Parses and validates the policy's text.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::arch::Arch;
use super::errno::FilterErrno;
use super::evaluate::Action;
use super::policy::{Condition, Entry, Policy, Profile, Rule, SeccompError};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    unlisted: String,
    #[serde(default)]
    allow: Vec<AllowSource>,
    #[serde(default)]
    refuse: Vec<RefuseSource>,
    #[serde(default)]
    check: Vec<CheckSource>,
    #[serde(default)]
    profile: BTreeMap<String, ProfileSource>,
    #[serde(default)]
    values: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowSource {
    why: String,
    only: Option<String>,
    calls: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefuseSource {
    why: String,
    only: Option<String>,
    calls: Vec<String>,
    errno: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckSource {
    why: String,
    only: Option<String>,
    calls: Vec<String>,
    rules: Vec<RuleSource>,
    otherwise: String,
}

/// Restrictions of a profile. It has no `allow`, no `otherwise` and no `then = "allow"`: it cannot add permissions, except by
/// `free`, which only the profiles `build`, `machine` and `warm` may have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileSource {
    #[serde(default)]
    refuse: Vec<NarrowSource>,
    #[serde(default)]
    check: Vec<NarrowCheckSource>,
    #[serde(default)]
    free: Vec<CallsSource>,
    /// If not empty, the only calls that stay listed.
    #[serde(default)]
    keep: Vec<CallsSource>,
}

/// Calls whose arguments are not checked (`free`), or that stay listed (`keep`).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallsSource {
    why: String,
    calls: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NarrowSource {
    why: String,
    calls: Vec<String>,
    errno: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NarrowCheckSource {
    why: String,
    calls: Vec<String>,
    rules: Vec<RuleSource>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleSource {
    r#if: Vec<ConditionSource>,
    then: String,
    why: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionSource {
    arg: u8,
    word: Option<u8>,
    mask: Option<Vec<Value>>,
    is: Option<Vec<Value>>,
    not: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Number(u64),
    Name(String),
}

type Values = BTreeMap<String, u64>;

/// See [`Policy::parse`].
pub(super) fn parse(text: &str, profile: Profile) -> Result<Policy, SeccompError> {
    let source: Source = toml::from_str(text).map_err(|source| SeccompError::Syntax { source })?;
    let mut policy = Policy { unlisted: errno(&source.unlisted, "unlisted")?, entries: BTreeMap::new() };
    for group in source.allow {
        policy.add(group.calls, group.only, Vec::new(), Action::Allow, &group.why)?;
    }
    for group in source.refuse {
        let answer = Action::Errno(errno(&group.errno, &group.why)?);
        policy.add(group.calls, group.only, Vec::new(), answer, &group.why)?;
    }
    for group in source.check {
        let rules = rules(&group.rules, &source.values, &group.why)?;
        let otherwise = action(&group.otherwise, &group.why)?;
        policy.add(group.calls, group.only, rules, otherwise, &group.why)?;
    }
    // Every profile is checked, whichever is requested, so that a mistake in one does not go unnoticed until it is used.
    let known = |name: &String| Profile::ALL.iter().any(|profile| profile.name() == name);
    if let Some(name) = source.profile.keys().find(|name| !known(name)) {
        return Err(invalid(
            &format!("profile.{name}"),
            "the profiles are default, hardened, no_network, watched, build, machine, warm and gateway",
        ));
    }
    let mut selected = policy.clone();
    for (name, narrow) in source.profile {
        if !narrow.free.is_empty()
            && ![Profile::Build, Profile::Machine, Profile::Warm].iter().any(|one| one.name() == name)
        {
            return Err(invalid(
                &format!("profile.{name}"),
                "only the profiles build, machine and warm may have `free`",
            ));
        }
        let narrowed = policy.clone().restrict(narrow, &source.values)?;
        if name == profile.name() {
            selected = narrowed;
        }
    }
    Ok(selected)
}

impl Policy {
    fn add(
        &mut self,
        calls: Vec<String>,
        only: Option<String>,
        rules: Vec<Rule>,
        otherwise: Action,
        why: &str,
    ) -> Result<(), SeccompError> {
        let only = match only {
            None => None,
            Some(name) => {
                let unknown = || invalid(why, "`only` is neither x86_64 nor aarch64");
                Some(Arch::from_name(&name).ok_or_else(unknown)?)
            }
        };
        if calls.is_empty() {
            return Err(invalid(why, "`calls` is empty"));
        }
        for call in calls {
            let missing = |arch: &Arch| only.is_none_or(|only| only == *arch) && arch.number(&call).is_none();
            if let Some(arch) = Arch::ALL.iter().find(|arch| missing(arch)) {
                return Err(invalid(&call, &format!("there is no such call on {}", arch.name())));
            }
            let entry = Entry { only, rules: rules.clone(), otherwise, why: why.to_owned() };
            if self.entries.insert(call.clone(), entry).is_some() {
                return Err(invalid(&call, "the call is listed twice"));
            }
        }
        Ok(())
    }

    fn restrict(mut self, narrow: ProfileSource, values: &Values) -> Result<Self, SeccompError> {
        for group in narrow.refuse {
            let answer = Action::Errno(errno(&group.errno, &group.why)?);
            for call in group.calls {
                let entry = self.entry_mut(&call)?;
                *entry =
                    Entry { only: entry.only, rules: Vec::new(), otherwise: answer, why: group.why.clone() };
            }
        }
        for group in narrow.free {
            for call in group.calls {
                let entry = self.entry_mut(&call)?;
                entry.rules.clear();
                entry.otherwise = Action::Allow;
                entry.why.clone_from(&group.why);
            }
        }
        if !narrow.keep.is_empty() {
            let mut kept = BTreeMap::new();
            for (group, call) in
                narrow.keep.iter().flat_map(|group| group.calls.iter().map(move |call| (group, call)))
            {
                let mut entry = self.entry_mut(call)?.clone();
                entry.why.clone_from(&group.why);
                kept.insert(call.clone(), entry);
            }
            self.entries = kept;
        }
        for group in narrow.check {
            let first = rules(&group.rules, values, &group.why)?;
            if first.iter().any(|rule| rule.then == Action::Allow) {
                return Err(invalid(
                    &group.why,
                    "a profile can only restrict, so none of its rules may allow",
                ));
            }
            for call in group.calls {
                self.entry_mut(&call)?.rules.splice(0..0, first.clone());
            }
        }
        Ok(self)
    }

    fn entry_mut(&mut self, call: &str) -> Result<&mut Entry, SeccompError> {
        self.entries.get_mut(call).ok_or_else(|| invalid(call, "the base does not list the call"))
    }
}

fn rules(sources: &[RuleSource], values: &Values, group: &str) -> Result<Vec<Rule>, SeccompError> {
    if sources.is_empty() {
        return Err(invalid(group, "`rules` is empty"));
    }
    sources.iter().map(|source| rule(source, values, group)).collect()
}

fn rule(source: &RuleSource, values: &Values, group: &str) -> Result<Rule, SeccompError> {
    let why = source.why.as_deref().unwrap_or(group);
    if source.r#if.is_empty() {
        return Err(invalid(why, "a rule has no conditions"));
    }
    let conditions =
        source.r#if.iter().map(|source| condition(source, values, why)).collect::<Result<_, _>>()?;
    Ok(Rule { conditions, then: action(&source.then, why)?, why: why.to_owned() })
}

fn condition(source: &ConditionSource, values: &Values, place: &str) -> Result<Condition, SeccompError> {
    if source.arg > 5 {
        return Err(invalid(place, &format!("`arg` is {}, and the arguments are 0 to 5", source.arg)));
    }
    let (wide, bits) = match source.word {
        None | Some(64) => (true, u64::MAX),
        Some(32) => (false, 0xffff_ffff),
        Some(other) => return Err(invalid(place, &format!("`word` is {other}, and may be 32 or 64"))),
    };
    let number = |value: &Value| match value {
        Value::Number(number) => Ok(*number),
        Value::Name(name) => values
            .get(name)
            .copied()
            .ok_or_else(|| invalid(place, &format!("{name} is not in the table of values"))),
    };
    let mask = match &source.mask {
        None => bits,
        Some(parts) => parts.iter().try_fold(0, |mask, part| number(part).map(|part| mask | part))?,
    };
    let (list, negated) = match (&source.is, &source.not) {
        (Some(list), None) => (list, false),
        (None, Some(list)) => (list, true),
        _ => return Err(invalid(place, "a condition has exactly one of `is` and `not`")),
    };
    let listed: Vec<u64> = list.iter().map(number).collect::<Result<_, _>>()?;
    if mask == 0 || listed.is_empty() {
        return Err(invalid(place, "`mask`, `is` and `not` need at least one value"));
    }
    if mask & !bits != 0 || listed.iter().any(|value| value & !mask != 0) {
        return Err(invalid(place, "a value has bits outside the mask or the word, so it can never be seen"));
    }
    Ok(Condition { argument: source.arg, wide, mask, values: listed, negated })
}

fn action(name: &str, place: &str) -> Result<Action, SeccompError> {
    if name == "allow" { Ok(Action::Allow) } else { errno(name, place).map(Action::Errno) }
}

fn errno(name: &str, place: &str) -> Result<FilterErrno, SeccompError> {
    let unknown =
        || invalid(place, &format!("the error {name} is unknown; known are {}", FilterErrno::names()));
    FilterErrno::from_name(name).ok_or_else(unknown)
}

fn invalid(place: &str, reason: &str) -> SeccompError {
    SeccompError::Policy { place: place.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_reported_with_their_place() {
        let check = |text: &str, expected: &str| {
            let text = format!("unlisted = \"ENOSYS\"\n{text}");
            let message = match Policy::parse(&text, Profile::Default) {
                Ok(_) => String::from("accepted"),
                Err(SeccompError::Syntax { source }) => source.message().to_owned(),
                Err(other) => other.to_string(),
            };
            assert!(message.contains(expected), "{text}\n{message}");
        };
        let allow = |call: &str| format!("[[allow]]\nwhy = \"w\"\ncalls = [\"{call}\"]\n");
        let rule = |condition: &str| {
            format!(
                "[[check]]\nwhy = \"w\"\ncalls = [\"ioctl\"]\notherwise = \"allow\"\n\
                 rules = [{{ if = [{condition}], then = \"EPERM\" }}]\n[values]\nA = 1\n"
            )
        };
        check(&allow("read"), "accepted");
        check(&format!("{}{}", allow("read"), allow("read")), "at read: the call is listed twice");
        check(&allow("reed"), "at reed: there is no such call on x86_64");
        check(&allow("open"), "at open: there is no such call on aarch64");
        check("[[allow]]\nwhy = \"w\"\ncalls = []", "`calls` is empty");
        check("[[allow]]\nwhy = \"w\"\nonly = \"mips\"\ncalls = [\"read\"]", "neither x86_64 nor aarch64");
        check("[[allow]]\ncalls = [\"read\"]", "missing field `why`");
        check("[[alow]]\nwhy = \"w\"", "unknown field `alow`");
        check("[[refuse]]\nwhy = \"w\"\nerrno = \"EX\"\ncalls = [\"read\"]", "the error EX is unknown");
        check(&rule("{ arg = 1, is = [\"A\"] }"), "accepted");
        check(&rule("{ arg = 1, is = [\"B\"] }"), "B is not in the table of values");
        check(&rule("{ arg = 6, is = [1] }"), "`arg` is 6");
        check(&rule("{ arg = 1, word = 16, is = [1] }"), "`word` is 16");
        check(&rule("{ arg = 1 }"), "exactly one of `is` and `not`");
        check(&rule("{ arg = 1, is = [1], not = [2] }"), "exactly one of `is` and `not`");
        check(&rule("{ arg = 1, is = [] }"), "at least one value");
        check(&rule("{ arg = 1, mask = [], is = [0] }"), "at least one value");
        check(&rule("{ arg = 1, word = 32, is = [0x100000000] }"), "outside the mask or the word");
        check(&rule("{ arg = 1, mask = [6], is = [1] }"), "outside the mask or the word");
        check(&rule(""), "a rule has no conditions");
    }

    #[test]
    fn profiles_only_restrict() {
        let check = |profile: &str, expected: &str| {
            let text = format!(
                "unlisted = \"ENOSYS\"\n[[allow]]\nwhy = \"w\"\ncalls = [\"ioctl\"]\n{profile}\nwhy = \"w\"\n"
            );
            let message = Policy::parse(&text, Profile::Default)
                .map_or_else(|error| error.to_string(), |_| String::new());
            assert_eq!(message, expected, "{text}");
        };
        let rule = |then: &str| {
            format!(
                "[[profile.hardened.check]]\ncalls = [\"ioctl\"]\n\
                 rules = [{{ if = [{{ arg = 1, is = [1] }}], then = \"{then}\" }}]"
            )
        };
        check(&rule("EPERM"), "");
        check(
            &rule("allow"),
            "invalid seccomp policy at w: a profile can only restrict, so none of its rules may allow",
        );
        check(
            "[[profile.hardened.refuse]]\ncalls = [\"read\"]\nerrno = \"EPERM\"",
            "invalid seccomp policy at read: the base does not list the call",
        );
        check(
            "[[profile.soft.refuse]]\ncalls = [\"ioctl\"]\nerrno = \"EPERM\"",
            "invalid seccomp policy at profile.soft: the profiles are default, hardened, no_network, watched, build, machine, warm and gateway",
        );
        check(
            "[[profile.hardened.free]]\ncalls = [\"ioctl\"]",
            "invalid seccomp policy at profile.hardened: only the profiles build, machine and warm may have `free`",
        );
        check("[[profile.hardened.allow]]\ncalls = [\"ioctl\"]", "cannot read the seccomp policy");
    }
}
