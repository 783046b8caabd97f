//! JavaScript and TypeScript.

use tree_sitter::Node;

use super::{Bound, Callee, Facts, Part, Shape, field, first, named, owned, parts, same, text};

pub(crate) fn shape<'t>(node: Node<'t>, source: &'t str) -> Shape<'t> {
    match node.kind() {
        "identifier" => Shape::Name(owned(node, source)),
        "this" => Shape::Name("globalThis".to_owned()),
        "member_expression" => match (field(node, "object"), field(node, "property")) {
            (Some(object), Some(name)) => Shape::Member(object, owned(name, source)),
            _ => Shape::Other,
        },
        "subscript_expression" => match (field(node, "object"), field(node, "index")) {
            (Some(object), Some(index)) => Shape::Index(object, index),
            _ => Shape::Other,
        },
        "call_expression" => {
            let arguments = field(node, "arguments");
            let list = match arguments {
                Some(list) if list.kind() == "arguments" => named(list),
                Some(template) => vec![template],
                None => Vec::new(),
            };
            match field(node, "function") {
                Some(import) if import.kind() == "import" => {
                    Shape::Call(Callee::Named("import".to_owned()), list)
                }
                Some(function) => Shape::Call(Callee::Node(function), list),
                None => Shape::Other,
            }
        }
        "new_expression" => match field(node, "constructor") {
            Some(function) => {
                Shape::Call(Callee::Node(function), field(node, "arguments").map_or_else(Vec::new, named))
            }
            None => Shape::Other,
        },
        "string" => Shape::Text(parts(node, source, &["string_fragment", "html_character_reference"], &[])),
        "template_string" => Shape::Text(
            parts(node, source, &["string_fragment"], &[])
                .into_iter()
                .map(|part| match part {
                    Part::Value(node) => first(node).map_or(Part::Value(node), Part::Value),
                    text => text,
                })
                .collect(),
        ),
        "binary_expression" => match (field(node, "left"), field(node, "operator"), field(node, "right")) {
            (Some(left), Some(operator), Some(right)) if operator.kind() == "+" => {
                Shape::Join(vec![left, right])
            }
            (Some(left), Some(operator), Some(right)) if matches!(operator.kind(), "||" | "&&" | "??") => {
                Shape::OneOf(vec![left, right])
            }
            _ => Shape::Other,
        },
        "array" => Shape::List(named(node)),
        "object" => Shape::Table(named(node).into_iter().filter_map(|pair| field(pair, "value")).collect()),
        "ternary_expression" => Shape::OneOf(
            [field(node, "consequence"), field(node, "alternative")].into_iter().flatten().collect(),
        ),
        "number" => text(node, source).parse().map_or_else(
            |_| {
                let hex = text(node, source).strip_prefix("0x");
                let hex = hex.and_then(|hex| i64::from_str_radix(hex, 16).ok());
                hex.map_or(Shape::Other, Shape::Number)
            },
            Shape::Number,
        ),
        "parenthesized_expression"
        | "await_expression"
        | "as_expression"
        | "non_null_expression"
        | "satisfies_expression"
        | "spread_element" => same(first(node)),
        "sequence_expression" => same(named(node).pop()),
        "assignment_expression" => same(field(node, "right")),
        _ => Shape::Other,
    }
}

/// Returns the name of a module, which Node.js also knows with a prefix.
fn module(node: Node<'_>, source: &str) -> String {
    let name = text(node, source).trim_matches(['"', '\'']);
    name.strip_prefix("node:").unwrap_or(name).to_owned()
}

fn destructure<'t>(pattern: Node<'t>, value: Node<'t>, source: &'t str, facts: &mut Facts<'t>) {
    for child in named(pattern) {
        match child.kind() {
            "shorthand_property_identifier_pattern" => {
                let name = owned(child, source);
                facts.bind(name.clone(), Bound::Member(value, name));
            }
            "object_assignment_pattern" => {
                if let Some(left) = field(child, "left") {
                    let name = owned(left, source);
                    facts.bind(name.clone(), Bound::Member(value, name));
                }
            }
            "pair_pattern" => {
                if let (Some(key), Some(name)) = (field(child, "key"), field(child, "value")) {
                    let key = text(key, source).trim_matches(['"', '\'', '[', ']']).to_owned();
                    facts.bind(owned(name, source), Bound::Member(value, key));
                }
            }
            _ => {}
        }
    }
}

pub(crate) fn bind<'t>(node: Node<'t>, source: &'t str, facts: &mut Facts<'t>) {
    match node.kind() {
        "import_statement" | "export_statement" => {
            let mut source_node = field(node, "source");
            for clause in named(node) {
                if clause.kind() == "import_require_clause" {
                    source_node = source_node.or_else(|| field(clause, "source"));
                    if let (Some(name), Some(path)) = (first(clause), source_node) {
                        facts.bind(owned(name, source), Bound::Path(module(path, source)));
                    }
                }
            }
            let Some(path_node) = source_node else { return };
            let path = module(path_node, source);
            facts.imports.push((path.clone(), path_node));
            for clause in named(node).into_iter().filter(|child| child.kind() == "import_clause") {
                for child in named(clause) {
                    match child.kind() {
                        "identifier" => facts.bind(owned(child, source), Bound::Path(path.clone())),
                        "namespace_import" => {
                            if let Some(name) = first(child) {
                                facts.bind(owned(name, source), Bound::Path(path.clone()));
                            }
                        }
                        "named_imports" => {
                            for specifier in named(child) {
                                let Some(name) = field(specifier, "name") else { continue };
                                let alias = field(specifier, "alias").unwrap_or(name);
                                let real = text(name, source).trim_matches(['"', '\'']);
                                let bound =
                                    if real == "default" { path.clone() } else { format!("{path}.{real}") };
                                facts.bind(owned(alias, source), Bound::Path(bound));
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        "variable_declarator" => {
            let (Some(name), Some(value)) = (field(node, "name"), field(node, "value")) else { return };
            match name.kind() {
                "identifier" => facts.bind(owned(name, source), Bound::Node(value)),
                "object_pattern" => destructure(name, value, source, facts),
                _ => {}
            }
        }
        "assignment_expression" => {
            let (Some(left), Some(right)) = (field(node, "left"), field(node, "right")) else { return };
            match left.kind() {
                "identifier" => facts.bind(owned(left, source), Bound::Node(right)),
                "object_pattern" => destructure(left, right, source, facts),
                _ => {}
            }
        }
        "augmented_assignment_expression" => {
            if let (Some(left), Some(right)) = (field(node, "left"), field(node, "right")) {
                facts.bind(owned(left, source), Bound::Append(right));
            }
        }
        "function_declaration" | "class_declaration" | "generator_function_declaration" => {
            if let Some(name) = field(node, "name") {
                facts.bind(owned(name, source), Bound::Own);
            }
        }
        _ => {}
    }
}
