//! Values of nodes, as far as they follow from the code alone: paths of names, and constant texts.
//!
//! Order and scope are ignored: a name has all the values that it is bound to anywhere.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use tree_sitter::Node;

use crate::budget::Budget;
use crate::language::Language;
use crate::rules::{Dynamic, Effect, Rules};
use crate::syntax::{Bound, Callee, Facts, Part, Shape, field, named};

/// Stands for the unknown part of a text.
pub(crate) const UNKNOWN: char = '\u{fffd}';

/// Longest chain of names, calls and members that is followed.
const MAX_DEPTH: usize = 24;

/// Most values of a node.
const MAX_VALUES: usize = 8;

/// Longest text and longest path, in bytes.
const MAX_TEXT: usize = 64 << 10;
const MAX_PATH: usize = 300;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// A name, followed to what it stands for: `os.system`, `socket.socket().connect`.
    Path(String),
    /// A constant text, with [`UNKNOWN`] for the parts that are not constant.
    Text(String),
    /// A number.
    Number(i64),
}

/// The values of the nodes of one tree.
pub(crate) struct Values<'t> {
    pub(crate) language: Language,
    pub(crate) source: &'t str,
    pub(crate) rules: Rc<Rules>,
    pub(crate) facts: Facts<'t>,
    budget: Budget,
    known: RefCell<HashMap<usize, Rc<[Value]>>>,
    steps: Cell<u32>,
    pub(crate) is_late: Cell<bool>,
}

impl<'t> Values<'t> {
    pub(crate) fn new(
        language: Language,
        source: &'t str,
        rules: Rc<Rules>,
        facts: Facts<'t>,
        budget: Budget,
    ) -> Self {
        Self {
            language,
            source,
            rules,
            facts,
            budget,
            known: RefCell::default(),
            steps: Cell::new(0),
            is_late: Cell::new(false),
        }
    }

    /// Reports whether the time is over, as of the last time that it looked at the clock.
    pub(crate) fn is_over(&self) -> bool {
        let steps = self.steps.get().wrapping_add(1);
        self.steps.set(steps);
        if steps.is_multiple_of(128) && self.budget.is_over() {
            self.is_late.set(true);
        }
        self.is_late.get()
    }

