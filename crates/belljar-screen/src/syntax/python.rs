//! Python.

use tree_sitter::Node;

use super::{Bound, Callee, Facts, Part, Shape, field, first, named, owned, same, text, unescape};
use crate::values::UNKNOWN;

pub(crate) fn shape<'t>(node: Node<'t>, source: &'t str) -> Shape<'t> {
    match node.kind() {
        "identifier" => Shape::Name(owned(node, source)),
        "attribute" => match (field(node, "object"), field(node, "attribute")) {
            (Some(object), Some(name)) => Shape::Member(object, owned(name, source)),
            _ => Shape::Other,
        },
        "subscript" => match (field(node, "value"), field(node, "subscript")) {
            (Some(value), Some(index)) if index.kind() == "slice" => {
                let slice: String = text(index, source).split_whitespace().collect();
                if slice == "::-1" { Shape::Reversed(value) } else { Shape::Other }
            }
            (Some(value), Some(index)) => Shape::Index(value, index),
            _ => Shape::Other,
        },
        "call" => match (field(node, "function"), field(node, "arguments")) {
            (Some(function), Some(arguments)) => Shape::Call(Callee::Node(function), named(arguments)),
            _ => Shape::Other,
        },
        "string" => string(node, source),
        "concatenated_string" => Shape::Join(named(node)),
        "binary_operator" => match (field(node, "left"), field(node, "operator"), field(node, "right")) {
            (Some(left), Some(operator), Some(right)) if operator.kind() == "+" => {
                Shape::Join(vec![left, right])
            }
            // What is formatted is not followed, but the format is.
            (Some(left), Some(operator), _) if operator.kind() == "%" => Shape::Same(left),
            _ => Shape::Other,
        },
        "list" | "tuple" | "set" | "expression_list" => Shape::List(named(node)),
        "dictionary" => {
            Shape::Table(named(node).into_iter().filter_map(|pair| field(pair, "value")).collect())
        }
        "conditional_expression" => Shape::OneOf(
            named(node).into_iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, one)| one).collect(),
        ),
        "boolean_operator" => {
            Shape::OneOf([field(node, "left"), field(node, "right")].into_iter().flatten().collect())
        }
        "integer" => text(node, source).replace('_', "").parse().map_or_else(
            |_| {
                let hex = text(node, source).to_ascii_lowercase();
                let hex = hex.strip_prefix("0x").and_then(|hex| i64::from_str_radix(hex, 16).ok());
                hex.map_or(Shape::Other, Shape::Number)
            },
            Shape::Number,
        ),
        "parenthesized_expression" | "await" | "list_splat" => same(first(node)),
        "keyword_argument" | "named_expression" => same(field(node, "value")),
        // `a = b = c`
        "assignment" => same(field(node, "right")),
        _ => Shape::Other,
    }
}

fn string<'t>(node: Node<'t>, source: &'t str) -> Shape<'t> {
    let mut is_raw = false;
    let mut parts = Vec::new();
    for child in named(node) {
        match child.kind() {
            "string_start" => is_raw = text(child, source).contains(['r', 'R']),
            "string_content" if is_raw => parts.push(Part::Text(owned(child, source))),
            "string_content" => parts.push(Part::Text(unescape(&unescape_names(text(child, source))))),
            "interpolation" => parts.extend(field(child, "expression").map(Part::Value)),
            _ => {}
        }
    }
    Shape::Text(parts)
}

