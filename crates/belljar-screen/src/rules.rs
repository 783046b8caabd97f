//! Rules, which are data: `screening/*.toml`.

use std::collections::HashMap;

use aho_corasick::AhoCorasick;
use regex_lite::Regex;
use serde::Deserialize;
use tree_sitter::Node;

use crate::language::Language;
use crate::query::Query;
use crate::report::Severity;
use crate::table::Table;

/// Name and text of every file of rules.
const FILES: &[(&str, &str)] = &[
    ("code.toml", include_str!("../screening/code.toml")),
    ("credentials.toml", include_str!("../screening/credentials.toml")),
    ("exploits.toml", include_str!("../screening/exploits.toml")),
    ("files.toml", include_str!("../screening/files.toml")),
    ("loops.toml", include_str!("../screening/loops.toml")),
    ("network.toml", include_str!("../screening/network.toml")),
    ("processes.toml", include_str!("../screening/processes.toml")),
    ("reading.toml", include_str!("../screening/reading.toml")),
];

/// What calls do to texts, names and code.
const DYNAMIC: &str = include_str!("../screening/dynamic.toml");

/// Error in a file of rules.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct RuleError {
    file: String,
    reason: String,
}

/// A rule, without the conditions under which it finds something.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Its name, unique.
    pub id: String,
    /// How much a finding of it says.
    pub severity: Severity,
    /// What a finding means.
    pub meaning: String,
    /// What the walls of a sandbox do about it.
    pub walls: String,
    /// Languages that it reads; none for those about the reading itself.
    pub languages: Vec<Language>,
    /// Whether what it has found is not shown.
    pub(crate) is_secret: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rule: Vec<RuleFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    id: String,
    severity: Severity,
    meaning: String,
    walls: String,
    #[serde(default)]
    secret: bool,
    #[serde(default)]
    when: Vec<WhenFile>,
}

/// Conditions; each is enough.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WhenFile {
    languages: Vec<Language>,
    #[serde(default)]
    calls: Vec<String>,
    /// Of `calls`: what their arguments contain.
    arguments: Option<String>,
    #[serde(default)]
    modules: Vec<String>,
    text: Option<String>,
    raw: Option<String>,
    /// Of `text` and `raw`: texts in lower case, one of which a literal contains, in any case. This saves most comparisons.
    #[serde(default)]
    near: Vec<String>,
    /// Of `text` and `raw`: shortest literal, in bytes.
    #[serde(default)]
    least: usize,
    query: Option<String>,
    /// Of `query`: kinds of nodes that are not below its capture `@at`.
    #[serde(default)]
    without: Vec<String>,
}

/// A call that a rule looks for.
#[derive(Debug)]
pub(crate) struct CallMatch {
    pub(crate) rule: usize,
    pub(crate) arguments: Option<Regex>,
}

/// A rule about literals.
#[derive(Debug)]
struct LiteralMatch {
    rule: usize,
    regex: Regex,
    /// Whether it is about literals as they are written, and not about their texts with constants folded.
    is_raw: bool,
    is_near_needed: bool,
    least: usize,
}

/// A query of a rule.
#[derive(Debug)]
pub(crate) struct QueryMatch {
    pub(crate) rule: usize,
    pub(crate) query: Query,
    pub(crate) without: Vec<String>,
}

/// What a call does, as far as it is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effect {
    /// Imports the module that the first argument names.
    Import,
    /// Returns the function or class that the first argument names.
    Named,
    /// Returns the member of the first argument that the second names.
    Member,
    /// Calls the member of its receiver that the first argument names, with the other arguments.
    Send,
    /// Calls its first argument with the others.
    Apply,
    /// Calls the object that it is a member of: `f.call(x)`.
    Invoke,
    /// Returns its first argument.
    Same,
    /// Returns what it is a member of.
    Receiver,
    /// Decodes base64.
    Base64,
    /// Decodes hexadecimal digits.
    Hex,
    /// Decodes what the second argument names.
    Codec,
    /// Rotates letters by 13.
    Rot13,
    /// Reverses a text.
    Reverse,
    /// Makes a text of the numbers of its characters.
    Chars,
    /// Joins the texts of a list.
    Join,
    /// Runs code.
    Code,
    /// Runs a magic of IPython: its name, what is on its line, what is in its cell.
    Cell,
    /// Is a link of a chain of calls whose arguments are the words of a command.
    Chain,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DynamicFile {
    dynamic: Vec<DynamicEntry>,
    transparent: Vec<Transparent>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DynamicEntry {
    languages: Vec<Language>,
    calls: Vec<String>,
    does: Effect,
    /// Of code: its language, if it is not that of the call.
    language: Option<Language>,
    /// Of code: the number of the argument, from 0; all arguments are words of a command if not given.
    argument: Option<usize>,
}

/// What a call does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dynamic {
    pub(crate) does: Effect,
    pub(crate) language: Language,
    pub(crate) argument: Option<usize>,
}