    pub(crate) fn shape(&self, node: Node<'t>) -> Shape<'t> {
        self.language.shape(node, self.source)
    }

    /// Returns the values of a node; none if nothing is known.
    pub(crate) fn of(&self, node: Node<'t>) -> Rc<[Value]> {
        self.at(node, 0)
    }

    fn at(&self, node: Node<'t>, depth: usize) -> Rc<[Value]> {
        if depth > MAX_DEPTH || self.is_over() {
            return Rc::default();
        }
        if let Some(known) = self.known.borrow().get(&node.id()) {
            return Rc::clone(known);
        }
        // A name that is bound to itself has no value.
        self.known.borrow_mut().insert(node.id(), Rc::default());
        let mut values = self.find(node, depth + 1);
        values.truncate(MAX_VALUES);
        let values: Rc<[Value]> = values.into();
        if !self.is_late.get() {
            self.known.borrow_mut().insert(node.id(), Rc::clone(&values));
        }
        values
    }

    fn find(&self, node: Node<'t>, depth: usize) -> Vec<Value> {
        match self.shape(node) {
            Shape::Name(name) => self.name(&name, depth),
            Shape::Member(object, name) => self.member(object, &name, depth),
            Shape::Index(object, index) => {
                let names = self.texts_at(index, depth);
                let member = |name: &String| self.member(object, name, depth);
                if names.is_empty() {
                    self.paths_at(object, depth).into_iter().map(|path| self.path(path + "[]")).collect()
                } else {
                    names.iter().flat_map(member).collect()
                }
            }
            Shape::Call(callee, arguments) => self.call(&callee, &arguments, depth),
            Shape::Text(parts) => vec![Value::Text(self.parts(&parts, depth))],
            Shape::Join(nodes) => self.join(&nodes, depth).into_iter().map(Value::Text).collect(),
            Shape::Reversed(inner) => self
                .texts_at(inner, depth)
                .into_iter()
                .map(|text| Value::Text(text.chars().rev().collect()))
                .collect(),
            Shape::Number(number) => vec![Value::Number(number)],
            Shape::Same(inner) => self.at(inner, depth).to_vec(),
            Shape::Shell(_) => vec![Value::Path("`".to_owned())],
            Shape::Output(statement) => self.output(statement, depth).into_iter().map(Value::Text).collect(),
            Shape::List(_) | Shape::Other => Vec::new(),
        }
    }

    fn path(&self, path: String) -> Value {
        if path.len() > MAX_PATH {
            return Value::Path("?".to_owned());
        }
        Value::Path(self.rules.canonical(path))
    }

    fn name(&self, name: &str, depth: usize) -> Vec<Value> {
        let Some(bound) = self.facts.names.get(name) else {
            let star = self.facts.everything.iter().map(|module| self.path(format!("{module}.{name}")));
            return std::iter::once(self.path(name.to_owned())).chain(star).collect();
        };
        let mut values = Vec::new();
        for bound in bound {
            match bound {
                Bound::Path(path) => values.push(self.path(path.clone())),
                Bound::Node(node) => values.extend(self.at(*node, depth).iter().cloned()),
                Bound::Member(node, name) => values.extend(self.member(*node, name, depth)),
                Bound::Own => values.push(Value::Path(format!("own:{name}"))),
            }
        }
        values
    }

    fn member(&self, object: Node<'t>, name: &str, depth: usize) -> Vec<Value> {
        let mut values: Vec<Value> = Vec::new();
        for value in self.at(object, depth).iter() {
            match value {
                Value::Path(path) => values.push(self.path(format!("{path}.{name}"))),
                // In PHP the text may be the name of a class.
                Value::Text(_) | Value::Number(_) => values.push(Value::Path(format!("''.{name}"))),
            }
        }
        if values.is_empty() {
            values.push(Value::Path(format!("?.{name}")));
        }
        values
    }

    fn parts(&self, parts: &[Part<'t>], depth: usize) -> String {
        let mut text = String::new();
        for part in parts {
            match part {
                Part::Text(known) => text.push_str(known),
                Part::Value(node) => match self.texts_at(*node, depth).first() {
                    Some(known) => text.push_str(known),
                    None => text.push(UNKNOWN),
                },
            }
            if text.len() > MAX_TEXT {
                break;
            }
        }
        text
    }

    /// Joins texts; none if not one of them is known.
    fn join(&self, nodes: &[Node<'t>], depth: usize) -> Option<String> {
        // A chain of joins leans to the left, and may be long.
        let mut pending: Vec<Node<'t>> = nodes.iter().rev().copied().collect();
        let (mut text, mut is_known, mut count) = (String::new(), false, 0);
        while let Some(node) = pending.pop() {
            count += 1;
            if count > 4096 || text.len() > MAX_TEXT || self.is_over() {
                break;
            }
            if let Shape::Join(inner) = self.shape(node) {
                pending.extend(inner.into_iter().rev());
                continue;
            }
            match self.texts_at(node, depth).first() {
                Some(known) => {
                    text.push_str(known);
                    is_known = true;
                }
                None => text.push(UNKNOWN),
            }
        }
        is_known.then_some(text)
    }

    fn texts_at(&self, node: Node<'t>, depth: usize) -> Vec<String> {
        let text = |value: &Value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        };
        self.at(node, depth).iter().filter_map(text).collect()
    }

    fn paths_at(&self, node: Node<'t>, depth: usize) -> Vec<String> {
        let path = |value: &Value| match value {
            Value::Path(path) => Some(path.clone()),
            _ => None,
        };
        self.at(node, depth).iter().filter_map(path).collect()
    }

    /// Returns the constant texts that a node may be.
    pub(crate) fn texts(&self, node: Node<'t>) -> Vec<String> {
        self.texts_at(node, 0)
    }

    /// Returns the texts of a list, or the text itself; [`UNKNOWN`] for what is not constant.
    pub(crate) fn words(&self, node: Node<'t>) -> Vec<String> {
        self.words_at(node, 0)
    }

    fn words_at(&self, node: Node<'t>, depth: usize) -> Vec<String> {
        if depth > MAX_DEPTH {
            return Vec::new();
        }
        match self.shape(node) {
            Shape::List(nodes) => {
                nodes.iter().take(1024).flat_map(|node| self.words_at(*node, depth + 1)).collect()
            }
            Shape::Same(inner) => self.words_at(inner, depth + 1),
            Shape::Name(name) => match self.facts.names.get(&name).map(Vec::as_slice) {
                Some([Bound::Node(value)]) if !self.is_over() => self.words_at(*value, depth + 1),
                _ => vec![self.texts_at(node, depth).pop().unwrap_or(UNKNOWN.to_string())],
            },
            _ => vec![self.texts_at(node, depth).pop().unwrap_or(UNKNOWN.to_string())],
        }
    }

    /// Reports whether a node is a list, also by its name.
    pub(crate) fn is_list(&self, node: Node<'t>) -> bool {
        let mut node = node;
        for _ in 0..MAX_DEPTH {
            match self.shape(node) {
                Shape::List(_) => return true,
                Shape::Same(inner) => node = inner,
                Shape::Name(name) => match self.facts.names.get(&name).and_then(|all| all.first()) {
                    Some(Bound::Node(value)) => node = *value,
                    _ => return false,
                },
                _ => return false,
            }
        }
        false
    }

    /// Returns the paths of what is called, and the node of the object, if it is a member of one.
    pub(crate) fn callee(&self, callee: &Callee<'t>) -> Vec<String> {
        self.callee_at(callee, 0)
    }

    fn callee_at(&self, callee: &Callee<'t>, depth: usize) -> Vec<String> {
        let values = match callee {
            Callee::Node(node) => self.at(*node, depth).to_vec(),
            Callee::Method(object, name) => self.member(*object, name, depth),
            Callee::Named(name) => self.name(name, depth),
        };
        let path = |value| match value {
            Value::Path(path) => Some(path),
            // A text can be called in PHP; in Bash it is the command.
            Value::Text(text) if matches!(self.language, Language::Php) => Some(text.to_ascii_lowercase()),
            _ => None,
        };
        values.into_iter().filter_map(path).collect()
    }

    fn object(&self, callee: &Callee<'t>) -> Option<(Node<'t>, String)> {
        match callee {
            Callee::Method(object, name) => Some((*object, name.clone())),
            Callee::Node(node) => match self.shape(*node) {
                Shape::Member(object, name) => Some((object, name)),
                _ => None,
            },
            Callee::Named(_) => None,
        }
    }

    fn call(&self, callee: &Callee<'t>, arguments: &[Node<'t>], depth: usize) -> Vec<Value> {
        if let Some((object, method)) = self.object(callee)
            && let Some(text) = self.method_of_text(object, &method, arguments, depth)
        {
            return vec![Value::Text(text)];
        }
        let mut values = Vec::new();
        for path in self.callee_at(callee, depth) {
            let mut is_followed = false;
            for dynamic in self.rules.effects(&path) {
                let found = self.effect(dynamic, &path, callee, arguments, depth);
                is_followed |= !found.is_empty();
                values.extend(found);
            }
            if !is_followed {
                values.push(self.path(path + "()"));
            }
        }
        values
    }

    fn effect(
        &self,
        dynamic: Dynamic,
        path: &str,
        callee: &Callee<'t>,
        arguments: &[Node<'t>],
        depth: usize,
    ) -> Vec<Value> {
        let texts = |index: usize| {
            arguments.get(index).map_or_else(Vec::new, |argument| self.texts_at(*argument, depth))
        };
        let decoded = |decode: fn(&str) -> Option<String>| {
            texts(0).iter().filter_map(|text| decode(text)).map(Value::Text).collect::<Vec<_>>()
        };
        match dynamic.does {
            Effect::Import | Effect::Named => {
                texts(0).into_iter().map(|module| self.path(module_name(module))).collect()
            }
            Effect::Member => {
                let Some(object) = arguments.first() else { return Vec::new() };
                texts(1).iter().flat_map(|name| self.member(*object, name, depth)).collect()
            }
            Effect::Send | Effect::Apply => self
                .applied(dynamic.does, path, arguments, depth)
                .into_iter()
                .map(|path| self.path(path + "()"))
                .collect(),
            Effect::Invoke => path
                .rsplit_once('.')
                .map(|(function, _)| self.path(format!("{function}()")))
                .into_iter()
                .collect(),
            Effect::Same => arguments.first().map_or_else(Vec::new, |one| self.at(*one, depth).to_vec()),
            Effect::Receiver => {
                let object = self.object(callee).map(|(object, _)| object);
                object.map_or_else(Vec::new, |object| self.at(object, depth).to_vec())
            }
            Effect::Base64 => decoded(base64),
            Effect::Hex => decoded(hexadecimal),
            Effect::Rot13 => decoded(|text| Some(rot13(text))),
            Effect::Reverse => decoded(|text| Some(text.chars().rev().collect())),
            Effect::Codec => {
                let codec = texts(1).pop().unwrap_or_default().to_ascii_lowercase();
                match codec.replace(['-', '_'], "").as_str() {
                    "base64" => decoded(base64),
                    "hex" => decoded(hexadecimal),
                    "rot13" => decoded(|text| Some(rot13(text))),
                    _ => decoded(|text| Some(text.to_owned())),
                }
            }
            Effect::Chars => self.chars(arguments, depth).map(Value::Text).into_iter().collect(),
            Effect::Join => {
                let list = arguments.iter().find(|argument| self.is_list(**argument));
                let between = texts(0).pop().unwrap_or_default();
                list.map(|list| Value::Text(self.words_at(*list, depth).join(&between))).into_iter().collect()
            }
            Effect::Code | Effect::Chain => Vec::new(),
        }
    }

    /// Returns the path of what is called by a call of another function, such as `send(:system, …)`.
    fn applied(&self, does: Effect, path: &str, arguments: &[Node<'t>], depth: usize) -> Vec<String> {
        let Some(first) = arguments.first() else { return Vec::new() };
        match does {
            Effect::Send => {
                let object = path.rsplit_once('.').map_or(String::new(), |(object, _)| format!("{object}."));
                let names = self.texts_at(*first, depth).into_iter();
                names.map(|name| self.rules.canonical(format!("{object}{name}"))).collect()
            }
            _ => {
                let mut paths = self.paths_at(*first, depth);
                paths.extend(
                    self.texts_at(*first, depth).into_iter().filter(|text| !text.contains([' ', UNKNOWN])),
                );
                paths
            }
        }
    }

    /// Returns the arguments of all calls of a chain, in order: `Command::new("a").arg("b").args(["c"])`.
    pub(crate) fn chain(&self, callee: &Callee<'t>, arguments: &[Node<'t>]) -> Vec<String> {
        let mut links = vec![arguments.to_vec()];
        let mut object = self.object(callee).map(|(object, _)| object);
        while let Some(node) = object
            && links.len() <= MAX_DEPTH
            && let Shape::Call(callee, arguments) = self.shape(node)
        {
            links.push(arguments);
            object = self.object(&callee).map(|(object, _)| object);
        }
        links.iter().rev().flatten().flat_map(|argument| self.words(*argument)).collect()
    }

    /// Returns what is really called, and with which of the arguments, besides the call itself.
    pub(crate) fn calls<'a>(&self, path: &str, arguments: &'a [Node<'t>]) -> Vec<(String, &'a [Node<'t>])> {
        let rest = arguments.get(1..).unwrap_or_default();
        let mut found = Vec::new();
        for dynamic in self.rules.effects(path) {
            match dynamic.does {
                Effect::Send | Effect::Apply => {
                    found.extend(
                        self.applied(dynamic.does, path, arguments, 0).into_iter().map(|path| (path, rest)),
                    );
                }
                Effect::Invoke => {
                    if let Some((function, _)) = path.rsplit_once('.') {
                        // `f.call(this, x)` in JavaScript; elsewhere `f.call(x)`.
                        let has_this = matches!(self.language, Language::JavaScript | Language::TypeScript);
                        let given = if has_this { rest } else { arguments };
                        found.push((self.rules.canonical(function.to_owned()), given));
                    }
                }
                _ => {}
            }
        }
        found
    }

    fn chars(&self, arguments: &[Node<'t>], depth: usize) -> Option<String> {
        let mut nodes = arguments.to_vec();
        if let [one] = arguments
            && let Shape::List(list) = self.shape(*one)
        {
            nodes = list;
        }
        let mut text = String::new();
        for node in nodes.into_iter().take(MAX_TEXT) {
            let values = self.at(node, depth);
            let number = values.iter().find_map(|value| match value {
                Value::Number(number) => Some(*number),
                _ => None,
            })?;
            text.extend(u32::try_from(number).ok().and_then(char::from_u32));
        }
        (!text.is_empty()).then_some(text)
    }

    fn method_of_text(
        &self,
        object: Node<'t>,
        method: &str,
        arguments: &[Node<'t>],
        depth: usize,
    ) -> Option<String> {
        if method == "join" && self.is_list(object) {
            let between = arguments.first().and_then(|one| self.texts_at(*one, depth).pop());
            return Some(self.words_at(object, depth).join(&between.unwrap_or_default()));
        }
        if !matches!(
            method,
            "decode"
                | "encode"
                | "strip"
                | "trim"
                | "toString"
                | "to_s"
                | "to_str"
                | "lower"
                | "format"
                | "split"
                | "toLowerCase"
                | "downcase"
                | "reverse"
                | "join"
                | "replace"
                | "concat"
                | "unpack1"
                | "swapcase"
        ) {
            return None;
        }
        let text = self.texts_at(object, depth).into_iter().next()?;
        let argument =
            |index: usize| arguments.get(index).and_then(|one| self.texts_at(*one, depth).into_iter().next());
        Some(match method {
            "lower" | "toLowerCase" | "downcase" => text.to_lowercase(),
            "reverse" => text.chars().rev().collect(),
            "join" => match arguments.first() {
                Some(list) if self.is_list(*list) => self.words_at(*list, depth).join(&text),
                // `"…".split("").reverse().join("")`
                _ => text,
            },
            "replace" => match (argument(0), argument(1)) {
                (Some(from), Some(to)) if !from.is_empty() && to.len() <= from.len() => {
                    text.replace(&from, &to)
                }
                _ => text,
            },
            "concat" => text + &argument(0).unwrap_or(UNKNOWN.to_string()),
            "unpack1" => match argument(0)?.as_str() {
                "m" | "m0" => base64(&text)?,
                _ => return None,
            },
            _ => text,
        })
    }

    /// Returns what a pipeline of the shell prints, if that is constant.
    pub(crate) fn output(&self, statement: Node<'t>, depth: usize) -> Option<String> {
        if depth > MAX_DEPTH {
            return None;
        }
        match statement.kind() {
            "pipeline" => self.stages(&named(statement), depth),
            "command" => {
                let Shape::Call(Callee::Node(name), arguments) = self.shape(statement) else { return None };
                let name = self.texts_at(name, depth).pop()?;
                let words: Vec<_> = arguments
                    .iter()
                    .map(|word| self.texts_at(*word, depth).pop().unwrap_or(UNKNOWN.to_string()))
                    .collect();
                match name.as_str() {
                    "echo" | "printf" => {
                        let escapes = name == "printf" || words.iter().any(|word| word == "-e");
                        let shown: Vec<_> = words
                            .into_iter()
                            .skip_while(|word| matches!(word.as_str(), "-n" | "-e" | "-ne" | "-en"))
                            .collect();
                        let text = shown.join(" ");
                        Some(if escapes { crate::syntax::unescape(&text) } else { text })
                    }
                    _ => None,
                }
            }
            "redirected_statement" => self.output(field(statement, "body")?, depth + 1),
            _ => None,
        }
    }

    /// Returns what these stages of a pipeline print.
    pub(crate) fn pipeline(&self, stages: &[Node<'t>]) -> Option<String> {
        self.stages(stages, 0)
    }

    fn stages(&self, stages: &[Node<'t>], depth: usize) -> Option<String> {
        let (first, rest) = stages.split_first()?;
        let printed = self.output(*first, depth + 1)?;
        rest.iter().try_fold(printed, |text, stage| self.filter(&text, *stage, depth + 1))
    }

    /// Returns what a command makes of its input.
    fn filter(&self, input: &str, stage: Node<'t>, depth: usize) -> Option<String> {
        let Shape::Call(Callee::Node(name), arguments) = self.shape(stage) else { return None };
        let name = self.texts_at(name, depth).pop()?;
        let words: Vec<_> = arguments.iter().filter_map(|word| self.texts_at(*word, depth).pop()).collect();
        let has = |options: &[&str]| words.iter().any(|word| options.contains(&word.as_str()));
        match name.as_str() {
            "base64" | "openssl" if has(&["-d", "-D", "--decode", "-di"]) => base64(input.trim()),
            "xxd" if has(&["-r", "-rp", "-pr"]) => hexadecimal(input.trim()),
            "rev" => Some(input.chars().rev().collect()),
            "cat" | "tee" => Some(input.to_owned()),
            _ => None,
        }
    }
}

/// Returns the name of a module without the prefix that Node.js has for its own.
fn module_name(name: String) -> String {
    match name.strip_prefix("node:") {
        Some(rest) => rest.to_owned(),
        None => name,
    }
}

fn printable(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}

pub(crate) fn base64(text: &str) -> Option<String> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let text: String = text.split_whitespace().collect();
    [STANDARD, URL_SAFE]
        .iter()
        .find_map(|alphabet| GeneralPurpose::new(alphabet, config).decode(&text).ok())
        .and_then(printable)
}

pub(crate) fn hexadecimal(text: &str) -> Option<String> {
    let text: String = text.split_whitespace().collect();
    hex::decode(text).ok().and_then(printable)
}

fn rot13(text: &str) -> String {
    let turn = |char: char, base: u8| {
        u8::try_from(char).map_or(char, |byte| char::from((byte - base + 13) % 26 + base))
    };
    text.chars()
        .map(|char| match char {
            'a'..='z' => turn(char, b'a'),
            'A'..='Z' => turn(char, b'A'),
            other => other,
        })
        .collect()
}
