//! Belljar's own words to the person at the terminal: lines on standard error, without escape sequences.

use std::error::Error;
use std::io::Write as _;

use belljar_model::ModelError;

/// The status when Belljar itself failed, or was given something that it refuses.
pub(crate) const FAILED: u8 = 125;

/// The status of wrong usage.
pub(crate) const USAGE: u8 = 2;

/// The status of a program whose reader has gone, as a shell shows it: 128 and `SIGPIPE`.
pub(crate) const BROKEN_PIPE: u8 = 141;

/// Why a command ends early.
#[derive(Debug)]
pub(crate) enum Quit {
    /// With this status, and nothing to say.
    Status(u8),
    /// The command line asks for something that does not go together.
    Usage(String),
    /// Something was refused, or Belljar failed.
    Error(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Quit {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

impl Quit {
    /// Tells the reason, and gives the status to end with.
    pub(crate) fn report(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Usage(text) => {
                say(&text);
                USAGE
            }
            Self::Error(error) => {
                say(&chain(error.as_ref()));
                // A value that cannot be is wrong usage, wherever it was given.
                let is_usage = error.chain().any(|cause| cause.is::<ModelError>());
                if is_usage { USAGE } else { FAILED }
            }
        }
    }
}

/// Says one thing, as a line that begins with `belljar: `.
pub(crate) fn say(text: &str) {
    // Where nobody can be told, there is nothing else to do.
    let _ = writeln!(std::io::stderr(), "belljar: {}", clean(text));
}

/// An error with its causes, from the outside in.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        // A transparent error repeats the words of what it wraps.
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    text
}

/// Text that may come from inside a sandbox, without anything that a terminal acts on but line ends.
pub(crate) fn clean(text: &str) -> String {
    text.trim_end()
        .chars()
        .map(|character| match character {
            '\n' => '\n',
            // These turn the direction of what follows, and so can hide what a line says.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
            character if character.is_control() => char::REPLACEMENT_CHARACTER,
            character => character,
        })
        .collect()
}

/// Like [`clean`], on one line and of at most `most` characters.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let mut line: String = clean(line).chars().take(most).collect();
    line.truncate(line.trim_end().len());
    line
}

/// Escapes what JSON allows but a terminal acts on: DEL, the C1 controls (among them an 8-bit escape), and marks that turn
/// the direction of text. They can stand only within JSON's strings, so the value stays the same.
pub(crate) fn without_controls(json: &str) -> String {
    let acts = |character: char| matches!(character, '\u{7f}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut safe = String::with_capacity(json.len() + 1);
    for character in json.chars() {
        if acts(character) {
            safe.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            safe.push(character);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_gets_through() {
        for (text, expected) in [
            ("plain ü\n", "plain ü"),
            ("two\nlines", "two\nlines"),
            ("\u{1b}[31mred\u{7}", "\u{fffd}[31mred\u{fffd}"),
            ("\u{9b}2J\r\t", "\u{fffd}2J"),
            ("a\u{202e}b", "a\u{fffd}b"),
        ] {
            assert_eq!(clean(text), expected);
        }
        assert_eq!(one_line("\n Python 3.11.2 \nmore", 60), "Python 3.11.2");
        assert_eq!(one_line("abcdef", 3), "abc");
    }

    #[test]
    fn a_chain_names_each_cause_once() {
        let cause = std::io::Error::other("no such file");
        let error = anyhow::Error::new(cause).context("cannot read x");
        assert_eq!(chain(error.as_ref()), "cannot read x: no such file");
    }
}
