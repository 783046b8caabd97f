//! Queries in the language of tree-sitter's own, of which this is a part: nodes, fields, alternatives, captures, `.` before a child, `!field`,
//! and the predicates `#eq?`, `#any-of?` and `#match?`. A pattern inside of a node is that of a child.
//!
//! Tree-sitter analyses a query before it runs it, which takes 2 to 10 ms for each: more than all of a screening.

use std::iter::Peekable;
use std::str::Chars;

use regex_lite::Regex;
use tree_sitter::Node;

use crate::syntax::text;

/// Largest number of ways in which a node matches that are followed.
const MAX_WAYS: usize = 64;

/// Deepest pattern, and most patterns of children of one node.
const MAX_DEPTH: usize = 32;
const MAX_CHILDREN: usize = 4;

/// A query.
#[derive(Debug)]
pub(crate) struct Query {
    pattern: Pattern,
    predicates: Vec<Predicate>,
}

#[derive(Debug, Default)]
struct Pattern {
    form: Form,
    captures: Vec<String>,
    field: Option<String>,
    /// Whether the child follows the one before, or is the first.
    is_next: bool,
}

#[derive(Debug)]
enum Form {
    Node { kind: Option<String>, absent: Vec<String>, children: Vec<Pattern> },
    OneOf(Vec<Pattern>),
}

impl Default for Form {
    fn default() -> Self {
        Self::OneOf(Vec::new())
    }
}

#[derive(Debug)]
enum Predicate {
    /// The two captures have the same text.
    Same(String, String),
    AnyOf(String, Vec<String>),
    Match(String, Regex),
}

type Captures<'t> = Vec<(String, Node<'t>)>;

impl Query {
    /// Parses a query.
    ///
    /// # Errors
    /// Returns what is wrong.
    pub(crate) fn parse(source: &str) -> Result<Self, String> {
        let mut parser = Parser { rest: source.chars().peekable(), predicates: Vec::new(), depth: 0 };
        let pattern = parser.pattern()?;
        while parser.next_is('(') {
            parser.predicate_or_end()?;
        }
        match parser.peek() {
            None => Ok(Self { pattern, predicates: parser.predicates }),
            Some(char) => Err(format!("{char:?} after the query")),
        }
    }

    /// Returns the kinds of nodes that can match; none if each can.
    pub(crate) fn kinds(&self) -> Vec<String> {
        fn add(pattern: &Pattern, kinds: &mut Vec<String>) -> bool {
            match &pattern.form {
                Form::Node { kind: Some(kind), .. } => {
                    kinds.push(kind.clone());
                    true
                }
                Form::Node { kind: None, .. } => false,
                Form::OneOf(patterns) => patterns.iter().all(|pattern| add(pattern, kinds)),
            }
        }
        let mut kinds = Vec::new();
        if add(&self.pattern, &mut kinds) { kinds } else { Vec::new() }
    }

    /// Returns the nodes that are captured as `@at` if this node matches.
    pub(crate) fn run<'t>(&self, node: Node<'t>, source: &str) -> Vec<Node<'t>> {
        let mut found = Vec::new();
        for captures in self.pattern.ways(node) {
            if self.predicates.iter().all(|predicate| predicate.holds(&captures, source)) {
                found.extend(captures.iter().filter(|(name, _)| name == "at").map(|(_, node)| *node));
            }
        }
        found
    }
}

impl Predicate {
    fn holds(&self, captures: &Captures<'_>, source: &str) -> bool {
        let of = |wanted: &String| {
            captures.iter().find(|(name, _)| name == wanted).map(|(_, node)| text(*node, source))
        };
        match self {
            Self::Same(one, other) => of(one).is_some() && of(one) == of(other),
            Self::AnyOf(capture, texts) => {
                of(capture).is_some_and(|text| texts.iter().any(|one| one == text))
            }
            Self::Match(capture, regex) => of(capture).is_some_and(|text| regex.is_match(text)),
        }
    }
}

impl Pattern {
    /// Returns the captures of each way in which a node matches.
    fn ways<'t>(&self, node: Node<'t>) -> Vec<Captures<'t>> {
        let mut ways = match &self.form {
            Form::OneOf(patterns) => patterns.iter().flat_map(|pattern| pattern.ways(node)).collect(),
            Form::Node { kind, absent, children } => {
                let is_kind = kind.as_ref().is_none_or(|kind| node.kind() == kind);
                if !is_kind || absent.iter().any(|field| node.child_by_field_name(field).is_some()) {
                    return Vec::new();
                }
                if children.is_empty() {
                    vec![Vec::new()]
                } else {
                    ways_below(children, &with_fields(node), 0)
                }
            }
        };
        ways.truncate(MAX_WAYS);
        for way in &mut ways {
            way.extend(self.captures.iter().map(|name| (name.clone(), node)));
        }
        ways
    }
}