/// Parts of paths without a meaning of their own.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Transparent {
    languages: Vec<Language>,
    #[serde(default)]
    prefixes: Vec<String>,
    #[serde(default)]
    anywhere: Vec<String>,
}

/// All rules, prepared for one language.
pub(crate) struct Rules {
    pub(crate) calls: Table<usize>,
    pub(crate) call_matches: Vec<CallMatch>,
    pub(crate) modules: Table<usize>,
    /// Rules about literals.
    literals: Vec<LiteralMatch>,
    /// Finds what is `near`, for `near_of`.
    near: AhoCorasick,
    /// Index of the rule about literals, for each text of `near`.
    near_of: Vec<usize>,
    pub(crate) queries: Vec<QueryMatch>,
    /// Queries, by the kinds of nodes that can match.
    pub(crate) queries_of: HashMap<String, Vec<usize>>,
    pub(crate) dynamic: Table<usize>,
    pub(crate) effects: Vec<Dynamic>,
    prefixes: Vec<String>,
    anywhere: Vec<String>,
}

/// The files of rules, parsed.
pub(crate) struct RuleSet {
    pub(crate) rules: Vec<Rule>,
    when: Vec<(usize, WhenFile)>,
    dynamic: DynamicFile,
}

/// Returns the rules, in the order of their files.
///
/// # Errors
/// Never fails in a build whose tests pass.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    Ok(RuleSet::builtin()?.rules)
}

impl RuleSet {
    pub(crate) fn builtin() -> Result<Self, RuleError> {
        Self::parse(FILES, DYNAMIC)
    }

    fn parse(files: &[(&str, &str)], dynamic: &str) -> Result<Self, RuleError> {
        let (mut rules, mut when) = (Vec::<Rule>::new(), Vec::new());
        for (file, text) in files {
            let wrong = |reason: String| RuleError { file: (*file).to_owned(), reason };
            let parsed: File = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
            for RuleFile { id, severity, meaning, walls, secret, when: conditions } in parsed.rule {
                if rules.iter().any(|rule| rule.id == id) {
                    return Err(wrong(format!("rule {id:?} is there twice")));
                }
                let mut languages: Vec<Language> = Vec::new();
                for condition in conditions {
                    for language in &condition.languages {
                        if !languages.contains(language) {
                            languages.push(*language);
                        }
                    }
                    when.push((rules.len(), condition));
                }
                rules.push(Rule { id, severity, meaning, walls, languages, is_secret: secret });
            }
        }
        let wrong =
            |error: toml::de::Error| RuleError { file: "dynamic.toml".to_owned(), reason: error.to_string() };
        Ok(Self { rules, when, dynamic: toml::from_str(dynamic).map_err(wrong)? })
    }

