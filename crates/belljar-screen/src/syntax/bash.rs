//! Bash and POSIX shell. A command is a call of its name; words are texts.

use tree_sitter::Node;

use super::{Bound, Callee, Facts, Part, Shape, field, first, named, owned, parts, same, text, unescape};

pub(crate) fn shape<'t>(node: Node<'t>, source: &'t str) -> Shape<'t> {
    match node.kind() {
        "command" => {
            let Some(name) = field(node, "name").and_then(first) else { return Shape::Other };
            let mut cursor = node.walk();
            Shape::Call(Callee::Node(name), node.children_by_field_name("argument", &mut cursor).collect())
        }
        "word" | "variable_name" | "special_variable_name" => {
            Shape::Text(vec![Part::Text(unescape_word(text(node, source)))])
        }
        "number" => Shape::Text(vec![Part::Text(owned(node, source))]),
        "raw_string" => Shape::Text(vec![Part::Text(text(node, source).trim_matches('\'').to_owned())]),
        "ansi_c_string" => {
            let inner = text(node, source).trim_start_matches('$').trim_matches('\'');
            Shape::Text(vec![Part::Text(unescape(inner))])
        }
        "string" => Shape::Text(quoted(node, source)),
        "translated_string" => same(first(node)),
        "concatenation" => concatenation(node, source),
        "simple_expansion" => named(node).first().map_or(Shape::Other, |name| variable(*name, source)),
        "expansion" => match named(node).as_slice() {
            // With an operator it is not followed.
            [name] if field(node, "operator").is_none() => variable(*name, source),
            // `${a:-b}`
            [_, rest @ ..]
                if field(node, "operator").is_some_and(|operator| {
                    matches!(operator.kind(), ":-" | "-" | ":=" | "=" | ":+" | "+")
                }) =>
            {
                Shape::OneOf(rest.to_vec())
            }
            _ => Shape::Other,
        },
        // Without expansions it has no children.
        "heredoc_body" if node.named_child_count() == 0 => Shape::Text(vec![Part::Text(owned(node, source))]),
        "heredoc_body" => Shape::Text(parts(node, source, &["heredoc_content"], &[])),
        "command_substitution" => same_output(node),
        "array" => Shape::List(named(node)),
        _ => Shape::Other,
    }
}

fn variable<'t>(name: Node<'t>, source: &'t str) -> Shape<'t> {
    // `${a[@]}`
    let name = field(name, "name").unwrap_or(name);
    Shape::Name(format!("${}", text(name, source)))
}

fn same_output(node: Node<'_>) -> Shape<'_> {
    match named(node).as_slice() {
        [statement] => Shape::Output(*statement),
        _ => Shape::Other,
    }
}

/// What is between the children belongs to the word too, such as the last `/` in `/$x$y/`.
fn concatenation<'t>(node: Node<'t>, source: &'t str) -> Shape<'t> {
    let (children, mut at, mut parts) = (named(node), node.start_byte(), Vec::new());
    for child in &children {
        let between = source.get(at..child.start_byte()).filter(|text| !text.is_empty());
        parts.extend(between.map(|text| Part::Text(unescape_word(text))));
        parts.push(Part::Value(*child));
        at = child.end_byte();
    }
    let after = source.get(at..node.end_byte()).filter(|text| !text.is_empty());
    parts.extend(after.map(|text| Part::Text(unescape_word(text))));
    if parts.len() == children.len() { Shape::Join(children) } else { Shape::Text(parts) }
}

fn quoted<'t>(node: Node<'t>, source: &'t str) -> Vec<Part<'t>> {
    // What is between the children, such as blanks, belongs to the text.
    let mut result = Vec::new();
    for part in parts(node, source, &["string_content"], &[]) {
        result.push(match part {
            Part::Text(text) => {
                Part::Text(text.replace("\\\"", "\"").replace("\\$", "$").replace("\\\\", "\\"))
            }
            value => value,
        });
    }
    result
}

fn unescape_word(word: &str) -> String {
    let mut result = String::with_capacity(word.len());
    let mut chars = word.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => result.extend(chars.next().filter(|next| *next != '\n')),
            other => result.push(other),
        }
    }
    result
}

