//! How code of one language is run. Each language is a file, so that adding one needs no Rust.

use std::collections::BTreeMap;

use crate::env::EnvVar;
use crate::error::ModelError;
use crate::limits::{Memory, Pids};
use crate::node::{Fields, Node};
use crate::timeout::Timeout;

/// The placeholder that becomes all arguments of the code, and that is an argument of its own.
const ARGS: &str = "{args}";

/// How code of one language is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Language {
    /// Its name, such as `python`.
    pub name: String,
    /// Other names that it goes by.
    pub aliases: Vec<String>,
    /// Ends of file names, without the dot.
    pub extensions: Vec<String>,
    /// Names of interpreters in a `#!` line, such as `python3`.
    pub shebangs: Vec<String>,
    /// The name that the source gets when it has none.
    pub file: String,
    /// What compiles it, if anything does.
    pub compile: Option<CommandTemplate>,
    /// What runs it.
    pub run: CommandTemplate,
    /// What prints its version.
    pub version: Vec<String>,
    /// The program that has to be there for the language to count as installed: a name or an absolute path.
    pub program: String,
    /// Further programs that it needs: names or absolute paths.
    pub requires: Vec<String>,
    /// The Debian packages that bring it, separated by spaces.
    pub package: String,
    /// Environment variables that it needs.
    pub env: BTreeMap<String, String>,
    /// What it needs to work at all.
    pub limits: LanguageLimits,
}

/// What a language needs to work at all. These are floors: a greater limit that was asked for stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LanguageLimits {
    /// How long the compiler may take.
    pub compile_timeout: Option<Timeout>,
    /// The memory that the compiler needs.
    pub compile_memory: Option<Memory>,
    /// The memory that the code needs to start.
    pub memory: Option<Memory>,
    /// The processes and threads that the code needs to start.
    pub pids: Option<Pids>,
}

/// A command with placeholders: a program and its arguments, never a shell's text.
///
/// `{file}`, `{dir}` and `{stem}` may stand within an argument: the source file, its directory, and its name
/// without the extension. `{heap}` is three quarters of the sandbox's memory in MiB, for runtimes that cannot see
/// the limit and would grow into it instead of collecting garbage. `{args}` is an argument of its own and becomes as many as the code is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandTemplate(Vec<String>);

impl Language {
    /// Reads one language file.
    ///
    /// # Errors
    ///
    /// When it is not TOML, when a key is unknown, missing or of the wrong type, or when a value is not allowed.
    pub fn from_toml(text: &str) -> Result<Self, ModelError> {
        let mut fields = Fields::root(Node::from_toml(text)?)?;
        let language = Self {
            name: word("name", fields.needed_text("name")?)?,
            aliases: words("aliases", fields.texts("aliases")?)?,
            extensions: words("extensions", fields.texts("extensions")?)?,
            shebangs: words("shebangs", fields.texts("shebangs")?)?,
            file: file_name(fields.needed_text("file")?)?,
            compile: fields.texts("compile")?.map(CommandTemplate::new).transpose()?,
            run: CommandTemplate::new(fields.needed_texts("run")?)?,
            version: command("version", fields.needed_texts("version")?)?,
            program: word("program", fields.needed_text("program")?)?,
            requires: words("requires", fields.texts("requires")?)?,
            package: fields.needed_text("package")?,
            env: checked_env(fields.text_table("env")?.unwrap_or_default())?,
            limits: fields.table("limits")?.map(LanguageLimits::from_fields).transpose()?.unwrap_or_default(),
        };
        fields.finish()?;
        Ok(language)
    }

    /// Every name that the language goes by, its own first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.aliases).map(String::as_str)
    }

    /// Every program that has to be there, by name or by absolute path.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.program).chain(&self.requires).map(String::as_str)
    }
}

impl LanguageLimits {
    fn from_fields(mut fields: Fields) -> Result<Self, ModelError> {
        let limits = Self {
            compile_timeout: parsed(fields.scalar("compile_timeout")?)?,
            compile_memory: parsed(fields.scalar("compile_memory")?)?,
            memory: parsed(fields.scalar("memory")?)?,
            pids: parsed(fields.scalar("pids")?)?,
        };
        fields.finish()?;
        Ok(limits)
    }
}

impl CommandTemplate {
    /// Makes a template of a program and its arguments.
    ///
    /// # Errors
    ///
    /// When there is no program, when an argument has a NUL in it, when a placeholder is unknown, or when
    /// `{args}` is the program or only a part of an argument.
    pub fn new(argv: Vec<String>) -> Result<Self, ModelError> {
        let argv = command("command", argv)?;
        for (index, argument) in argv.iter().enumerate() {
            if argument == ARGS && index > 0 {
                continue;
            }
            for piece in pieces(argument) {
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

    /// The program and its arguments, with the placeholders.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }

    /// Fills in the placeholders. What is filled in is not looked at again.
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
            argv.push(pieces(argument).map(fill).collect());
        }
        argv
    }
}

/// What the placeholders of a [`CommandTemplate`] stand for.
#[derive(Debug, Clone, Copy)]
pub struct CommandValues<'a> {
    /// The source file.
    pub file: &'a str,
    /// Its directory.
    pub dir: &'a str,
    /// Its name without the extension.
    pub stem: &'a str,
    /// The memory that the sandbox may use.
    pub memory: Memory,
}

const MIB: u64 = 1 << 20;

/// A part of an argument.
enum Piece<'a> {
    Text(&'a str),
    /// The word between the braces.
    Placeholder(&'a str),
}

/// Cuts an argument at its placeholders. Braces around anything but lower-case letters are plain text.
fn pieces(argument: &str) -> impl Iterator<Item = Piece<'_>> {
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

/// The word of the placeholder that a text begins with, and what comes after it.
fn placeholder(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('{')?;
    // Only as far as the word goes, so that many braces do not cost a look at the whole text each.
    let length = text.bytes().take_while(|byte| byte.is_ascii_lowercase() || *byte == b'_').count();
    let (word, rest) = text.split_at(length);
    let after = rest.strip_prefix('}')?;
    (!word.is_empty()).then_some((word, after))
}

fn parsed<T: std::str::FromStr<Err = ModelError>>(text: Option<String>) -> Result<Option<T>, ModelError> {
    text.map(|text| text.parse()).transpose()
}

fn words(field: &'static str, texts: Option<Vec<String>>) -> Result<Vec<String>, ModelError> {
    texts.unwrap_or_default().into_iter().map(|text| word(field, text)).collect()
}

/// A name, an extension, an interpreter or a program: none of them has a space or a control character.
fn word(field: &'static str, text: String) -> Result<String, ModelError> {
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(ModelError::not_allowed(field, text, "a word without spaces"));
    }
    Ok(text)
}

fn file_name(text: String) -> Result<String, ModelError> {
    if text.is_empty() || text == "." || text == ".." || text.contains(['/', '\0']) {
        return Err(ModelError::not_allowed(
            "file",
            text,
            "the name of a file without a directory, such as main.c",
        ));
    }
    Ok(text)
}

fn command(field: &'static str, argv: Vec<String>) -> Result<Vec<String>, ModelError> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(ModelError::not_allowed(field, argv.join(" "), "a program and its arguments"));
    }
    if let Some(argument) = argv.iter().find(|argument| argument.contains('\0')) {
        return Err(ModelError::not_allowed(field, argument, "arguments without a NUL in them"));
    }
    Ok(argv)
}

fn checked_env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ModelError> {
    for (name, value) in &env {
        EnvVar::new(name, value)?;
    }
    Ok(env)
}

#[cfg(test)]
mod tests;
