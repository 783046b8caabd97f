//! Glob patterns over names of arbitrary bytes. Matching takes time proportional to pattern length times name length:
//! all possible matches are followed at once, without backtracking.

/// Maximum length of a pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1024;

/// A glob pattern: `*`, `?`, `[a-z]`, `[!a-z]`, `**`, and `\` to escape a byte.
#[derive(Debug)]
pub struct Glob {
    parts: Vec<Part>,
    /// True if the pattern applies to a whole path, not to one name.
    has_slash: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Byte(u8),
    /// Any byte except a slash.
    Any,
    Class {
        ranges: Vec<(u8, u8)>,
        negated: bool,
    },
    /// Any number of bytes except slashes.
    Star,
    /// Any number of bytes.
    DoubleStar,
    /// `**/`: nothing, or what `InLevels` matches. Always followed by `InLevels`.
    Levels,
    /// Anything that ends in a slash.
    InLevels,
}

impl Glob {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Returns the reason if the pattern is invalid.
    pub fn new(pattern: &[u8]) -> Result<Self, &'static str> {
        if pattern.is_empty() {
            return Err("the pattern is empty");
        }
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err("the pattern is longer than 1,024 bytes");
        }
        let mut parts = Vec::new();
        let mut rest = pattern.strip_prefix(b"/").unwrap_or(pattern);
        rest = rest.strip_suffix(b"/").unwrap_or(rest);
        let has_slash = rest.contains(&b'/') || pattern.starts_with(b"/");
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            let at_start = matches!(parts.last(), None | Some(Part::Byte(b'/') | Part::InLevels));
            let part = match first {
                b'*' if rest.first() == Some(&b'*') => {
                    while let Some(after) = rest.strip_prefix(b"*") {
                        rest = after;
                    }
                    match rest.strip_prefix(b"/") {
                        Some(after) if at_start => {
                            rest = after;
                            parts.push(Part::Levels);
                            Part::InLevels
                        }
                        _ => Part::DoubleStar,
                    }
                }
                b'*' => Part::Star,
                b'?' => Part::Any,
                b'[' => {
                    let (class, after) = parse_class(rest).ok_or("a [ has no ]")?;
                    rest = after;
                    class
                }
                b'\\' => {
                    let (byte, after) = rest.split_first().ok_or("it ends in a \\")?;
                    rest = after;
                    Part::Byte(*byte)
                }
                byte => Part::Byte(*byte),
            };
            parts.push(part);
        }
        Ok(Self { parts, has_slash })
    }

    /// Reports whether a relative path matches: the whole path if the pattern has a slash, else its last component.
    pub fn matches(&self, path: &[u8]) -> bool {
        let name = path.iter().rposition(|byte| *byte == b'/').map_or(path, |slash| &path[slash + 1..]);
        self.matches_all(if self.has_slash { path } else { name })
    }

    fn matches_all(&self, text: &[u8]) -> bool {
        // The positions in the pattern that the bytes read so far may have led to.
        let mut now = vec![false; self.parts.len() + 1];
        let mut next = now.clone();
        now[0] = true;
        self.skip_empty(&mut now);
        for byte in text {
            next.fill(false);
            for (index, part) in self.parts.iter().enumerate().filter(|(index, _)| now[*index]) {
                match part {
                    Part::Byte(expected) => next[index + 1] |= expected == byte,
                    Part::Any => next[index + 1] |= *byte != b'/',
                    Part::Class { ranges, negated } => {
                        let within = ranges.iter().any(|(low, high)| (low..=high).contains(&byte));
                        next[index + 1] |= *byte != b'/' && within != *negated;
                    }
                    Part::Star => next[index] |= *byte != b'/',
                    Part::DoubleStar => next[index] = true,
                    Part::Levels => {}
                    Part::InLevels => {
                        next[index] = true;
                        next[index + 1] |= *byte == b'/';
                    }
                }
            }
            self.skip_empty(&mut next);
            std::mem::swap(&mut now, &mut next);
        }
        now[self.parts.len()]
    }

    /// Adds the positions behind parts that may match nothing.
    fn skip_empty(&self, positions: &mut [bool]) {
        for (index, part) in self.parts.iter().enumerate() {
            if !positions[index] {
                continue;
            }
            match part {
                Part::Star | Part::DoubleStar => positions[index + 1] = true,
                Part::Levels => {
                    positions[index + 1] = true;
                    positions[index + 2] = true;
                }
                _ => {}
            }
        }
    }
}

/// Parses the class behind a `[`; returns it and what follows its `]`.
fn parse_class(rest: &[u8]) -> Option<(Part, &[u8])> {
    let (negated, mut rest) = match rest.first()? {
        b'!' | b'^' => (true, &rest[1..]),
        _ => (false, rest),
    };
    let mut ranges = Vec::new();
    loop {
        let (low, after) = rest.split_first()?;
        rest = after;
        match low {
            // As the first byte of a class, `]` is literal.
            b']' if !ranges.is_empty() => return Some((Part::Class { ranges, negated }, rest)),
            _ => {}
        }
        match rest {
            [b'-', high, after @ ..] if *high != b']' => {
                ranges.push((*low, *high));
                rest = after;
            }
            _ => ranges.push((*low, *low)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let cases: [(&str, &[&str], &[&str]); 14] = [
            ("*.py", &["a.py", "dir/b.py", ".py"], &["a.pyc", "a.py/x"]),
            ("a?c", &["abc", "x/a-c"], &["ac", "abbc"]),
            ("[a-cx]1", &["a1", "x1"], &["d1", "1"]),
            ("[!a-c]1", &["d1"], &["a1"]),
            ("[]]", &["]"], &["["]),
            ("a\\*b", &["a*b"], &["axb"]),
            ("src/*.rs", &["src/a.rs"], &["a/src/a.rs", "src/b/a.rs"]),
            ("/target", &["target"], &["a/target"]),
            ("target/", &["target", "a/target"], &["targets"]),
            ("**/node", &["node", "a/node", "a/b/node"], &["anode", "a/bnode"]),
            ("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["ab", "a/xb", "b"]),
            ("a/**", &["a/b", "a/b/c"], &["b/a", "a"]),
            ("**/**/x", &["x", "a/x"], &["ax"]),
            ("a**b", &["ab", "axxb"], &["a"]),
        ];
        for (pattern, yes, no) in cases {
            let glob = Glob::new(pattern.as_bytes()).unwrap();
            for path in yes {
                assert!(glob.matches(path.as_bytes()), "{pattern} does not match {path}");
            }
            for path in no {
                assert!(!glob.matches(path.as_bytes()), "{pattern} matches {path}");
            }
        }
        assert!(Glob::new(b"?").unwrap().matches(b"\xff"), "names need not be UTF-8");
        for (pattern, why) in [("", "empty"), ("[a", "no ]"), ("a\\", "ends in")] {
            assert!(Glob::new(pattern.as_bytes()).unwrap_err().contains(why), "{pattern}");
        }
        assert!(Glob::new(&[b'a'; 1025]).is_err());
    }

    #[test]
    fn pathological_patterns_match_in_bounded_time() {
        let begin = std::time::Instant::now();
        let glob = Glob::new("*a".repeat(500).as_bytes()).unwrap();
        assert!(!glob.matches(&vec![b'a'; 400]));
        assert!(!glob.matches(&[vec![b'a'; 4000], vec![b'b']].concat()));
        assert!(begin.elapsed() < std::time::Duration::from_secs(5));
    }
}
