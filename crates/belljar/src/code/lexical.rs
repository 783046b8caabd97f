//! Lexical rules of languages, and whether code that is being typed is complete, as far as that is possible without its interpreter.

/// Reports whether the lines so far can be run. `language` is the name of their language.
pub(super) fn is_complete(language: &str, text: &str) -> bool {
    let (rules, ends_blank) =
        (rules(language), text.rsplit('\n').next().is_none_or(|line| line.trim().is_empty()));
    match language {
        "python" => {
            // Cell magics, blocks and decorated definitions go on until a blank line.
            if text.starts_with("%%") {
                return ends_blank;
            }
            let Scanned { state, opens, .. } = scan(text, rules);
            state == State::Closed && (!(opens || text.trim_start().starts_with('@')) || ends_blank)
        }
        "bash" => scan(text, rules).state == State::Closed && !has_open_words(text),
        "javascript" | "typescript" => scan(text, rules).state == State::Closed,
        // The syntax of comments and quotes is not known for every language: a blank line ends the others.
        _ => scan(text, rules).state == State::Closed || ends_blank,
    }
}

/// One level of indentation.
pub(super) const INDENT: &str = "    ";

/// Statements of Python after which their block has nothing more.
const LAST_OF_BLOCK: [&str; 5] = ["return", "pass", "break", "continue", "raise"];

/// Returns the indentation of the line after this text, where Python has one: more after a line that opens a block or a bracket, less
/// after a block's last statement, and none after a blank line.
pub(super) fn next_indent(language: &str, text: &str) -> Option<String> {
    let line = text.rsplit('\n').next().filter(|line| !line.trim().is_empty())?;
    if language != "python" || is_complete(language, text) {
        return None;
    }
    let Scanned { state, last, .. } = scan(text, rules(language));
    let begin = line.trim_start();
    let own = line.get(..line.len() - begin.len()).unwrap_or_default();
    let word = begin.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    let indent = match (state, last) {
        (State::Quoted, _) => return None,
        (State::Closed, Some(':')) | (State::Open, Some('(' | '[' | '{')) => format!("{own}{INDENT}"),
        (State::Closed, _) if LAST_OF_BLOCK.contains(&word) => {
            own.strip_suffix(INDENT).unwrap_or_default().to_owned()
        }
        _ => own.to_owned(),
    };
    Some(indent).filter(|indent| !indent.is_empty())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    /// A bracket is open, or the line goes on.
    Open,
    /// A quote or a comment is open.
    Quoted,
}

/// What quotes, brackets and comments say of a text.
struct Scanned {
    state: State,
    /// Whether a line opened a block.
    opens: bool,
    /// The last letter of the last line that is no part of a comment, if there is one. A quote's is `"`.
    last: Option<char>,
}

/// Returns the lexical rules of a language.
pub(super) fn rules(language: &str) -> &'static Rules {
    match language {
        "python" => &PYTHON,
        "bash" => &SHELL,
        "javascript" | "typescript" => &SCRIPT,
        _ => &OTHER,
    }
}

/// The lexical rules of a language.
pub(super) struct Rules {
    /// Start of a comment that ends with its line.
    pub(super) comment: &'static str,
    /// Start and end of a comment that may span several lines.
    pub(super) block: Option<(&'static str, &'static str)>,
    /// Quotes that may span several lines; the longest first.
    pub(super) long: &'static [&'static str],
    /// Quotes that end with their line at the latest.
    pub(super) short: &'static [char],
    brackets: (&'static str, &'static str),
    /// Whether a colon at the end of a line opens a block.
    colon: bool,
}

const PYTHON: Rules = Rules {
    comment: "#",
    block: None,
    long: &["\"\"\"", "'''"],
    short: &['"', '\''],
    brackets: ("([{", ")]}"),
    colon: true,
};

const OTHER: Rules = Rules {
    comment: "#",
    block: None,
    long: &["\"", "'"],
    short: &[],
    brackets: ("([{", ")]}"),
    colon: false,
};

const SCRIPT: Rules = Rules {
    comment: "//",
    block: Some(("/*", "*/")),
    long: &["`"],
    short: &['"', '\''],
    brackets: ("([{", ")]}"),
    colon: false,
};

const SHELL: Rules = Rules {
    comment: " #",
    block: None,
    long: &["\"", "'"],
    short: &[],
    brackets: ("({", ")}"),
    colon: false,
};

/// Scans quotes, brackets and comments.
fn scan(text: &str, rules: &Rules) -> Scanned {
    let (mut depth, mut opens, mut rest) = (0_i64, false, text);
    let mut last = None;
    let quoted = |opens| Scanned { state: State::Quoted, opens, last: None };
    while let Some(character) = rest.chars().next() {
        let step = |count: usize| rest.get(count..).unwrap_or_default();
        if let Some(quote) = rules.long.iter().find(|quote| rest.starts_with(**quote)) {
            let Some(after) = after_quote(step(quote.len()), quote) else { return quoted(opens) };
            (rest, last) = (after, Some('"'));
        } else if rules.short.contains(&character) {
            (rest, last) = (after_short_quote(step(1), character), Some('"'));
        } else if let Some((_, end)) = rules.block.filter(|(begin, _)| rest.starts_with(begin)) {
            let Some((_, after)) = rest.split_once(end) else { return quoted(opens) };
            rest = after;
        } else if rest.starts_with(rules.comment) {
            rest = rest.find('\n').map_or("", step);
        } else if let Some(after) = rest.strip_prefix("\\\n") {
            if after.is_empty() {
                return Scanned { state: State::Open, opens, last: None };
            }
            rest = after;
        } else {
            depth += i64::from(rules.brackets.0.contains(character))
                - i64::from(rules.brackets.1.contains(character));
            if character == '\n' {
                opens |= rules.colon && depth <= 0 && last == Some(':');
                last = None;
            } else if !character.is_whitespace() {
                last = Some(character);
            }
            rest = step(character.len_utf8());
        }
    }
    opens |= rules.colon && depth <= 0 && last == Some(':');
    let is_open = depth > 0 || last == Some('\\');
    Scanned { state: if is_open { State::Open } else { State::Closed }, opens, last }
}

