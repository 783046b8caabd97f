//! A file to begin with: every setting with its default, commented out.

use std::fmt::Write as _;

use crate::settings::SETTINGS;

const HEAD: &str = "\
# Belljar's service. A line that begins with #: is a setting with its default; take the #: away to change it.
# Environment variables win over this file, flags over both: server.listen is BELLJAR_SERVER_LISTEN, and --set server.listen=…
# A change is taken by a running server on SIGHUP where the text says (reloaded); the others need a restart.
# `belljar config check` says what is wrong with a file, `belljar config show` what holds and where it was said.
";

/// The width of the example's lines.
const WIDTH: usize = 110;

/// A commented file with every setting and its default.
#[must_use]
pub fn example() -> String {
    let mut text = HEAD.to_owned();
    let mut section = "";
    for setting in SETTINGS {
        if setting.section() != section {
            section = setting.section();
            // Writing into memory does not fail.
            let _ = writeln!(text, "\n[{section}]");
        }
        let reloaded = if setting.reload { " (reloaded)" } else { "" };
        text.push_str(&comment(&format!("{}{reloaded}", setting.text)));
        let _ = writeln!(text, "#:{} = {}", setting.name(), setting.default);
    }
    text
}

/// A text as comment lines.
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
