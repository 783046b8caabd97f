//! Commands and statements of shells.

use std::collections::HashSet;
use std::rc::Rc;

use tree_sitter::Node;

use super::reader::Reader;
use crate::language::Language;
use crate::rules::RuleError;
use crate::syntax::bash::{self, Command};
use crate::syntax::{Callee, Shape, field, named, text};
use crate::values::{Lists, UNKNOWN, inputs};

/// Longest command line that is compared with rules, in bytes.
const MAX_LINE: usize = 64 << 10;

/// Most nodes below a statement in which its commands are looked for.
const MAX_BELOW: usize = 256;

impl<'t> Reader<'_, '_, 't> {
    /// Looks at a command. A function of its name may not be called: it hides no program.
    pub(super) fn command(
        &mut self,
        node: Node<'t>,
        name: Node<'t>,
        arguments: &[Node<'t>],
    ) -> Result<(), RuleError> {
        let lists = self.values.command(name, arguments, 0);
        for words in &lists.all {
            if self.values.spend(words.len()) {
                break;
            }
            let commands = bash::commands(words);
            let is_watched = |command: &Command| {
                let rules = &self.values.rules;
                let has_arguments =
                    |rule: usize| rules.call_matches.get(rule).is_some_and(|call| call.arguments.is_some());
                command.code().is_some() || rules.calls.find(&command.name).into_iter().any(has_arguments)
            };
            let is_wrapped = commands.len() > 1;
            if lists.is_cut && (is_wrapped || self.values.is_cut(name) || commands.iter().any(is_watched)) {
                self.more(node);
            }
            for command in &commands {
                self.run(command, arguments, node)?;
            }
            for here in inputs(node) {
                self.feed(here, words, node)?;
            }
        }
        Ok(())
    }

    fn run(&mut self, command: &Command, arguments: &[Node<'t>], node: Node<'t>) -> Result<(), RuleError> {
        self.match_command(command, node);
        let reads = command.reads_code();
        let runs_file = command.is_interpreter();
        let sink = command.sink();
        for argument in arguments {
            if self.values.spend(1) {
                break;
            }
            for inner in substitutions(*argument) {
                // What it is given as a file it runs.
                let sink = if runs_file && argument.kind() == "process_substitution" { "sh" } else { sink };
                for from in self.programs(inner) {
                    self.match_path(&format!("{}|{sink}", from.name), node);
                }
                if argument.kind() == "process_substitution" && runs_file {
                    let printed = self.values.pipeline(&[inner]);
                    let language = reads.and_then(Language::by_name).unwrap_or(Language::Bash);
                    for code in printed.all {
                        self.inside(language, &code.concat(), node)?;
                    }
                }
            }
        }
        if let Some((name, code)) = command.code()
            && let Some(language) = Language::by_name(name)
        {
            self.inside(language, &code, node)?;
        }
        Ok(())
    }

    fn match_command(&mut self, command: &Command, node: Node<'t>) {
        let rules = Rc::clone(&self.values.rules);
        let mut arguments = command.line();
        if arguments.len() > MAX_LINE {
            arguments.truncate(arguments.floor_char_boundary(MAX_LINE));
            self.more(node);
        }
        for matched in rules.calls.find(&command.name) {
            let Some(call) = rules.call_matches.get(matched) else { continue };
            if self.values.spend(arguments.len()) {
                return;
            }
            if call.arguments.as_ref().is_none_or(|regex| regex.is_match(&arguments)) {
                self.find(call.rule, node, &command.name);
            }
        }
    }

    fn match_path(&mut self, path: &str, node: Node<'t>) {
        let rules = Rc::clone(&self.values.rules);
        for matched in rules.calls.find(path) {
            if let Some(call) = rules.call_matches.get(matched).filter(|call| call.arguments.is_none()) {
                self.find(call.rule, node, path);
            }
        }
    }

    /// Reads the input of a command, if that runs it.
    fn feed(&mut self, input: Node<'t>, words: &[String], node: Node<'t>) -> Result<(), RuleError> {
        let mut codes = self.values.texts(input);
        if input.kind() == "heredoc_body" {
            codes.push(text(input, self.values.source).to_owned());
        }
        for code in codes {
            self.feed_text(&code, words, node)?;
        }
        Ok(())
    }

    fn feed_text(&mut self, code: &str, words: &[String], node: Node<'t>) -> Result<(), RuleError> {
        for command in bash::commands(words) {
            if self.values.spend(command.arguments.len() + code.len()) {
                break;
            }
            if let Some(language) = command.reads_code().and_then(Language::by_name) {
                self.inside(language, code, node)?;
            }
            if command.name == "xargs" {
                let given =
                    command.arguments.iter().cloned().chain(code.split_whitespace().map(str::to_owned));
                let whole: Vec<_> = std::iter::once("xargs".to_owned()).chain(given).collect();
                for command in bash::commands(&whole) {
                    self.match_command(&command, node);
                }
            }
        }
        Ok(())
    }

    /// Returns the words of the commands of a statement, at any depth.
    fn words_below(&self, statement: Node<'t>) -> Vec<Vec<String>> {
        let (mut found, mut pending, mut count) = (Vec::new(), vec![statement], 0);
        while let Some(node) = pending.pop() {
            count += 1;
            if count > MAX_BELOW || self.values.is_over() {
                break;
            }
            match self.values.shape(node) {
                Shape::Call(Callee::Node(name), arguments) => {
                    found.extend(self.values.command(name, &arguments, 0).all);
                }
                _ => pending.extend(named(node).into_iter().rev()),
            }
        }
        found
    }

    /// Returns the programs that a statement of the shell runs, and those around them.
    fn programs(&self, statement: Node<'t>) -> Vec<Command> {
        self.words_below(statement).iter().flat_map(|words| bash::commands(words)).collect()
    }

    /// Looks at what is between the commands of a shell.
    pub(super) fn statement(&mut self, node: Node<'t>) -> Result<(), RuleError> {
        match node.kind() {
            "pipeline" => self.pipeline(node),
            "redirected_statement" => {
                let Some(body) = field(node, "body") else { return Ok(()) };
                // Words after a redirection are arguments.
                let more = bash::words_after_redirections(node);
                if !more.is_empty()
                    && let Shape::Call(Callee::Node(name), mut arguments) = self.values.shape(body)
                {
                    arguments.extend(more);
                    self.command(node, name, &arguments)?;
                }
                let mut commands = self.words_below(body);
                // `cat <<END | sh`
                let mut cursor = node.walk();
                for here in node.children_by_field_name("redirect", &mut cursor) {
                    for stage in named(here).into_iter().filter(|child| child.kind() == "pipeline") {
                        commands.extend(self.words_below(stage));
                    }
                }
                for here in inputs(node) {
                    for words in &commands {
                        self.feed(here, words, node)?;
                    }
                }
                Ok(())
            }
            // Backquotes in them are no nodes of the tree.
            "heredoc_redirect" => {
                let is_quoted = named(node).into_iter().any(|child| {
                    child.kind() == "heredoc_start"
                        && text(child, self.values.source).contains(['\'', '"', '\\'])
                });
                if is_quoted { Ok(()) } else { self.backquoted(node) }
            }
            "file_redirect" => {
                let operator = node.child(u32::from(field(node, "descriptor").is_some()));
                if operator.is_some_and(|operator| operator.kind().contains('>'))
                    && let Some(file) = field(node, "destination")
                {
                    for file in self.values.texts(file) {
                        self.match_command(&Command { name: ">".to_owned(), arguments: vec![file] }, node);
                    }
                }
                Ok(())
            }
            "expansion" => self.backquoted(node),
            _ => Ok(()),
        }
    }

    fn backquoted(&mut self, node: Node<'t>) -> Result<(), RuleError> {
        let written = text(node, self.values.source);
        if self.values.spend(written.len()) {
            return Ok(());
        }
        for code in written.split('`').skip(1).step_by(2) {
            self.inside(Language::Bash, code, node)?;
        }
        Ok(())
    }

    fn pipeline(&mut self, node: Node<'t>) -> Result<(), RuleError> {
        let stages = named(node);
        let mut before = HashSet::new();
        for stage in &stages {
            let programs = self.programs(*stage);
            for sink in programs.iter().map(Command::sink) {
                for from in &before {
                    if self.values.is_over() {
                        return Ok(());
                    }
                    self.match_path(&format!("{from}|{sink}"), node);
                }
            }
            before.extend(programs.into_iter().map(|program| program.name));
        }
        let Some((last, before)) = stages.split_last() else { return Ok(()) };
        let commands = self.words_below(*last);
        if !commands.iter().any(|words| bash::commands(words).iter().any(Command::takes_input)) {
            return Ok(());
        }
        let Lists { all, is_cut } = self.values.pipeline(before);
        if is_cut {
            self.more(node);
        }
        for printed in &all {
            for words in &commands {
                self.feed_text(&printed.concat(), words, node)?;
            }
        }
        Ok(())
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
pub(super) fn command_line(words: &[String]) -> String {
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
