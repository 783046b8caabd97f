//! Dockerfiles, as far as a template can express them: `FROM` an image, `RUN`, `COPY`, `ENV`, `WORKDIR`, `USER` and `ARG`. Everything
//! else is refused with its line and name, rather than left out.
//!
//! ```text
//! text ─► lines, joined, without comments ─► instructions ─► checked ─► with the image's ENV and WORKDIR ─► steps
//! ```

use std::collections::{BTreeMap, BTreeSet};

use belljar_model::ImageReference;

use crate::definition::sanitize;
use crate::oci::architecture;
use crate::steps::quote;

/// Limit of a Dockerfile, in bytes.
pub const MAX_DOCKERFILE_BYTES: usize = 256 << 10;

/// Limit of a value after its variables are put in, in bytes.
const MAX_VALUE_BYTES: usize = 64 << 10;

/// Limit of further instructions that an error about one which is not supported names.
const MAX_NAMED: usize = 16;

/// Limit of `${…}` within each other.
const MAX_NESTED: usize = 32;

/// Instructions that a template cannot express, and why, or what is in their place.
const REFUSED: [(&str, &str); 11] = [
    ("ADD", "use COPY for files of the directory, and RUN for what is fetched or unpacked"),
    ("CMD", IS_ASKED),
    ("ENTRYPOINT", IS_ASKED),
    ("EXPOSE", "every port of a sandbox can be published with belljar sandbox port; leave it out"),
    ("HEALTHCHECK", IS_ASKED),
    ("LABEL", "templates have no labels; leave it out"),
    ("MAINTAINER", "templates have no labels; leave it out"),
    ("ONBUILD", "steps run in this build alone; leave it out"),
    ("SHELL", "steps run in /bin/sh; name another shell in RUN"),
    ("STOPSIGNAL", "sandboxes end by SIGTERM and SIGKILL; leave it out"),
    ("VOLUME", "volumes are named when a sandbox is created, with --volume; leave it out"),
];
const IS_ASKED: &str =
    "Belljar starts what it is asked to start; leave it out, or use a template's file with start and ready";

/// An error in a Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {instruction}: {reason}")]
pub struct DockerfileError {
    /// The line, from 1.
    pub line: usize,
    /// The instruction.
    pub instruction: String,
    /// The error, and what is allowed.
    pub reason: String,
}

/// A parsed Dockerfile of one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    base: ImageReference,
    escape: char,
    instructions: Vec<Instruction>,
    arguments: Arguments,
}

/// Values of `ARG`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Arguments {
    /// Those that were given, and those of every build. They win over defaults.
    given: BTreeMap<String, String>,
    /// Those of before `FROM`, for an `ARG` without a default after it.
    global: BTreeMap<String, String>,
}

/// A step of a Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerStep {
    /// Line of its instruction, from 1.
    pub line: usize,
    /// What it does.
    pub kind: DockerStepKind,
}

