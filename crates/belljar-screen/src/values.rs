//! Values of nodes, as far as they follow from the code alone: paths of names, and constant texts.
//!
//! Order and scope are ignored: a name has all the values that it is bound to anywhere, and what it is without that.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
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
const MAX_DEPTH: usize = 96;

/// Most values of a node. If there are more, [`Value::More`] is one of them.
const MAX_VALUES: usize = 32;

/// Most words of a list, and pieces of a text.
const MAX_WORDS: usize = 4096;

/// How often names are followed that are bound to each other.
const MAX_ROUNDS: usize = 3;

/// After how many steps the clock is looked at, and how much work on words, bytes or nodes is a step.
const CHECK: usize = 128;
const WORK: usize = 32;

/// Longest text and longest path, in bytes.
const MAX_TEXT: usize = 64 << 10;
const MAX_PATH: usize = 300;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    /// A name, followed to what it stands for: `os.system`, `socket.socket().connect`.
    Path(String),
    /// A constant text, with [`UNKNOWN`] for the parts that are not constant.
    Text(String),
    /// A number.
    Number(i64),
    /// More texts than are followed.
    More,
    /// More paths than are followed that a rule names.
    MorePaths,
}

/// The lists of words that a node may be. Of a text the words are its pieces.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lists {
    pub(crate) all: Vec<Vec<String>>,
    /// Whether there are more than are followed.
    pub(crate) is_cut: bool,
}

impl Lists {
    fn empty() -> Self {
        Self { all: vec![Vec::new()], is_cut: false }
    }

    fn of_words(words: impl IntoIterator<Item = String>) -> Self {
        Self { all: words.into_iter().map(|word| vec![word]).collect(), is_cut: false }
    }

    /// Continues each of these lists with each of the others.
    fn then(&mut self, next: &Self) {
        self.is_cut |= next.is_cut;
        if next.all.is_empty() {
            return;
        }
        // All of them have as many words together as one may have: each word takes time, and they are copied.
        if self.all.iter().map(Vec::len).sum::<usize>() >= MAX_WORDS {
            self.is_cut = true;
            return;
        }
        if let [one] = next.all.as_slice() {
            for list in &mut self.all {
                list.extend_from_slice(one);
                self.is_cut |= list.len() > MAX_WORDS;
                list.truncate(MAX_WORDS);
            }
            return;
        }
        let pairs = self.all.iter().flat_map(|list| next.all.iter().map(move |rest| (list, rest)));
        let all: Vec<_> =
            pairs.take(MAX_VALUES).map(|(list, rest)| [list.as_slice(), rest].concat()).collect();
        self.is_cut |= self.all.len() * next.all.len() > MAX_VALUES;
        self.all = all;
    }

    fn add(&mut self, others: Self) {
        self.all.extend(others.all);
        self.is_cut |= others.is_cut || self.all.len() > MAX_VALUES;
        self.all.truncate(MAX_VALUES);
    }

    /// Returns these lists, and them with what may be appended to them, in its order.
    fn appended(self, ends: &[Self]) -> Self {
        // All of it comes first, as that is the most usual.
        let mut whole = self.clone();
        ends.iter().for_each(|end| whole.then(end));
        let mut any = self;
        for end in ends {
            let mut longer = any.clone();
            longer.then(end);
            any.add(longer);
        }
        whole.add(any);
        whole
    }

    fn texts(self) -> impl Iterator<Item = Value> {
        let mut is_cut = self.is_cut;
        let mut values: Vec<_> = self.all.iter().map(|pieces| pieces.concat()).collect();
        for text in &mut values {
            is_cut |= text.len() > MAX_TEXT;
            text.truncate(text.floor_char_boundary(MAX_TEXT));
        }
        values.into_iter().map(Value::Text).chain(is_cut.then_some(Value::More))
    }
}

/// Values of names, and whether they are all known.
type Named = HashMap<String, (Rc<[Value]>, bool)>;