/// Returns the captures of each way in which children match, in order, from this place on.
fn ways_below<'t>(
    patterns: &[Pattern],
    children: &[(Node<'t>, Option<&'t str>)],
    from: usize,
) -> Vec<Captures<'t>> {
    let Some((pattern, rest)) = patterns.split_first() else { return vec![Vec::new()] };
    let mut found = Vec::new();
    for (place, (child, field)) in children.iter().enumerate().skip(from) {
        if pattern.is_next && place > from {
            break;
        }
        if pattern.field.is_none() || pattern.field.as_deref() == *field {
            for way in pattern.ways(*child) {
                for mut after in ways_below(rest, children, place + 1) {
                    after.extend(way.iter().cloned());
                    found.push(after);
                    if found.len() >= MAX_WAYS {
                        return found;
                    }
                }
            }
        }
    }
    found
}

/// Returns the children that have a name and are no comments, with their fields.
fn with_fields<'t>(parent: Node<'t>) -> Vec<(Node<'t>, Option<&'t str>)> {
    let mut cursor = parent.walk();
    let mut children = Vec::new();
    let mut is_there = cursor.goto_first_child();
    while is_there {
        let child = cursor.node();
        if child.is_named() && !child.is_extra() {
            children.push((child, cursor.field_name()));
        }
        is_there = cursor.goto_next_sibling();
    }
    children
}