/// What a step of a Dockerfile does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DockerStepKind {
    /// Runs a command line.
    Run {
        /// The line.
        line: String,
        /// Arguments, which the command sees as variables. Those of `ENV` are set already.
        args: BTreeMap<String, String>,
    },
    /// Copies files and what is in directories.
    Copy {
        /// Paths and patterns beside the Dockerfile, without a slash at the beginning; `.` is all.
        sources: Vec<String>,
        /// Absolute path of the destination.
        to: String,
        /// Whether that is a directory, into which files go by their names.
        is_dir: bool,
    },
    /// Sets environment variables.
    Env(BTreeMap<String, String>),
    /// Sets the user's name.
    User(String),
    /// Makes a directory that is not there, and sets it as that of later steps.
    Workdir(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Instruction {
    line: usize,
    name: String,
    rest: String,
    /// Here-documents as they stand, with their end marks.
    documents: String,
}

impl Instruction {
    fn error(&self, reason: impl Into<String>) -> DockerfileError {
        DockerfileError {
            line: self.line,
            instruction: self.name.clone(),
            reason: sanitize(&reason.into(), 1000),
        }
    }
}

impl Dockerfile {
    /// Parses a Dockerfile, with arguments of the build.
    ///
    /// # Errors
    /// Returns the first error: of syntax, or an instruction, a flag or a form that a template cannot express.
    pub fn parse(text: &str, build_args: &BTreeMap<String, String>) -> Result<Self, DockerfileError> {
        let fail = |line, instruction: &str, reason: String| {
            Err(DockerfileError { line, instruction: instruction.to_owned(), reason })
        };
        if text.len() > MAX_DOCKERFILE_BYTES {
            let reason = format!("it has {} bytes; at most {MAX_DOCKERFILE_BYTES} are allowed", text.len());
            return fail(1, "file", reason);
        }
        let escape = escape_of(text);
        let mut instructions = instructions(text, escape)?.into_iter().peekable();
        let platform = [("TARGETOS", "linux".to_owned()), ("TARGETARCH", architecture().to_owned())];
        let whole = ("TARGETPLATFORM", format!("linux/{}", architecture()));
        let mut given: BTreeMap<String, String> =
            platform.into_iter().chain([whole]).map(|(name, value)| (name.to_owned(), value)).collect();
        given.extend(build_args.clone());
        let mut arguments = Arguments { given, global: BTreeMap::new() };
        while let Some(instruction) = instructions.next_if(|one| one.name == "ARG") {
            for (name, value) in arguments.read(&instruction, &arguments.global, escape)? {
                arguments.global.extend(value.map(|value| (name, value)));
            }
        }
        let Some(from) = instructions.next() else { return fail(1, "FROM", "missing".to_owned()) };
        let base = base_image(&from, &arguments.global, escape)?;
        let instructions: Vec<Instruction> = instructions.collect();
        let mut declared = BTreeSet::new();
        let refused = |one: &Instruction| REFUSED.iter().find(|(name, _)| *name == one.name);
        for (index, one) in instructions.iter().enumerate() {
            if let Some((_, reason)) = refused(one) {
                let rest = instructions.iter().skip(index + 1).filter(|one| refused(one).is_some());
                let rest: Vec<_> =
                    rest.take(MAX_NAMED).map(|one| format!("line {} {}", one.line, one.name)).collect();
                let more =
                    if rest.is_empty() { String::new() } else { format!("; nor is {}", rest.join(", ")) };
                return Err(one.error(format!("not supported: {reason}{more}")));
            }
            match one.name.as_str() {
                "FROM" => {
                    return Err(one.error("not supported: a second stage; build it as an image of its own"));
                }
                "ARG" => declared.extend(words(&one.rest, escape).iter().map(|word| name_of(word))),
                "RUN" | "COPY" | "ENV" | "USER" | "WORKDIR" => {}
                _ => return Err(one.error("unknown instruction")),
            }
        }
        declared.extend(arguments.global.keys().cloned());
        if let Some(unknown) = build_args.keys().find(|name| !declared.contains(*name)) {
            return fail(from.line, "ARG", format!("{unknown} was given, but no ARG names it"));
        }
        let parsed = Self { base, escape, instructions, arguments };
        // Errors do not depend on the image.
        parsed.steps(&BTreeMap::new(), None)?;
        Ok(parsed)
    }

    /// Returns the image that it is based on.
    #[must_use]
    pub fn base(&self) -> &ImageReference {
        &self.base
    }

    /// Returns the steps on an image with these variables and this working directory.
    ///
    /// # Errors
    /// Returns the first error, with its line.
    pub fn steps(
        &self,
        env: &BTreeMap<String, String>,
        workdir: Option<&str>,
    ) -> Result<Vec<DockerStep>, DockerfileError> {
        let mut scope = Scope {
            env: env.clone(),
            args: BTreeMap::new(),
            workdir: workdir.unwrap_or("/").to_owned(),
            escape: self.escape,
        };
        let mut steps = Vec::new();
        for one in &self.instructions {
            let kind = match one.name.as_str() {
                "ARG" => {
                    for (name, value) in self.arguments.read(one, &scope.variables(), self.escape)? {
                        scope.args.extend(value.map(|value| (name, value)));
                    }
                    continue;
                }
                "ENV" => {
                    let set = scope.env(one)?;
                    scope.env.extend(set.clone());
                    DockerStepKind::Env(set)
                }
                "RUN" => scope.run(one)?,
                "COPY" => scope.copy(one)?,
                "USER" => DockerStepKind::User(scope.user(one)?),
                _ => {
                    scope.workdir = scope.resolve(one, &scope.single(one)?)?;
                    DockerStepKind::Workdir(scope.workdir.clone())
                }
            };
            steps.push(DockerStep { line: one.line, kind });
        }
        Ok(steps)
    }
}

/// What an instruction sees of those before it.
struct Scope {
    env: BTreeMap<String, String>,
    args: BTreeMap<String, String>,
    workdir: String,
    escape: char,
}

impl Scope {
    /// Returns all variables; those of `ENV` win.
    fn variables(&self) -> BTreeMap<String, String> {
        self.args.clone().into_iter().chain(self.env.clone()).collect()
    }

    fn expand(&self, one: &Instruction, word: &str) -> Result<String, DockerfileError> {
        expand(word, &self.variables(), self.escape).map_err(|reason| one.error(reason))
    }

    fn single(&self, one: &Instruction) -> Result<String, DockerfileError> {
        let value = self.expand(one, one.rest.trim())?;
        if value.is_empty() {
            return Err(one.error("give one value"));
        }
        Ok(value)
    }

    /// Returns an absolute path without `.` and `..`.
    fn resolve(&self, one: &Instruction, path: &str) -> Result<String, DockerfileError> {
        let whole = if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", self.workdir) };
        let mut parts: Vec<&str> = Vec::new();
        for part in whole.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        if whole.chars().any(char::is_control) {
            return Err(one.error("a path has no control characters"));
        }
        Ok(format!("/{}", parts.join("/")))
    }

    fn env(&self, one: &Instruction) -> Result<BTreeMap<String, String>, DockerfileError> {
        let words = words(&one.rest, self.escape);
        let first = words.first().ok_or_else(|| one.error("give NAME=VALUE"))?;
        if !first.contains('=') {
            // The old form: one name, and the rest of the line.
            let value = one.rest.trim_start().get(first.len()..).unwrap_or_default().trim();
            if value.is_empty() {
                return Err(one.error(format!("{first:?} has no value; give NAME=VALUE")));
            }
            return Ok(BTreeMap::from([(first.clone(), self.expand(one, value)?)]));
        }
        let mut set = BTreeMap::new();
        for word in &words {
            let (name, value) =
                word.split_once('=').ok_or_else(|| one.error(format!("{word:?} is not NAME=VALUE")))?;
            set.insert(self.expand(one, name)?, self.expand(one, value)?);
        }
        Ok(set)
    }

    fn run(&self, one: &Instruction) -> Result<DockerStepKind, DockerfileError> {
        let line = one.rest.trim();
        if let Some(flag) = flags(line).0.first() {
            return Err(one.error(format!("not supported: {flag}")));
        }
        let line = match exec_form(line) {
            Some(words) => words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" "),
            None if one.documents.is_empty() => line.to_owned(),
            // A here-document alone is the script itself.
            None if line.starts_with("<<") && !line.contains(char::is_whitespace) => {
                let body: Vec<&str> = one.documents.lines().collect();
                let (_, body) = body.split_last().unwrap_or((&"", &[]));
                if body.first().is_some_and(|first| first.starts_with("#!")) {
                    return Err(one
                        .error("not supported: a script with an interpreter of its own; name it before <<"));
                }
                body.join("\n")
            }
            None => format!("{line}\n{}", one.documents),
        };
        if line.trim().is_empty() {
            return Err(one.error("give a command"));
        }
        let mut args = self.args.clone();
        args.retain(|name, _| !self.env.contains_key(name));
        Ok(DockerStepKind::Run { line, args })
    }

    fn copy(&self, one: &Instruction) -> Result<DockerStepKind, DockerfileError> {
        if !one.documents.is_empty() {
            return Err(one.error("not supported: here-documents; write the file with RUN"));
        }
        let (flags, rest) = flags(one.rest.trim());
        let is_root = |flag: &&&str| {
            let owner = flag.strip_prefix("--chown=");
            owner.is_some_and(|owner| ["root", "0", "root:root", "0:0"].contains(&owner))
        };
        if let Some(flag) = flags.iter().find(|flag| !is_root(flag)) {
            return Err(one.error(format!(
                "not supported: {flag}; files belong to root, with the modes that they have here"
            )));
        }
        let words = match exec_form(rest) {
            Some(words) => words,
            None => words(rest, self.escape),
        };
        let words = words.iter().map(|word| self.expand(one, word)).collect::<Result<Vec<_>, _>>()?;
        let Some((to, sources)) = words.split_last().filter(|(_, sources)| !sources.is_empty()) else {
            return Err(one.error("give a source and a destination"));
        };
        let is_dir = to.ends_with('/') || to == "." || to.ends_with("/.") || sources.len() > 1;
        let sources = sources.iter().map(|source| source_path(one, source)).collect::<Result<_, _>>()?;
        Ok(DockerStepKind::Copy { sources, to: self.resolve(one, to)?, is_dir })
    }

    fn user(&self, one: &Instruction) -> Result<String, DockerfileError> {
        let name = self.single(one)?;
        let is_name = name.starts_with(|first: char| first.is_ascii_lowercase())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte));
        if !is_name {
            return Err(one.error(format!("{name:?} is not supported; give a user's name, without a group")));
        }
        Ok(name)
    }
}

