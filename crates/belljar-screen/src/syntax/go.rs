//! Go. A package keeps its whole path: `os/exec.Command`.

use tree_sitter::Node;

use super::{Bound, Callee, Facts, Part, Shape, field, first, named, owned, parts, same, text};

pub(crate) fn shape<'t>(node: Node<'t>, source: &'t str) -> Shape<'t> {
    match node.kind() {
        "identifier" | "type_identifier" | "package_identifier" => Shape::Name(owned(node, source)),
        "selector_expression" => match (field(node, "operand"), field(node, "field")) {
            (Some(operand), Some(name)) => Shape::Member(operand, owned(name, source)),
            _ => Shape::Other,
        },
        "qualified_type" => match (field(node, "package"), field(node, "name")) {
            (Some(package), Some(name)) => Shape::Member(package, owned(name, source)),
            _ => Shape::Other,
        },
        "call_expression" => match field(node, "function") {
            Some(function) => {
                Shape::Call(Callee::Node(function), field(node, "arguments").map_or_else(Vec::new, named))
            }
            None => Shape::Other,
        },
        "type_conversion_expression" => same(field(node, "operand")),
        "interpreted_string_literal" => {
            Shape::Text(parts(node, source, &["interpreted_string_literal_content"], &[]))
        }
        "raw_string_literal" => {
            Shape::Text(vec![Part::Text(text(node, source).trim_matches('`').to_owned())])
        }
        "binary_expression" => match (field(node, "left"), field(node, "operator"), field(node, "right")) {
            (Some(left), Some(operator), Some(right)) if operator.kind() == "+" => {
                Shape::Join(vec![left, right])
            }
            _ => Shape::Other,
        },
        "composite_literal" => Shape::List(field(node, "body").map_or_else(Vec::new, named)),
        "int_literal" => text(node, source).parse().map_or(Shape::Other, Shape::Number),
        "literal_element" | "parenthesized_expression" | "variadic_argument" => same(first(node)),
        "unary_expression" => same(field(node, "operand")),
        _ => Shape::Other,
    }
}

pub(crate) fn bind<'t>(node: Node<'t>, source: &'t str, facts: &mut Facts<'t>) {
    match node.kind() {
        "import_spec" => {
            let Some(path) = field(node, "path") else { return };
            let path = text(path, source).trim_matches(['"', '`']).to_owned();
            match field(node, "name") {
                Some(name) if name.kind() == "dot" => facts.import_everything(path, node),
                Some(name) => facts.import(owned(name, source), path, node),
                None => {
                    let is_version = |part: &&str| {
                        !part
                            .strip_prefix('v')
                            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
                    };
                    let name = path.rsplit('/').find(is_version).unwrap_or_default().to_owned();
                    facts.import(name, path, node);
                }
            }
        }
        "short_var_declaration" | "assignment_statement" => {
            if let (Some(left), Some(right)) = (field(node, "left"), field(node, "right")) {
                for (name, value) in named(left).into_iter().zip(named(right)) {
                    facts.bind(owned(name, source), Bound::Node(value));
                }
            }
        }
        "var_spec" | "const_spec" => {
            let mut cursor = node.walk();
            let names: Vec<_> = node
                .children_by_field_name("name", &mut cursor)
                .filter(|child| child.kind() == "identifier")
                .collect();
            if let Some(values) = field(node, "value") {
                for (name, value) in names.into_iter().zip(named(values)) {
                    facts.bind(owned(name, source), Bound::Node(value));
                }
            }
        }
        "function_declaration" => {
            if let Some(name) = field(node, "name") {
                facts.bind(owned(name, source), Bound::Own);
            }
        }
        _ => {}
    }
}
