//! What the nodes of a language's tree are: the same few shapes for all languages.

pub(crate) mod bash;
pub(crate) mod go;
pub(crate) mod javascript;
pub(crate) mod php;
pub(crate) mod python;
pub(crate) mod ruby;
pub(crate) mod rust;

use std::collections::{BTreeSet, HashMap};

use tree_sitter::Node;

/// What a node is.
#[derive(Debug)]
pub(crate) enum Shape<'t> {
    /// A variable, or a function by its bare name.
    Name(String),
    /// A member: its object, and its name.
    Member(Node<'t>, String),
    /// A member by a computed name: its object, and the name.
    Index(Node<'t>, Node<'t>),
    /// A call.
    Call(Callee<'t>, Vec<Node<'t>>),
    /// A text of these parts.
    Text(Vec<Part<'t>>),
    /// Texts or lists that are joined.
    Join(Vec<Node<'t>>),
    /// One of these.
    OneOf(Vec<Node<'t>>),
    /// A list.
    List(Vec<Node<'t>>),
    /// The values of a table.
    Table(Vec<Node<'t>>),
    /// A text in reverse.
    Reversed(Node<'t>),
    /// A number.
    Number(i64),
    /// The value of another node.
    Same(Node<'t>),
    /// A command line that is passed to a shell.
    Shell(Vec<Part<'t>>),
    /// The output of a pipeline of the shell.
    Output(Node<'t>),
    /// Anything else.
    Other,
}

/// What is called.
#[derive(Debug)]
pub(crate) enum Callee<'t> {
    /// The value of a node.
    Node(Node<'t>),
    /// A method of an object.
    Method(Node<'t>, String),
    /// A function by its name.
    Named(String),
}

/// A part of a text.
#[derive(Debug)]
pub(crate) enum Part<'t> {
    /// Known.
    Text(String),
    /// The value of a node.
    Value(Node<'t>),
}

/// What a name is bound to.
#[derive(Debug, Clone)]
pub(crate) enum Bound<'t> {
    /// A module, or a member of one.
    Path(String),
    /// The value of a node.
    Node(Node<'t>),
    /// One of the values in the list or table that a node is.
    Element(Node<'t>),
    /// What it is otherwise, with the value of a node appended.
    Append(Node<'t>),
    /// The words of a command.
    Words(Vec<Node<'t>>),
    /// A member of the value of a node.
    Member(Node<'t>, String),
    /// A function of the code itself.
    Own,
}

/// Names and imports of the code.
#[derive(Debug, Default)]
pub(crate) struct Facts<'t> {
    pub(crate) names: HashMap<String, Vec<Bound<'t>>>,
    /// Imported modules, and members of modules.
    pub(crate) imports: Vec<(String, Node<'t>)>,
    /// Modules all of whose members are imported.
    pub(crate) everything: BTreeSet<String>,
}

impl<'t> Facts<'t> {
    pub(crate) fn bind(&mut self, name: impl Into<String>, bound: Bound<'t>) {
        self.names.entry(name.into()).or_default().push(bound);
    }

    /// Binds a name to an import, and notes the import.
    pub(crate) fn import(&mut self, name: impl Into<String>, path: String, node: Node<'t>) {
        self.bind(name, Bound::Path(path.clone()));
        self.imports.push((path, node));
    }

    pub(crate) fn import_everything(&mut self, module: String, node: Node<'t>) {
        self.imports.push((module.clone(), node));
        self.everything.insert(module);
    }
}

pub(crate) fn text<'t>(node: Node<'_>, source: &'t str) -> &'t str {
    source.get(node.byte_range()).unwrap_or_default()
}

pub(crate) fn owned(node: Node<'_>, source: &str) -> String {
    text(node, source).to_owned()
}

pub(crate) fn field<'t>(node: Node<'t>, name: &str) -> Option<Node<'t>> {
    node.child_by_field_name(name)
}

/// Returns the children that have a name and are no comments.
pub(crate) fn named(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    node.named_children(&mut cursor).filter(|child| !child.is_extra()).collect()
}

pub(crate) fn first(node: Node<'_>) -> Option<Node<'_>> {
    node.named_child(0)
}

/// Returns the value of the first child, for nodes that only wrap one.
pub(crate) fn same(node: Option<Node<'_>>) -> Shape<'_> {
    node.map_or(Shape::Other, Shape::Same)
}

/// Returns the parts of a literal: what `known` takes as text, and all other children as values.
pub(crate) fn parts<'t>(node: Node<'t>, source: &'t str, known: &[&str], skipped: &[&str]) -> Vec<Part<'t>> {
    named(node)
        .into_iter()
        .filter(|child| !skipped.contains(&child.kind()))
        .map(|child| match child.kind() {
            kind if known.contains(&kind) => Part::Text(owned(child, source)),
            "escape_sequence" => Part::Text(unescape(text(child, source))),
            _ => Part::Value(child),
        })
        .collect()
}

/// Replaces the escapes that the languages have in common.
pub(crate) fn unescape(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(char) = rest.next() {
        if char != '\\' {
            result.push(char);
            continue;
        }
        match rest.next() {
            None | Some('\n') => {}
            Some('n') => result.push('\n'),
            Some('t') => result.push('\t'),
            Some('r') => result.push('\r'),
            Some('e') => result.push('\u{1b}'),
            Some('x') => result.extend(number(&mut rest, 16, 2)),
            Some('U') => result.extend(number(&mut rest, 16, 8)),
            Some('u') if rest.next_if_eq(&'{').is_some() => {
                result.extend(number(&mut rest, 16, 6));
                rest.next_if_eq(&'}');
            }
            Some('u') => result.extend(number(&mut rest, 16, 4)),
            Some(digit @ '0'..='7') => {
                let most = 2;
                let first = digit.to_digit(8).unwrap_or_default();
                let (mut value, mut count) = (first, 0);
                while count < most
                    && let Some(digit) = rest.next_if(|char| char.is_digit(8))
                {
                    value = value * 8 + digit.to_digit(8).unwrap_or_default();
                    count += 1;
                }
                result.extend(char::from_u32(value));
            }
            Some(other) => result.push(other),
        }
    }
    result
}

/// Reads a number of at most `most` digits.
fn number(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, radix: u32, most: usize) -> Option<char> {
    let (mut value, mut count) = (0_u32, 0);
    while count < most
        && let Some(digit) = rest.next_if(|char| char.is_digit(radix))
    {
        value = value.wrapping_mul(radix).wrapping_add(digit.to_digit(radix).unwrap_or_default());
        count += 1;
    }
    char::from_u32(value).filter(|_| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_replaced() {
        for (escaped, expected) in
            [(r"a\x62\u0063\u{64}\U00000065\146\n", "abcdef\n"), (r"\q\\", "q\\"), (r"\x", ""), ("\\", "")]
        {
            assert_eq!(unescape(escaped), expected, "{escaped}");
        }
    }
}