/// Returns a path of `COPY` as it is named beside the Dockerfile.
fn source_path(one: &Instruction, source: &str) -> Result<String, DockerfileError> {
    if source.contains("://") || source.starts_with("git@") {
        return Err(
            one.error(format!("{source:?} is not supported; only files beside the Dockerfile are copied"))
        );
    }
    let parts: Vec<&str> = source.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") || source.chars().any(char::is_control) {
        return Err(one.error(format!("{source:?} is not beside the Dockerfile")));
    }
    Ok(if parts.is_empty() { ".".to_owned() } else { parts.join("/") })
}

/// Returns the image of `FROM`.
fn base_image(
    from: &Instruction,
    global: &BTreeMap<String, String>,
    escape: char,
) -> Result<ImageReference, DockerfileError> {
    if from.name != "FROM" {
        return Err(from.error("it is before FROM"));
    }
    let (flags, rest) = flags(from.rest.trim());
    if let Some(flag) = flags.first() {
        return Err(from.error(format!("not supported: {flag}; images are for this machine")));
    }
    let words: Vec<&str> = rest.split_whitespace().collect();
    let image = match words.as_slice() {
        [image] => image,
        [image, word, _] if word.eq_ignore_ascii_case("as") => image,
        _ => return Err(from.error("give one image")),
    };
    let image = expand(image, global, escape).map_err(|reason| from.error(reason))?;
    if image == "scratch" {
        return Err(from.error("not supported: scratch; give an image with a shell"));
    }
    image.parse().map_err(|error: belljar_model::ImageReferenceError| from.error(error.to_string()))
}

