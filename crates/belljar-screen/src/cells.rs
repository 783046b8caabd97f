//! Cells of IPython, as contexts of Python run them: magics, and commands of a shell (docs/python-kernel.md).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use regex_lite::Regex;

use crate::language::Language;

/// A part of a cell that is not run as Python, or not as it is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) language: Language,
    pub(crate) code: String,
    /// Where it was written, in bytes.
    pub(crate) range: Range<usize>,
    /// What stands for it in Python.
    pub(crate) python: String,
}

/// Code, and its language.
type Run = (Language, String);

/// Ends of lines as Python's `splitlines` has them.
const ENDS: [char; 10] =
    ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];

/// Words with which a line of Python alone begins. All others may be magics, as `%rehashx` makes one of each program.
const KEYWORDS: [&str; 23] = [
    "and", "assert", "async", "await", "class", "def", "del", "elif", "else", "for", "from", "global", "if",
    "import", "lambda", "nonlocal", "not", "raise", "return", "try", "while", "with", "yield",
];

/// Magics that pass their text to a shell, also where it begins like the arguments of a call.
const SHELLS: [&str; 2] = ["system", "sx"];

/// Options of `%%script` and its like that are no arguments of the program.
const SCRIPT_OPTIONS: [&str; 5] = ["--out", "--err", "--proc", "--bg", "--no-raise-error"];

/// Reports whether a context may run the code otherwise than as Python, though it is: it looks for magics in cells of one line, and removes
/// prompts.
pub(crate) fn may_be_other(code: &str) -> bool {
    code.contains(&ENDS[1..]) || !code.trim().contains(ENDS) || without_prompts(code).is_some()
}

/// Returns the magics and commands in code. Those in texts over several lines are among them.
pub(crate) fn cells(code: &str) -> Vec<Cell> {
    if let Some(stripped) = without_prompts(code) {
        let python = stripped.clone();
        return vec![Cell { language: Language::Python, code: stripped, range: 0..code.len(), python }];
    }
    let start = code.len() - code.trim_start().len();
    if let Some(cell) = code.get(start..).and_then(|cell| cell.strip_prefix("%%")) {
        let (line, body) = cell.split_once(ENDS).unwrap_or((cell, ""));
        let (name, rest) = word(line);
        let range = start..start + 2 + cell.len();
        let new = |(language, code): Run| {
            let python = if language == Language::Python { code.clone() } else { "None".to_owned() };
            Cell { language, code, range: range.clone(), python }
        };
        return cell_magic(name, rest, body).into_iter().map(new).collect();
    }
    let is_single = !code.trim().contains(ENDS);
    let mut found: Vec<Cell> = Vec::new();
    let mut aliases = HashMap::new();
    let mut at = 0;
    while at < code.len() {
        let end = line_end(code, at);
        let line = code.get(at..end).unwrap_or_default();
        if let Some((offset, runs)) = escape(line, is_single, &mut aliases) {
            // A backslash continues the line.
            let mut last = end;
            while code.get(..last).is_some_and(|line| line.ends_with('\\')) && last < code.len() {
                last = line_end(
                    code,
                    last + code.get(last..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8),
                );
            }
            for (language, inner) in runs {
                let code = inner + code.get(end..last).unwrap_or_default();
                let python = match language {
                    Language::Python if !code.trim().is_empty() => code.clone(),
                    Language::Bash => expanded(&code).unwrap_or("None".to_owned()),
                    _ => "None".to_owned(),
                };
                found.push(Cell { language, code, range: at + offset..last, python });
            }
            at = last;
        } else {
            at = end;
        }
        at += code.get(at..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
    }
    found
}

/// Returns code without the prompts of Python or IPython, if IPython removes them: if its first or second line has one
/// (`PromptStripper` of IPython.core.inputtransformer2).
fn without_prompts(code: &str) -> Option<String> {
    static FORM: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"^\s*((>>>|\.\.\.)( |$)|(\[(ins|nav|cmd)\] ?)?(In \[\d+\]: ?|\.{3,}: ?))").ok()
    });
    let form = FORM.as_ref()?;
    let mut first = code.trim_start().split(ENDS).take(2);
    if !first.any(|line| form.is_match(line)) {
        return None;
    }
    let strip = |line: &str| {
        line.get(form.find(line).map_or(0, |prompt| prompt.end())..).unwrap_or_default().to_owned()
    };
    Some(code.split(ENDS).map(strip).collect::<Vec<_>>().join("\n"))
}

