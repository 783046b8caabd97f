//! One screening.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tree_sitter::{Node, ParseOptions, Parser, Tree};

use crate::budget::Budget;
use crate::host::ScreenError;
use crate::language::Language;
use crate::report::{Finding, MAX_NAME, Report};
use crate::rules::{Effect, Rule, RuleError, RuleSet, Rules};
use crate::syntax::bash::{self, Command};
use crate::syntax::{Bound, Callee, Facts, Shape, field, named, text};
use crate::values::{UNKNOWN, Value, Values};

/// Largest code that is screened, in bytes. Source: docs/screening.md.
pub const MAX_CODE_BYTES: usize = 1 << 20;

/// Longest time of a screening, of a processor. Source: docs/screening.md.
pub const MAX_TIME: Duration = Duration::from_millis(200);

/// Deepest node of a tree that is read. Source: docs/screening.md.
pub const MAX_DEPTH: usize = 500;

/// How deep code may be inside of code to be read: a literal that a call runs is one level.
const MAX_INSIDE: usize = 3;

/// Largest code inside of code that is read, in bytes.
const MAX_INSIDE_BYTES: usize = 64 << 10;

/// Most findings that are kept until the gravest are chosen.
const MAX_KEPT: usize = 5_000;

/// Largest number of modules of a list, and of bytes of a name. Source: docs/screening.md.
pub const MAX_MODULES: usize = 256;
/// See [`MAX_MODULES`].
pub const MAX_MODULE_BYTES: usize = 128;

/// Code to screen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Its language.
    pub language: Language,
    /// The code: at most [`MAX_CODE_BYTES`].
    pub code: String,
    /// Modules that the caller has something against.
    #[serde(default)]
    pub modules: Modules,
}

impl Request {
    /// Checks the size of the code, and the lists.
    ///
    /// # Errors
    /// Returns [`ScreenError::TooLarge`] or [`ScreenError::Modules`].
    pub fn check(&self) -> Result<(), ScreenError> {
        if self.code.len() > MAX_CODE_BYTES {
            return Err(ScreenError::TooLarge { bytes: self.code.len() });
        }
        self.modules.check().map_err(|(field, reason)| ScreenError::Modules { field, reason })
    }
}

/// Lists of modules. A name stands for the module and all below it. At most 256 names each, of 1 to 128 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ScreenModules))]
pub struct Modules {
    /// The only modules that the code may import without a finding.
    #[serde(default)]
    pub allow: Option<Vec<String>>,
    /// Modules whose import is a finding.
    #[serde(default)]
    pub deny: Vec<String>,
}

impl Modules {
    /// Checks the lists.
    ///
    /// # Errors
    /// Returns the field, `modules.allow` or `modules.deny`, and the reason.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let lists = [("modules.allow", self.allow.as_ref()), ("modules.deny", Some(&self.deny))];
        for (name, list) in lists {
            let list = list.map(Vec::as_slice).unwrap_or_default();
            if list.len() > MAX_MODULES {
                return Err((name, format!("{} modules, at most {MAX_MODULES} are allowed", list.len())));
            }
            let is_name = |module: &&String| {
                !(1..=MAX_MODULE_BYTES).contains(&module.len()) || module.contains(char::is_control)
            };
            if let Some(module) = list.iter().find(is_name) {
                let shown: String = module.chars().take(40).collect();
                let reason = format!("{shown:?} is no name of a module: 1 to {MAX_MODULE_BYTES} bytes");
                return Err((name, reason));
            }
        }
        Ok(())
    }
}

/// Screens code in this process. Parsers are written in C: what others wrote is screened by `screen_in_jail`.
///
/// # Errors
/// Never fails in a build whose tests pass, as the rules are part of it.
pub fn screen(request: &Request, time: Duration) -> Result<Report, RuleError> {
    let set = RuleSet::builtin()?;
    let mut screening = Screening {
        set: &set,
        rules: HashMap::new(),
        modules: &request.modules,
        budget: Budget::new(time),
        findings: Vec::new(),
        seen: HashSet::new(),
        is_complete: true,
    };
    screening.read(request.language, &request.code, None)?;
    Ok(Report::new(request.language.as_str(), screening.findings, screening.is_complete))
}

