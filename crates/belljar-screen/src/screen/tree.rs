//! Ways through a tree.

use tree_sitter::Node;

use crate::budget::Budget;

/// Deepest node of a tree that is read. Source: docs/screening.md.
pub const MAX_DEPTH: usize = 500;

/// Visits all nodes down to [`MAX_DEPTH`], parents first, until the time is over.
pub(super) fn walk<'t>(root: Node<'t>, budget: Budget, mut visit: impl FnMut(Node<'t>, usize)) {
    let mut cursor = root.walk();
    let (mut depth, mut count) = (0_usize, 0_usize);
    loop {
        count += 1;
        if count.is_multiple_of(64) && budget.is_over() {
            return;
        }
        let node = cursor.node();
        if node.is_named() {
            visit(node, depth);
        }
        if depth < MAX_DEPTH && cursor.goto_first_child() {
            depth += 1;
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return;
            }
            depth -= 1;
        }
    }
}

/// Returns the first node that does not belong to the grammar.
pub(super) fn first_error(root: Node<'_>) -> Option<Node<'_>> {
    let mut cursor = root.walk();
    'down: loop {
        let node = cursor.node();
        if node.is_error() || node.is_missing() {
            return Some(node);
        }
        if !cursor.goto_first_child() {
            return Some(node);
        }
        while !cursor.node().has_error() && !cursor.node().is_missing() {
            if !cursor.goto_next_sibling() {
                return Some(node);
            }
        }
        continue 'down;
    }
}