pub(crate) fn bind<'t>(node: Node<'t>, source: &'t str, facts: &mut Facts<'t>) {
    match node.kind() {
        "variable_assignment" => {
            if let (Some(name), Some(value)) = (field(node, "name"), field(node, "value")) {
                let is_append = node.child(1).is_some_and(|operator| operator.kind() == "+=");
                let bound = if is_append { Bound::Append(value) } else { Bound::Node(value) };
                facts.bind(format!("${}", text(name, source)), bound);
            }
        }
        "for_statement" => {
            let Some(name) = field(node, "variable") else { return };
            let mut cursor = node.walk();
            for value in node.children_by_field_name("value", &mut cursor) {
                facts.bind(format!("${}", text(name, source)), Bound::Node(value));
            }
        }
        "command" if field(node, "name").is_some_and(|name| text(name, source) == "set") => {
            let mut cursor = node.walk();
            let words: Vec<_> = node
                .children_by_field_name("argument", &mut cursor)
                .filter(|word| text(*word, source) != "--")
                .collect();
            for (place, word) in words.iter().enumerate() {
                facts.bind(format!("${}", place + 1), Bound::Node(*word));
            }
            facts.bind("$@", Bound::Words(words.clone()));
            facts.bind("$*", Bound::Words(words));
        }
        "function_definition" => {
            if let Some(name) = field(node, "name") {
                facts.bind(owned(name, source), Bound::Own);
            }
        }
        _ => {}
    }
}

/// Returns the words that follow the targets of redirections: `rm 2>/dev/null -rf x`.
pub(crate) fn words_after_redirections(statement: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = statement.walk();
    let redirects: Vec<_> = statement.children_by_field_name("redirect", &mut cursor).collect();
    let mut words = Vec::new();
    for redirect in redirects {
        words.extend(redirect.children_by_field_name("destination", &mut cursor).skip(1));
        words.extend(redirect.children_by_field_name("argument", &mut cursor));
    }
    words
}

/// Programs that run the command in their arguments, after options, assignments and, for some, one value.
const WRAPPERS: &[&str] = &[
    "sudo", "doas", "env", "command", "builtin", "exec", "nohup", "time", "timeout", "nice", "ionice",
    "setsid", "stdbuf", "xargs", "busybox", "toybox", "watch", "unshare", "chroot", "strace", "then",
    "coproc", "flock", "taskset", "chrt", "runuser", "setpriv", "nsenter", "script", "parallel", "ltrace",
    "prlimit", "pkexec", "fakeroot", "numactl", "setarch", "xvfb-run", "linux32", "linux64", "uv", "pipx",
    "npx", "{", "!",
];

/// Those of them whose first value is not the command.
const VALUED: &[&str] = &["flock", "taskset", "chrt", "chroot", "coproc", "setarch", "uv"];

/// Shells, whose `-c` is a command line.
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ash", "ksh", "rbash"];

/// Most commands around one another.
const MAX_COMMANDS: usize = 32;

/// A command, without the programs around it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// Name of the program, without its directory.
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
}

/// Returns the commands that these words run: the command, and if it only runs another one, that too.
pub(crate) fn commands(words: &[String]) -> Vec<Command> {
    let mut found = Vec::new();
    let mut pending = vec![words];
    while let Some((first, arguments)) = pending.pop().and_then(<[String]>::split_first) {
        let name = first.rsplit('/').next().unwrap_or_default().to_owned();
        let exec =
            arguments.iter().position(|word| name == "find" && matches!(word.as_str(), "-exec" | "-execdir"));
        if let Some(exec) = exec {
            pending.extend(arguments.get(exec + 1..).filter(|rest| !rest.is_empty()));
        } else if WRAPPERS.contains(&name.as_str()) {
            let is_value = |word: &String| {
                word.contains(['=', crate::values::UNKNOWN])
                    || word.starts_with(|char: char| char.is_ascii_digit())
                    || matches!(word.as_str(), "{}" | "inf" | "infinity")
            };
            let mut is_after_option = VALUED.contains(&name.as_str());
            for (place, word) in arguments.iter().enumerate() {
                if word.starts_with('-') {
                    is_after_option |= word != "--";
                } else if !is_value(word) {
                    pending.extend(arguments.get(place..));
                    // It may be the value of an option.
                    if !std::mem::take(&mut is_after_option) {
                        break;
                    }
                }
            }
        }
        found.push(Command { name, arguments: arguments.to_vec() });
        if found.len() >= MAX_COMMANDS {
            break;
        }
    }
    found
}

