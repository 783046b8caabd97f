//! The definition file of a template.

use std::collections::BTreeMap;
use std::ops::Range;

use belljar_model::{EnvVar, ImageReference, LimitsFile, NetworkFile, NetworkMode, NetworkPolicy, SpecFile};
use serde::Deserialize;
use toml::Spanned;

use crate::error::DefinitionError;

/// Limit of a definition's text: 256 KiB.
pub const MAX_DEFINITION_BYTES: usize = 256 << 10;
/// Limit of steps.
pub const MAX_STEPS: usize = 64;
/// Limit of words in a list of packages or modules.
pub(crate) const MAX_WORDS: usize = 512;
/// Limit of a command, in bytes.
const MAX_COMMAND_BYTES: usize = 64 << 10;

/// A parsed definition. Every value in it has been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// The template's name.
    pub name: String,
    /// The purpose of the template.
    pub description: String,
    /// The tree or template that the steps build on.
    pub base: Base,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// A command that is started in each sandbox and keeps running.
    pub start: Option<String>,
    /// A command that succeeds as soon as a sandbox is ready for use.
    pub ready: Option<String>,
    /// Modules that warm interpreters import in advance.
    pub warm: Vec<String>,
    /// Default limits and environment of sandboxes.
    pub spec: SpecFile,
    /// Limits of the sandboxes of the build.
    pub build: LimitsFile,
}

/// The base of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// The machine's own tree; the template's files are below `/opt/template`.
    Host,
    /// A Debian tree, made by mmdebstrap.
    Debian {
        /// The release, such as `bookworm`.
        suite: String,
    },
    /// An OCI image: a layout directory, or a tar of one.
    Oci {
        /// The path as given in the file.
        path: String,
        /// The tag or digest, if the layout has several images.
        reference: Option<String>,
    },
    /// An OCI image of a registry, which is pulled.
    Image(ImageReference),
    /// Another template.
    Template(String),
}

/// A step of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The action of the step.
    pub kind: StepKind,
    /// The position of the step, from 1.
    pub number: usize,
    /// The network policy during the step. Kinds that run no program have no network.
    pub network: NetworkPolicy,
    /// Environment variables of its program, which later steps and sandboxes do not have. Kinds that run no program have none.
    pub env: BTreeMap<String, String>,
}

impl Step {
    /// Reports whether the step has a network.
    #[must_use]
    pub fn has_network(&self) -> bool {
        self.network.mode() != NetworkMode::Disabled
    }
}

/// The action of a step, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepKind {
    /// Installs Debian packages.
    Apt(Vec<String>),
    /// Installs Python packages.
    Pip(Vec<String>),
    /// Installs Node packages for all programs.
    Npm(Vec<String>),
    /// Runs a command line.
    Run(String),
    /// Copies a file that came with the template.
    Copy(CopyStep),
    /// Sets environment variables, for later steps and for sandboxes.
    Env(BTreeMap<String, String>),
    /// Sets the name of the user, for later steps and for sandboxes.
    User(String),
    /// Sets the directory in which later steps run.
    Workdir(String),
}

/// Source and destination of a `copy` step, each a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyStep {
    /// The path next to the definition file: relative, without `..`; `.` is everything that came with the template.
    pub from: String,
    /// The absolute path inside the sandbox.
    pub to: String,
}

impl CopyStep {
    /// Returns the path to which a file that came with the template is copied; `None` if it is not part of this step.
    pub(crate) fn target(&self, name: &str) -> Option<String> {
        let below = |rest: &str| format!("{}/{rest}", self.to.trim_end_matches('/'));
        if self.from == "." {
            return Some(below(name));
        }
        match name.strip_prefix(&self.from)? {
            "" => Some(self.to.clone()),
            rest => rest.strip_prefix('/').map(below),
        }
    }
}

impl StepKind {
    /// Returns the name of the kind, as in the file.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Apt(_) => "apt",
            Self::Pip(_) => "pip",
            Self::Npm(_) => "npm",
            Self::Run(_) => "run",
            Self::Copy(_) => "copy",
            Self::Env(_) => "env",
            Self::User(_) => "user",
            Self::Workdir(_) => "workdir",
        }
    }

    /// Returns a one-line summary of the step, without the values of environment variables.
    #[must_use]
    pub fn summary(&self) -> String {
        match self {
            Self::Apt(words) | Self::Pip(words) | Self::Npm(words) => words.join(" "),
            Self::Run(script) => script_line(script),
            Self::Copy(copy) => format!("{} to {}", copy.from, copy.to),
            Self::Env(env) => env.keys().cloned().collect::<Vec<_>>().join(" "),
            Self::User(name) | Self::Workdir(name) => name.clone(),
        }
    }

    /// Reports whether the step runs a program, and may therefore have a network.
    #[must_use]
    pub const fn runs(&self) -> bool {
        matches!(self, Self::Apt(_) | Self::Pip(_) | Self::Npm(_) | Self::Run(_))
    }

    /// Reports whether the step changes files, not only settings.
    #[must_use]
    pub const fn changes_files(&self) -> bool {
        !matches!(self, Self::Env(_) | Self::User(_) | Self::Workdir(_))
    }
}