impl Arguments {
    /// Returns the names of an `ARG` with their values, if they have any.
    fn read(
        &self,
        one: &Instruction,
        variables: &BTreeMap<String, String>,
        escape: char,
    ) -> Result<Vec<(String, Option<String>)>, DockerfileError> {
        let words = words(&one.rest, escape);
        if words.is_empty() {
            return Err(one.error("give NAME or NAME=VALUE"));
        }
        let mut variables = variables.clone();
        let mut found = Vec::new();
        for word in &words {
            let (name, default) = (name_of(word), word.split_once('=').map(|(_, value)| value));
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            let has_letter = name.starts_with(|first: char| !first.is_ascii_digit());
            if !has_letter || !name.bytes().all(is_name) {
                return Err(one.error(format!("{name:?} is not a name")));
            }
            let default = default.map(|value| expand(value, &variables, escape)).transpose();
            let default = default.map_err(|reason| one.error(reason))?;
            let given = self.given.get(&name).cloned();
            let value = given.or(default).or_else(|| self.global.get(&name).cloned());
            variables.extend(value.clone().map(|value| (name.clone(), value)));
            found.push((name, value));
        }
        Ok(found)
    }
}

fn name_of(word: &str) -> String {
    word.split('=').next().unwrap_or_default().to_owned()
}

