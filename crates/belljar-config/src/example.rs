//! The example file: every setting with its default, commented out.

use std::fmt::Write as _;

use crate::settings::SETTINGS;

const HEAD: &str = concat!(
    "\
# Configuration of Belljar's service. A line that begins with #: is a setting with its default; remove the #: to change it.
# Environment variables override this file, flags override both: server.listen is BELLJAR_SERVER_LISTEN, and --set server.listen=…
# A running server applies changes of settings marked (reloaded) on SIGHUP; the others need a restart.
# `belljar config check` reports all mistakes in a file, `belljar config show` the effective values and where each is set.
# Pages such as docs/e2b.md are in ",
    env!("CARGO_PKG_REPOSITORY"),
    ".\n"
);

/// Maximum width of the example's lines, in characters.
const WIDTH: usize = 110;

/// Returns a commented file with every setting and its default.
#[must_use]
pub fn example() -> String {
    let mut text = HEAD.to_owned();
    let mut section = "";
    for setting in SETTINGS.iter() {
        if setting.section() != section {
            section = setting.section();
            // Writing to memory does not fail.
            let _ = writeln!(text, "\n[{section}]");
        }
        let reloaded = if setting.reload { " (reloaded)" } else { "" };
        let alias = setting.alias.map(|name| format!(" Also by the variable {name}.")).unwrap_or_default();
        text.push_str(&comment(&format!("{}{alias}{reloaded}", setting.text)));
        let _ = writeln!(text, "#:{} = {}", setting.name(), setting.default);
    }
    text
}

/// Formats a text as comment lines.
fn comment(text: &str) -> String {
    let mut lines = String::new();
    let mut line = "#".to_owned();
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = "#".to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    lines.push_str(&line);
    lines.push('\n');
    lines
}
