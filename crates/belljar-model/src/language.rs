//! Description of how to run code of one language. Each language is a file, so that adding one needs no Rust.

use std::collections::BTreeMap;

use crate::env::EnvVar;
use crate::error::ModelError;
use crate::limits::{Memory, Pids};
use crate::node::{Fields, Node};
use crate::timeout::Timeout;

/// Placeholder for all arguments of the code. It must be an argument on its own.
const ARGS: &str = "{args}";

/// Description of how to run code of one language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Language {
    /// Name, such as `python`.
    pub name: String,
    /// Other names.
    pub aliases: Vec<String>,
    /// File name extensions, without the dot.
    pub extensions: Vec<String>,
    /// Names of interpreters in a `#!` line, such as `python3`.
    pub shebangs: Vec<String>,
    /// File name for source code that has none.
    pub file: String,
    /// Compiler command, if any.
    pub compile: Option<CommandTemplate>,
    /// Command that runs it.
    pub run: CommandTemplate,
    /// Command that prints its version.
    pub version: Vec<String>,
    /// Program whose presence shows that the language is installed: a name or an absolute path.
    pub program: String,
    /// Further required programs: names or absolute paths.
    pub requires: Vec<String>,
    /// Debian packages that provide it, separated by spaces.
    pub package: String,
    /// Required environment variables.
    pub env: BTreeMap<String, String>,
    /// Minimum limits that it needs.
    pub limits: LanguageLimits,
}

/// Minimum limits that a language needs to work. Greater requested limits are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LanguageLimits {
    /// Time for the compiler.
    pub compile_timeout: Option<Timeout>,
    /// Memory for the compiler.
    pub compile_memory: Option<Memory>,
    /// Memory for the code to start.
    pub memory: Option<Memory>,
    /// Processes and threads for the code to start.
    pub pids: Option<Pids>,
}

/// Command with placeholders: a program and its arguments, never shell text.
///
/// `{file}`, `{dir}` and `{stem}` may occur within an argument: the source file, its directory, and its name without the
/// extension. `{heap}` is three quarters of the sandbox's memory in MiB, for runtimes that cannot see the limit and would grow
/// into it instead of collecting garbage. `{args}` must be an argument on its own, and is replaced by all arguments of the
/// code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandTemplate(Vec<String>);

impl Language {
    /// Parses a language file.
    ///
    /// # Errors
    ///
    /// Fails if it is not TOML, if a key is unknown, missing or of the wrong type, or if a value is not allowed.
    pub fn from_toml(text: &str) -> Result<Self, ModelError> {
        let mut fields = Fields::root(Node::from_toml(text)?)?;
        let language = Self {
            name: validate_word("name", fields.required_text("name")?)?,
            aliases: validate_words("aliases", fields.texts("aliases")?)?,
            extensions: validate_words("extensions", fields.texts("extensions")?)?,
            shebangs: validate_words("shebangs", fields.texts("shebangs")?)?,
            file: validate_file_name(fields.required_text("file")?)?,
            compile: fields.texts("compile")?.map(CommandTemplate::new).transpose()?,
            run: CommandTemplate::new(fields.required_texts("run")?)?,
            version: validate_command("version", fields.required_texts("version")?)?,
            program: validate_word("program", fields.required_text("program")?)?,
            requires: validate_words("requires", fields.texts("requires")?)?,
            package: fields.required_text("package")?,
            env: validate_env(fields.text_table("env")?.unwrap_or_default())?,
            limits: fields.table("limits")?.map(LanguageLimits::from_fields).transpose()?.unwrap_or_default(),
        };
        fields.finish()?;
        Ok(language)
    }

    /// Iterates over all names, the main one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.aliases).map(String::as_str)
    }

    /// Iterates over all required programs, by name or absolute path.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.program).chain(&self.requires).map(String::as_str)
    }
}

impl LanguageLimits {
    fn from_fields(mut fields: Fields) -> Result<Self, ModelError> {
        let limits = Self {
            compile_timeout: parse_optional(fields.scalar("compile_timeout")?)?,
            compile_memory: parse_optional(fields.scalar("compile_memory")?)?,
            memory: parse_optional(fields.scalar("memory")?)?,
            pids: parse_optional(fields.scalar("pids")?)?,
        };
        fields.finish()?;
        Ok(limits)
    }
}