/// Returns the first line of a script that does something, of at most 200 characters, with an ellipsis if there are more of them. Empty
/// lines, comments and lines that set the shell's options alone do nothing.
#[must_use]
pub fn script_line(script: &str) -> String {
    let does_something = |line: &&str| {
        let line = line.trim();
        let sets_options = line.starts_with("set -") && !line.contains([';', '&', '|']);
        !line.is_empty() && !line.starts_with('#') && !sets_options
    };
    let mut lines = script.lines().filter(does_something);
    let first = lines.next().or_else(|| script.trim_start().lines().next()).unwrap_or_default();
    let mut line: String = first.trim().chars().take(200).collect();
    if lines.next().is_some() {
        line.push_str(" …");
    }
    line
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    #[serde(default)]
    description: Option<Spanned<String>>,
    base: Spanned<String>,
    suite: Option<Spanned<String>>,
    image: Option<Spanned<String>>,
    reference: Option<Spanned<String>>,
    start: Option<Spanned<String>>,
    ready: Option<Spanned<String>>,
    warm: Option<Spanned<Vec<String>>>,
    machine: Option<Spanned<bool>>,
    limits: Option<Spanned<BTreeMap<String, toml::Value>>>,
    build: Option<Spanned<BTreeMap<String, toml::Value>>>,
    #[serde(default)]
    step: Vec<Spanned<StepFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepFile {
    apt: Option<Spanned<Vec<String>>>,
    pip: Option<Spanned<Vec<String>>>,
    npm: Option<Spanned<Vec<String>>>,
    run: Option<Spanned<String>>,
    copy: Option<Spanned<CopyFile>>,
    env: Option<Spanned<BTreeMap<String, String>>>,
    user: Option<Spanned<String>>,
    workdir: Option<Spanned<String>>,
    network: Option<Spanned<toml::Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CopyFile {
    from: String,
    to: String,
}

/// Prepares text for a message: truncates it to `max_chars` characters and replaces control characters.
pub(crate) fn sanitize(text: &str, max_chars: usize) -> String {
    let visible = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
    text.chars().take(max_chars).map(visible).collect()
}

/// The text of a definition, used to locate errors.
struct Source<'t> {
    text: &'t str,
}

impl Source<'_> {
    fn error(
        &self,
        span: Range<usize>,
        field: impl Into<String>,
        reason: impl Into<String>,
    ) -> DefinitionError {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let (field, reason) = (sanitize(&field.into(), 200), sanitize(&reason.into(), 1000));
        DefinitionError { line, column, field, reason }
    }

    /// Fails with `reason` at the position of `value` unless `allowed`.
    fn check<T>(
        &self,
        field: &str,
        value: &Spanned<T>,
        allowed: bool,
        reason: &str,
    ) -> Result<(), DefinitionError> {
        if allowed { Ok(()) } else { Err(self.error(value.span(), field, reason)) }
    }

    fn words(
        &self,
        field: &str,
        list: &Spanned<Vec<String>>,
        allowed: fn(&str) -> bool,
        what: &str,
    ) -> Result<Vec<String>, DefinitionError> {
        let words = list.get_ref();
        let reason = format!("give 1 to {MAX_WORDS} {what}");
        self.check(field, list, (1..=MAX_WORDS).contains(&words.len()), &reason)?;
        if let Some(bad) = words.iter().find(|word| !allowed(word)) {
            return Err(self.error(
                list.span(),
                field,
                format!("{bad:?} is not allowed in a list of {what}"),
            ));
        }
        Ok(words.clone())
    }

    fn command(&self, field: &str, value: &Spanned<String>) -> Result<String, DefinitionError> {
        let text = value.get_ref();
        let fits = !text.trim().is_empty() && text.len() <= MAX_COMMAND_BYTES && !text.contains('\0');
        self.check(field, value, fits, "give a command line of 1 to 65536 bytes without NUL")?;
        Ok(text.clone())
    }
}

