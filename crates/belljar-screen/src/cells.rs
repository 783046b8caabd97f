//! Cells of IPython, as contexts of Python run them: magics, and commands of a shell (docs/python-kernel.md).

use std::ops::Range;

use crate::language::Language;

/// A part of a cell that is not run as Python, or not as it is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) language: Language,
    pub(crate) code: String,
    /// Where it was written, in bytes.
    pub(crate) range: Range<usize>,
}

/// Ends of lines as Python's `splitlines` has them.
const ENDS: [char; 10] =
    ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];

/// Magics that work without their percent sign and start programs, or have the name of one.
const COMMANDS: [&str; 9] = ["system", "sx", "sc", "run", "rm", "mv", "cp", "pip", "alias"];

/// Reports whether the code has lines for IPython that it has not for Python.
pub(crate) fn has_other_lines(code: &str) -> bool {
    code.contains(&ENDS[1..])
}

/// Returns the magics and commands in code. Those in texts over several lines are among them.
pub(crate) fn cells(code: &str) -> Vec<Cell> {
    let start = code.len() - code.trim_start().len();
    if let Some(cell) = code.get(start..).and_then(|cell| cell.strip_prefix("%%")) {
        let (line, body) = cell.split_once(ENDS).unwrap_or((cell, ""));
        let (name, rest) = word(line);
        let cells = cell_magic(name, rest, body).into_iter();
        return cells
            .map(|(language, code)| Cell { language, code, range: start..start + 2 + cell.len() })
            .collect();
    }
    let is_single = !code.trim().contains(ENDS);
    let mut found: Vec<Cell> = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let end = line_end(code, at);
        let line = code.get(at..end).unwrap_or_default();
        if let Some((offset, (language, inner))) = escape(line, is_single) {
            // A backslash continues the line.
            let mut last = end;
            while code.get(..last).is_some_and(|line| line.ends_with('\\')) && last < code.len() {
                last = line_end(
                    code,
                    last + code.get(last..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8),
                );
            }
            let code = inner + code.get(end..last).unwrap_or_default();
            found.push(Cell { language, code, range: at + offset..last });
            at = last;
        } else {
            at = end;
        }
        at += code.get(at..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
    }
    found
}

fn line_end(code: &str, from: usize) -> usize {
    code.get(from..).and_then(|rest| rest.find(ENDS)).map_or(code.len(), |end| from + end)
}

/// Returns where in a line a magic or a command begins, and what is run.
fn escape(line: &str, is_single: bool) -> Option<(usize, (Language, String))> {
    let begin = line.trim_start();
    let at = |rest: &str| line.len() - rest.len();
    if let Some(run) = magic_or_command(begin) {
        return Some((at(begin), run));
    }
    let (name, rest) = word(begin);
    if is_single && COMMANDS.contains(&name) && !rest.is_empty() && !rest.starts_with(['=', '(', '.', ',']) {
        return Some((at(begin), line_magic(name, rest)));
    }
    // `,f a b`, `;f a b` and `/f a` call `f`.
    if let Some(call) = begin.strip_prefix([',', ';', '/']).filter(|call| call.starts_with(is_of_word)) {
        let (name, rest) = call.split_once(' ').unwrap_or((call, ""));
        let given = match begin.as_bytes().first() {
            Some(b'/') => rest.to_owned(),
            Some(b';') => format!("{rest:?}"),
            _ => rest.split_whitespace().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", "),
        };
        return Some((at(begin), (Language::Python, format!("{name}({given})"))));
    }
    // `x = !command`
    line.match_indices('=').find_map(|(place, _)| {
        let value = line.get(place + 1..)?.trim_start();
        let run = magic_or_command(value)?;
        Some((at(value), run))
    })
}

fn magic_or_command(text: &str) -> Option<(Language, String)> {
    if let Some(command) = text.strip_prefix('!').filter(|rest| !rest.starts_with('=')) {
        return Some((Language::Bash, command.trim_start_matches('!').to_owned()));
    }
    let magic = text.strip_prefix('%').filter(|rest| rest.starts_with(is_of_word))?;
    let (name, rest) = word(magic);
    Some(line_magic(name, rest))
}

fn is_of_word(char: char) -> bool {
    char == '_' || char.is_alphanumeric()
}

/// Splits a text after its first word.
fn word(text: &str) -> (&str, &str) {
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    (name, rest.trim_start())
}

fn line_magic(name: &str, rest: &str) -> (Language, String) {
    match name {
        "system" | "sx" | "sc" => (Language::Bash, rest.to_owned()),
        "time" | "timeit" | "prun" | "memit" | "debug" => {
            let mut code = rest;
            while code.starts_with('-') {
                code = word(code).1;
            }
            (Language::Python, code.to_owned())
        }
        "alias" => (Language::Bash, word(rest).1.to_owned()),
        "run" => (Language::Bash, format!("python3 {rest}")),
        // Many are named after the program that they start, such as `%rm` and `%pip`.
        _ => (Language::Bash, format!("{name} {rest}")),
    }
}

fn cell_magic(name: &str, rest: &str, body: &str) -> Vec<(Language, String)> {
    let body = body.to_owned();
    match name {
        "bash" | "sh" => vec![(Language::Bash, body)],
        "!" | "system" | "sx" => vec![(Language::Bash, format!("{rest}\n{body}"))],
        "script" => vec![(Language::Bash, format!("{rest} <<'END OF CELL'\n{body}\nEND OF CELL\n"))],
        "python" | "python2" | "python3" | "pypy" => vec![(Language::Python, body)],
        "javascript" | "js" => vec![(Language::JavaScript, body)],
        "ruby" => vec![(Language::Ruby, body)],
        "html" | "HTML" | "svg" | "SVG" | "markdown" | "latex" | "writefile" | "file" => Vec::new(),
        _ => vec![line_magic(name, rest), (Language::Python, body)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_run_as_python_is_found() {
        let bash = |code: &str| vec![(Language::Bash, code.to_owned())];
        let python = |code: &str| vec![(Language::Python, code.to_owned())];
        for (code, expected) in [
            ("!rm -rf /", bash("rm -rf /")),
            ("  !!rm -rf /", bash("rm -rf /")),
            ("x = !rm -rf /\ny", bash("rm -rf /")),
            ("!rm \\\n-rf /\nx", bash("rm \\\n-rf /")),
            ("#\u{2028}!rm", bash("rm")),
            ("a = 1\n%system ls", bash("ls")),
            ("x = %sx ls", bash("ls")),
            ("%rm -rf /", bash("rm -rf /")),
            ("sx ls", bash("ls")),
            ("%time -n1 f()", python("f()")),
            (";os.system rm -rf /", python("os.system(\"rm -rf /\")")),
            ("\n%%bash -e\nls\nid", bash("ls\nid")),
            ("%%script python3\nx", bash("python3 <<'END OF CELL'\nx\nEND OF CELL\n")),
            ("%%python\nx", python("x")),
            ("%%html\nx", vec![]),
            ("x != 1\nf(a\n  % b, c\n  != d)", vec![]),
            ("run = 1", vec![]),
        ] {
            let found: Vec<_> = cells(code).into_iter().map(|cell| (cell.language, cell.code)).collect();
            assert_eq!(found, expected, "{code}");
        }
        assert_eq!(cells("x = !ls\ny")[0].range, 4..7);
    }
}
