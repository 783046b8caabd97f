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

/// Returns the part of a message that names the nearest word.
pub(crate) fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!(", did you mean {nearest}?")).unwrap_or_default()
}

/// Returns the edit distance: insertions, deletions and replacements.
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a_char) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b_char) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(a_char != b_char);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
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
