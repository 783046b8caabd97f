//! Rust. Paths have `.` between their parts: `std.process.Command.new`.

use tree_sitter::Node;

use super::{Bound, Callee, Facts, Part, Shape, field, first, named, owned, parts, same, text};

pub(crate) fn shape<'t>(node: Node<'t>, source: &'t str) -> Shape<'t> {
    match node.kind() {
        "identifier" | "type_identifier" | "crate" => Shape::Name(owned(node, source)),
        "scoped_identifier" | "scoped_type_identifier" => match (field(node, "path"), field(node, "name")) {
            (Some(path), Some(name)) => Shape::Member(path, owned(name, source)),
            (None, Some(name)) => Shape::Name(owned(name, source)),
            _ => Shape::Other,
        },
        "field_expression" => match (field(node, "value"), field(node, "field")) {
            (Some(value), Some(name)) => Shape::Member(value, owned(name, source)),
            _ => Shape::Other,
        },
        "call_expression" => match field(node, "function") {
            Some(function) => {
                Shape::Call(Callee::Node(function), field(node, "arguments").map_or_else(Vec::new, named))
            }
            None => Shape::Other,
        },
        "macro_invocation" => match field(node, "macro") {
            Some(name) => {
                let name = text(name, source).rsplit("::").next().unwrap_or_default();
                let tokens = named(node).into_iter().find(|child| child.kind() == "token_tree");
                Shape::Call(Callee::Named(format!("{name}!")), tokens.map_or_else(Vec::new, named))
            }
            None => Shape::Other,
        },
        "string_literal" => Shape::Text(parts(node, source, &["string_content"], &[])),
        "raw_string_literal" => {
            let content = named(node).into_iter().find(|child| child.kind() == "string_content");
            Shape::Text(content.map(|content| Part::Text(owned(content, source))).into_iter().collect())
        }
        "array_expression" => Shape::List(named(node)),
        "integer_literal" => text(node, source).parse().map_or(Shape::Other, Shape::Number),
        "bracketed_type" => same(first(node)),
        "generic_function" => same(field(node, "function")),
        "reference_expression" => same(field(node, "value")),
        "parenthesized_expression" | "try_expression" | "await_expression" => same(first(node)),
        _ => Shape::Other,
    }
}

/// Deepest list of a `use` that is read.
const MAX_LISTS: usize = 32;

/// Binds what a `use` names. `prefix` ends with a dot, or is empty.
fn imports<'t>(node: Node<'t>, prefix: &str, depth: usize, source: &'t str, facts: &mut Facts<'t>) {
    if depth > MAX_LISTS {
        return;
    }
    let path = |node: Node<'_>| format!("{prefix}{}", text(node, source).replace("::", "."));
    match node.kind() {
        "identifier" | "scoped_identifier" | "crate" | "self" | "super" => {
            let full = if node.kind() == "self" && !prefix.is_empty() {
                prefix.trim_end_matches('.').to_owned()
            } else {
                path(node)
            };
            let last = full.rsplit('.').next().unwrap_or_default().to_owned();
            facts.import(last, full, node);
        }
        "use_as_clause" => {
            if let (Some(name), Some(alias)) = (field(node, "path"), field(node, "alias")) {
                facts.import(owned(alias, source), path(name), node);
            }
        }
        "use_wildcard" => {
            if let Some(module) = first(node) {
                facts.import_everything(path(module), node);
            }
        }
        "scoped_use_list" => {
            let prefix = field(node, "path").map_or_else(|| prefix.to_owned(), |module| path(module) + ".");
            if let Some(list) = field(node, "list") {
                imports(list, &prefix, depth + 1, source, facts);
            }
        }
        "use_list" => {
            for child in named(node) {
                imports(child, prefix, depth, source, facts);
            }
        }
        _ => {}
    }
}

pub(crate) fn bind<'t>(node: Node<'t>, source: &'t str, facts: &mut Facts<'t>) {
    match node.kind() {
        "use_declaration" => {
            if let Some(argument) = field(node, "argument") {
                imports(argument, "", 0, source, facts);
            }
        }
        "extern_crate_declaration" => {
            if let Some(name) = field(node, "name") {
                let alias = field(node, "alias").unwrap_or(name);
                facts.import(owned(alias, source), owned(name, source), node);
            }
        }
        "let_declaration" => {
            if let (Some(pattern), Some(value)) = (field(node, "pattern"), field(node, "value"))
                && pattern.kind() == "identifier"
            {
                facts.bind(owned(pattern, source), Bound::Node(value));
            }
        }
        "const_item" | "static_item" => {
            if let (Some(name), Some(value)) = (field(node, "name"), field(node, "value")) {
                facts.bind(owned(name, source), Bound::Node(value));
            }
        }
        "type_item" => {
            if let (Some(name), Some(value)) = (field(node, "name"), field(node, "type")) {
                facts.bind(owned(name, source), Bound::Node(value));
            }
        }
        "function_item" => {
            let in_impl = node.parent().and_then(|list| list.parent());
            if in_impl.is_none_or(|parent| parent.kind() != "impl_item")
                && let Some(name) = field(node, "name")
            {
                facts.bind(owned(name, source), Bound::Own);
            }
        }
        _ => {}
    }
}
