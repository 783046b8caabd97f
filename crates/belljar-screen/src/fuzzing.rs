//! Private parsers, for fuzz targets.

use tree_sitter::Parser;

use crate::language::Language;
use crate::query::Query;
use crate::syntax::named;

/// Parses a query and runs it on Python; returns the number of nodes that it finds.
///
/// # Errors
/// Returns what is wrong with the query.
pub fn query(query: &str, code: &str) -> Result<usize, String> {
    let query = Query::parse(query)?;
    let mut parser = Parser::new();
    for grammar in Language::Python.parsers(code) {
        parser.set_language(&grammar).map_err(|error| error.to_string())?;
    }
    let tree = parser.parse(code, None).ok_or("the code was not parsed")?;
    let (mut pending, mut count) = (vec![tree.root_node()], 0);
    while let Some(node) = pending.pop() {
        count += query.run(node, code).len();
        pending.extend(named(node));
    }
    Ok(count)
}