/// Returns a command of a shell as IPython expands it first: `{x}` and `$x` are values of Python (`var_expand` of
/// IPython.core.interactiveshell).
fn expanded(code: &str) -> Option<String> {
    if !code.contains(['{', '$']) {
        return None;
    }
    let mut made = "get_ipython()._command(f\"\"\"".to_owned();
    let mut rest = code;
    while let Some(char) = rest.chars().next() {
        rest = rest.get(char.len_utf8()..).unwrap_or_default();
        match char {
            '"' => made.push_str("\\\""),
            '\\' => made.push_str("\\\\"),
            '\r' | '\n' => made.push_str("\\n"),
            '}' => made.push_str("}}"),
            '{' => match rest.split_once('}').filter(|(inner, _)| is_expression(inner)) {
                Some((inner, next)) => {
                    made.extend(["{", inner, "}"]);
                    rest = next;
                }
                None => made.push_str("{{"),
            },
            '$' if rest.starts_with(|next: char| next == '_' || next.is_alphabetic()) => {
                let end = rest.find(|next: char| next != '.' && !is_of_word(next)).unwrap_or(rest.len());
                let name = rest.get(..end).unwrap_or_default().trim_end_matches('.');
                made.extend(["{", name, "}"]);
                rest = rest.get(name.len()..).unwrap_or_default();
            }
            char => made.push(char),
        }
    }
    Some(made + "\"\"\")")
}

/// Reports whether a text in braces seems to be an expression of Python: not a list of words of a shell, nor code of `awk`.
fn is_expression(text: &str) -> bool {
    const MOST: usize = 1000;
    let begins = text.trim_start().starts_with(|char: char| is_of_word(char) || "'\"([".contains(char));
    begins
        && text.len() <= MOST
        && !text.contains(['$', ';', '\\', '\n', '{'])
        && !text.contains("++")
        && !text.contains("+=")
}

fn line_end(code: &str, from: usize) -> usize {
    code.get(from..).and_then(|rest| rest.find(ENDS)).map_or(code.len(), |end| from + end)
}

/// Returns where in a line a magic or a command begins, and what is run.
fn escape(line: &str, is_single: bool, aliases: &mut HashMap<String, String>) -> Option<(usize, Vec<Run>)> {
    let begin = line.trim_start();
    let at = |rest: &str| line.len() - rest.len();
    if let Some(run) = magic_or_command(begin, aliases) {
        return Some((at(begin), run));
    }
    // `?x` and `x?` ask for help.
    let asked = begin.trim_end();
    let is_name = |text: &str| text.chars().all(|char| is_of_word(char) || "%.*[]".contains(char));
    if asked.starts_with('?')
        || asked.strip_suffix('?').is_some_and(|name| is_name(name.trim_end_matches('?')))
    {
        return Some((at(begin), vec![(Language::Python, String::new())]));
    }
    if is_single && let Some(runs) = without_percent(begin, aliases) {
        return Some((at(begin), runs));
    }
    // `,f a b`, `;f a b` and `/f a` call `f`.
    if let Some(call) = begin.strip_prefix([',', ';', '/']).filter(|call| call.starts_with(is_of_word)) {
        let (name, rest) = call.split_once(' ').unwrap_or((call, ""));
        let given = match begin.as_bytes().first() {
            Some(b'/') => rest.to_owned(),
            Some(b';') => format!("{rest:?}"),
            _ => rest.split_whitespace().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", "),
        };
        return Some((at(begin), vec![(Language::Python, format!("{name}({given})"))]));
    }
    // `x = !command`
    line.match_indices('=').find_map(|(place, _)| {
        let value = line.get(place + 1..)?.trim_start();
        let runs = magic_or_command(value, aliases)?;
        Some((at(value), runs))
    })
}

/// Returns what the line of a cell of one line is without the percent sign of a magic, or without the parentheses of a call.
fn without_percent(line: &str, aliases: &mut HashMap<String, String>) -> Option<Vec<Run>> {
    let end = line.find(|char: char| char != '.' && !is_of_word(char)).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let given = rest.trim_start();
    let is_call = given.starts_with('(') && !SHELLS.contains(&name);
    if name.is_empty()
        || given.is_empty()
        || is_call
        || given.starts_with(['=', ','])
        || KEYWORDS.contains(&name)
    {
        return None;
    }
    let mut runs = Vec::new();
    if !name.contains('.') {
        runs.extend(line_magic(name, given, aliases));
    }
    if rest.starts_with(' ') && given.starts_with(|char: char| is_of_word(char) || "'\"".contains(char)) {
        runs.push((Language::Python, format!("{name}({given})")));
    }
    (!runs.is_empty()).then_some(runs)
}

