//! Shell patterns over names of any bytes. Matching takes time in proportion to the pattern and the name, whatever they
//! are: all ways to match are followed at once.

/// The longest pattern, in bytes.
const MAX_BYTES: usize = 1024;

/// A pattern: `*`, `?`, `[a-z]`, `[!a-z]`, `**`, and `\` before a byte that shall mean itself.
#[derive(Debug)]
pub struct Glob {
    parts: Vec<Part>,
    /// Whether it speaks of a whole path, not of one name.
    has_slash: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Byte(u8),
    /// Any byte but a slash.
    Any,
    Class {
        ranges: Vec<(u8, u8)>,
        negated: bool,
    },
    /// Any number of bytes but slashes.
    Star,
    /// Any number of bytes.
    DoubleStar,
    /// `**/`: nothing, or what `InLevels` takes. It comes in pairs with that.
    Levels,
    /// Anything that ends in a slash.
    InLevels,
}

impl Glob {
    /// Reads a pattern.
    ///
    /// # Errors
    /// Why it is none.
    pub fn new(pattern: &[u8]) -> Result<Self, &'static str> {
        if pattern.is_empty() {
            return Err("the pattern is empty");
        }
        if pattern.len() > MAX_BYTES {
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
                    let (class, after) = class(rest).ok_or("a [ has no ]")?;
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

    /// Whether a path, relative and with slashes, matches: all of it if the pattern has a slash, else its last name.
    pub fn matches(&self, path: &[u8]) -> bool {
        let name = path.iter().rposition(|byte| *byte == b'/').map_or(path, |slash| &path[slash + 1..]);
        self.matches_all(if self.has_slash { path } else { name })
    }

    fn matches_all(&self, text: &[u8]) -> bool {
        // Places in the pattern that what was read so far may have led to.
        let mut now = vec![false; self.parts.len() + 1];
        let mut next = now.clone();
        now[0] = true;
        self.skip(&mut now);
        for byte in text {
            next.fill(false);
            for (index, part) in self.parts.iter().enumerate().filter(|(index, _)| now[*index]) {
                match part {
                    Part::Byte(wanted) => next[index + 1] |= wanted == byte,
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
            self.skip(&mut next);
            std::mem::swap(&mut now, &mut next);
        }
        now[self.parts.len()]
    }

    /// Goes on past parts that may stand for nothing.
    fn skip(&self, places: &mut [bool]) {
        for (index, part) in self.parts.iter().enumerate() {
            if !places[index] {
                continue;
            }
            match part {
                Part::Star | Part::DoubleStar => places[index + 1] = true,
                Part::Levels => {
                    places[index + 1] = true;
                    places[index + 2] = true;
                }
                _ => {}
            }
        }
    }
}

/// The class behind a `[`, and what follows its `]`.
fn class(rest: &[u8]) -> Option<(Part, &[u8])> {
    let (negated, mut rest) = match rest.first()? {
        b'!' | b'^' => (true, &rest[1..]),
        _ => (false, rest),
    };
    let mut ranges = Vec::new();
    loop {
        let (low, after) = rest.split_first()?;
        rest = after;
        match low {
            // As the first of a class it means itself.
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
        assert!(Glob::new(b"?").unwrap().matches(b"\xff"), "names need not be text");
        for (pattern, why) in [("", "empty"), ("[a", "no ]"), ("a\\", "ends in")] {
            assert!(Glob::new(pattern.as_bytes()).unwrap_err().contains(why), "{pattern}");
        }
        assert!(Glob::new(&[b'a'; 1025]).is_err());
    }

    #[test]
    fn patterns_made_to_take_long_do_not() {
        let begin = std::time::Instant::now();
        let glob = Glob::new("*a".repeat(500).as_bytes()).unwrap();
        assert!(!glob.matches(&vec![b'a'; 400]));
        assert!(!glob.matches(&[vec![b'a'; 4000], vec![b'b']].concat()));
        assert!(begin.elapsed() < std::time::Duration::from_secs(5));
    }
}