impl Definition {
    /// Parses the text of a definition file.
    ///
    /// # Errors
    /// Returns the first error with its position, its key and what is allowed.
    pub fn parse(text: &str) -> Result<Self, DefinitionError> {
        let source = Source { text };
        if text.len() > MAX_DEFINITION_BYTES {
            let reason = format!("it has {} bytes; at most {MAX_DEFINITION_BYTES} are allowed", text.len());
            return Err(source.error(0..0, "template", reason));
        }
        let file: File = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let message = error.message().to_owned();
            source.error(span, key_in_message(&message).unwrap_or_else(|| "template".to_owned()), message)
        })?;
        file.check(&source)
    }
}

/// Returns the key that a message of the TOML library names.
fn key_in_message(message: &str) -> Option<String> {
    let prefixes = ["unknown field `", "missing field `", "duplicate field `", "duplicate key `"];
    let rest = prefixes.iter().find_map(|prefix| message.strip_prefix(prefix))?;
    Some(rest.split('`').next()?.to_owned())
}

impl File {
    fn check(mut self, source: &Source<'_>) -> Result<Definition, DefinitionError> {
        source.check("name", &self.name, is_name(self.name.get_ref()), NAME_RULE)?;
        let base = self.base(source)?;
        if let Some(text) = &self.description {
            let fits = text.get_ref().len() <= 1024 && !text.get_ref().chars().any(char::is_control);
            source.check("description", text, fits, "at most 1024 bytes without control characters")?;
        }
        if self.step.len() > MAX_STEPS {
            let span = self.step.get(MAX_STEPS).map_or(0..0, Spanned::span);
            return Err(source.error(span, "step", format!("at most {MAX_STEPS} steps are allowed")));
        }
        let network = match &mut self.build {
            Some(table) => {
                let span = table.span();
                let value = table.get_mut().remove("network");
                value.map(|value| network(source, span, "build.network", value)).transpose()?
            }
            None => None,
        };
        let network = network.unwrap_or_default();
        let steps = self
            .step
            .iter()
            .enumerate()
            .map(|(index, step)| parse_step(source, step, index + 1, &base, &network))
            .collect::<Result<Vec<_>, _>>()?;
        let command = |field: &str, value: &Option<Spanned<String>>| {
            value.as_ref().map(|value| source.command(field, value)).transpose()
        };
        let (start, ready) = (command("start", &self.start)?, command("ready", &self.ready)?);
        if let (Some(ready), None) = (&self.ready, &start) {
            return Err(source.error(
                ready.span(),
                "ready",
                "it waits for the command in `start`; give `start` too",
            ));
        }
        let warm = match &self.warm {
            Some(list) => source.words("warm", list, is_module, "names of Python modules")?,
            None => Vec::new(),
        };
        let mut env = BTreeMap::new();
        for step in &steps {
            match &step.kind {
                StepKind::Env(more) => env.extend(more.clone()),
                StepKind::User(name) => {
                    env.insert("USER".to_owned(), name.clone());
                    env.insert("LOGNAME".to_owned(), name.clone());
                }
                _ => {}
            }
        }
        if let Some(machine) = &self.machine {
            let fits = base != Base::Host || !*machine.get_ref();
            source.check(
                "machine",
                machine,
                fits,
                "it needs a tree of its own; give another base than host",
            )?;
        }
        let spec = SpecFile {
            machine: self.machine.map(Spanned::into_inner),
            limits: limits(source, "limits", self.limits.as_ref())?,
            env: (!env.is_empty()).then_some(env),
            ..SpecFile::default()
        };
        Ok(Definition {
            name: self.name.get_ref().clone(),
            description: self.description.map(Spanned::into_inner).unwrap_or_default(),
            base,
            steps,
            start,
            ready,
            warm,
            spec,
            build: limits(source, "build", self.build.as_ref())?,
        })
    }