/// Splits flags off the beginning of a line.
fn flags(mut line: &str) -> (Vec<&str>, &str) {
    let mut flags = Vec::new();
    while line.starts_with("--") {
        let end = line.find(char::is_whitespace).unwrap_or(line.len());
        flags.push(&line[..end]);
        line = line[end..].trim_start();
    }
    (flags, line)
}

/// Parses the form of words in JSON. What is none is a line for the shell.
fn exec_form(line: &str) -> Option<Vec<String>> {
    line.starts_with('[').then(|| serde_json::from_str(line).ok()).flatten()
}

/// Returns the character that continues lines.
fn escape_of(text: &str) -> char {
    for line in text.trim_start_matches('\u{feff}').lines() {
        let Some(comment) = line.trim_start().strip_prefix('#') else { break };
        let Some((name, value)) = comment.split_once('=') else { break };
        match name.trim().to_ascii_lowercase().as_str() {
            "escape" if value.trim() == "`" => return '`',
            "escape" => return '\\',
            // Directives that come before it.
            "syntax" | "check" => {}
            _ => break,
        }
    }
    '\\'
}

/// Splits the text into instructions: lines are joined, comments and empty lines left out.
fn instructions(text: &str, escape: char) -> Result<Vec<Instruction>, DockerfileError> {
    let mut all = Vec::new();
    let mut lines = text.trim_start_matches('\u{feff}').lines().enumerate();
    while let Some((index, first)) = lines.next() {
        if is_left_out(first) {
            continue;
        }
        let mut whole = String::new();
        let mut piece = first.trim_start();
        while let Some(begin) = piece.trim_end().strip_suffix(escape) {
            whole.push_str(begin);
            piece = loop {
                match lines.next() {
                    Some((_, line)) if is_left_out(line) => {}
                    Some((_, line)) => break line,
                    None => break "",
                }
            };
        }
        whole.push_str(piece);
        let (name, rest) = whole.trim().split_once(char::is_whitespace).unwrap_or((whole.trim(), ""));
        let (name, rest) = (sanitize(&name.to_ascii_uppercase(), 40), rest.trim().to_owned());
        let mut one = Instruction { line: index + 1, name, rest, documents: String::new() };
        if ["RUN", "COPY", "ADD"].contains(&one.name.as_str()) && exec_form(&one.rest).is_none() {
            for (mark, strips_tabs) in documents(&one.rest) {
                loop {
                    let (_, line) = lines
                        .next()
                        .ok_or_else(|| one.error(format!("the here-document {mark:?} has no end")))?;
                    one.documents.push_str(line);
                    one.documents.push('\n');
                    let line = if strips_tabs { line.trim_start_matches('\t') } else { line };
                    if line == mark {
                        break;
                    }
                }
            }
        }
        all.push(one);
    }
    Ok(all)
}

fn is_left_out(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

/// Returns the end marks of the here-documents that a line begins, and whether tabs before them are left out.
fn documents(line: &str) -> Vec<(String, bool)> {
    let begin = |word: &str| {
        let word = word.trim_start_matches(|digit: char| digit.is_ascii_digit()).strip_prefix("<<")?;
        let (strips_tabs, word) = match word.strip_prefix('-') {
            Some(word) => (true, word),
            None => (false, word),
        };
        let mark: String = word.chars().filter(|letter| !['"', '\''].contains(letter)).collect();
        let is_mark = mark.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        (!mark.is_empty() && is_mark).then_some((mark, strips_tabs))
    };
    line.split_whitespace().filter_map(begin).collect()
}

/// Splits a line into words, with their quotes.
fn words(line: &str, escape: char) -> Vec<String> {
    let (mut all, mut word, mut quoted) = (Vec::new(), String::new(), None);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (letter, quoted) {
            (letter, None) if letter.is_whitespace() => {
                if !word.is_empty() {
                    all.push(std::mem::take(&mut word));
                }
                continue;
            }
            ('"' | '\'', None) => quoted = Some(letter),
            (letter, Some(quote)) if letter == quote => quoted = None,
            (letter, quote) if letter == escape && quote != Some('\'') => {
                word.push(letter);
                word.extend(letters.next());
                continue;
            }
            _ => {}
        }
        word.push(letter);
    }
    if !word.is_empty() {
        all.push(word);
    }
    all
}