/// Returns the text after the closing quote `end`, or from the end of the line on if there is none before it.
pub(super) fn after_short_quote(text: &str, end: char) -> &str {
    let mut characters = text.chars();
    loop {
        let rest = characters.as_str();
        match characters.next() {
            None | Some('\n') => return rest,
            Some(character) if character == end => return characters.as_str(),
            // An escaped line end is one, too.
            Some('\\') if !characters.as_str().starts_with('\n') => drop(characters.next()),
            Some(_) => {}
        }
    }
}

/// Returns the text after the closing quote `end`, or `None` if there is none.
pub(super) fn after_quote<'a>(text: &'a str, end: &str) -> Option<&'a str> {
    let mut rest = text;
    loop {
        if let Some(after) = rest.strip_prefix(end) {
            return Some(after);
        }
        let mut characters = rest.chars();
        if characters.next()? == '\\' {
            characters.next();
        }
        rest = characters.as_str();
    }
}

/// Reports whether a shell's `if`, `do` or `case` is still open.
fn has_open_words(text: &str) -> bool {
    let mut depth = 0_i64;
    for word in text.split(|character: char| character.is_whitespace() || character == ';') {
        match word {
            "if" | "do" | "case" => depth += 1,
            "fi" | "done" | "esac" => depth -= 1,
            _ => {}
        }
    }
    depth > 0
}

#[cfg(test)]
mod tests {
    use super::{is_complete, next_indent};

    #[test]
    fn lines_of_python_are_indented() {
        for (text, expected) in [
            ("for a in b:", 4),
            ("if x:  # why", 4),
            ("def f():\n    if x:", 8),
            ("def f():\n    x = 1", 4),
            ("def f():\n    if x:\n        return 1", 4),
            ("while x:\n    pass", 0),
            ("f(", 4),
            ("x = [\n    1,", 4),
            ("f(a,", 0),
            ("x = {'a':", 0),
            ("@wraps", 0),
            ("'''a:", 0),
            ("if x:\n    y = '''a:", 0),
            ("x = 1", 0),
            ("d[1:2]", 0),
            ("if x:\n    ", 0),
            ("if x:\n    returned = 1", 4),
            ("", 0),
        ] {
            let indent = next_indent("python", text).unwrap_or_default();
            assert_eq!((indent.len(), indent.trim()), (expected, ""), "{text:?}");
        }
        assert_eq!(next_indent("javascript", "f({"), None);
    }

    #[test]
    fn python_blocks_end_with_a_blank_line() {
        for text in [
            "1 + 1",
            "",
            "x = {'a': 1}",
            "print('(')",
            "# (",
            "x = 'it''s' # :",
            "if x: y",
            "!ls",
            "d[1:2]",
            "f('''a''')",
            "'\\''",
        ] {
            assert!(is_complete("python", text), "{text:?}");
        }
        for text in [
            "if x:",
            "def f():\n  return 1",
            "f(1,",
            "x = [1,\n2",
            "'''a\n",
            "x = 1 + \\",
            "@wraps",
            "for a in b:  # c",
            "%%time\n1",
        ] {
            assert!(!is_complete("python", text), "{text:?}");
        }
        for text in [
            "if x:\n  y\n",
            "def f():\n  return 1\n\n",
            "'''a\n'''",
            "@a\ndef f(): pass\n\n",
            "f(1,\n2)",
            "%%time\n1\n\n",
        ] {
            assert!(is_complete("python", text), "{text:?}");
        }
    }

    #[test]
    fn long_text_is_scanned_in_one_pass() {
        let text = "'a' \"b ".repeat(1 << 18);
        assert!(is_complete("python", &text) && is_complete("javascript", &text));
    }

    #[test]
    fn other_languages_continue_while_a_quote_or_bracket_is_open() {
        for text in ["1 + 1", "'('", "/* ( */ 1", "a = `x\n`", "if (x) { y }", "// {"] {
            assert!(is_complete("javascript", text), "{text:?}");
        }
        for text in ["f(", "if (x) {", "`a", "/* a", "({a: [1,"] {
            assert!(!is_complete("javascript", text), "{text:?}");
        }
        for text in ["x <- c(1,\n2)", "# it's", "f('a", "g(\n"] {
            assert!(is_complete("r", &format!("{text}\n")), "{text:?}");
        }
        assert!(!is_complete("r", "c(1,") && !is_complete("jupyter:x", "'a"));
        for text in ["ls", "echo 'a b'", "for a in b; do echo $a; done", "if x; then y; fi", "echo a # it's"]
        {
            assert!(is_complete("bash", text), "{text:?}");
        }
        for text in ["for a in b; do", "if x; then", "echo 'a", "f() {", "a \\\n", "(cd x"] {
            assert!(!is_complete("bash", text), "{text:?}");
        }
    }
}
