//! Code as its language reads it, where that is not as it is written: names in other letters, escapes in names, words over several lines.

use std::sync::LazyLock;

use regex_lite::Regex;
use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

use crate::cells::cells;
use crate::language::Language;

/// Largest number of words that a list in braces becomes, and the largest reading, in bytes.
const MAX_WORDS: usize = 1024;
const MAX_BYTES: usize = 4 << 20;

/// Another reading of code, and where its bytes were written.
pub(crate) struct Reading {
    code: String,
    /// Beginnings of stretches: their offset in the code, and in what was written.
    stretches: Vec<(usize, usize)>,
    /// Offsets of the lines of what was written.
    lines: Vec<usize>,
    /// Whether the language reads more.
    pub(crate) is_cut: bool,
}

impl Reading {
    /// Returns how the language reads the code, if that is another text. The code is to be read as it is written too: what is the same
    /// for its language in one place is not in another, such as in a comment.
    pub(crate) fn of(language: Language, written: &str) -> Option<Self> {
        let mut made = Made::new(written);
        match language {
            Language::Python => python(&mut made),
            Language::JavaScript | Language::TypeScript => javascript(&mut made),
            Language::Bash => bash(&mut made),
            Language::Rust => rust(&mut made),
            Language::Php => php(&mut made),
            Language::Ruby => ruby(&mut made),
            Language::Go => {}
        }
        made.finish()
    }

    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// Returns the line and the column, from 0, at which the byte at this offset was written.
    pub(crate) fn written_at(&self, offset: usize) -> (usize, usize) {
        let last = self.stretches.partition_point(|(read, _)| *read <= offset).saturating_sub(1);
        let (read, written) = self.stretches.get(last).copied().unwrap_or_default();
        let next = self.stretches.get(last + 1).map_or(usize::MAX, |(_, written)| *written);
        let at = (written + offset.saturating_sub(read)).min(next);
        let line = self.lines.partition_point(|line| *line <= at).saturating_sub(1);
        (line, at - self.lines.get(line).copied().unwrap_or_default())
    }
}

/// A reading that is being made.
struct Made<'s> {
    written: &'s str,
    code: String,
    stretches: Vec<(usize, usize)>,
    /// Offset in what was written up to which it is made.
    done: usize,
    is_cut: bool,
}

impl<'s> Made<'s> {
    fn new(written: &'s str) -> Self {
        Self { written, code: String::new(), stretches: Vec::new(), done: 0, is_cut: false }
    }

    /// Reads what was written from `start` to `end` as `read`, and all before that as it is.
    fn replace(&mut self, start: usize, end: usize, read: &str) {
        let Some(before) = self.written.get(self.done..start) else { return };
        self.stretches.push((self.code.len(), self.done));
        self.code.push_str(before);
        self.stretches.push((self.code.len(), start));
        self.code.push_str(read);
        self.done = end;
    }

    fn finish(mut self) -> Option<Reading> {
        if self.done == 0 && !self.is_cut {
            return None;
        }
        let end = self.written.len();
        self.replace(end, end, "");
        let lines = self.written.match_indices('\n').map(|(at, _)| at + 1);
        let lines = std::iter::once(0).chain(lines).collect();
        Some(Reading { code: self.code, stretches: self.stretches, lines, is_cut: self.is_cut })
    }
}

fn is_of_name(char: char) -> bool {
    char == '_' || char == '$' || char.is_alphanumeric() || is_combining_mark(char)
}

/// Names are normalized to NFKC (The Python Language Reference, 2.3): `ｏｓ` is `os`. A carriage return ends a line (2.1.2). What a context
/// does not run as Python is read for itself.
fn python(made: &mut Made<'_>) {
    let written = made.written;
    let mut cells = cells(written).into_iter().peekable();
    if written.is_ascii() && !written.contains('\r') && cells.peek().is_none() {
        return;
    }
    let mut rest = written.char_indices().peekable();
    while let Some((start, char)) = rest.next() {
        if let Some(cell) = cells.next_if(|cell| cell.range.start <= start) {
            made.replace(cell.range.start, cell.range.end, &cell.python);
            while rest.next_if(|(at, _)| *at < cell.range.end).is_some() {}
            continue;
        }
        if char == '\r' && rest.peek().is_none_or(|(_, next)| *next != '\n') {
            made.replace(start, start + 1, "\n");
        }
        if !is_of_name(char) {
            continue;
        }
        let mut end = start + char.len_utf8();
        while let Some((at, char)) = rest.next_if(|(_, char)| is_of_name(*char)) {
            end = at + char.len_utf8();
        }
        let Some(name) = written.get(start..end).filter(|name| !name.is_ascii()) else { continue };
        let normal: String = name.nfkc().collect();
        if normal != name && normal.chars().all(is_of_name) {
            made.replace(start, end, &normal);
        }
    }
}

