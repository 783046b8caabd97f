//! Colours for code that is being typed, and the words that complete it.

use super::lexical::{Rules, after_quote, after_short_quote, rules};

/// Maximum length of text that is coloured, in bytes: every key colours it anew.
const MAX_BYTES: usize = 32 << 10;

const KEYWORD: &str = "\u{1b}[34m";
const STRING: &str = "\u{1b}[32m";
const NUMBER: &str = "\u{1b}[36m";
const COMMENT: &str = "\u{1b}[90m";
const RESET: &str = "\u{1b}[0m";

const PYTHON: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "case", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is",
    "lambda", "match", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

const SCRIPT: &[&str] = &[
    "as",
    "async",
    "await",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "continue",
    "debugger",
    "default",
    "delete",
    "do",
    "else",
    "enum",
    "export",
    "extends",
    "false",
    "finally",
    "for",
    "from",
    "function",
    "if",
    "implements",
    "import",
    "in",
    "instanceof",
    "interface",
    "let",
    "new",
    "null",
    "of",
    "private",
    "protected",
    "public",
    "return",
    "static",
    "super",
    "switch",
    "this",
    "throw",
    "true",
    "try",
    "type",
    "typeof",
    "undefined",
    "var",
    "void",
    "while",
    "with",
    "yield",
];

const SHELL: &[&str] = &[
    "case", "do", "done", "elif", "else", "esac", "export", "fi", "for", "function", "if", "in", "local",
    "return", "then", "until", "while",
];

/// Returns the keywords of a language, as far as they are known.
pub(super) fn keywords(language: &str) -> &'static [&'static str] {
    match language {
        "python" => PYTHON,
        "javascript" | "typescript" => SCRIPT,
        "bash" => SHELL,
        _ => &[],
    }
}

/// Colours keywords, strings, numbers and comments. The text itself stays the same; `None` if there is nothing to colour.
pub(super) fn highlight(language: &str, text: &str) -> Option<String> {
    if text.is_empty() || text.len() > MAX_BYTES {
        return None;
    }
    let (rules, keywords) = (rules(language), keywords(language));
    let mut coloured = String::with_capacity(text.len() * 2);
    let mut rest = text;
    while let Some(token) = Token::next(rest, rules) {
        let (part, after) = rest.split_at_checked(token.len)?;
        let colour = match token.kind {
            Kind::Word if keywords.contains(&part) => Some(KEYWORD),
            Kind::Word | Kind::Other => None,
            Kind::Text => Some(STRING),
            Kind::Number => Some(NUMBER),
            Kind::Comment => Some(COMMENT),
        };
        match colour {
            Some(colour) => coloured.extend([colour, part, RESET]),
            None => coloured.push_str(part),
        }
        rest = after;
    }
    Some(coloured)
}

/// Returns the words of some code, without numbers and the content of strings and comments.
pub(super) fn words<'a>(language: &str, text: &'a str) -> impl Iterator<Item = &'a str> {
    let rules = rules(language);
    let mut rest = text;
    std::iter::from_fn(move || {
        while let Some(token) = Token::next(rest, rules) {
            let (part, after) = rest.split_at_checked(token.len)?;
            rest = after;
            if token.kind == Kind::Word {
                return Some(part);
            }
        }
        None
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Number,
    Text,
    Comment,
    Other,
}

/// A part of some code, and its length in bytes.
struct Token {
    kind: Kind,
    len: usize,
}

impl Token {
    fn next(rest: &str, rules: &Rules) -> Option<Self> {
        let first = rest.chars().next()?;
        let token = |kind, len| Some(Self { kind, len });
        let until = |end: Option<&str>| rest.len() - end.map_or(0, str::len);
        if let Some(quote) = rules.long.iter().find(|quote| rest.starts_with(**quote)) {
            return token(
                Kind::Text,
                until(rest.get(quote.len()..).and_then(|text| after_quote(text, quote))),
            );
        }
        if rules.short.contains(&first) {
            return token(Kind::Text, until(rest.get(1..).map(|text| after_short_quote(text, first))));
        }
        if let Some((begin, end)) = rules.block.filter(|(begin, _)| rest.starts_with(begin)) {
            let end_at = rest.get(begin.len()..).and_then(|text| text.find(end));
            return token(Kind::Comment, end_at.map_or(rest.len(), |at| begin.len() + at + end.len()));
        }
        if rest.starts_with(rules.comment) {
            return token(Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
        }
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        if is_word(first) {
            let is_number = first.is_ascii_digit();
            let belongs = |character: char| is_word(character) || (is_number && character == '.');
            let len = rest.find(|character| !belongs(character)).unwrap_or(rest.len());
            return token(if is_number { Kind::Number } else { Kind::Word }, len);
        }
        token(Kind::Other, first.len_utf8())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Colours text, with letters for the colours.
    fn marked(language: &str, text: &str) -> String {
        let coloured = highlight(language, text).unwrap();
        let names = [(KEYWORD, "<k "), (STRING, "<s "), (NUMBER, "<n "), (COMMENT, "<c "), (RESET, ">")];
        names.iter().fold(coloured, |text, (code, name)| text.replace(code, name))
    }

    #[test]
    fn tokens_are_coloured() {
        for (language, text, expected) in [
            ("python", "for x in range(10): # ü", "<k for> x <k in> range(<n 10>): <c # ü>"),
            ("python", "f'a\\'b' + \"\"\"x\ny", "f<s 'a\\'b'> + <s \"\"\"x\ny>"),
            ("python", "x = 'open\n1.5e3 format", "x = <s 'open>\n<n 1.5e3> format"),
            (
                "javascript",
                "const a = `x${1}` /* b */ // c",
                "<k const> a = <s `x${1}`> <c /* b */> <c // c>",
            ),
            ("typescript", "let a: number = null", "<k let> a: number = <k null>"),
            ("bash", "if true; then echo 'a b' # c", "<k if> true; <k then> echo <s 'a b'><c  # c>"),
            ("r", "x <- c(1, 'a')", "x <- c(<n 1>, <s 'a'>)"),
        ] {
            assert_eq!(marked(language, text), expected);
        }
        assert_eq!(highlight("python", ""), None);
        assert_eq!(highlight("python", &"x ".repeat(MAX_BYTES)), None);
    }

    #[test]
    fn words_are_found_outside_of_strings() {
        let found: Vec<&str> = words("python", "värde = 'text' + other.name2 # comment\n12").collect();
        assert_eq!(found, ["värde", "other", "name2"]);
    }
}
