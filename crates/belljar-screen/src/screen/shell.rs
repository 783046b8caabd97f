//! Commands and statements of shells.

use std::rc::Rc;

use tree_sitter::Node;

use super::reader::Reader;
use crate::language::Language;
use crate::rules::RuleError;
use crate::syntax::bash::{self, Command};
use crate::syntax::{Bound, Callee, Shape, field, named, text};
use crate::values::UNKNOWN;

impl<'t> Reader<'_, '_, 't> {
    pub(super) fn command(
        &mut self,
        node: Node<'t>,
        name: Node<'t>,
        arguments: &[Node<'t>],
    ) -> Result<(), RuleError> {
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
    pub(super) fn statement(&mut self, node: Node<'t>) -> Result<(), RuleError> {
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
