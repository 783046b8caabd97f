//! Look-up of paths by patterns.

use std::collections::HashMap;

/// Patterns of paths: `a.b`, `a.*` for all below, `*.b` for all members of that name.
#[derive(Debug)]
pub(crate) struct Table<T> {
    exact: HashMap<String, Vec<T>>,
    below: Vec<(String, T)>,
    members: HashMap<String, Vec<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), below: Vec::new(), members: HashMap::new() }
    }
}

impl<T: Copy> Table<T> {
    /// Adds a pattern; returns whether it is valid.
    pub(crate) fn insert(&mut self, pattern: &str, value: T) -> bool {
        let rest = if let Some(member) = pattern.strip_prefix("*.") {
            self.members.entry(member.to_owned()).or_default().push(value);
            member
        } else if let Some(parent) = pattern.strip_suffix(".*") {
            self.below.push((format!("{parent}."), value));
            parent
        } else {
            self.exact.entry(pattern.to_owned()).or_default().push(value);
            pattern
        };
        !rest.is_empty() && !rest.contains('*')
    }

    /// Reports whether a pattern is about a path, or about what is below it.
    pub(crate) fn names(&self, path: &str) -> bool {
        let is_below = |pattern: &String| {
            pattern.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '(']))
        };
        let member = path.rsplit_once('.').map(|(_, member)| member);
        self.exact.keys().any(is_below)
            || self.below.iter().any(|(start, _)| path.starts_with(start) || is_below(start))
            || member.is_some_and(|member| self.members.contains_key(member))
    }

    /// Returns the values of all patterns that match.
    pub(crate) fn find(&self, path: &str) -> Vec<T> {
        let mut found = self.exact.get(path).cloned().unwrap_or_default();
        found.extend(self.below.iter().filter(|(start, _)| path.starts_with(start)).map(|(_, value)| *value));
        if let Some((_, member)) = path.rsplit_once('.') {
            found.extend(self.members.get(member).into_iter().flatten());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_paths() {
        let mut table = Table::default();
        for (number, pattern) in ["os.system", "os.*", "*.unlink"].into_iter().enumerate() {
            assert!(table.insert(pattern, number), "{pattern}");
        }
        for pattern in ["", "*", "a*", "*.", "a.*.b"] {
            assert!(!table.insert(pattern, 9), "{pattern}");
        }
        for (path, expected) in [
            ("os.system", vec![0, 1]),
            ("os.unlink", vec![1, 2]),
            ("pathlib.Path().unlink", vec![2]),
            ("unlink", vec![]),
            ("os", vec![]),
        ] {
            assert_eq!(table.find(path), expected, "{path}");
        }
    }
}