/// Names may have escapes (ECMAScript, 12.7): `\u0065val` is `eval`. What begins like a comment of HTML is none in modules.
fn javascript(made: &mut Made<'_>) {
    let written = made.written;
    // Each end of a line ends the first one, if that names an interpreter (ECMAScript, 12.5).
    if written.starts_with("#!")
        && let Some(end) = written.find(['\r', '\n', '\u{2028}', '\u{2029}'])
    {
        let length = written.get(end..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
        made.replace(end, end + length, "\n");
    }
    let mut from = made.done;
    while let Some(at) = written.get(from..).and_then(|rest| rest.find(['\\', '<', '-'])).map(|at| from + at)
    {
        let rest = written.get(at..).unwrap_or_default();
        if rest.starts_with("<!--") || rest.starts_with("-->") {
            let split = if rest.starts_with('<') { 1 } else { 2 };
            made.replace(at + split, at + split, " ");
            from = at + split;
            continue;
        }
        let Some(rest) = rest.strip_prefix('\\') else {
            from = at + 1;
            continue;
        };
        from = match escaped_char(rest) {
            Some((char, length)) => {
                made.replace(at, at + 1 + length, char.encode_utf8(&mut [0; 4]));
                at + 1 + length
            }
            None => at + 1 + rest.chars().next().map_or(0, char::len_utf8),
        };
    }
}

/// Returns the character of a name for which an escape stands, and the length of the escape without its backslash.
fn escaped_char(escape: &str) -> Option<(char, usize)> {
    let rest = escape.strip_prefix('u')?;
    // The search ends with the digits, so that each of them is looked at once.
    let digits = |text: &str| text.find(|char: char| !char.is_ascii_hexdigit()).unwrap_or(text.len());
    let (digits, length) = match rest.strip_prefix('{') {
        Some(braced) => {
            let end = digits(braced);
            (
                braced.get(..end).filter(|_| braced.get(end..).is_some_and(|rest| rest.starts_with('}')))?,
                end + 3,
            )
        }
        None => (rest.get(..4).filter(|text| digits(text) == 4)?, 5),
    };
    let char = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
    is_of_name(char).then_some((char, length))
}

/// A carriage return ends a line, and so a comment.
fn php(made: &mut Made<'_>) {
    for (at, _) in made.written.match_indices('\r') {
        if !made.written.get(at + 1..).is_some_and(|rest| rest.starts_with('\n')) {
            made.replace(at, at + 1, "\n");
        }
    }
}

/// Raw names are the same names (The Rust Reference, Identifiers): `r#Command` is `Command`.
fn rust(made: &mut Made<'_>) {
    for (at, _) in made.written.match_indices("r#") {
        let before = made.written.get(..at).and_then(|before| before.chars().next_back());
        let after = made.written.get(at + 2..).and_then(|after| after.chars().next());
        if !before.is_some_and(is_of_name) && after.is_some_and(is_of_name) {
            made.replace(at, at + 2, "");
        }
    }
}

/// After a variable `<<` appends and `/` divides, also with a blank before and none after it, and a line that only begins with `__END__`
/// is not the end (ruby-doc.org, Miscellaneous Syntax).
fn ruby(made: &mut Made<'_>) {
    static FORMS: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r#"[\w)\]] +(?:<<["'`\w@$]|/[^\s/=])|__END__[^\r\n]"#).ok());
    let Some(forms) = FORMS.as_ref() else { return };
    for found in forms.find_iter(made.written) {
        if found.as_str().starts_with("__") {
            made.replace(found.start(), found.start() + 7, "__end__");
        } else if let Some(place) = found.as_str().rfind(['<', '/']) {
            let at = found.start() + place + 1;
            made.replace(at, at, " ");
        }
    }
}

/// A backslash before the end of a line is nothing, also inside of a word (POSIX, Shell Command Language, 2.2.1); a list in braces is
/// several words (bash(1), Brace Expansion). Null bytes are ignored. A
/// carriage return after a backslash is part of the word, so that the line ends after it.
fn bash(made: &mut Made<'_>) {
    static FORMS: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let part = r#"[^\s{},;|&()<>'"$`\\]*"#;
        let list = format!(r"(?:^|[\s;|&(])({part})\{{({part}(?:,{part})+)\}}({part})");
        Regex::new(&format!(r"\\\r?\n|\x00|(?:\$[A-Za-z_]\w*){{2,}}[^\s\w$]|{list}")).ok()
    });
    let Some(forms) = FORMS.as_ref() else { return };
    for found in forms.captures_iter(made.written) {
        let (Some(whole), Some(list)) = (found.get(0), found.get(2)) else {
            if let Some(joined) = found.get(0) {
                let names = joined.as_str().split('$').skip(1);
                let read = match joined.as_str() {
                    "\\\r\n" => "\n".to_owned(),
                    // The parser loses what follows several variables.
                    text if text.starts_with('$') => names.map(braced).collect(),
                    _ => String::new(),
                };
                made.replace(joined.start(), joined.end(), &read);
            }
            continue;
        };
        let part = |index| found.get(index).map_or("", |part| part.as_str());
        let count = list.as_str().split(',').count();
        if count > MAX_WORDS || made.code.len() + count * whole.len() > MAX_BYTES {
            made.is_cut = true;
            continue;
        }
        let words = list.as_str().split(',');
        let words: Vec<String> = words.map(|word| format!("{}{word}{}", part(1), part(3))).collect();
        let start = found.get(1).map_or(whole.start(), |prefix| prefix.start());
        made.replace(start, whole.end(), &words.join(" "));
    }
}

