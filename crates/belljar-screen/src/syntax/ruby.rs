//! Ruby.

use tree_sitter::Node;

use super::{Bound, Callee, Facts, Part, Shape, field, first, named, owned, parts, same, text};

const CONTENT: &[&str] = &["string_content", "heredoc_content"];

pub(crate) fn shape<'t>(node: Node<'t>, source: &'t str) -> Shape<'t> {
    match node.kind() {
        "identifier" | "constant" | "global_variable" | "instance_variable" => {
            Shape::Name(owned(node, source))
        }
        "self" => Shape::Name("self".to_owned()),
        "scope_resolution" => match (field(node, "scope"), field(node, "name")) {
            (Some(scope), Some(name)) => Shape::Member(scope, owned(name, source)),
            (None, Some(name)) => Shape::Name(owned(name, source)),
            _ => Shape::Other,
        },
        "call" => {
            let arguments = field(node, "arguments").map_or_else(Vec::new, named);
            match (field(node, "receiver"), field(node, "method")) {
                (Some(receiver), Some(method)) => {
                    Shape::Call(Callee::Method(receiver, owned(method, source)), arguments)
                }
                (None, Some(method)) => Shape::Call(Callee::Named(owned(method, source)), arguments),
                // `f.(x)`
                (Some(receiver), None) => Shape::Call(Callee::Node(receiver), arguments),
                (None, None) => Shape::Other,
            }
        }
        "element_reference" => match (field(node, "object"), named(node).into_iter().nth(1)) {
            (Some(object), Some(index)) => Shape::Index(object, index),
            _ => Shape::Other,
        },
        "string" | "heredoc_body" | "bare_string" | "delimited_symbol" => Shape::Text(content(node, source)),
        "simple_symbol" => {
            Shape::Text(vec![Part::Text(text(node, source).trim_start_matches(':').to_owned())])
        }
        "subshell" => Shape::Shell(content(node, source)),
        "chained_string" => Shape::Join(named(node)),
        "binary" => match (field(node, "left"), field(node, "operator"), field(node, "right")) {
            (Some(left), Some(operator), Some(right)) if operator.kind() == "+" => {
                Shape::Join(vec![left, right])
            }
            _ => Shape::Other,
        },
        "array" | "string_array" => Shape::List(named(node)),
        "integer" => text(node, source).parse().map_or(Shape::Other, Shape::Number),
        "parenthesized_statements" => same(first(node)),
        "pair" => same(field(node, "value")),
        _ => Shape::Other,
    }
}

fn content<'t>(node: Node<'t>, source: &'t str) -> Vec<Part<'t>> {
    parts(node, source, CONTENT, &["heredoc_end"])
        .into_iter()
        .map(|part| match part {
            Part::Value(node) => first(node).map_or(Part::Value(node), Part::Value),
            text => text,
        })
        .collect()
}

pub(crate) fn bind<'t>(node: Node<'t>, source: &'t str, facts: &mut Facts<'t>) {
    match node.kind() {
        "assignment" => {
            if let (Some(left), Some(right)) = (field(node, "left"), field(node, "right"))
                && left.kind() != "left_assignment_list"
            {
                facts.bind(owned(left, source), Bound::Node(right));
            }
        }
        "operator_assignment" => {
            if let (Some(left), Some(right)) = (field(node, "left"), field(node, "right")) {
                facts.bind(owned(left, source), Bound::Append(right));
            }
        }
        "alias" => {
            // The field `name` is the new name.
            if let (Some(new), Some(old)) = (field(node, "name"), field(node, "alias")) {
                facts.bind(
                    text(new, source).trim_start_matches(':'),
                    Bound::Path(text(old, source).trim_start_matches(':').to_owned()),
                );
            }
        }
        "method" => {
            let in_class = node.parent().and_then(|body| body.parent());
            if in_class.is_none_or(|parent| parent.kind() != "class")
                && let Some(name) = field(node, "name")
            {
                facts.bind(owned(name, source), Bound::Own);
            }
        }
        _ => {}
    }
}
