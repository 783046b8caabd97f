//! Suggestions for misspelt words.

/// Returns the known word nearest to `word`, or none if all are too far away to be a typo.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().flat_map(char::to_lowercase).collect();
    // The distance takes quadratic time; words of this length are not typos.
    if word.is_empty() || word.len() > 64 {
        return None;
    }
    let max_distance = (word.len() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, _)| *distance <= max_distance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the part of a message that says what is allowed: the word that was meant, if one is near, before all that are known.
pub(crate) fn choice(meant: Option<&str>, known: &[&str]) -> String {
    let known = known.join(", ");
    match meant {
        Some(meant) => format!("{meant}, if that is meant, or another of {known}"),
        None => format!("one of {known}"),
    }
}

/// Returns the part of a message that names the nearest word.
pub(crate) fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!(", did you mean {nearest}?")).unwrap_or_default()
}

/// Returns the edit distance: insertions, deletions, replacements, and exchanges of neighbours.
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, a_char) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b_char) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(a_char != b_char);
            let mut least = replaced.min(row[j] + 1).min(last[j + 1] + 1);
            if i > 0 && j > 0 && a[i - 1] == *b_char && b[j - 1] == *a_char {
                let earlier: &Vec<usize> = &before;
                least = least.min(earlier[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_word() {
        let known = ["python", "javascript", "ruby", "c", "sh"];
        let cases = [
            ("pyton", Some("python")),
            ("Python", Some("python")),
            ("javscrpt", Some("javascript")),
            ("rubby", Some("ruby")),
            ("hs", Some("sh")),
            ("cobol", None),
            ("", None),
            ("d", Some("c")),
        ];
        for (word, expected) in cases {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
        assert_eq!(nearest(&"p".repeat(1000), known), None);
    }
}