impl Command {
    /// Returns the name of its language, if it is one of an interpreter.
    fn language(&self) -> Option<&'static str> {
        let name = self.name.trim_end_matches(|char: char| char.is_ascii_digit() || char == '.');
        match name {
            "python" | "pypy" => Some("python"),
            "node" | "nodejs" | "bun" => Some("javascript"),
            "ruby" => Some("ruby"),
            "php" => Some("php"),
            "perl" => Some("perl"),
            name if SHELLS.contains(&name) => Some("bash"),
            _ => None,
        }
    }

    /// Returns the code in another language, or in this one, that the command runs, with the name of that language.
    pub(crate) fn code(&self) -> Option<(&'static str, String)> {
        let option = |names: &[&str]| {
            let place = self.arguments.iter().position(|word| names.contains(&word.as_str()))?;
            self.arguments.get(place + 1).cloned()
        };
        match self.name.as_str() {
            "eval" => return Some(("bash", self.arguments.join(" "))),
            "su" | "runuser" | "script" => return Some(("bash", option(&["-c", "--command"])?)),
            "trap" => return Some(("bash", self.arguments.iter().find(|word| *word != "--")?.clone())),
            "env" => {
                let code = |word: &String| {
                    word.strip_prefix("-S").or(word.strip_prefix("--split-string=")).map(str::to_owned)
                };
                let attached = self.arguments.iter().find_map(code).filter(|code| !code.is_empty());
                return Some(("bash", attached.or_else(|| option(&["-S", "--split-string"]))?));
            }
            "alias" => {
                let values = self.arguments.iter().filter_map(|word| Some(word.split_once('=')?.1));
                return Some(("bash", values.collect::<Vec<_>>().join("\n")));
            }
            _ => {}
        }
        let language = self.language()?;
        let code = match language {
            "bash" => {
                // `-c` may come with other letters, and the code after `--`.
                let is_code =
                    |word: &String| word.starts_with('-') && !word.starts_with("--") && word.contains('c');
                let place = self.arguments.iter().position(is_code)?;
                self.arguments.get(place + 1..)?.iter().find(|word| !word.starts_with(['-', '+']))?.clone()
            }
            "python" => self.given("c", &[]),
            "javascript" => self.given("ep", &["--eval", "--print"]),
            "ruby" => self.given("e", &[]),
            "php" => self.given("rRB", &["--run"]),
            _ => return None,
        };
        Some((language, code)).filter(|(_, code)| !code.is_empty())
    }

    /// Returns the values of options, of which the short ones may be among others and have their value in the same word.
    fn given(&self, letters: &str, names: &[&str]) -> String {
        let mut values = Vec::new();
        for (place, word) in self.arguments.iter().enumerate() {
            let next = || self.arguments.get(place + 1).map(String::as_str);
            values.extend(match word.split_once('=') {
                Some((name, value)) if names.contains(&name) => Some(value),
                _ if names.contains(&word.as_str()) => next(),
                _ => word.strip_prefix('-').filter(|word| !word.starts_with('-')).and_then(|word| {
                    let end = word.find(|char| !char::is_alphabetic(char)).unwrap_or(word.len());
                    let place = word.get(..end)?.find(|char| letters.contains(char))?;
                    let value = word.get(place + 1..)?.trim_start_matches(|char| letters.contains(char));
                    if value.is_empty() { next() } else { Some(value) }
                }),
            });
        }
        values.join("\n")
    }

    /// Reports whether it runs a file or its input as code.
    pub(crate) fn is_interpreter(&self) -> bool {
        self.language().is_some() || matches!(self.name.as_str(), "source" | ".")
    }

    /// Reports whether it runs its input, or appends that to its arguments.
    pub(crate) fn takes_input(&self) -> bool {
        self.name == "xargs" || self.reads_code().is_some()
    }

    /// Returns the name of the language in which it runs its input: none if it has code of its own, which reads it as data.
    pub(crate) fn reads_code(&self) -> Option<&'static str> {
        let is_input = |word: &String| matches!(word.as_str(), "-" | "/dev/stdin" | "/dev/fd/0");
        if matches!(self.name.as_str(), "source" | ".") {
            return self.arguments.iter().any(is_input).then_some("bash");
        }
        let language = self.language()?;
        if self.arguments.iter().any(|word| is_input(word) || word == "-s") {
            return Some(language);
        }
        let has_code = |word: &String| match language {
            "bash" => word.starts_with('-') && !word.starts_with("--") && word.contains('c'),
            "python" => word.starts_with("-c") || word.starts_with("-m"),
            "javascript" => matches!(word.as_str(), "-e" | "--eval" | "-p" | "--print" | "-pe"),
            "php" => matches!(word.as_str(), "-r" | "-R" | "-f"),
            _ => word.starts_with('-') && !word.starts_with("--") && word.ends_with('e'),
        };
        if self.arguments.iter().any(has_code) {
            // The code of a shell may be another one, which reads the input.
            let (_, code) = self.code().filter(|_| language == "bash")?;
            let mut words = code.split(|char: char| !char.is_alphanumeric());
            return words.any(|word| SHELLS.contains(&word) || word == "source").then_some(language);
        }
        let mut words = self.arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                // Options with a value.
                "-o" | "-O" | "+o" | "+O" | "--rcfile" | "--init-file" | "-W" | "-X" | "-r" | "-I" | "-d" => {
                    words.next();
                }
                "--" => return words.next().is_none().then_some(language),
                option if option.starts_with(['-', '+']) => {}
                _ => return None,
            }
        }
        Some(language)
    }

    /// Returns the name under which rules know the end of a pipeline: `sh` for all that run what they read.
    pub(crate) fn sink(&self) -> &str {
        let runs_it = matches!(self.name.as_str(), "eval" | "source" | "." | "")
            || self.reads_code().is_some()
            || self.code().is_some_and(|(_, code)| code.contains(crate::values::UNKNOWN));
        if runs_it { "sh" } else { &self.name }
    }

    /// Returns the arguments as rules compare them: of what takes files, options first, and paths in their shortest form.
    pub(crate) fn line(&self) -> String {
        if !matches!(self.name.as_str(), "rm" | "chmod" | "chown") {
            return self.arguments.join(" ");
        }
        let (options, rest): (Vec<_>, Vec<_>) = self.arguments.iter().partition(|word| word.starts_with('-'));
        let rest = rest.into_iter().map(|word| shortest(word));
        options.into_iter().cloned().chain(rest).collect::<Vec<_>>().join(" ")
    }
}

