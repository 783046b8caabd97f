//! PHP. Names of functions and classes are lower case, as PHP ignores case.

use tree_sitter::Node;

use super::{Bound, Callee, Facts, Shape, field, first, named, owned, parts, same, text};

const CONTENT: &[&str] = &["string_content", "nowdoc_string"];

/// Returns a name with `.` between its parts.
fn path(node: Node<'_>, source: &str) -> String {
    text(node, source).trim_start_matches('\\').replace('\\', ".").to_ascii_lowercase()
}

fn arguments(node: Node<'_>) -> Vec<Node<'_>> {
    let list = named(node).into_iter().find(|child| child.kind() == "arguments");
    list.map_or_else(Vec::new, named)
}

pub(crate) fn shape<'t>(node: Node<'t>, source: &'t str) -> Shape<'t> {
    match node.kind() {
        "variable_name" => Shape::Name(owned(node, source)),
        "name" | "qualified_name" => Shape::Name(path(node, source)),
        "function_call_expression" => match field(node, "function") {
            Some(name) if matches!(name.kind(), "name" | "qualified_name") => {
                Shape::Call(Callee::Named(path(name, source)), arguments(node))
            }
            Some(function) => Shape::Call(Callee::Node(function), arguments(node)),
            None => Shape::Other,
        },
        "member_call_expression" | "nullsafe_member_call_expression" | "scoped_call_expression" => {
            let object = field(node, "object").or_else(|| field(node, "scope"));
            match (object, field(node, "name")) {
                (Some(object), Some(name)) => {
                    Shape::Call(Callee::Method(object, path(name, source)), arguments(node))
                }
                _ => Shape::Other,
            }
        }
        "object_creation_expression" => match first(node) {
            Some(class) if matches!(class.kind(), "name" | "qualified_name") => {
                Shape::Call(Callee::Named(path(class, source)), arguments(node))
            }
            Some(class) => Shape::Call(Callee::Node(class), arguments(node)),
            None => Shape::Other,
        },
        "include_expression"
        | "include_once_expression"
        | "require_expression"
        | "require_once_expression" => Shape::Call(Callee::Named("include".to_owned()), named(node)),
        "string" | "encapsed_string" | "heredoc_body" | "nowdoc_body" => {
            Shape::Text(parts(node, source, CONTENT, &[]))
        }
        "heredoc" | "nowdoc" => same(field(node, "value")),
        "shell_command_expression" => Shape::Shell(parts(node, source, CONTENT, &[])),
        "binary_expression" => match (field(node, "left"), field(node, "operator"), field(node, "right")) {
            (Some(left), Some(operator), Some(right)) if operator.kind() == "." => {
                Shape::Join(vec![left, right])
            }
            _ => Shape::Other,
        },
        "subscript_expression" => {
            let mut children = named(node).into_iter();
            match (children.next(), children.next()) {
                (Some(object), Some(index)) => Shape::Index(object, index),
                _ => Shape::Other,
            }
        }
        "member_access_expression" => match (field(node, "object"), field(node, "name")) {
            (Some(object), Some(name)) => Shape::Member(object, owned(name, source)),
            _ => Shape::Other,
        },
        "array_creation_expression" => Shape::List(named(node)),
        "array_element_initializer" => same(named(node).pop()),
        "integer" => text(node, source).parse().map_or(Shape::Other, Shape::Number),
        "argument" | "parenthesized_expression" | "error_suppression_expression" => same(named(node).pop()),
        "cast_expression" => same(field(node, "value")),
        "assignment_expression" => same(field(node, "right")),
        _ => Shape::Other,
    }
}

pub(crate) fn bind<'t>(node: Node<'t>, source: &'t str, facts: &mut Facts<'t>) {
    match node.kind() {
        "assignment_expression" => {
            if let (Some(left), Some(right)) = (field(node, "left"), field(node, "right"))
                && left.kind() == "variable_name"
            {
                facts.bind(owned(left, source), Bound::Node(right));
            }
        }
        "augmented_assignment_expression" => {
            if let (Some(left), Some(right)) = (field(node, "left"), field(node, "right")) {
                facts.bind(owned(left, source), Bound::Append(right));
            }
        }
        "namespace_use_clause" => {
            let Some(name) = first(node) else { return };
            let full = path(name, source);
            let last = full.rsplit('.').next().unwrap_or_default().to_owned();
            let alias = field(node, "alias").map_or(last, |alias| path(alias, source));
            facts.import(alias, full, node);
        }
        "function_definition" => {
            if let Some(name) = field(node, "name") {
                facts.bind(path(name, source), Bound::Own);
            }
        }
        _ => {}
    }
}
