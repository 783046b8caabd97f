//! Belljar's own messages to the user: lines on standard error, without escape sequences.

use std::error::Error;
use std::io::Write as _;

use belljar_model::{ModelError, is_directional};

/// Exit status when Belljar itself failed, or refused its input.
pub(crate) const FAILED: u8 = 125;

/// Exit status of wrong usage.
pub(crate) const USAGE: u8 = 2;

/// Exit status of a program whose reader has closed the pipe, as a shell shows it: 128 plus `SIGPIPE`.
pub(crate) const BROKEN_PIPE: u8 = 141;

/// Reason for a command to end early.
#[derive(Debug)]
pub(crate) enum Quit {
    /// Exits with this status, without a message.
    Status(u8),
    /// The command line is invalid.
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
    /// Prints the reason, and returns the exit status.
    pub(crate) fn report(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Usage(text) => {
                say(&text);
                USAGE
            }
            Self::Error(error) => {
                say(&chain(error.as_ref()));
                // An invalid value is wrong usage, wherever it was given.
                let is_usage = error.chain().any(|cause| cause.is::<ModelError>());
                if is_usage { USAGE } else { FAILED }
            }
        }
    }
}

/// Prints a message to standard error, as a line that begins with `belljar: `.
pub(crate) fn say(text: &str) {
    // If standard error cannot be written, nothing else can be done.
    let _ = writeln!(std::io::stderr(), "belljar: {}", clean(text));
}

/// Formats an error with its causes, outermost first.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        // A transparent error repeats the text of the error it wraps.
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        source = cause.source();
    }
    text
}

/// Sanitizes text that may come from a sandbox: removes everything that a terminal interprets but line ends.
pub(crate) fn clean(text: &str) -> String {
    text.trim_end()
        .chars()
        .map(|character| match character {
            '\n' => '\n',
            character if character.is_control() || is_directional(character) => char::REPLACEMENT_CHARACTER,
            character => character,
        })
        .collect()
}

/// Quotes a word for a shell.
pub(crate) fn shell_quote(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_@%+=:,./-".contains(character);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Like [`clean`], but only the first line, of at most `most` characters.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let mut line: String = clean(line).chars().take(most).collect();
    line.truncate(line.trim_end().len());
    line
}

/// Escapes characters that JSON allows but a terminal interprets: DEL, the C1 controls (among them an 8-bit escape), and
/// marks that change the direction of text. They can occur only in JSON's strings, so the value stays the same.
pub(crate) fn without_controls(json: &str) -> String {
    let is_unsafe = |character: char| matches!(character, '\u{7f}'..='\u{9f}') || is_directional(character);
    let mut safe = String::with_capacity(json.len() + 1);
    for character in json.chars() {
        if is_unsafe(character) {
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
    fn terminal_controls_are_removed() {
        for (text, expected) in [
            ("plain ü\n", "plain ü"),
            ("two\nlines", "two\nlines"),
            ("\u{1b}[31mred\u{7}", "\u{fffd}[31mred\u{fffd}"),
            ("\u{9b}2J\r\t", "\u{fffd}2J"),
            ("a\u{202e}b", "a\u{fffd}b"),
            ("a\u{200f}b\u{61c}", "a\u{fffd}b\u{fffd}"),
        ] {
            assert_eq!(clean(text), expected);
        }
        assert_eq!(one_line("\n Python 3.11.2 \nmore", 60), "Python 3.11.2");
        assert_eq!(one_line("abcdef", 3), "abc");
    }

    #[test]
    fn chain_names_each_cause_once() {
        let cause = std::io::Error::other("no such file");
        let error = anyhow::Error::new(cause).context("cannot read x");
        assert_eq!(chain(error.as_ref()), "cannot read x: no such file");
    }
}
