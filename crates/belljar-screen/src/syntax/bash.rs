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
        "concatenation" => Shape::Join(named(node)),
        "simple_expansion" => named(node).first().map_or(Shape::Other, |name| variable(*name, source)),
        "expansion" => match named(node).as_slice() {
            // With an operator it is not followed.
            [name] if field(node, "operator").is_none() => variable(*name, source),
            _ => Shape::Other,
        },
        "command_substitution" => same_output(node),
        "array" => Shape::List(named(node)),
        _ => Shape::Other,
    }
}

fn variable<'t>(name: Node<'t>, source: &'t str) -> Shape<'t> {
    match text(name, source) {
        "IFS" => Shape::Text(vec![Part::Text(" ".to_owned())]),
        // Empty unless there are arguments.
        "@" | "*" => Shape::Text(Vec::new()),
        name => Shape::Name(format!("${name}")),
    }
}

fn same_output(node: Node<'_>) -> Shape<'_> {
    match named(node).as_slice() {
        [statement] => Shape::Output(*statement),
        _ => Shape::Other,
    }
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
                facts.bind(format!("${}", text(name, source)), Bound::Node(value));
            }
        }
        "function_definition" => {
            if let Some(name) = field(node, "name") {
                facts.bind(owned(name, source), Bound::Own);
            }
        }
        _ => {}
    }
}

/// Programs that run the command in their arguments, after options, assignments and, for some, one value.
const WRAPPERS: &[&str] = &[
    "sudo", "doas", "env", "command", "builtin", "exec", "nohup", "time", "timeout", "nice", "ionice",
    "setsid", "stdbuf", "xargs", "busybox", "toybox", "watch", "unshare", "chroot", "strace", "then",
];

/// Shells, whose `-c` is a command line.
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ash", "ksh", "rbash"];

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
    let mut rest = words;
    while let Some((first, arguments)) = rest.split_first() {
        let name = first.rsplit('/').next().unwrap_or_default().to_owned();
        let is_wrapper = WRAPPERS.contains(&name.as_str());
        let exec =
            arguments.iter().position(|word| name == "find" && matches!(word.as_str(), "-exec" | "-execdir"));
        found.push(Command { name, arguments: arguments.to_vec() });
        rest = if let Some(exec) = exec {
            arguments.get(exec + 1..).unwrap_or_default()
        } else if is_wrapper {
            let is_inner = |word: &String| {
                !word.starts_with('-')
                    && !word.contains('=')
                    && !word.starts_with(|char: char| char.is_ascii_digit())
                    && word != "{}"
            };
            let inner = arguments.iter().position(is_inner).unwrap_or(arguments.len());
            arguments.get(inner..).unwrap_or_default()
        } else {
            &[]
        };
    }
    found
}

impl Command {
    /// Returns the code in another language, or in this one, that the command runs, with the name of that language.
    pub(crate) fn code(&self) -> Option<(&'static str, String)> {
        let option = |names: &[&str]| {
            let place = self.arguments.iter().position(|word| names.contains(&word.as_str()))?;
            self.arguments.get(place + 1).cloned()
        };
        let name = self.name.trim_end_matches(|char: char| char.is_ascii_digit() || char == '.');
        match name {
            "eval" => Some(("bash", self.arguments.join(" "))),
            name if SHELLS.contains(&name) => {
                // `-c` may come with other letters: `-lc`.
                let is_code =
                    |word: &String| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c');
                let place = self.arguments.iter().position(is_code)?;
                Some(("bash", self.arguments.get(place + 1)?.clone()))
            }
            "su" => Some(("bash", option(&["-c"])?)),
            "python" | "pypy" => Some(("python", option(&["-c"])?)),
            "node" | "nodejs" | "bun" => {
                Some(("javascript", option(&["-e", "--eval", "-p", "--print", "-pe"])?))
            }
            "ruby" => Some(("ruby", option(&["-e"])?)),
            "php" => Some(("php", option(&["-r"])?)),
            _ => None,
        }
    }

    pub(crate) fn is_shell(&self) -> bool {
        SHELLS.contains(&self.name.as_str())
    }
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
            ("/usr/bin/sudo -n env A=1 timeout 5 /bin/rm -rf /", vec!["sudo", "env", "timeout", "rm"]),
            ("find / -name x -exec rm {} ;", vec!["find", "rm"]),
            ("xargs", vec!["xargs"]),
        ] {
            let names: Vec<_> = commands(&words(line)).into_iter().map(|command| command.name).collect();
            assert_eq!(names, expected, "{line}");
        }
    }

    #[test]
    fn code_of_interpreters_is_found() {
        for (line, expected) in [
            ("bash -lc ls", Some(("bash", "ls"))),
            ("python3.12 -c x", Some(("python", "x"))),
            ("eval a b", Some(("bash", "a b"))),
            ("bash script", None),
            ("node -e", None),
        ] {
            let code = commands(&words(line)).pop().and_then(|command| command.code());
            assert_eq!(code, expected.map(|(language, code)| (language, code.to_owned())), "{line}");
        }
    }
}