/// Returns the report of code that was not read, for the reason that this rule has.
pub(crate) fn unread_report(set: &RuleSet, language: Language, id: &str) -> Report {
    let findings = set.rules.iter().filter(|rule| rule.id == id).map(whole).collect();
    Report::new(language.as_str(), findings, false)
}

/// Returns a finding about all of the code.
fn whole(rule: &Rule) -> Finding {
    Finding {
        rule: rule.id.clone(),
        severity: rule.severity,
        line: 1,
        column: 1,
        end_line: 1,
        end_column: 1,
        name: String::new(),
        inside: None,
        meaning: rule.meaning.clone(),
        walls: rule.walls.clone(),
    }
}

struct Screening<'a> {
    set: &'a RuleSet,
    rules: HashMap<Language, Rc<Rules>>,
    modules: &'a Modules,
    budget: Budget,
    findings: Vec<Finding>,
    /// Rules and places of findings.
    seen: HashSet<(usize, Place, Option<Language>)>,
    is_complete: bool,
}

/// Place of a finding: lines and columns from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
}

impl Place {
    fn of(node: Node<'_>) -> Self {
        let (start, end) = (node.start_position(), node.end_position());
        Self {
            line: start.row + 1,
            column: start.column + 1,
            end_line: end.row + 1,
            end_column: end.column + 1,
        }
    }
}

/// Where code is inside of other code.
#[derive(Debug, Clone, Copy)]
struct Outer {
    place: Place,
    depth: usize,
}