/// Returns an absolute path without what has no meaning in it: `//`, `.` and `..`.
fn shortest(path: &str) -> String {
    if !path.starts_with('/') {
        return path.to_owned();
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn wrapped_commands_are_found() {
        for (line, expected) in [
            ("rm -rf /", vec!["rm"]),
            (
                "/usr/bin/sudo -n env A=1 timeout 5 /bin/rm -rf /",
                vec!["sudo", "timeout", "rm", "env", "timeout", "rm"],
            ),
            ("sudo -u root rm -rf /", vec!["sudo", "rm", "root"]),
            ("flock /x rm -rf /", vec!["flock", "rm", "x"]),
            ("find / -name x -exec rm {} ;", vec!["find", "rm"]),
            ("xargs", vec!["xargs"]),
        ] {
            let names: Vec<_> = commands(&words(line)).into_iter().map(|command| command.name).collect();
            assert_eq!(names, expected, "{line}");
        }
    }

    #[test]
    fn input_is_code_only_where_none_is_given() {
        for (line, expected) in [
            ("bash", Some("bash")),
            ("bash -s -- --yes", Some("bash")),
            ("sh script.sh", None),
            ("bash -c cat", None),
            ("bash -c exec\tsh", Some("bash")),
            ("source /dev/stdin", Some("bash")),
            ("python3 -", Some("python")),
            ("python3 -u", Some("python")),
            ("python3 -m json.tool", None),
            ("python3 -c x", None),
            ("python3 script.py", None),
            ("node -e x", None),
            ("perl -ne x", None),
            ("ruby -rjson -ne x", None),
            ("php -r x", None),
            ("cat", None),
        ] {
            let read = commands(&words(line)).into_iter().next().and_then(|command| command.reads_code());
            assert_eq!(read, expected, "{line}");
        }
    }

    #[test]
    fn code_of_interpreters_is_found() {
        for (line, expected) in [
            ("bash -lc ls", Some(("bash", "ls"))),
            ("bash -cx ls", Some(("bash", "ls"))),
            ("bash -c -- ls", Some(("bash", "ls"))),
            ("env -S ls", Some(("bash", "ls"))),
            ("trap ls EXIT", Some(("bash", "ls"))),
            ("alias a=ls", Some(("bash", "ls"))),
            ("python3.12 -c x", Some(("python", "x"))),
            ("eval a b", Some(("bash", "a b"))),
            ("bash script", None),
            ("node -e", None),
        ] {
            let code = commands(&words(line)).into_iter().next().and_then(|command| command.code());
            assert_eq!(code, expected.map(|(language, code)| (language, code.to_owned())), "{line}");
        }
    }
}