/// Returns a name of a variable, and what follows it, with braces.
fn braced(name: &str) -> String {
    let end = name.find(|char| !is_of_name(char)).unwrap_or(name.len());
    let (name, rest) = name.split_at(end);
    format!("${{{name}}}{rest}")
}

/// Reports whether Python code declares that its bytes are of an encoding in which they may be other text (The Python Language Reference,
/// 2.1.4).
pub(crate) fn declared_encoding(code: &str) -> Option<&str> {
    static FORM: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"^[ \t\x0c]*#.*?coding[:=][ \t]*([-_.a-zA-Z0-9]+)").ok());
    /// Encodings in which the bytes of ASCII are those characters, and nothing else is.
    const PLAIN: [&str; 9] =
        ["utf8", "utf8sig", "ascii", "usascii", "latin1", "iso88591", "iso885915", "cp1252", "windows1252"];
    let form = FORM.as_ref()?;
    let name = code
        .lines()
        .flat_map(|line| line.split('\r'))
        .take(2)
        .find_map(|line| form.captures(line)?.get(1))?
        .as_str();
    let plain = name.to_ascii_lowercase().replace(['-', '_', '.'], "");
    (!PLAIN.contains(&plain.as_str())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_read_as_its_language_reads_it() {
        for (language, written, read) in [
            (Language::Python, "import ｏｓ; ｏｓ.ｓystem('é ＂')", Some("import os; os.system('é ＂')")),
            (Language::Python, "__ｉmport__ = 𝐞𝐯𝐚𝐥", Some("__import__ = eval")),
            (Language::Python, "naïve = '日本語（）'", None),
            (Language::Python, "os.system('x')", None),
            (
                Language::JavaScript,
                r"\u0065val(a.\u{65}xec('\\u0041\u0027'))",
                Some(r"eval(a.exec('\\u0041\u0027'))"),
            ),
            (Language::JavaScript, r"\u{000065}val; \u+065; \u{+65}", Some(r"eval; \u+065; \u{+65}")),
            (Language::JavaScript, "a<!--b; c-->d", Some("a< !--b; c-- >d")),
            (Language::TypeScript, r"'\n' + /\d/ + `\`", None),
            (Language::Python, "#\rimport os\r\nx", Some("#\nimport os\r\nx")),
            (Language::Python, "x = !ls '\nimport os", Some("x = None\nimport os")),
            (Language::Php, "//\rsystem('x');\r\n", Some("//\nsystem('x');\r\n")),
            (Language::Bash, "r\0m -rf /", Some("rm -rf /")),
            (Language::Bash, "r\\\nm -r\\\nf /", Some("rm -rf /")),
            (Language::Bash, "{rm,-rf,/}; a{b,c}d", Some("rm -rf /; abd acd")),
            (Language::Bash, "echo ${a} {b} '{c}'", None),
            (
                Language::Rust,
                "r#std::r#process::Command; r#\"x\"#; bar#b",
                Some("std::process::Command; r#\"x\"#; bar#b"),
            ),
            (Language::Go, "r#a\\\n", None),
            (Language::Bash, "rm /$x$y/ $x/ $x", Some("rm /${x}${y}/ $x/ $x")),
            (Language::Bash, "true\\\r\nrm", Some("true\nrm")),
            (Language::JavaScript, "#!x\u{2028}y\\u0061", Some("#!x\nya")),
            (Language::Ruby, "x <<y; @a <<1; z /1; p <<~E", Some("x << y; @a << 1; z / 1; p <<~E")),
            (Language::Ruby, "__END__ if x\n__END__\n", Some("__end__ if x\n__END__\n")),
        ] {
            let reading = Reading::of(language, written);
            assert_eq!(reading.as_ref().map(Reading::code), read, "{written}");
        }
    }

    /// Each of these took time that grows with the square of its length: seconds.
    #[test]
    fn readings_take_time_that_grows_with_the_code() {
        use crate::budget::Budget;
        for (language, code) in [
            (Language::JavaScript, format!("//{}", r"\u{".repeat(300_000))),
            (Language::JavaScript, format!("//{}", r"\u{0".repeat(250_000))),
            (Language::TypeScript, format!("// \\u{{{}", "0".repeat(1_000_000))),
            (Language::JavaScript, "<!--".repeat(250_000)),
            (Language::Python, "x = !".repeat(200_000)),
            (Language::Python, "!a\\\n".repeat(200_000)),
            (Language::Python, "=".repeat(1_000_000)),
            (Language::Python, "\r".repeat(1_000_000)),
            (Language::Bash, "{a,".repeat(300_000)),
            (Language::Bash, format!(" {}{{{}}}", "a".repeat(100_000), "x,".repeat(1_000))),
        ] {
            let budget = Budget::new(std::time::Duration::from_secs(2));
            let reading = Reading::of(language, &code);
            let shown: String = code.chars().take(12).collect();
            assert!(!budget.is_over(), "{}: {shown}", language.as_str());
            assert!(reading.is_none_or(|reading| reading.code().len() <= 2 * MAX_BYTES), "{shown}");
        }
    }

    #[test]
    fn long_lists_in_braces_are_not_cut_in_silence() {
        let list = |count: usize| format!("{{rm,-rf,{}/}}", "a,".repeat(count));
        let read = |count| Reading::of(Language::Bash, &list(count)).unwrap();
        assert!(read(62).code().ends_with(" a /") && !read(62).is_cut);
        assert!(read(MAX_WORDS).is_cut);
    }

    #[test]
    fn places_are_those_of_what_was_written() {
        let reading = Reading::of(Language::Bash, "a\nr\\\nm x\\\ny\nz").unwrap();
        assert_eq!(reading.code(), "a\nrm xy\nz");
        let at = |text: &str| reading.written_at(reading.code().find(text).unwrap());
        assert_eq!(
            [at("a"), at("rm"), at("m"), at("x"), at("y"), at("z")],
            [(0, 0), (1, 0), (2, 0), (2, 2), (3, 0), (4, 0)]
        );
        let reading = Reading::of(Language::Python, "ｏｓ.ｓystem('x')").unwrap();
        let at = |text: &str| reading.written_at(reading.code().find(text).unwrap());
        assert_eq!([at("os"), at("."), at("system"), at("'x'")], [(0, 0), (0, 6), (0, 7), (0, 16)]);
    }

    #[test]
    fn encodings_are_declared_as_in_python() {
        for (code, expected) in [
            ("# coding: utf-7\nx", Some("utf-7")),
            ("#!/usr/bin/python\n# -*- coding: UTF-16 -*-", Some("UTF-16")),
            ("# vim: set fileencoding=utf-8 :", None),
            ("# coding: latin-1", None),
            ("x\ny\n# coding: utf-7", None),
            ("x = 'coding: utf-7'", None),
        ] {
            assert_eq!(declared_encoding(code), expected, "{code}");
        }
    }
}