/// Takes quotes and escapes off a word, and puts in the values of variables.
fn expand(word: &str, variables: &BTreeMap<String, String>, escape: char) -> Result<String, String> {
    expand_below(word, variables, escape, MAX_NESTED)
}

/// Expands what may nest `depth` levels deep.
fn expand_below(
    word: &str,
    variables: &BTreeMap<String, String>,
    escape: char,
    depth: usize,
) -> Result<String, String> {
    let below =
        depth.checked_sub(1).ok_or_else(|| format!("more than {MAX_NESTED} ${{…}} within each other"))?;
    let (mut text, mut quoted) = (String::new(), None);
    let mut letters = word.chars().peekable();
    while let Some(letter) = letters.next() {
        check_length(&text)?;
        match (letter, quoted) {
            ('\'' | '"', None) => quoted = Some(letter),
            (letter, Some(quote)) if letter == quote => quoted = None,
            ('$', None | Some('"')) => {
                let is_name = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
                if letters.next_if_eq(&'{').is_some() {
                    let (mut inner, mut depth) = (String::new(), 1);
                    loop {
                        let letter = letters.next().ok_or_else(|| format!("${{{inner} has no end"))?;
                        depth += i32::from(letter == '{') - i32::from(letter == '}');
                        if depth == 0 {
                            break;
                        }
                        inner.push(letter);
                    }
                    text.push_str(&in_braces(&inner, variables, escape, below)?);
                } else {
                    let mut name = String::new();
                    while let Some(letter) = letters.next_if(is_name) {
                        name.push(letter);
                    }
                    match name.is_empty() {
                        true => text.push('$'),
                        false => text.push_str(variables.get(&name).map_or("", String::as_str)),
                    }
                }
            }
            (letter, None) if letter == escape => text.extend(letters.next()),
            (letter, Some('"')) if letter == escape => {
                match letters.next_if(|next| "\"$\\".contains(*next)) {
                    Some(next) => text.push(next),
                    None => text.push(letter),
                }
            }
            _ => text.push(letter),
        }
    }
    match quoted {
        Some(quote) => Err(format!("{:?} has a {quote} without an end", sanitize(word, 200))),
        None => check_length(&text).map(|()| text),
    }
}

fn check_length(text: &str) -> Result<(), String> {
    if text.len() > MAX_VALUE_BYTES {
        return Err(format!("a value has more than {} KiB", MAX_VALUE_BYTES >> 10));
    }
    Ok(())
}

/// Returns the value of what is between braces after `$`.
fn in_braces(
    inner: &str,
    variables: &BTreeMap<String, String>,
    escape: char,
    depth: usize,
) -> Result<String, String> {
    let end =
        inner.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(inner.len());
    let (name, operator) = inner.split_at(end);
    let value = variables.get(name);
    let filled = value.filter(|value| !value.is_empty());
    let other = |text: &str| expand_below(text, variables, escape, depth);
    let operators = [":-", ":+", "-", "+"];
    let found = operators.into_iter().find_map(|one| Some((one, operator.strip_prefix(one)?)));
    match found {
        _ if name.is_empty() => Err(format!("${{{inner}}} names no variable")),
        None if operator.is_empty() => Ok(value.cloned().unwrap_or_default()),
        Some((":-", text)) => filled.map_or_else(|| other(text), |value| Ok(value.clone())),
        Some((":+", text)) => filled.map_or(Ok(String::new()), |_| other(text)),
        Some(("-", text)) => value.map_or_else(|| other(text), |value| Ok(value.clone())),
        Some(("+", text)) => value.map_or(Ok(String::new()), |_| other(text)),
        _ => Err(format!("${{{inner}}} is not supported; give :-, :+, - or + after the name")),
    }
}

#[cfg(test)]
#[path = "dockerfile_tests.rs"]
mod tests;