impl CommandTemplate {
    /// Creates a template from a program and its arguments.
    ///
    /// # Errors
    ///
    /// Fails if there is no program, if an argument contains NUL, if a placeholder is unknown, or if `{args}` is the program or
    /// only a part of an argument.
    pub fn new(argv: Vec<String>) -> Result<Self, ModelError> {
        let argv = validate_command("command", argv)?;
        for (index, argument) in argv.iter().enumerate() {
            if argument == ARGS && index > 0 {
                continue;
            }
            for piece in split(argument) {
                let allowed = match piece {
                    Piece::Text(_) | Piece::Placeholder("file" | "dir" | "stem" | "heap") => continue,
                    Piece::Placeholder("args") => "{args} as an argument of its own, after the program",
                    Piece::Placeholder(_) => "the placeholders {file}, {dir}, {stem}, {heap} and {args}",
                };
                return Err(ModelError::not_allowed("command", argument, allowed));
            }
        }
        Ok(Self(argv))
    }

    /// Returns the program and its arguments, with the placeholders.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }

    /// Substitutes the placeholders. Substituted text is not scanned again.
    pub fn render<A: AsRef<str>>(&self, values: &CommandValues<'_>, args: &[A]) -> Vec<String> {
        let heap = (values.memory.bytes() / 4 * 3 / MIB).to_string();
        let mut argv = Vec::with_capacity(self.0.len() + args.len());
        for argument in &self.0 {
            if argument == ARGS {
                argv.extend(args.iter().map(|argument| argument.as_ref().to_owned()));
                continue;
            }
            let fill = |piece| match piece {
                Piece::Placeholder("file") => values.file,
                Piece::Placeholder("dir") => values.dir,
                Piece::Placeholder("stem") => values.stem,
                Piece::Placeholder("heap") => &heap,
                Piece::Placeholder(text) | Piece::Text(text) => text,
            };
            argv.push(split(argument).map(fill).collect());
        }
        argv
    }
}

/// Values of the placeholders of a [`CommandTemplate`].
#[derive(Debug, Clone, Copy)]
pub struct CommandValues<'a> {
    /// Path of the source file.
    pub file: &'a str,
    /// Directory of the source file.
    pub dir: &'a str,
    /// File name without the extension.
    pub stem: &'a str,
    /// Memory limit of the sandbox.
    pub memory: Memory,
}

const MIB: u64 = 1 << 20;

/// Part of an argument.
enum Piece<'a> {
    Text(&'a str),
    /// Word between the braces.
    Placeholder(&'a str),
}

/// Splits an argument at its placeholders. Braces around anything but lower-case letters are plain text.
fn split(argument: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = argument;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some((word, after)) = placeholder(rest) {
            rest = after;
            return Some(Piece::Placeholder(word));
        }
        let next =
            rest.char_indices().skip(1).map(|(at, _)| at).find(|at| placeholder(&rest[*at..]).is_some());
        let (text, after) = rest.split_at(next.unwrap_or(rest.len()));
        rest = after;
        Some(Piece::Text(text))
    })
}

/// Returns the word of the placeholder at the start of a text, and the rest of the text.
fn placeholder(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('{')?;
    // Scans only as far as the word, so that a text with many braces is not scanned in full for each.
    let length = text.bytes().take_while(|byte| byte.is_ascii_lowercase() || *byte == b'_').count();
    let (word, rest) = text.split_at(length);
    let after = rest.strip_prefix('}')?;
    (!word.is_empty()).then_some((word, after))
}

fn parse_optional<T: std::str::FromStr<Err = ModelError>>(
    text: Option<String>,
) -> Result<Option<T>, ModelError> {
    text.map(|text| text.parse()).transpose()
}

fn validate_words(field: &'static str, texts: Option<Vec<String>>) -> Result<Vec<String>, ModelError> {
    texts.unwrap_or_default().into_iter().map(|text| validate_word(field, text)).collect()
}

/// Validates a name, an extension, an interpreter or a program: none contains whitespace or control characters.
fn validate_word(field: &'static str, text: String) -> Result<String, ModelError> {
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(ModelError::not_allowed(field, text, "a word without spaces"));
    }
    Ok(text)
}

fn validate_file_name(text: String) -> Result<String, ModelError> {
    if text.is_empty() || text == "." || text == ".." || text.contains(['/', '\0']) {
        return Err(ModelError::not_allowed(
            "file",
            text,
            "the name of a file without a directory, such as main.c",
        ));
    }
    Ok(text)
}

fn validate_command(field: &'static str, argv: Vec<String>) -> Result<Vec<String>, ModelError> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(ModelError::not_allowed(field, argv.join(" "), "a program and its arguments"));
    }
    if let Some(argument) = argv.iter().find(|argument| argument.contains('\0')) {
        return Err(ModelError::not_allowed(field, argument, "arguments without a NUL in them"));
    }
    Ok(argv)
}

fn validate_env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ModelError> {
    for (name, value) in &env {
        EnvVar::new(name, value)?;
    }
    Ok(env)
}

#[cfg(test)]
mod tests;
