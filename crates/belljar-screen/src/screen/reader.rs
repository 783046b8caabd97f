//! Reads one tree: names, calls, and code inside of code.

use std::rc::Rc;

use tree_sitter::Node;

use super::screening::{Outer, Screening};
use super::shell::command_line;
use crate::language::Language;
use crate::rules::{Effect, RuleError};
use crate::syntax::{Bound, Callee, Shape, text};
use crate::values::{UNKNOWN, Value, Values};

/// Reads one tree.
pub(super) struct Reader<'s, 'a, 't> {
    pub(super) screening: &'s mut Screening<'a>,
    pub(super) values: Values<'t>,
    pub(super) outer: Option<Outer>,
}

impl<'t> Reader<'_, '_, 't> {
    pub(super) fn find(&mut self, rule: usize, node: Node<'t>, name: &str) {
        self.screening.find(rule, node, name, self.values.language, self.outer);
    }

    pub(super) fn find_id(&mut self, id: &str, node: Node<'t>, name: &str) {
        if let Some(rule) = self.screening.rule(id) {
            self.find(rule, node, name);
        }
    }

    pub(super) fn imports(&mut self) {
        let imports = self.values.facts.imports.clone();
        for (path, node) in imports {
            self.import(&path, node);
        }
    }

    /// Compares an import, or a member of a module, with the rules and the caller's lists.
    pub(super) fn import(&mut self, path: &str, node: Node<'t>) {
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
    pub(super) fn aliases(&mut self) {
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
    pub(super) fn mention(&mut self, node: Node<'t>) {
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

    pub(super) fn node(&mut self, node: Node<'t>) -> Result<(), RuleError> {
        if self.values.is_over() {
            return Ok(());
        }
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
            Shape::Shell(parts) => {
                self.match_call("`", node, &[]);
                let lines = self.values.lists(&parts);
                if lines.is_cut {
                    self.more(node);
                }
                for line in lines.all {
                    self.inside(Language::Bash, &line.concat(), node)?;
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
            if self.values.spend(folded.len()) {
                return;
            }
            for (rule, found) in rules.literal(&folded, false) {
                self.find(rule, node, found);
            }
        }
        let written = text(node, self.values.source);
        if self.values.spend(written.len()) {
            return;
        }
        for (rule, found) in rules.literal(written, true) {
            self.find(rule, node, found);
        }
    }

    /// Returns what is known of an argument: its texts and paths, and how it is written, each on a line.
    fn argument(&self, node: Node<'t>) -> String {
        const MAX_WRITTEN: usize = 200;
        let mut shown = String::new();
        for value in self.values.of(node).iter() {
            match value {
                Value::Path(path) => {
                    shown.push_str(path);
                    shown.push('\n');
                }
                Value::Text(text) => {
                    shown.push_str(text);
                    shown.push('\n');
                }
                Value::Number(_) | Value::More | Value::MorePaths => {}
            }
        }
        if self.values.is_list(node) {
            for words in self.values.words(&[node]).all {
                shown.push_str(&words.join(" "));
                shown.push('\n');
            }
        }
        self.values.spend(shown.len());
        shown.extend(text(node, self.values.source).chars().take(MAX_WRITTEN));
        shown
    }

    pub(super) fn call(
        &mut self,
        node: Node<'t>,
        callee: &Callee<'t>,
        arguments: &[Node<'t>],
    ) -> Result<(), RuleError> {
        let (paths, is_cut) = self.values.callee(callee);
        if is_cut {
            self.more(node);
        }
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
                            if arguments.first().is_some_and(|one| self.values.is_cut(*one)) {
                                self.more(node);
                            }
                            if names.is_empty() && !arguments.is_empty() {
                                self.find_id("dynamic-import", node, &path);
                            }
                        }
                        Effect::Chain => {
                            let lists = self.values.chain(callee, arguments);
                            if lists.is_cut {
                                self.more(node);
                            }
                            for words in &lists.all {
                                self.inside(Language::Bash, &command_line(words), node)?;
                            }
                        }
                        Effect::Cell => {
                            for words in self.values.words(arguments).all {
                                let code = match words.as_slice() {
                                    [name, line, cell, ..] => format!("%%{name} {line}\n{cell}"),
                                    words => format!("%{}", words.join(" ")),
                                };
                                self.inside(Language::Python, &code, node)?;
                            }
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
            if self.values.spend(given.as_ref().map_or(0, String::len)) {
                return;
            }
            if is_match {
                self.find(call.rule, node, path);
            }
        }
    }

    /// Notes that a node has more values than are followed.
    pub(super) fn more(&mut self, node: Node<'t>) {
        self.screening.unread("too-many-values", Some(node), self.values.language, self.outer);
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
            if self.values.is_cut(*argument) {
                self.more(node);
            }
            codes.extend(self.values.texts(*argument));
            if self.values.is_list(*argument) {
                let lists = self.values.words(&[*argument]);
                if lists.is_cut {
                    self.more(node);
                }
                codes.extend(lists.all.iter().map(|words| command_line(words)));
            }
        } else {
            let lists = self.values.words(arguments);
            if lists.is_cut {
                self.more(node);
            }
            for words in lists.all {
                // Options of the call are no words of its command.
                let is_known = |word: &String| *word != UNKNOWN.to_string();
                let first = words.iter().position(is_known).unwrap_or(words.len());
                let known = words.iter().rposition(is_known).map_or(first, |place| place + 1);
                match words.get(first..known).unwrap_or_default() {
                    [] => {}
                    [one] => codes.push(one.clone()),
                    words => codes.push(command_line(words)),
                }
            }
        }
        for code in codes {
            self.inside(language, &code, node)?;
        }
        Ok(())
    }

    /// Reads code that is inside of this one.
    pub(super) fn inside(&mut self, language: Language, code: &str, node: Node<'t>) -> Result<(), RuleError> {
        if self.values.is_over() {
            return Ok(());
        }
        let depth = self.outer.map_or(0, |outer| outer.depth);
        let place = self.outer.map_or_else(|| self.screening.place(node), |outer| outer.place);
        self.screening.read_inside(language, code, Outer { place, depth: depth + 1, is_guess: false })
    }
}

/// Reports whether a path is a module or below it. Levels are separated by `.` or `/`.
fn is_below(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/', ':']))
}