/// Replaces the escapes that name a character of ASCII.
fn unescape_names(text: &str) -> String {
    const NAMES: [(&str, char); 5] =
        [("SPACE", ' '), ("SOLIDUS", '/'), ("HYPHEN-MINUS", '-'), ("FULL STOP", '.'), ("LOW LINE", '_')];
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\N{") {
        result.push_str(before);
        let Some((name, next)) = after.split_once('}') else { break };
        let name = name.to_ascii_uppercase();
        let letter = |start| name.strip_prefix(start).filter(|letter: &&str| letter.len() == 1);
        let known = NAMES.iter().find(|(known, _)| *known == name).map(|(_, char)| char.to_string());
        let known = known.or_else(|| letter("LATIN CAPITAL LETTER ").map(str::to_owned));
        let known = known.or_else(|| letter("LATIN SMALL LETTER ").map(str::to_ascii_lowercase));
        result.push_str(&known.unwrap_or(UNKNOWN.to_string()));
        rest = next;
    }
    result.push_str(rest);
    result
}

pub(crate) fn bind<'t>(node: Node<'t>, source: &'t str, facts: &mut Facts<'t>) {
    match node.kind() {
        "import_statement" => {
            let mut cursor = node.walk();
            for name in node.children_by_field_name("name", &mut cursor) {
                if let (Some(path), Some(alias)) = (field(name, "name"), field(name, "alias")) {
                    facts.import(owned(alias, source), owned(path, source), name);
                } else {
                    let path = owned(name, source);
                    let root = path.split('.').next().unwrap_or_default().to_owned();
                    facts.bind(root.clone(), Bound::Path(root));
                    facts.imports.push((path, name));
                }
            }
        }
        "import_from_statement" => {
            let Some(module) = field(node, "module_name") else { return };
            let path = owned(module, source);
            facts.imports.push((path.clone(), module));
            let mut cursor = node.walk();
            for name in node.children_by_field_name("name", &mut cursor) {
                let (real, alias) = match (field(name, "name"), field(name, "alias")) {
                    (Some(real), Some(alias)) => (owned(real, source), owned(alias, source)),
                    _ => (owned(name, source), owned(name, source)),
                };
                facts.import(alias, format!("{path}.{real}"), name);
            }
            if named(node).iter().any(|child| child.kind() == "wildcard_import") {
                facts.import_everything(path, module);
            }
        }
        "assignment" => {
            let (Some(left), Some(right)) = (field(node, "left"), field(node, "right")) else { return };
            match (left.kind(), right.kind()) {
                ("identifier", _) => facts.bind(owned(left, source), Bound::Node(right)),
                ("pattern_list" | "tuple_pattern" | "list_pattern", "expression_list" | "tuple" | "list") => {
                    for (name, value) in named(left).into_iter().zip(named(right)) {
                        facts.bind(owned(name, source), Bound::Node(value));
                    }
                }
                _ => {}
            }
        }
        "augmented_assignment" => {
            if let (Some(left), Some(right)) = (field(node, "left"), field(node, "right")) {
                facts.bind(owned(left, source), Bound::Append(right));
            }
        }
        "named_expression" => {
            if let (Some(name), Some(value)) = (field(node, "name"), field(node, "value")) {
                facts.bind(owned(name, source), Bound::Node(value));
            }
        }
        "as_pattern" => {
            if let (Some(value), Some(alias)) = (first(node), field(node, "alias")) {
                facts.bind(owned(alias, source), Bound::Node(value));
            }
        }
        "for_statement" | "for_in_clause" => {
            if let (Some(left), Some(right)) = (field(node, "left"), field(node, "right"))
                && left.kind() == "identifier"
                && matches!(right.kind(), "list" | "tuple" | "set" | "expression_list")
            {
                facts.bind(owned(left, source), Bound::Element(right));
            }
        }
        "default_parameter" | "typed_default_parameter" => {
            if let (Some(name), Some(value)) = (field(node, "name"), field(node, "value")) {
                facts.bind(owned(name, source), Bound::Node(value));
            }
        }
        "function_definition" | "class_definition" => {
            let in_class = node.parent().and_then(|block| block.parent());
            if in_class.is_none_or(|parent| parent.kind() != "class_definition")
                && let Some(name) = field(node, "name")
            {
                facts.bind(owned(name, source), Bound::Own);
            }
        }
        _ => {}
    }
}