impl Screening<'_> {
    fn rules(&mut self, language: Language) -> Result<Rc<Rules>, RuleError> {
        if let Some(rules) = self.rules.get(&language) {
            return Ok(Rc::clone(rules));
        }
        let rules = Rc::new(self.set.of(language)?);
        self.rules.insert(language, Rc::clone(&rules));
        Ok(rules)
    }

    fn rule(&self, id: &str) -> Option<usize> {
        self.set.rules.iter().position(|rule| rule.id == id)
    }

    /// Adds a finding, once for each rule and beginning.
    fn find(&mut self, rule: usize, node: Node<'_>, name: &str, language: Language, outer: Option<Outer>) {
        let place = outer.map_or_else(|| Place::of(node), |outer| outer.place);
        let start = Place { end_line: 0, end_column: 0, ..place };
        let inside = outer.map(|_| language);
        if self.findings.len() >= MAX_KEPT || !self.seen.insert((rule, start, inside)) {
            return;
        }
        let Some(Rule { id, severity, meaning, walls, is_secret, .. }) = self.set.rules.get(rule) else {
            return;
        };
        let mut shown: String = name
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .map(|char| if char == UNKNOWN { '…' } else { char })
            .take(if *is_secret { 4 } else { MAX_NAME })
            .collect();
        if shown.len() < name.len() && *is_secret {
            shown.push('…');
        }
        let Place { line, column, end_line, end_column } = place;
        self.findings.push(Finding {
            rule: id.clone(),
            severity: *severity,
            line,
            column,
            end_line,
            end_column,
            name: shown,
            inside: inside.map(|language| language.as_str().to_owned()),
            meaning: meaning.clone(),
            walls: walls.clone(),
        });
    }

    /// Adds a finding about the reading itself, after which the report is not complete.
    fn unread(&mut self, id: &str, node: Option<Node<'_>>, language: Language, outer: Option<Outer>) {
        let is_partial = id != "does-not-parse";
        self.is_complete &= !is_partial;
        let Some(rule) = self.rule(id) else { return };
        if let Some(node) = node {
            self.find(rule, node, "", language, outer);
        } else if let Some(rule) = self.set.rules.get(rule)
            && outer.is_none()
        {
            self.findings.push(whole(rule));
        }
    }

    fn read(&mut self, language: Language, source: &str, outer: Option<Outer>) -> Result<(), RuleError> {
        let rules = self.rules(language)?;
        let Some(tree) = self.parse(language, source) else {
            self.unread("not-read-in-time", None, language, outer);
            return Ok(());
        };
        let root = tree.root_node();
        if root.has_error() && outer.is_none() {
            self.unread("does-not-parse", first_error(root), language, outer);
        }
        let mut facts = Facts::default();
        let mut is_deep = false;
        walk(root, self.budget, |node, depth| {
            is_deep |= depth >= MAX_DEPTH;
            language.bind(node, source, &mut facts);
        });
        if is_deep {
            self.unread("too-deep", Some(root), language, outer);
        }
        let values = Values::new(language, source, Rc::clone(&rules), facts, self.budget);
        let mut reader = Reader { screening: self, values, outer };
        reader.imports();
        reader.aliases();
        let mut failed = None;
        walk(root, reader.screening.budget, |node, _| {
            if failed.is_none() {
                failed = reader.node(node).err();
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if self.budget.is_over() {
            self.unread("not-read-in-time", None, language, outer);
        }
        Ok(())
    }

    /// Parses the code; `None` if there was not enough time.
    fn parse(&self, language: Language, source: &str) -> Option<Tree> {
        let mut first = None;
        for grammar in language.parsers(source) {
            let mut parser = Parser::new();
            parser.set_language(&grammar).ok()?;
            let budget = self.budget;
            let mut stop = |_: &tree_sitter::ParseState| {
                if budget.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let options = ParseOptions::new().progress_callback(&mut stop);
            let mut read = |at: usize, _| source.as_bytes().get(at..).unwrap_or_default();
            let tree = parser.parse_with_options(&mut read, None, Some(options))?;
            if !tree.root_node().has_error() {
                return Some(tree);
            }
            first.get_or_insert(tree);
        }
        first
    }
}

/// Visits all nodes down to [`MAX_DEPTH`], parents first, until the time is over.
fn walk<'t>(root: Node<'t>, budget: Budget, mut visit: impl FnMut(Node<'t>, usize)) {
    let mut cursor = root.walk();
    let (mut depth, mut count) = (0_usize, 0_usize);
    loop {
        count += 1;
        if count.is_multiple_of(256) && budget.is_over() {
            return;
        }
        let node = cursor.node();
        if node.is_named() {
            visit(node, depth);
        }
        if depth < MAX_DEPTH && cursor.goto_first_child() {
            depth += 1;
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return;
            }
            depth -= 1;
        }
    }
}

/// Returns the first node that does not belong to the grammar.
fn first_error(root: Node<'_>) -> Option<Node<'_>> {
    let mut cursor = root.walk();
    'down: loop {
        let node = cursor.node();
        if node.is_error() || node.is_missing() {
            return Some(node);
        }
        if !cursor.goto_first_child() {
            return Some(node);
        }
        while !cursor.node().has_error() && !cursor.node().is_missing() {
            if !cursor.goto_next_sibling() {
                return Some(node);
            }
        }
        continue 'down;
    }
}

/// Reads one tree.
struct Reader<'s, 'a, 't> {
    screening: &'s mut Screening<'a>,
    values: Values<'t>,
    outer: Option<Outer>,
}

impl<'t> Reader<'_, '_, 't> {
    fn find(&mut self, rule: usize, node: Node<'t>, name: &str) {
        self.screening.find(rule, node, name, self.values.language, self.outer);
    }

    fn find_id(&mut self, id: &str, node: Node<'t>, name: &str) {
        if let Some(rule) = self.screening.rule(id) {
            self.find(rule, node, name);
        }
    }

    fn imports(&mut self) {
        let imports = self.values.facts.imports.clone();
        for (path, node) in imports {
            self.import(&path, node);
        }
    }

    /// Compares an import, or a member of a module, with the rules and the caller's lists.
    fn import(&mut self, path: &str, node: Node<'t>) {
        let rules = Rc::clone(&self.values.rules);
        for rule in rules.modules.find(path) {
            self.find(rule, node, path);
        }
        for matched in rules.calls.find(path) {
            if let Some(call) = rules.call_matches.get(matched).filter(|call| call.arguments.is_none()) {
                self.find(call.rule, node, path);
            }
        }
        let is_in = |list: &[String]| list.iter().any(|module| is_below(path, module));
        if is_in(&self.screening.modules.deny) {
            self.find_id("module-denied", node, path);
        }
        if self.screening.modules.allow.as_deref().is_some_and(|list| !is_in(list)) {
            self.find_id("module-not-allowed", node, path);
        }
    }

    /// Looks at functions that get another name.
    fn aliases(&mut self) {
        let mut bound: Vec<Node<'t>> = Vec::new();
        for all in self.values.facts.names.values() {
            bound.extend(all.iter().filter_map(|bound| match bound {
                Bound::Node(node) => Some(*node),
                _ => None,
            }));
        }
        for node in bound {
            if matches!(self.values.shape(node), Shape::Name(_)) && self.values.language != Language::Bash {
                self.mention(node);
            }
        }
    }

    /// Looks at a function that is named but not called.
    fn mention(&mut self, node: Node<'t>) {
        let rules = Rc::clone(&self.values.rules);
        for value in self.values.of(node).iter() {
            let Value::Path(path) = value else { continue };
            for matched in rules.calls.find(path) {
                if let Some(call) = rules.call_matches.get(matched).filter(|call| call.arguments.is_none()) {
                    self.find(call.rule, node, path);
                }
            }
        }
    }

    fn node(&mut self, node: Node<'t>) -> Result<(), RuleError> {
        let rules = Rc::clone(&self.values.rules);
        for query in
            rules.queries_of.get(node.kind()).into_iter().flatten().filter_map(|at| rules.queries.get(*at))
        {
            for found in query.run(node, self.values.source) {
                let shown = text(found, self.values.source).lines().next().unwrap_or_default();
                self.find(query.rule, found, shown);
            }
        }
        match self.values.shape(node) {
            Shape::Call(Callee::Node(name), arguments) if self.values.language == Language::Bash => {
                self.command(node, name, &arguments)
            }
            Shape::Call(callee, arguments) => self.call(node, &callee, &arguments),
            Shape::Shell(_) => {
                self.match_call("`", node, &[]);
                if let Shape::Shell(parts) = self.values.shape(node) {
                    let mut line = String::new();
                    for part in &parts {
                        match part {
                            crate::syntax::Part::Text(text) => line.push_str(text),
                            crate::syntax::Part::Value(value) => match self.values.texts(*value).pop() {
                                Some(text) => line.push_str(&text),
                                None => line.push(UNKNOWN),
                            },
                        }
                    }
                    self.inside(Language::Bash, &line, node)?;
                }
                Ok(())
            }
            Shape::Member(..) | Shape::Index(..) => {
                self.mention(node);
                Ok(())
            }
            Shape::Text(_) | Shape::Join(_) => {
                self.literal(node);
                Ok(())
            }
            _ if self.values.language == Language::Bash => self.statement(node),
            _ => Ok(()),
        }
    }

    fn literal(&mut self, node: Node<'t>) {
        let rules = Rc::clone(&self.values.rules);
        for folded in self.values.texts(node) {
            for (rule, found) in rules.literal(&folded, false) {
                self.find(rule, node, found);
            }
        }
        for (rule, found) in rules.literal(text(node, self.values.source), true) {
            self.find(rule, node, found);
        }
    }

    /// Returns what is known of an argument: its text, or its path and how it is written.
    fn argument(&self, node: Node<'t>) -> String {
        const MAX_WRITTEN: usize = 200;
        let mut shown = String::new();
        for value in self.values.of(node).iter() {
            match value {
                Value::Path(path) => {
                    shown.push_str(path);
                    shown.push(' ');
                }
                Value::Text(text) => {
                    shown.push_str(text);
                    shown.push(' ');
                }
                Value::Number(_) => {}
            }
        }
        if self.values.is_list(node) {
            shown.push_str(&self.values.words(node).join(" "));
            shown.push(' ');
        }
        shown.extend(text(node, self.values.source).chars().take(MAX_WRITTEN));
        shown
    }

    fn call(&mut self, node: Node<'t>, callee: &Callee<'t>, arguments: &[Node<'t>]) -> Result<(), RuleError> {
        let paths = self.values.callee(callee);
        for path in &paths {
            let mut calls = vec![(path.clone(), arguments)];
            calls.extend(self.values.calls(path, arguments));
            for (path, arguments) in calls {
                self.match_call(&path, node, arguments);
                let rules = Rc::clone(&self.values.rules);
                for dynamic in rules.effects(&path) {
                    match dynamic.does {
                        Effect::Import => {
                            let names =
                                arguments.first().map_or_else(Vec::new, |one| self.values.texts(*one));
                            for name in &names {
                                let name = name.strip_prefix("node:").unwrap_or(name);
                                self.import(name, node);
                            }
                            if names.is_empty() && !arguments.is_empty() {
                                self.find_id("dynamic-import", node, &path);
                            }
                        }
                        Effect::Chain => {
                            let words = self.values.chain(callee, arguments);
                            self.inside(Language::Bash, &command_line(&words), node)?;
                        }
                        Effect::Code => self.run_code(dynamic.language, dynamic.argument, node, arguments)?,
                        _ => {}
                    }
                }
            }
        }
        for argument in arguments {
            if matches!(self.values.shape(*argument), Shape::Name(_)) {
                self.mention(*argument);
            }
        }
        Ok(())
    }

    fn match_call(&mut self, path: &str, node: Node<'t>, arguments: &[Node<'t>]) {
        let rules = Rc::clone(&self.values.rules);
        let mut given = None;
        for matched in rules.calls.find(path) {
            let Some(call) = rules.call_matches.get(matched) else { continue };
            let is_match = call.arguments.as_ref().is_none_or(|regex| {
                let given = given.get_or_insert_with(|| {
                    arguments.iter().map(|one| self.argument(*one)).collect::<Vec<_>>().join(", ")
                });
                regex.is_match(given)
            });
            if is_match {
                self.find(call.rule, node, path);
            }
        }
    }

    /// Reads the code that a call runs.
    fn run_code(
        &mut self,
        language: Language,
        argument: Option<usize>,
        node: Node<'t>,
        arguments: &[Node<'t>],
    ) -> Result<(), RuleError> {
        let mut codes = Vec::new();
        if let Some(index) = argument {
            let Some(argument) = arguments.get(index) else { return Ok(()) };
            if self.values.is_list(*argument) {
                codes.push(command_line(&self.values.words(*argument)));
            } else {
                codes.extend(self.values.texts(*argument));
            }
        } else {
            // Options of the call are no words of its command.
            let words: Vec<_> = arguments.iter().flat_map(|one| self.values.words(*one)).collect();
            let is_known = |word: &String| *word != UNKNOWN.to_string();
            let first = words.iter().position(is_known).unwrap_or(words.len());
            let known = words.iter().rposition(is_known).map_or(first, |place| place + 1);
            match words.get(first..known).unwrap_or_default() {
                [] => {}
                [one] => codes.push(one.clone()),
                words => codes.push(command_line(words)),
            }
        }
        for code in codes {
            self.inside(language, &code, node)?;
        }
        Ok(())
    }

    /// Reads code that is inside of this one.
    fn inside(&mut self, language: Language, code: &str, node: Node<'t>) -> Result<(), RuleError> {
        let depth = self.outer.map_or(0, |outer| outer.depth);
        if depth >= MAX_INSIDE || code.len() > MAX_INSIDE_BYTES || self.values.is_over() {
            return Ok(());
        }
        let place = self.outer.map_or_else(|| Place::of(node), |outer| outer.place);
        self.screening.read(language, code, Some(Outer { place, depth: depth + 1 }))
    }

    fn command(&mut self, node: Node<'t>, name: Node<'t>, arguments: &[Node<'t>]) -> Result<(), RuleError> {
        let mut words = Vec::new();
        for word in std::iter::once(&name).chain(arguments) {
            let known = self.values.texts(*word).pop().unwrap_or(UNKNOWN.to_string());
            let is_split = word.id() == name.id()
                || matches!(word.kind(), "simple_expansion" | "expansion" | "command_substitution");
            if is_split {
                words.extend(known.split_whitespace().map(str::to_owned));
            } else {
                words.push(known);
            }
        }
        let own = |command: &Command| {
            self.values
                .facts
                .names
                .get(&command.name)
                .is_some_and(|all| matches!(all.first(), Some(Bound::Own)))
        };
        let commands: Vec<_> = bash::commands(&words).into_iter().filter(|command| !own(command)).collect();
        for command in &commands {
            self.match_command(&command.name, &command.arguments.join(" "), node);
            for argument in arguments {
                for inner in substitutions(*argument) {
                    if let Some(from) = self.program(inner) {
                        self.match_command(&format!("{from}|{}", sink(&command.name)), "", node);
                    }
                }
            }
            let code = command.code().and_then(|(name, code)| Some((Language::by_name(name)?, code)));
            if let Some((language, code)) = code {
                self.inside(language, &code, node)?;
            }
        }
        if let Some(here) =
            field(node, "redirect").filter(|redirect| redirect.kind() == "herestring_redirect")
            && commands.last().is_some_and(Command::is_shell)
        {
            for code in named(here).into_iter().flat_map(|word| self.values.texts(word)).collect::<Vec<_>>() {
                self.inside(Language::Bash, &code, node)?;
            }
        }
        Ok(())
    }

    fn match_command(&mut self, path: &str, arguments: &str, node: Node<'t>) {
        let rules = Rc::clone(&self.values.rules);
        for matched in rules.calls.find(path) {
            let Some(call) = rules.call_matches.get(matched) else { continue };
            if call.arguments.as_ref().is_none_or(|regex| regex.is_match(arguments)) {
                self.find(call.rule, node, path);
            }
        }
    }

    /// Returns the program that a statement of the shell runs last.
    fn program(&self, statement: Node<'t>) -> Option<String> {
        match statement.kind() {
            "command" => {
                let words: Vec<_> = match self.values.shape(statement) {
                    Shape::Call(Callee::Node(name), arguments) => std::iter::once(name)
                        .chain(arguments)
                        .map(|word| self.values.texts(word).pop().unwrap_or(UNKNOWN.to_string()))
                        .collect(),
                    _ => return None,
                };
                bash::commands(&words).pop().map(|command| command.name)
            }
            "redirected_statement" => self.program(field(statement, "body")?),
            "pipeline" => self.program(*named(statement).first()?),
            _ => None,
        }
    }

    /// Looks at what is between the commands of a shell.
    fn statement(&mut self, node: Node<'t>) -> Result<(), RuleError> {
        match node.kind() {
            "pipeline" => {
                let stages = named(node);
                let programs: Vec<_> = stages.iter().map(|stage| self.program(*stage)).collect();
                for (place, to) in programs.iter().enumerate() {
                    let Some(to) = to else { continue };
                    for from in programs.iter().take(place).flatten() {
                        self.match_command(&format!("{from}|{}", sink(to)), "", node);
                    }
                }
                let last = stages.last().copied();
                let printed = match (stages.first(), last.and_then(|last| self.program(last))) {
                    (Some(_), Some(program)) if sink(&program) == "sh" => self.printed(&stages),
                    _ => None,
                };
                if let (Some(code), Some(program)) = (printed, last.and_then(|last| self.program(last))) {
                    let language =
                        if program.starts_with("python") { Language::Python } else { Language::Bash };
                    self.inside(language, &code, node)?;
                }
                Ok(())
            }
            "redirected_statement" => {
                let body = field(node, "body").and_then(|body| self.program(body));
                let mut cursor = node.walk();
                let heres: Vec<_> = node.children_by_field_name("redirect", &mut cursor).collect();
                if body.is_some_and(|program| sink(&program) == "sh") {
                    for here in heres {
                        for child in named(here).into_iter().filter(|child| child.kind() == "heredoc_body") {
                            let code = text(child, self.values.source).to_owned();
                            self.inside(Language::Bash, &code, node)?;
                        }
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns what all stages but the last one print.
    fn printed(&self, stages: &[Node<'t>]) -> Option<String> {
        let (_, before) = stages.split_last()?;
        self.values.pipeline(before)
    }
}

/// Reports whether a path is a module or below it. Levels are separated by `.` or `/`.
fn is_below(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/', ':']))
}

/// Returns the name under which rules know the end of a pipeline: `sh` for all that run what they read.
fn sink(program: &str) -> &str {
    let name = program.trim_end_matches(|char: char| char.is_ascii_digit() || char == '.');
    match name {
        "bash" | "sh" | "dash" | "zsh" | "ash" | "ksh" | "eval" | "source" | "" | "python" | "perl"
        | "ruby" | "node" | "php" => "sh",
        _ => program,
    }
}

/// Returns the statements in the substitutions of a word.
fn substitutions(word: Node<'_>) -> Vec<Node<'_>> {
    let mut found = Vec::new();
    let mut pending = vec![word];
    let mut count = 0;
    while let Some(node) = pending.pop() {
        count += 1;
        if count > 64 {
            break;
        }
        if matches!(node.kind(), "command_substitution" | "process_substitution") {
            found.extend(named(node));
        } else {
            pending.extend(named(node));
        }
    }
    found
}

/// Returns words as a command line of a shell.
fn command_line(words: &[String]) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "_./:=@%+,-".contains(char) || char == UNKNOWN;
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}