    fn base(&self, source: &Source<'_>) -> Result<Base, DefinitionError> {
        let text = self.base.get_ref().as_str();
        let only = |field: &str, value: &Option<Spanned<String>>, base: &str| match value {
            Some(value) => {
                Err(source.error(value.span(), field, format!("only allowed with base = \"{base}\"")))
            }
            None => Ok(()),
        };
        let image = text.strip_prefix("image:").map(str::parse::<ImageReference>).transpose();
        let image = image.map_err(|error| source.error(self.base.span(), "base", error.to_string()))?;
        let is_known = image.is_some()
            || ["host", "debian", "oci"].contains(&text)
            || text.strip_prefix("template:").is_some_and(is_name);
        let reason = format!("{text:?} is not allowed; give host, debian, oci, image:NAME or template:NAME");
        source.check("base", &self.base, is_known, &reason)?;
        if text != "debian" {
            only("suite", &self.suite, "debian")?;
        }
        if text != "oci" {
            only("image", &self.image, "oci")?;
            only("reference", &self.reference, "oci")?;
        }
        if let Some(image) = image {
            return Ok(Base::Image(image));
        }
        match text.split_once(':') {
            None if text == "host" => Ok(Base::Host),
            None if text == "debian" => {
                let suite = match &self.suite {
                    None => "bookworm".to_owned(),
                    Some(suite) => {
                        let letters = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
                        let name = suite.get_ref();
                        let fits = (1..=32).contains(&name.len()) && name.bytes().all(letters);
                        source.check("suite", suite, fits, "give a release by its name, such as bookworm")?;
                        name.clone()
                    }
                };
                Ok(Base::Debian { suite })
            }
            None if text == "oci" => {
                let Some(image) = &self.image else {
                    let reason =
                        "missing; base = \"oci\" needs the path of an image layout, or of a tar of one";
                    return Err(source.error(self.base.span(), "image", reason));
                };
                let path = image.get_ref();
                let fits = (1..=4096).contains(&path.len()) && !path.contains('\0');
                source.check("image", image, fits, "give a path of 1 to 4096 bytes without NUL")?;
                let reference = self.reference.as_ref().map(|value| value.get_ref().clone());
                if let (Some(value), Some(text)) = (&self.reference, &reference) {
                    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-/@".contains(&byte);
                    let fits = (1..=256).contains(&text.len()) && text.bytes().all(letters);
                    source.check("reference", value, fits, "give a tag, or a digest as sha256:…")?;
                }
                Ok(Base::Oci { path: path.clone(), reference })
            }
            Some((_, name)) => Ok(Base::Template(name.to_owned())),
            None => Err(source.error(self.base.span(), "base", reason)),
        }
    }
}

fn parse_step(
    source: &Source<'_>,
    step: &Spanned<StepFile>,
    number: usize,
    base: &Base,
    build_network: &NetworkPolicy,
) -> Result<Step, DefinitionError> {
    let file = step.get_ref();
    let field = |key: &str| format!("step.{number}.{key}");
    let mut kinds = Vec::new();
    if let Some(list) = &file.apt {
        if *base == Base::Host {
            let reason = "packages cannot be installed into the machine's own tree; use base = \"debian\"";
            return Err(source.error(list.span(), field("apt"), reason));
        }
        kinds.push(StepKind::Apt(source.words(&field("apt"), list, is_package, "Debian packages")?));
    }
    if let Some(list) = &file.pip {
        kinds.push(StepKind::Pip(source.words(
            &field("pip"),
            list,
            is_requirement,
            "Python requirements",
        )?));
    }
    if let Some(list) = &file.npm {
        kinds.push(StepKind::Npm(source.words(&field("npm"), list, is_node_package, "Node packages")?));
    }
    if let Some(line) = &file.run {
        kinds.push(StepKind::Run(source.command(&field("run"), line)?));
    }
    if let Some(copy) = &file.copy {
        let CopyFile { from, to } = copy.get_ref();
        source.check(
            &field("copy.from"),
            copy,
            from == "." || is_below(from),
            "give a relative path without .. or control characters",
        )?;
        let to_fits = to == "/" || to.strip_prefix('/').is_some_and(is_below);
        source.check(
            &field("copy.to"),
            copy,
            to_fits,
            "give an absolute path without .. or control characters",
        )?;
        if *base == Base::Host && !to.starts_with("/opt/template/") {
            let reason = "on base = \"host\" a template can only write below /opt/template";
            return Err(source.error(copy.span(), field("copy.to"), reason));
        }
        kinds.push(StepKind::Copy(CopyStep { from: from.clone(), to: to.clone() }));
    }
    if let Some(env) = &file.env {
        for (name, value) in env.get_ref() {
            if let Err(error) = EnvVar::new(name.clone(), value.clone()) {
                return Err(source.error(env.span(), field("env"), error.to_string()));
            }
        }
        if !kinds.iter().any(StepKind::runs) {
            kinds.push(StepKind::Env(env.get_ref().clone()));
        }
    }
    if let Some(user) = &file.user {
        let name = user.get_ref();
        let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        let fits = (1..=32).contains(&name.len())
            && name.bytes().all(letters)
            && name.starts_with(|first: char| first.is_ascii_lowercase());
        source.check(&field("user"), user, fits, "give a user's name of a to z, 0 to 9, _ and -")?;
        kinds.push(StepKind::User(name.clone()));
    }
    if let Some(dir) = &file.workdir {
        let fits = dir.get_ref() == "/" || dir.get_ref().strip_prefix('/').is_some_and(is_below);
        source.check(
            &field("workdir"),
            dir,
            fits,
            "give an absolute path without .. or control characters",
        )?;
        kinds.push(StepKind::Workdir(dir.get_ref().clone()));
    }
    let (Some(kind), true) = (kinds.pop(), kinds.is_empty()) else {
        return Err(source.error(
            step.span(),
            format!("step.{number}"),
            "give exactly one of apt, pip, npm, run, copy, env, user, workdir; beside the first four, env is of that step alone",
        ));
    };
    let network = match &file.network {
        Some(value) => {
            let reason = "only steps of the kinds apt, pip, npm and run use a network; leave it out";
            source.check(&field("network"), value, kind.runs(), reason)?;
            network(source, value.span(), &field("network"), value.get_ref().clone())?
        }
        None if kind.runs() => build_network.clone(),
        None => NetworkPolicy::default(),
    };
    let env = file.env.as_ref().filter(|_| kind.runs()).map(|env| env.get_ref().clone()).unwrap_or_default();
    Ok(Step { kind, number, network, env })
}