struct Parser<'s> {
    rest: Peekable<Chars<'s>>,
    predicates: Vec<Predicate>,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&mut self) -> Option<char> {
        while self.rest.next_if(|char| char.is_whitespace()).is_some() {}
        self.rest.peek().copied()
    }

    fn next_is(&mut self, wanted: char) -> bool {
        self.peek() == Some(wanted)
    }

    fn eat(&mut self, wanted: char) -> bool {
        let is_there = self.next_is(wanted);
        if is_there {
            self.rest.next();
        }
        is_there
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.eat(wanted) { Ok(()) } else { Err(format!("{wanted:?} expected, not {:?}", self.peek())) }
    }

    fn word(&mut self) -> Result<String, String> {
        self.peek();
        let mut word = String::new();
        while let Some(char) = self.rest.next_if(|char| char.is_ascii_alphanumeric() || "_-?".contains(*char))
        {
            word.push(char);
        }
        if word.is_empty() { Err(format!("a name expected, not {:?}", self.peek())) } else { Ok(word) }
    }

    fn pattern(&mut self) -> Result<Pattern, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("patterns are more than {MAX_DEPTH} deep"));
        }
        let mut pattern = Pattern::default();
        if self.eat('[') {
            let mut all = Vec::new();
            while !self.eat(']') {
                all.push(self.pattern()?);
            }
            pattern.form = Form::OneOf(all);
        } else {
            self.expect('(')?;
            if self.next_is('(') || self.next_is('[') {
                let inner = self.pattern()?;
                while !self.eat(')') {
                    self.predicate_or_end()?;
                }
                pattern.form = Form::OneOf(vec![inner]);
            } else {
                pattern.form = self.node()?;
            }
        }
        while self.eat('@') {
            let name = self.word()?;
            pattern.captures.push(name);
        }
        self.depth -= 1;
        Ok(pattern)
    }

    /// Parses a node after its opening bracket.
    fn node(&mut self) -> Result<Form, String> {
        let kind = self.word()?;
        let kind = (kind != "_").then_some(kind);
        let (mut absent, mut children) = (Vec::new(), Vec::new());
        loop {
            match self.peek() {
                Some(')') => {
                    self.rest.next();
                    return Ok(Form::Node { kind, absent, children });
                }
                Some('!') => {
                    self.rest.next();
                    absent.push(self.word()?);
                }
                Some(_) => {
                    let is_next = self.eat('.');
                    let mut field = None;
                    if !self.next_is('(') && !self.next_is('[') {
                        field = Some(self.word()?);
                        self.expect(':')?;
                    } else if self.is_predicate() {
                        self.predicate_or_end()?;
                        continue;
                    }
                    children.push(Pattern { is_next, field, ..self.pattern()? });
                    if children.len() > MAX_CHILDREN {
                        return Err(format!("a node has patterns of more than {MAX_CHILDREN} children"));
                    }
                }
                None => return Err("a bracket is not closed".to_owned()),
            }
        }
    }

    fn is_predicate(&mut self) -> bool {
        let mut ahead = self.rest.clone();
        ahead.next() == Some('(') && ahead.next() == Some('#')
    }

    /// Parses `(#name? @capture …)`.
    fn predicate_or_end(&mut self) -> Result<(), String> {
        self.expect('(')?;
        self.expect('#')?;
        let name = self.word()?;
        self.expect('@')?;
        let capture = self.word()?;
        let (mut texts, mut others) = (Vec::new(), Vec::new());
        while !self.eat(')') {
            if self.eat('@') {
                others.push(self.word()?);
            } else {
                texts.push(self.quoted()?);
            }
        }
        let predicate = match (name.as_str(), texts.as_slice(), others.as_slice()) {
            ("eq?", [], [other]) => Predicate::Same(capture, other.clone()),
            ("eq?", [_], []) | ("any-of?", [_, ..], []) => Predicate::AnyOf(capture, texts),
            ("match?", [text], []) => {
                Predicate::Match(capture, Regex::new(text).map_err(|error| error.to_string())?)
            }
            _ => return Err(format!("#{name} with these arguments is not known")),
        };
        self.predicates.push(predicate);
        Ok(())
    }

    fn quoted(&mut self) -> Result<String, String> {
        self.expect('"')?;
        let mut text = String::new();
        loop {
            match self.rest.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.extend(self.rest.next()),
                Some(char) => text.push(char),
                None => return Err("a text is not closed".to_owned()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::named;

    /// Compares with tree-sitter's own queries.
    #[test]
    fn matches_are_those_of_tree_sitter() {
        use tree_sitter::StreamingIterator as _;

        let source = "a = 'x'\nb = c\nwhile True:\n    f()\n    g(1, h)\nf(a, b)\nd.e = f(f(1))\n";
        let grammar = tree_sitter_python::LANGUAGE.into();
        let mut parser = tree_sitter::Parser::new();
        parser.set_language(&grammar).unwrap();
        let tree = parser.parse(source, None).unwrap();
        for query in [
            "(identifier) @at",
            "(assignment left: (identifier) @at)",
            "(assignment left: (_) @at right: [(string) (identifier)])",
            "((call function: (identifier) @at) (#eq? @at \"f\"))",
            "(call function: (identifier) @at (#match? @at \"^[g-z]$\"))",
            "(call arguments: (argument_list . (identifier) @at))",
            "(call arguments: (argument_list (identifier) @at))",
            "(call arguments: (argument_list (integer) (identifier)) @at)",
            "((call function: (_) @one arguments: (argument_list (call function: (_) @two))) @at (#eq? @one @two))",
            "(while_statement condition: [(true) (integer)] body: (block . (expression_statement (call)))) @at",
            "((call function: (identifier) @at) (#any-of? @at \"g\" \"h\"))",
            "(expression_statement (assignment !type left: (attribute))) @at",
            "(while_statement !alternative) @at",
        ] {
            let own = Query::parse(query).unwrap();
            let mut found = Vec::new();
            let mut pending = vec![tree.root_node()];
            while let Some(node) = pending.pop() {
                found.extend(own.run(node, source).into_iter().map(|node| node.byte_range()));
                pending.extend(named(node));
            }
            let theirs = tree_sitter::Query::new(&grammar, query).unwrap();
            let at = theirs.capture_index_for_name("at").unwrap();
            let mut cursor = tree_sitter::QueryCursor::new();
            let mut matches = cursor.matches(&theirs, tree.root_node(), source.as_bytes());
            let mut expected = Vec::new();
            while let Some(one) = matches.next() {
                expected.extend(
                    one.captures().iter().filter(|one| one.index == at).map(|one| one.node.byte_range()),
                );
            }
            for ranges in [&mut found, &mut expected] {
                ranges.sort_by_key(|range| (range.start, range.end));
            }
            assert_eq!(found, expected, "{query}");
            assert!(!found.is_empty(), "{query}");
        }
    }

    #[test]
    fn invalid_queries_are_refused() {
        for (query, expected) in [
            ("", "'(' expected"),
            ("(a", "not closed"),
            ("(a) b", "after the query"),
            ("(a @", "a name expected"),
            ("((a) @b (#eq? @b))", "not known"),
            ("((a) @b (#match? @b \"(\"))", "group"),
            ("(a (#is? @b \"c\"))", "not known"),
            ("((a) @b (#eq? @b \"c", "not closed"),
            ("(a (b) (b) (b) (b) (b))", "more than 4 children"),
            (&"(a".repeat(40), "more than 32 deep"),
        ] {
            let error = Query::parse(query).err().unwrap();
            assert!(error.contains(expected), "{query}: {error}");
        }
    }
}