    /// Prepares the rules for a language.
    pub(crate) fn of(&self, language: Language) -> Result<Rules, RuleError> {
        let mut prepared = Rules {
            calls: Table::default(),
            call_matches: Vec::new(),
            modules: Table::default(),
            literals: Vec::new(),
            near: search(&[])?,
            near_of: Vec::new(),
            queries: Vec::new(),
            queries_of: HashMap::new(),
            dynamic: Table::default(),
            effects: Vec::new(),
            prefixes: Vec::new(),
            anywhere: Vec::new(),
        };
        let mut near: Vec<&String> = Vec::new();
        for (rule, when) in self.when.iter().filter(|(_, when)| when.languages.contains(&language)) {
            let rule = *rule;
            let wrong = |reason: String| RuleError {
                file: self.rules.get(rule).map_or_else(String::new, |rule| rule.id.clone()),
                reason,
            };
            let regex = |text: &Option<String>| {
                text.as_deref().map(Regex::new).transpose().map_err(|error| wrong(error.to_string()))
            };
            if !when.calls.is_empty() {
                // Each value of an argument is a line.
                let arguments = when.arguments.as_ref().map(|arguments| format!("(?m){arguments}"));
                prepared.call_matches.push(CallMatch { rule, arguments: regex(&arguments)? });
            }
            for pattern in &when.calls {
                if !prepared.calls.insert(pattern, prepared.call_matches.len() - 1) {
                    return Err(wrong(format!("{pattern:?} is no pattern")));
                }
            }
            for pattern in &when.modules {
                if !prepared.modules.insert(pattern, rule) {
                    return Err(wrong(format!("{pattern:?} is no pattern")));
                }
            }
            for (text, is_raw) in [(&when.text, false), (&when.raw, true)] {
                let Some(regex) = regex(text)? else { continue };
                near.extend(&when.near);
                prepared.near_of.extend(when.near.iter().map(|_| prepared.literals.len()));
                prepared.literals.push(LiteralMatch {
                    rule,
                    regex,
                    is_raw,
                    is_near_needed: !when.near.is_empty(),
                    least: when.least,
                });
            }
            if let Some(query) = &when.query {
                let query = Query::parse(query).map_err(wrong)?;
                let kinds = query.kinds();
                if kinds.is_empty() {
                    return Err(wrong("its query matches nodes of each kind".to_owned()));
                }
                for kind in kinds {
                    prepared.queries_of.entry(kind).or_default().push(prepared.queries.len());
                }
                prepared.queries.push(QueryMatch { rule, query, without: when.without.clone() });
            }
        }
        prepared.near = search(&near)?;
        for entry in self.dynamic.dynamic.iter().filter(|entry| entry.languages.contains(&language)) {
            prepared.effects.push(Dynamic {
                does: entry.does,
                language: entry.language.unwrap_or(language),
                argument: entry.argument,
            });
            for pattern in &entry.calls {
                if !prepared.dynamic.insert(pattern, prepared.effects.len() - 1) {
                    return Err(RuleError {
                        file: "dynamic.toml".to_owned(),
                        reason: format!("{pattern:?} is no pattern"),
                    });
                }
            }
        }
        for parts in self.dynamic.transparent.iter().filter(|parts| parts.languages.contains(&language)) {
            prepared.prefixes.extend(parts.prefixes.iter().cloned());
            prepared.anywhere.extend(parts.anywhere.iter().cloned());
        }
        Ok(prepared)
    }
}

/// Returns a search for texts, in any case.
fn search(texts: &[&String]) -> Result<AhoCorasick, RuleError> {
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .build(texts)
        .map_err(|error| RuleError { file: "near".to_owned(), reason: error.to_string() })
}

impl Rules {
    /// Returns the rules that match a literal, with what they match: its text, or with `is_raw` how it is written.
    pub(crate) fn literal<'l>(&self, literal: &'l str, is_raw: bool) -> Vec<(usize, &'l str)> {
        let mut candidates: Vec<usize> = self
            .near
            .find_overlapping_iter(literal)
            .filter_map(|found| self.near_of.get(found.pattern().as_usize()).copied())
            .collect();
        candidates.extend(
            (0..self.literals.len())
                .filter(|at| self.literals.get(*at).is_some_and(|one| !one.is_near_needed)),
        );
        candidates.sort_unstable();
        candidates.dedup();
        let matches = |at: usize| {
            let one =
                self.literals.get(at).filter(|one| one.is_raw == is_raw && literal.len() >= one.least)?;
            Some((one.rule, one.regex.find(literal)?.as_str()))
        };
        candidates.into_iter().filter_map(matches).collect()
    }

    /// Returns a path without the parts that have no meaning of their own.
    pub(crate) fn canonical(&self, mut path: String) -> String {
        for part in &self.anywhere {
            while let Some(place) = path.find(part.as_str()) {
                path.replace_range(place..place + part.len(), "");
            }
        }
        while let Some(rest) = self.prefixes.iter().find_map(|prefix| path.strip_prefix(prefix.as_str()))
            && !rest.is_empty()
        {
            path = rest.to_owned();
        }
        path
    }

    /// Reports whether a rule is about a path or what is below it.
    pub(crate) fn names(&self, path: &str) -> bool {
        self.calls.names(path) || self.dynamic.names(path)
    }

    pub(crate) fn effects(&self, path: &str) -> impl Iterator<Item = Dynamic> {
        self.dynamic.find(path).into_iter().filter_map(|index| self.effects.get(index).copied())
    }
}

