//! "Did you mean": the known word nearest to a misspelt one.

/// Finds the known word nearest to `word`, or none when all are too far away to be a slip.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().flat_map(char::to_lowercase).collect();
    // The distance is quadratic; nobody mistypes a word of this length.
    if word.is_empty() || word.len() > 64 {
        return None;
    }
    let most = (word.len() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The part of a message that names the nearest word.
pub(crate) fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!(", did you mean {nearest}?")).unwrap_or_default()
}

/// The number of letters to insert, remove or replace to make one word from the other.
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
    fn the_nearest_word_is_found() {
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