/// Parses the network policy of a step or of the whole build.
fn network(
    source: &Source<'_>,
    span: Range<usize>,
    field: &str,
    value: toml::Value,
) -> Result<NetworkPolicy, DefinitionError> {
    let policy =
        NetworkFile::deserialize(value).map_err(|error| error.message().to_owned()).and_then(|file| {
            let policy = file.resolve().map_err(|error| error.to_string())?;
            let secret = policy.secrets().keys().map(|name| format!("network.secrets: {name}"));
            let header = policy.headers().iter().map(|set| format!("network.headers: {}", set.host()));
            if let Some(what) = secret.chain(header).next() {
                return Err(format!(
                    "{what}: a build cannot use secrets, because others may use the template"
                ));
            }
            Ok(policy)
        });
    policy.map_err(|reason| source.error(span, field, reason))
}

fn limits(
    source: &Source<'_>,
    field: &str,
    table: Option<&Spanned<BTreeMap<String, toml::Value>>>,
) -> Result<LimitsFile, DefinitionError> {
    let Some(table) = table else { return Ok(LimitsFile::default()) };
    let text = |value: &toml::Value| match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        _ => None,
    };
    let mut limits = LimitsFile::default();
    for (name, value) in table.get_ref() {
        let Some(value) = text(value) else {
            return Err(source.error(table.span(), format!("{field}.{name}"), "give a number or a string"));
        };
        let is_known = limits.set(name, &value);
        if !is_known.map_err(|error| source.error(table.span(), field, error.to_string()))? {
            let names: Vec<_> = LimitsFile::TABLE.iter().map(|limit| limit.name).collect();
            let reason = format!("unknown limit; known limits: {}", names.join(", "));
            return Err(source.error(table.span(), format!("{field}.{name}"), reason));
        }
    }
    Ok(limits)
}

const NAME_RULE: &str =
    "give 1 to 63 characters from a to z, 0 to 9 and -, not starting with a hyphen, and not default";

/// Reports whether `text` is a valid name of a template.
fn is_name(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(letters) && !text.starts_with('-') && text != "default"
}

fn is_below(text: &str) -> bool {
    let parts = text.split('/').all(|part| !part.is_empty() && part != ".." && part != ".");
    (1..=1024).contains(&text.len()) && parts && !text.chars().any(char::is_control)
}

fn is_package(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"+.-:~=_".contains(&byte);
    (2..=256).contains(&text.len())
        && text.bytes().all(letters)
        && text.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
}

fn is_requirement(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"._-[],<>=!~+* ".contains(&byte);
    (1..=256).contains(&text.len())
        && text.bytes().all(letters)
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

fn is_node_package(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"@/._-^~".contains(&byte);
    (1..=256).contains(&text.len())
        && text.bytes().all(letters)
        && text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '@')
        && !text.contains("..")
}

pub(crate) fn is_module(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"._".contains(&byte);
    (1..=128).contains(&text.len()) && text.bytes().all(letters) && !text.starts_with('.')
}

#[cfg(test)]
#[path = "definition_tests.rs"]
mod tests;