impl QueryMatch {
    /// Returns the nodes that the query captures as `@at` if this node matches.
    pub(crate) fn run<'t>(&self, node: Node<'t>, source: &str) -> Vec<Node<'t>> {
        let mut found = self.query.run(node, source);
        found.retain(|node| !has_below(*node, &self.without));
        found
    }
}

/// Most nodes below one that are looked at.
const MAX_BELOW: usize = 10_000;

/// Reports whether a node of one of these kinds is below this one.
fn has_below(node: Node<'_>, kinds: &[String]) -> bool {
    if kinds.is_empty() {
        return false;
    }
    let mut cursor = node.walk();
    let (mut depth, mut count) = (0_usize, 0_usize);
    loop {
        count += 1;
        // What is not looked at may be one.
        if count > MAX_BELOW || kinds.iter().any(|kind| kind == cursor.node().kind()) {
            return true;
        }
        if cursor.goto_first_child() {
            depth += 1;
            continue;
        }
        while !cursor.goto_next_sibling() {
            if depth <= 1 || !cursor.goto_parent() {
                return false;
            }
            depth -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_rules_are_valid() {
        let set = RuleSet::builtin().unwrap();
        for language in Language::ALL {
            let rules = set.of(language).unwrap();
            for grammar in language.parsers("<?php ") {
                let id = |kind: &str| grammar.id_for_node_kind(kind, true);
                for (rule, when) in set.when.iter().filter(|(_, when)| when.languages.contains(&language)) {
                    let name = &set.rules[*rule].id;
                    for kind in &when.without {
                        assert_ne!(id(kind), 0, "{name}: {kind}");
                    }
                    // Tree-sitter also checks that the nodes can be where the query has them.
                    if let Some(query) = &when.query {
                        let query = tree_sitter::Query::new(&grammar, query);
                        let query =
                            query.unwrap_or_else(|error| panic!("{name}, {}: {error}", language.as_str()));
                        assert!(query.capture_index_for_name("at").is_some(), "{name}");
                    }
                }
            }
            drop(rules);
        }
        for rule in &set.rules {
            assert!(rule.id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{}", rule.id);
            assert!(!rule.meaning.is_empty() && !rule.walls.is_empty(), "{}", rule.id);
        }
    }

    #[test]
    fn invalid_rules_are_refused() {
        let rule = "[[rule]]\nid = 'a'\nseverity = 'low'\nmeaning = 'm'\nwalls = 'w'\n";
        let dynamic = "dynamic = []\ntransparent = []";
        for (text, expected) in [
            (rule.replace("low", "lowest"), "unknown variant"),
            (rule.replace("walls", "doors"), "unknown field"),
            (rule.repeat(2), "rule \"a\" is there twice"),
        ] {
            let error = RuleSet::parse(&[("x.toml", &text)], dynamic).err().unwrap().to_string();
            assert!(error.starts_with("x.toml: ") && error.contains(expected), "{error}");
        }
        for (when, expected) in [("calls = ['a*b']", "is no pattern"), ("text = '('", "open group")] {
            let text = format!("{rule}[[rule.when]]\nlanguages = ['go']\n{when}\n");
            let set = RuleSet::parse(&[("x.toml", &text)], dynamic).unwrap();
            let error = set.of(Language::Go).err().unwrap().to_string();
            assert!(error.starts_with("a: ") && error.contains(expected), "{error}");
            assert!(set.of(Language::Rust).is_ok());
        }
    }
}