fn magic_or_command(text: &str, aliases: &mut HashMap<String, String>) -> Option<Vec<Run>> {
    if let Some(command) = text.strip_prefix('!').filter(|rest| !rest.starts_with('=')) {
        return Some(vec![(Language::Bash, command.trim_start_matches('!').to_owned())]);
    }
    let magic = text.strip_prefix('%').filter(|rest| rest.starts_with(is_of_word))?;
    let (name, rest) = word(magic);
    Some(line_magic(name, rest, aliases))
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

/// Returns a text without the options at its begin: those with a number as their value too.
fn without_options(mut text: &str) -> &str {
    while text.starts_with('-') {
        let (option, rest) = word(text);
        let (value, next) = word(rest);
        let is_value = option.len() == 2 && value.parse::<f64>().is_ok();
        text = if is_value { next } else { rest };
    }
    text
}

fn line_magic(name: &str, rest: &str, aliases: &mut HashMap<String, String>) -> Vec<Run> {
    if let Some(command) = aliases.get(name) {
        return vec![(Language::Bash, format!("{command} {rest}"))];
    }
    let run = match name {
        "system" | "sx" => (Language::Bash, rest.to_owned()),
        "sc" => {
            let command = without_options(rest);
            (Language::Bash, command.split_once('=').map_or(command, |(_, command)| command).to_owned())
        }
        "time" | "timeit" | "prun" | "memit" | "debug" => {
            let code = without_options(rest);
            if code.starts_with(['!', '%'])
                && let Some(runs) =
                    (!code.starts_with("%time")).then(|| magic_or_command(code, aliases)).flatten()
            {
                return runs;
            }
            (Language::Python, code.to_owned())
        }
        "alias" => {
            let (alias, command) = word(rest);
            aliases.insert(alias.to_owned(), command.to_owned());
            (Language::Bash, command.to_owned())
        }
        "alias_magic" => {
            let (alias, magic) = word(without_options(rest));
            if SHELLS.contains(&word(magic).0) {
                aliases.insert(alias.to_owned(), String::new());
            }
            (Language::Python, String::new())
        }
        "run" => (Language::Bash, format!("python3 {rest}")),
        // Many are named after the program that they start, such as `%rm` and `%pip`.
        _ => (Language::Bash, format!("{name} {rest}")),
    };
    vec![run]
}

fn cell_magic(name: &str, rest: &str, body: &str) -> Vec<Run> {
    const END: &str = "END OF CELL";
    let script = |program: &str, arguments: &str| {
        let body = body.replace(&format!("\n{END}\n"), "\n");
        (Language::Bash, format!("{} <<'{END}'\n{body}\n{END}\n", format!("{program} {arguments}").trim()))
    };
    let mut arguments = rest;
    while let Some(option) = SCRIPT_OPTIONS.iter().find(|option| arguments.starts_with(**option)) {
        let (given, next) = word(arguments);
        arguments = if given == *option && option.len() == 5 + usize::from(*option == "--proc") {
            word(next).1
        } else {
            next
        };
    }
    let language = match name {
        "bash" | "sh" => Language::Bash,
        "python" | "python2" | "python3" | "pypy" => Language::Python,
        "javascript" | "js" => Language::JavaScript,
        "ruby" => Language::Ruby,
        "!" | "system" | "sx" => return vec![(Language::Bash, format!("{rest}\n{body}"))],
        "script" => return vec![script("", arguments)],
        "perl" => return vec![script(name, arguments)],
        "html" | "HTML" | "svg" | "SVG" | "markdown" | "latex" | "writefile" | "file" => return Vec::new(),
        "time" | "capture" => return vec![(Language::Python, body.to_owned())],
        "timeit" | "prun" => return vec![(Language::Python, format!("{}\n{body}", without_options(rest)))],
        _ => {
            let mut runs = line_magic(name, rest, &mut HashMap::new());
            runs.push((Language::Python, body.to_owned()));
            return runs;
        }
    };
    let mut runs = vec![(language, body.to_owned())];
    runs.extend((!arguments.is_empty()).then(|| script(name, arguments)));
    runs
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
            ("sx ls", vec![(Language::Bash, "ls".to_owned()), (Language::Python, "sx(ls)".to_owned())]),
            ("%time -n1 f()", python("f()")),
            (";os.system rm -rf /", python("os.system(\"rm -rf /\")")),
            ("\n%%bash --out x\nls\nid", bash("ls\nid")),
            ("%%script --err x --bg sh\nls", bash("sh <<'END OF CELL'\nls\nEND OF CELL\n")),
            ("%%time\nls", python("ls")),
            (">>> !rm", python("!rm")),
            ("In [1]: %%bash\n   ...: rm", python("%%bash\nrm")),
            ("rm -rf /srv", bash("rm -rf /srv")),
            ("time !rm", bash("rm")),
            ("%timeit -n 1 -r1 !rm", bash("rm")),
            ("%sc x=rm -f", bash("rm -f")),
            ("df.x??", python("")),
            ("?x", python("")),
            ("for x in y: z", vec![]),
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