/// The values of the nodes of one tree.
pub(crate) struct Values<'t> {
    pub(crate) language: Language,
    pub(crate) source: &'t str,
    pub(crate) rules: Rc<Rules>,
    pub(crate) facts: Facts<'t>,
    budget: Budget,
    known: RefCell<HashMap<usize, Rc<[Value]>>>,
    /// Values of names, and whether they are all known.
    named: RefCell<Named>,
    /// Values of names as far as they were known in the last round.
    before: RefCell<Named>,
    /// Whether a name was needed to know itself.
    is_circular: Cell<bool>,
    lists: RefCell<HashMap<String, Rc<Lists>>>,
    steps: Cell<usize>,
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
            named: RefCell::default(),
            before: RefCell::default(),
            is_circular: Cell::new(false),
            lists: RefCell::default(),
            steps: Cell::new(0),
            is_late: Cell::new(false),
        }
    }

    /// Follows all names until those that are bound to each other have all of their values.
    pub(crate) fn settle(&self) {
        for round in 1.. {
            self.is_circular.set(false);
            for name in self.facts.names.keys() {
                self.name(name, 0);
            }
            if !self.is_circular.get() || self.is_over() {
                return;
            }
            let mut named = self.named.borrow_mut();
            let before = self.before.borrow();
            let mut grown = false;
            for (name, (values, _)) in
                named.iter_mut().filter(|(name, _)| self.facts.names.contains_key(*name))
            {
                let known = before.get(name).map(|(known, _)| &known[..]).unwrap_or_default();
                let is_new = |value: &Value| !known.contains(value);
                let has_text = values.iter().any(|value| matches!(value, Value::Text(_)) && is_new(value));
                // A member of a member has the same name, and the same rules.
                let is_whole = |path: &str| self.rules.names(path) && !path.starts_with(['?', '\'']);
                let has_path = values
                    .iter()
                    .any(|value| matches!(value, Value::Path(path) if is_whole(path)) && is_new(value));
                grown |= has_text || has_path;
                if round == MAX_ROUNDS && (has_text || has_path) {
                    let more = [has_text.then_some(Value::More), has_path.then_some(Value::MorePaths)];
                    *values = values.iter().cloned().chain(more.into_iter().flatten()).collect();
                }
            }
            drop(before);
            if !grown || round == MAX_ROUNDS {
                return;
            }
            *self.before.borrow_mut() = std::mem::take(&mut *named);
            self.known.borrow_mut().clear();
            self.lists.borrow_mut().clear();
        }
    }

    /// Reports whether the time is over, as of the last time that it looked at the clock.
    pub(crate) fn is_over(&self) -> bool {
        self.spend(0)
    }

    /// Reports whether the time is over before work on this many words, bytes or nodes.
    pub(crate) fn spend(&self, count: usize) -> bool {
        let steps = self.steps.get() + 1 + count / WORK;
        self.steps.set(steps % CHECK);
        if steps >= CHECK && self.budget.is_over() {
            self.is_late.set(true);
        }
        self.is_late.get()
    }

    pub(crate) fn shape(&self, node: Node<'t>) -> Shape<'t> {
        self.spend(node.child_count() as usize);
        self.language.shape(node, self.source)
    }

    /// Returns the values of a node; none if nothing is known.
    pub(crate) fn of(&self, node: Node<'t>) -> Rc<[Value]> {
        self.at(node, 0)
    }

    fn at(&self, node: Node<'t>, depth: usize) -> Rc<[Value]> {
        if self.is_over() {
            return Rc::default();
        }
        if depth > MAX_DEPTH {
            return [Value::More, Value::MorePaths].into();
        }
        if let Some(known) = self.known.borrow().get(&node.id()) {
            return Rc::clone(known);
        }
        let values: Rc<[Value]> = self.cut(self.find(node, depth + 1)).into();
        if !self.is_late.get() {
            self.known.borrow_mut().insert(node.id(), Rc::clone(&values));
        }
        values
    }

    /// Removes what is there twice. If too many values are left, those that no rule names are one.
    fn cut(&self, mut values: Vec<Value>) -> Vec<Value> {
        if values.len() < 2 {
            return values;
        }
        let mut seen = HashSet::new();
        values.retain(|value| seen.insert(value.clone()));
        if values.len() > MAX_VALUES {
            values.retain(|value| !matches!(value, Value::Path(path) if !self.rules.names(path)));
            values.push(Value::Path("other:".to_owned()));
        }
        if values.len() > MAX_VALUES {
            let is_path = |value: &Value| matches!(value, Value::Path(_) | Value::MorePaths);
            let (mut paths, mut others): (Vec<_>, Vec<_>) = values.into_iter().partition(is_path);
            if paths.len() > MAX_VALUES {
                paths.truncate(MAX_VALUES - 1);
                paths.push(Value::MorePaths);
            }
            if others.len() > MAX_VALUES {
                others.truncate(MAX_VALUES - 1);
                others.push(Value::More);
            }
            values = [paths, others].concat();
        }
        values
    }

    fn find(&self, node: Node<'t>, depth: usize) -> Vec<Value> {
        match self.shape(node) {
            Shape::Name(name) => self.name(&name, depth).to_vec(),
            Shape::Member(object, name) => self.member(object, &name, depth),
            Shape::Index(object, index) => {
                let members = self.elements(object);
                let mut values: Vec<_> =
                    members.iter().take(256).flat_map(|member| self.at(*member, depth).to_vec()).collect();
                values.extend((members.len() > 256).then_some(Value::More));
                let names = self.at(index, depth);
                let is_text = |value: &&Value| matches!(value, Value::Text(_) | Value::More);
                if !names.iter().any(|name| is_text(&name)) {
                    let paths = self.paths_at(object, depth).into_iter();
                    values.extend(paths.map(|path| self.path(path + "[]")));
                }
                for name in names.iter().filter(is_text) {
                    match name {
                        Value::Text(name) => values.extend(self.member(object, name, depth)),
                        _ => values.push(Value::MorePaths),
                    }
                }
                values
            }
            Shape::Call(callee, arguments) => self.call(&callee, &arguments, depth),
            Shape::Text(parts) => self.parts(&parts, depth).texts().collect(),
            Shape::Join(nodes) => self.join(&nodes, depth).map(Lists::texts).into_iter().flatten().collect(),
            Shape::OneOf(nodes) => nodes.iter().flat_map(|node| self.at(*node, depth).to_vec()).collect(),
            Shape::Reversed(inner) => {
                let reversed = |value: &Value| match value {
                    Value::Text(text) => Some(Value::Text(text.chars().rev().collect())),
                    Value::More => Some(Value::More),
                    _ => None,
                };
                self.at(inner, depth).iter().filter_map(reversed).collect()
            }
            Shape::Number(number) => vec![Value::Number(number)],
            Shape::Same(inner) => self.at(inner, depth).to_vec(),
            Shape::Shell(_) => vec![Value::Path("`".to_owned())],
            Shape::Output(statement) => self.output(statement, depth).texts().collect(),
            // The words of an array of the shell.
            Shape::List(_) if self.language == Language::Bash => {
                let lists = self.lists_at(node, depth);
                Lists::of_words(lists.all.iter().map(|words| words.join(" "))).texts().collect()
            }
            Shape::List(_) | Shape::Table(_) | Shape::Other => Vec::new(),
        }
    }

    fn path(&self, path: String) -> Value {
        if path.len() > MAX_PATH {
            return Value::Path("?".to_owned());
        }
        Value::Path(self.rules.canonical(path))
    }

    fn name(&self, name: &str, depth: usize) -> Rc<[Value]> {
        if let Some((values, is_known)) = self.named.borrow().get(name) {
            self.is_circular.set(self.is_circular.get() || !is_known);
            return Rc::clone(values);
        }
        // What binds a name may be in another scope, or not run: it is also what it is without that.
        let mut values = vec![self.path(name.to_owned())];
        let everything = self.facts.everything.iter().take_while(|_| !self.is_over());
        values.extend(everything.map(|module| self.path(format!("{module}.{name}"))));
        if self.language == Language::Bash {
            values.extend(variable_of_shell(name));
        }
        let Some(bound) = self.facts.names.get(name) else { return values.into() };
        let before = self.before.borrow().get(name).map(|(values, _)| Rc::clone(values)).unwrap_or_default();
        self.named.borrow_mut().insert(name.to_owned(), (before, false));
        let (mut ends, found) = (Vec::new(), values.len());
        for bound in bound {
            if self.is_over() {
                break;
            }
            match bound {
                Bound::Path(path) => values.push(self.path(path.clone())),
                Bound::Node(node) => match self.appended(name, *node) {
                    Some(parts) => ends.push(self.parts(&parts, depth)),
                    None => values.extend(self.at(*node, depth).iter().cloned()),
                },
                Bound::Append(node) => ends.push(self.parts(&[Part::Value(*node)], depth)),
                Bound::Element(list) => {
                    let elements = self.elements(*list);
                    let found =
                        elements.iter().take(MAX_VALUES).flat_map(|one| self.at(*one, depth).to_vec());
                    values.extend(found.filter(|value| match value {
                        Value::Path(path) => self.rules.names(path) && !path.starts_with(['?', '\'']),
                        value => *value != Value::MorePaths,
                    }));
                    values.extend((elements.len() > MAX_VALUES).then_some(Value::More));
                }
                Bound::Words(nodes) => {
                    let lists = self.product(nodes, depth);
                    values.extend(Lists::of_words(lists.all.iter().map(|words| words.join(" "))).texts());
                    values.extend(lists.is_cut.then_some(Value::More));
                }
                Bound::Member(node, name) => values.extend(self.member(*node, name, depth)),
                Bound::Own => values.push(Value::Path(format!("own:{name}"))),
            }
        }
        if values.len() == found {
            values.push(Value::Path("?".to_owned()));
        }
        // Counters are no texts.
        ends.retain(|end: &Lists| {
            end.is_cut || end.all.iter().flatten().any(|piece| *piece != UNKNOWN.to_string())
        });
        if !ends.is_empty() {
            let starts = self.pieces(&self.cut(values.clone()));
            values.extend(starts.appended(&ends).texts());
        }
        let values: Rc<[Value]> = self.cut(values).into();
        if !self.is_late.get() {
            self.named.borrow_mut().insert(name.to_owned(), (Rc::clone(&values), true));
        }
        values
    }

    /// Returns what is appended to a name that is bound to itself and more: `x = x + "b"`, `x = f"{x}b"`.
    fn appended(&self, name: &str, node: Node<'t>) -> Option<Vec<Part<'t>>> {
        let is_same = |node: Node<'t>| matches!(self.shape(node), Shape::Name(other) if other == name);
        let mut parts = match self.shape(node) {
            Shape::Join(_) => self.flattened(&[node]).0.into_iter().map(Part::Value).collect(),
            Shape::Text(parts) => parts,
            _ => return None,
        };
        let starts_with_itself =
            parts.len() > 1 && matches!(parts.first(), Some(Part::Value(first)) if is_same(*first));
        starts_with_itself.then(|| parts.split_off(1))
    }

    fn member(&self, object: Node<'t>, name: &str, depth: usize) -> Vec<Value> {
        let mut values: Vec<Value> = Vec::new();
        for value in self.at(object, depth).iter() {
            match value {
                Value::Path(path) => values.push(self.path(format!("{path}.{name}"))),
                // In PHP the text may be the name of a class.
                Value::Text(_) | Value::Number(_) | Value::More => {
                    values.push(Value::Path(format!("''.{name}")));
                }
                Value::MorePaths => values.push(Value::MorePaths),
            }
        }
        if values.is_empty() {
            values.push(Value::Path(format!("?.{name}")));
        }
        values
    }

    /// Returns texts as lists of one piece; [`UNKNOWN`] if there are none.
    fn pieces(&self, values: &[Value]) -> Lists {
        let text = |value: &Value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        };
        let mut pieces = Lists::of_words(values.iter().filter_map(text));
        pieces.is_cut = values.contains(&Value::More);
        if pieces.all.is_empty() {
            pieces.all.push(vec![UNKNOWN.to_string()]);
        }
        pieces
    }

    /// Returns the pieces of the texts that these parts may be.
    pub(crate) fn lists(&self, parts: &[Part<'t>]) -> Lists {
        self.parts(parts, 0)
    }

    fn parts(&self, parts: &[Part<'t>], depth: usize) -> Lists {
        let mut lists = Lists::empty();
        for part in parts {
            match part {
                Part::Text(known) => lists.then(&Lists::of_words([known.clone()])),
                Part::Value(node) => lists.then(&self.pieces(&self.at(*node, depth))),
            }
        }
        lists
    }

    /// Returns the nodes that are joined, and whether there are more. A chain of joins leans to the left, and may be long.
    fn flattened(&self, nodes: &[Node<'t>]) -> (Vec<Node<'t>>, bool) {
        let mut pending: Vec<Node<'t>> = nodes.iter().rev().copied().collect();
        let mut flat = Vec::new();
        while let Some(node) = pending.pop() {
            if flat.len() + pending.len() > MAX_WORDS || self.is_over() {
                return (flat, true);
            }
            match self.shape(node) {
                Shape::Join(inner) => pending.extend(inner.into_iter().rev()),
                _ => flat.push(node),
            }
        }
        (flat, false)
    }

    /// Joins texts; none if not one of them is known.
    fn join(&self, nodes: &[Node<'t>], depth: usize) -> Option<Lists> {
        let (nodes, is_cut) = self.flattened(nodes);
        let mut lists = Lists::empty();
        let mut is_known = false;
        for node in nodes {
            let values = self.at(node, depth);
            is_known |= values.iter().any(|value| matches!(value, Value::Text(_) | Value::More));
            lists.then(&self.pieces(&values));
        }
        lists.is_cut |= is_cut;
        is_known.then_some(lists)
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

    /// Reports whether a node may have other values than those that are followed.
    pub(crate) fn is_cut(&self, node: Node<'t>) -> bool {
        self.at(node, 0).contains(&Value::More)
    }

    /// Returns the lists of texts that a node may be, a text being a list of one; [`UNKNOWN`] for what is not constant.
    pub(crate) fn words(&self, nodes: &[Node<'t>]) -> Lists {
        self.product(nodes, 0)
    }

    fn product(&self, nodes: &[Node<'t>], depth: usize) -> Lists {
        let mut lists = Lists::empty();
        for node in nodes.iter().take(MAX_WORDS) {
            lists.then(&self.lists_at(*node, depth));
        }
        lists.is_cut |= nodes.len() > MAX_WORDS;
        lists
    }

    fn lists_at(&self, node: Node<'t>, depth: usize) -> Lists {
        let depth = depth + 1;
        if depth > MAX_DEPTH || self.is_over() {
            return Lists { all: vec![vec![UNKNOWN.to_string()]], is_cut: true };
        }
        match self.shape(node) {
            Shape::List(nodes) => self.product(&nodes, depth),
            Shape::Same(inner) => self.lists_at(inner, depth),
            Shape::Join(nodes) if self.is_list(node) => self.product(&nodes, depth),
            Shape::OneOf(nodes) => {
                let mut lists = Lists::default();
                nodes.iter().for_each(|node| lists.add(self.lists_at(*node, depth)));
                lists
            }
            Shape::Name(name) if self.is_list(node) => self.lists_of(&name, depth),
            _ => self.pieces(&self.at(node, depth)),
        }
    }

    fn lists_of(&self, name: &str, depth: usize) -> Lists {
        if let Some(known) = self.lists.borrow().get(name) {
            self.spend(known.all.iter().map(Vec::len).sum());
            return (**known).clone();
        }
        self.lists.borrow_mut().insert(name.to_owned(), Rc::default());
        let (mut lists, mut ends) = (Lists::default(), Vec::new());
        for bound in self.facts.names.get(name).into_iter().flatten() {
            match bound {
                Bound::Node(node) => lists.add(self.lists_at(*node, depth)),
                Bound::Append(node) => ends.push(self.lists_at(*node, depth)),
                _ => {}
            }
        }
        let lists = if ends.is_empty() { lists } else { lists.appended(&ends) };
        self.lists.borrow_mut().insert(name.to_owned(), Rc::new(lists.clone()));
        lists
    }

    /// Reports whether a node may be a list, also by its name.
    pub(crate) fn is_list(&self, node: Node<'t>) -> bool {
        self.containers(node).into_iter().any(|node| matches!(self.shape(node), Shape::List(_)))
    }

    /// Returns the nodes in the lists and tables that a node may be.
    fn elements(&self, node: Node<'t>) -> Vec<Node<'t>> {
        let elements = |node| match self.shape(node) {
            Shape::List(nodes) | Shape::Table(nodes) => nodes,
            _ => Vec::new(),
        };
        self.containers(node).into_iter().flat_map(elements).collect()
    }

    /// Returns the lists and tables that a node may be, and of which it may be joined.
    fn containers(&self, node: Node<'t>) -> Vec<Node<'t>> {
        let (mut found, mut pending, mut seen) = (Vec::new(), vec![node], HashSet::new());
        while let Some(node) = pending.pop() {
            if self.is_over() {
                break;
            }
            match self.shape(node) {
                Shape::List(_) | Shape::Table(_) => found.push(node),
                Shape::Same(inner) => pending.push(inner),
                Shape::Join(nodes) | Shape::OneOf(nodes) => pending.extend(nodes),
                Shape::Name(name) => {
                    let bound = self.facts.names.get(&name).map(Vec::as_slice).unwrap_or_default();
                    if seen.insert(name) {
                        pending.extend(bound.iter().filter_map(|bound| match bound {
                            Bound::Node(value) => Some(*value),
                            _ => None,
                        }));
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Returns the paths of what is called, and whether it may be more.
    pub(crate) fn callee(&self, callee: &Callee<'t>) -> (Vec<String>, bool) {
        self.callee_at(callee, 0)
    }

    fn callee_at(&self, callee: &Callee<'t>, depth: usize) -> (Vec<String>, bool) {
        let values = match callee {
            Callee::Node(node) => self.at(*node, depth).to_vec(),
            Callee::Method(object, name) => self.member(*object, name, depth),
            Callee::Named(name) => self.name(name, depth).to_vec(),
        };
        let is_cut = values.contains(&Value::MorePaths)
            || (self.language == Language::Php && values.contains(&Value::More));
        let path = |value| match value {
            Value::Path(path) => Some(path),
            // A text can be called in PHP; in Bash it is the command.
            Value::Text(text) if matches!(self.language, Language::Php) => Some(text.to_ascii_lowercase()),
            _ => None,
        };
        (values.into_iter().filter_map(path).collect(), is_cut)
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
            && let texts = self.method_of_text(object, &method, arguments, depth)
            && !texts.is_empty()
        {
            return texts;
        }
        let (paths, is_cut) = self.callee_at(callee, depth);
        let mut values = Vec::new();
        for path in paths {
            let mut is_followed = false;
            for dynamic in self.rules.effects(&path) {
                let found = self.effect(dynamic, &path, callee, arguments, depth);
                is_followed |= !found.is_empty();
                values.extend(found);
                // What is made of an unknown text is one.
                let is_more = |argument: &Node<'t>| self.at(*argument, depth).contains(&Value::More);
                let more = match dynamic.does {
                    Effect::Import | Effect::Named | Effect::Member | Effect::Send | Effect::Apply => {
                        Value::MorePaths
                    }
                    _ => Value::More,
                };
                values.extend(arguments.iter().take(2).any(is_more).then_some(more));
            }
            if !is_followed {
                values.push(self.path(path + "()"));
            }
        }
        values.extend(is_cut.then_some(Value::MorePaths));
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
                let mut codecs = texts(1);
                codecs.extend(codecs.is_empty().then(String::new));
                let decoded_by =
                    |codec: String| match codec.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
                        "base64" => decoded(base64),
                        "hex" => decoded(hexadecimal),
                        "rot13" => decoded(|text| Some(rot13(text))),
                        _ => decoded(|text| Some(text.to_owned())),
                    };
                codecs.into_iter().flat_map(decoded_by).collect()
            }
            Effect::Chars => self.chars(arguments, depth).map(Value::Text).into_iter().collect(),
            Effect::Join => {
                let list = arguments.iter().find(|argument| self.is_list(**argument));
                let between = arguments.iter().find(|argument| !self.is_list(**argument));
                list.map_or_else(Vec::new, |list| self.joined(*list, between.copied(), depth))
            }
            Effect::Code | Effect::Cell | Effect::Chain => Vec::new(),
        }
    }

    /// Returns the words of a list as one text.
    fn joined(&self, list: Node<'t>, between: Option<Node<'t>>, depth: usize) -> Vec<Value> {
        let lists = self.lists_at(list, depth);
        let mut texts = between.map_or_else(Vec::new, |between| self.texts_at(between, depth));
        texts.extend(texts.is_empty().then(String::new));
        let joined = lists.all.iter().flat_map(|words| texts.iter().map(|text| words.join(text)));
        Lists { is_cut: lists.is_cut, ..Lists::of_words(joined) }.texts().collect()
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
    pub(crate) fn chain(&self, callee: &Callee<'t>, arguments: &[Node<'t>]) -> Lists {
        let mut links = vec![arguments.to_vec()];
        let mut object = self.object(callee).map(|(object, _)| object);
        while let Some(node) = object
            && links.len() <= MAX_DEPTH
            && let Shape::Call(callee, arguments) = self.shape(node)
        {
            links.push(arguments);
            object = self.object(&callee).map(|(object, _)| object);
        }
        self.words(&links.into_iter().rev().flatten().collect::<Vec<_>>())
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

    /// Returns the texts that a method of a text or list makes; none if it is not followed.
    fn method_of_text(
        &self,
        object: Node<'t>,
        method: &str,
        arguments: &[Node<'t>],
        depth: usize,
    ) -> Vec<Value> {
        if method == "join" {
            if self.is_list(object) {
                return self.joined(object, arguments.first().copied(), depth);
            }
            if let Some(list) = arguments.first().filter(|list| self.is_list(**list)) {
                return self.joined(*list, Some(object), depth);
            }
        }
        let change: fn(&str) -> Option<String> = match method {
            // `"…".split("").reverse().join("")`
            "decode" | "encode" | "strip" | "trim" | "toString" | "to_s" | "to_str" | "format" | "split"
            | "join" | "replace" | "concat" | "swapcase" => |text| Some(text.to_owned()),
            "lower" | "toLowerCase" | "downcase" => |text| Some(text.to_lowercase()),
            "reverse" => |text| Some(text.chars().rev().collect()),
            "unpack1" => base64,
            _ => return Vec::new(),
        };
        let argument = |index: usize| {
            let mut texts = arguments.get(index).map_or_else(Vec::new, |one| self.texts_at(*one, depth));
            texts.extend(texts.is_empty().then(|| UNKNOWN.to_string()));
            texts
        };
        let mut values = Vec::new();
        for value in self.at(object, depth).iter() {
            let Value::Text(text) = value else {
                values.extend((*value == Value::More).then_some(Value::More));
                continue;
            };
            let Some(text) = change(text) else { continue };
            match method {
                "replace" => {
                    for from in argument(0).iter().filter(|from| !from.is_empty()) {
                        for to in argument(1).iter().filter(|to| to.len() <= from.len()) {
                            values.push(Value::Text(text.replace(from, to)));
                        }
                    }
                    values.push(Value::Text(text));
                }
                "concat" => {
                    values.extend(argument(0).into_iter().map(|end| Value::Text(text.clone() + &end)))
                }
                _ => values.push(Value::Text(text)),
            }
        }
        values
    }

    /// Returns the words of a command of the shell, of which expansions outside of quotes are several.
    pub(crate) fn command(&self, name: Node<'t>, arguments: &[Node<'t>], depth: usize) -> Lists {
        let mut lists = Lists::empty();
        for word in std::iter::once(&name).chain(arguments) {
            let is_split = word.id() == name.id() || is_split(*word);
            let mut next = self.pieces(&self.at(*word, depth));
            if is_split {
                for words in &mut next.all {
                    *words = words.concat().split_whitespace().map(str::to_owned).collect();
                }
            }
            lists.then(&next);
            if self.spend(next.all.len()) {
                break;
            }
        }
        lists
    }

    /// Returns what a pipeline of the shell prints, if that is constant.
    pub(crate) fn output(&self, statement: Node<'t>, depth: usize) -> Lists {
        if depth > MAX_DEPTH || self.is_over() {
            return Lists { all: Vec::new(), is_cut: true };
        }
        match statement.kind() {
            "pipeline" => self.stages(&named(statement), depth + 1),
            "command" => {
                let Shape::Call(Callee::Node(name), arguments) = self.shape(statement) else {
                    return Lists::default();
                };
                let lists = self.command(name, &arguments, depth + 1);
                let printed = |words: &Vec<String>| {
                    let (name, words) = words.split_first()?;
                    let escapes = match name.rsplit('/').next()? {
                        "echo" => words.iter().any(|word| word == "-e"),
                        "printf" => true,
                        _ => return None,
                    };
                    let is_option =
                        |word: &&String| matches!(word.as_str(), "-n" | "-e" | "-ne" | "-en" | "--");
                    let shown: Vec<_> = words.iter().skip_while(is_option).cloned().collect();
                    let text = shown.join(" ");
                    Some(if escapes { crate::syntax::unescape(&text) } else { text })
                };
                Lists { is_cut: lists.is_cut, ..Lists::of_words(lists.all.iter().filter_map(printed)) }
            }
            "redirected_statement" => {
                let mut printed =
                    field(statement, "body").map(|body| self.output(body, depth + 1)).unwrap_or_default();
                if printed.all.is_empty() {
                    // `cat <<END`
                    printed.add(Lists::of_words(
                        inputs(statement).into_iter().flat_map(|here| self.texts(here)),
                    ));
                }
                printed
            }
            "subshell" | "compound_statement" | "list" => {
                let mut printed = Lists::default();
                for inner in named(statement) {
                    printed.add(self.output(inner, depth + 1));
                }
                printed
            }
            _ => Lists::default(),
        }
    }

    /// Returns what these stages of a pipeline print.
    pub(crate) fn pipeline(&self, stages: &[Node<'t>]) -> Lists {
        self.stages(stages, 0)
    }

    fn stages(&self, stages: &[Node<'t>], depth: usize) -> Lists {
        let Some((first, rest)) = stages.split_first() else { return Lists::default() };
        let mut printed = self.output(*first, depth + 1);
        for stage in rest {
            let filtered =
                printed.all.iter().filter_map(|text| self.filter(&text.concat(), *stage, depth + 1));
            printed.all = filtered.map(|text| vec![text]).collect();
        }
        printed
    }

    /// Returns what a command makes of its input.
    fn filter(&self, input: &str, stage: Node<'t>, depth: usize) -> Option<String> {
        let Shape::Call(Callee::Node(name), arguments) = self.shape(stage) else { return None };
        let words = self.command(name, &arguments, depth).all.pop()?;
        let (name, words) = words.split_first()?;
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

/// Reports whether a word of a shell is outside of quotes, so that what it expands to is several words.
fn is_split(word: Node<'_>) -> bool {
    let is_expansion =
        |node: &Node<'_>| matches!(node.kind(), "simple_expansion" | "expansion" | "command_substitution");
    is_expansion(&word) || (word.kind() == "concatenation" && named(word).iter().any(is_expansion))
}

/// Returns what a variable of a shell is that the code does not bind.
fn variable_of_shell(name: &str) -> Option<Value> {
    match name {
        "$IFS" => Some(Value::Text(" ".to_owned())),
        "$SHELL" | "$BASH" | "$0" => Some(Value::Text("bash".to_owned())),
        "$HOME" => Some(Value::Text("~".to_owned())),
        // Empty unless there are arguments.
        "$@" | "$*" => Some(Value::Text(String::new())),
        _ => None,
    }
}

/// Returns the documents and texts that a statement of a shell has as its input.
pub(crate) fn inputs(statement: Node<'_>) -> Vec<Node<'_>> {
    let is_input = |here: Node<'_>, child: &Node<'_>| {
        here.kind() == "herestring_redirect"
            || (here.kind() == "heredoc_redirect" && child.kind() == "heredoc_body")
    };
    let mut found = Vec::new();
    for here in named(statement) {
        found.extend(named(here).into_iter().filter(|child| is_input(here, child)));
    }
    found
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
