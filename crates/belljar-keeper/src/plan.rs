//! Build plans of templates whose steps are given one by one instead of in a file; validated before the build starts.

use std::fmt;
use std::str::FromStr;

use belljar_image::script_line;
use belljar_model::{LimitsFile, NetworkFile};

use crate::error::KeeperError;
use crate::tags::is_template_id;
use crate::templates::check_new_name;

/// Tag of a name without one.
pub const DEFAULT_TAG: &str = "default";

/// Maximum length of a name and of a tag, in bytes.
const MAX_NAME_BYTES: usize = 63;

/// Maximum number of steps of a plan.
pub const MAX_PLAN_STEPS: usize = 256;

/// A template's name and tag, as `NAME` or `NAME:TAG`. The name may have a namespace: `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaggedName {
    name: String,
    tag: Option<String>,
}

impl TaggedName {
    /// The name without the tag.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tag, if one was given.
    #[must_use]
    pub fn given_tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The tag; [`DEFAULT_TAG`] if none was given.
    #[must_use]
    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or(DEFAULT_TAG)
    }

    /// Returns the name under which the template with this tag is stored.
    pub(crate) fn stored(&self) -> String {
        stored_name(&self.name, self.tag())
    }
}

/// Returns the name under which a template with a tag is stored: for [`DEFAULT_TAG`], the plain name.
pub(crate) fn stored_name(name: &str, tag: &str) -> String {
    if tag == DEFAULT_TAG { name.to_owned() } else { format!("{name}:{tag}") }
}

/// Returns the tag in a stored name, if it belongs to the template `name`.
pub(crate) fn tag_of<'s>(name: &str, stored: &'s str) -> Option<&'s str> {
    match stored.strip_prefix(name)? {
        "" => Some(DEFAULT_TAG),
        rest => rest.strip_prefix(':'),
    }
}

impl FromStr for TaggedName {
    type Err = KeeperError;

    fn from_str(text: &str) -> Result<Self, KeeperError> {
        let (name, tag) = match text.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (text, None),
        };
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        let is_part = |part: &str| {
            let starts_well = part.starts_with(|first: char| first.is_ascii_alphanumeric());
            part.len() <= MAX_NAME_BYTES && starts_well && part.bytes().all(allowed)
        };
        let (namespace, base) =
            name.split_once('/').map_or((None, name), |(space, base)| (Some(space), base));
        if !is_part(base) || !namespace.is_none_or(is_part) {
            let reason = format!(
                "invalid name: give 1 to {MAX_NAME_BYTES} characters from a to z, 0 to 9, - and _, the first a letter or digit; a \
                 namespace of such characters and / may come before them"
            );
            return Err(KeeperError::field("name", reason));
        }
        if is_template_id(name) {
            let reason = "it has the form of a template's id, which would take precedence; give another";
            return Err(KeeperError::field("name", reason));
        }
        check_new_name(name, None)?;
        tag.map(check_tag).transpose()?;
        Ok(Self { name: name.to_owned(), tag: tag.map(str::to_owned) })
    }
}

impl fmt::Display for TaggedName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.stored())
    }
}

/// Checks a tag.
///
/// # Errors
/// Fails if the tag is empty, too long, or has invalid characters.
pub(crate) fn check_tag(tag: &str) -> Result<(), KeeperError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if (1..=MAX_NAME_BYTES).contains(&tag.len()) && tag.bytes().all(allowed) {
        return Ok(());
    }
    let reason =
        format!("invalid tag: give 1 to {MAX_NAME_BYTES} characters from A to Z, a to z, 0 to 9, -, _ and .");
    Err(KeeperError::field("tags", reason))
}

/// Hash that identifies the files of a copy step: 64 hexadecimal digits computed by the client.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilesHash(String);

impl FilesHash {
    /// The hash as text, which is safe to use as a file name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FilesHash {
    type Err = KeeperError;

    fn from_str(text: &str) -> Result<Self, KeeperError> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == 64 && text.bytes().all(is_digit) {
            return Ok(Self(text.to_owned()));
        }
        Err(KeeperError::field("filesHash", "invalid hash: give a SHA-256 as 64 hexadecimal digits"))
    }
}

/// Plan for building a template.
#[derive(Debug, Clone)]
pub struct BuildPlan {
    /// The template that it starts from.
    pub base: String,
    /// The steps, in order.
    pub steps: Vec<PlanStep>,
    /// Command that is started in each sandbox and keeps running.
    pub start: Option<String>,
    /// Command that succeeds once a sandbox is ready for use.
    pub ready: Option<String>,
    /// Network policy of the steps; sandboxes of the template do not inherit it.
    pub network: Option<NetworkFile>,
}

impl BuildPlan {
    /// Reports whether the template is a machine: some step is of a user that only machines have.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        self.steps.iter().any(|step| step.user().is_some())
    }
}

/// Step of a build plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanStep {
    /// Runs a command line in bash.
    Run {
        /// The line.
        line: String,
        /// User as whom it runs; the current one if absent.
        user: Option<String>,
    },
    /// Sets environment variables, for later steps and for sandboxes. `$NAME` in a value stands for a variable's value.
    Env(Vec<(String, String)>),
    /// Creates a directory and makes it the working directory of later steps and of sandboxes' commands.
    Workdir(String),
    /// Sets the user of later steps; absent for the sandbox's own.
    User(Option<String>),
    /// Copies uploaded files.
    Copy(CopyFiles),
}

/// Arguments of a copy step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyFiles {
    /// The upload.
    pub hash: FilesHash,
    /// The part of the upload to copy.
    pub source: CopySource,
    /// Target path: absolute, or relative to the working directory. With a trailing slash it is a directory.
    pub target: String,
    /// Permission bits of everything copied; unchanged if not given.
    pub mode: Option<u32>,
    /// Owner of everything copied, as `USER` or `USER:GROUP`; the current user if absent.
    pub owner: Option<String>,
}

/// File or directory of an upload to copy, without the patterns by which the client selected its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopySource(String);

impl FromStr for CopySource {
    type Err = KeeperError;

    fn from_str(text: &str) -> Result<Self, KeeperError> {
        let refuse = |reason: &str| Err(KeeperError::field("source", format!("{text:?}: {reason}")));
        if text.is_empty() || text.len() > 4096 || text.contains('\0') {
            return refuse("give 1 to 4096 bytes without NUL");
        }
        if text.starts_with('/') {
            return refuse("absolute path; give a path relative to the build's directory");
        }
        let mut parts: Vec<&str> = Vec::new();
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." if parts.pop().is_none() => return refuse("outside of the build's directory"),
                ".." => {}
                // The client has already selected the files that match a pattern.
                pattern if pattern.contains(['*', '?', '[', '{', '\\']) => break,
                part => parts.push(part),
            }
        }
        Ok(Self(if parts.is_empty() { ".".to_owned() } else { parts.join("/") }))
    }
}

impl CopySource {
    /// The path in the upload: relative, without `..`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PlanStep {
    /// The step's kind, as its author wrote it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Run { .. } => "RUN",
            Self::Env(_) => "ENV",
            Self::Workdir(_) => "WORKDIR",
            Self::User(_) => "USER",
            Self::Copy(_) => "COPY",
        }
    }

    /// Returns the user that it names, if it is not the sandbox's own.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Run { user, .. } | Self::User(user) => user.as_deref(),
            Self::Copy(copy) => copy.owner.as_deref(),
            Self::Env(_) | Self::Workdir(_) => None,
        }
    }

    /// Returns a one-line summary, without the values of environment variables.
    #[must_use]
    pub fn summary(&self) -> String {
        first_line(&match self {
            Self::Run { line, .. } => script_line(line),
            Self::Env(pairs) => pairs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" "),
            Self::Workdir(path) => path.clone(),
            Self::User(user) => user.clone().unwrap_or_else(|| "user".to_owned()),
            Self::Copy(copy) => format!("{} {}", copy.source.as_str(), copy.target),
        })
    }
}

/// Returns the first line of a text, for a message: at most 200 characters, without control characters.
pub(crate) fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(200).collect()
}

/// A request to build a template, before its steps are known.
#[derive(Debug, Clone)]
pub struct NewBuild {
    /// Name of the template, with an optional tag.
    pub name: TaggedName,
    /// Additional tags.
    pub tags: Vec<String>,
    /// Limits of the build's sandbox and of sandboxes created from the template.
    pub limits: LimitsFile,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_tagged_names() {
        let name: TaggedName = "my_app-1:v1.2".parse().unwrap();
        assert_eq!((name.name(), name.tag(), name.stored().as_str()), ("my_app-1", "v1.2", "my_app-1:v1.2"));
        let name: TaggedName = "app:default".parse().unwrap();
        assert_eq!((name.given_tag(), name.stored().as_str()), (Some("default"), "app"));
        assert_eq!("app".parse::<TaggedName>().unwrap().tag(), DEFAULT_TAG);
        assert!("tpl_of-ours".parse::<TaggedName>().is_ok());
        for bad in [
            "",
            "default",
            "-a",
            "A",
            "a/b/c",
            "/a",
            "a/",
            "a:",
            "a:b:c",
            "a b",
            "a:b c",
            &"x".repeat(64),
            "tpl_00112233445566778899",
        ] {
            assert!(bad.parse::<TaggedName>().is_err(), "{bad:?}");
        }
        assert_eq!(tag_of("app", "app"), Some("default"));
        assert_eq!(tag_of("app", "app:v1"), Some("v1"));
        assert_eq!(tag_of("app", "apple"), None);
        assert_eq!(tag_of("app", "other"), None);
    }

    #[test]
    fn copy_source_drops_patterns() {
        let source = |text: &str| text.parse::<CopySource>().map(|source| source.as_str().to_owned());
        for (text, expected) in [
            ("a.txt", "a.txt"),
            ("./a/b/", "a/b"),
            ("folder/*", "folder"),
            ("folder/**/x", "folder"),
            ("*.py", "."),
            (".", "."),
            ("a/../b", "b"),
        ] {
            assert_eq!(source(text).unwrap(), expected, "{text}");
        }
        for bad in ["", "/etc", "..", "a/../../b", "a\0"] {
            assert!(source(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn files_hash_must_be_hexadecimal() {
        assert!("a1".repeat(32).parse::<FilesHash>().is_ok());
        for bad in ["", "A1", &"A1".repeat(32), &"../".repeat(22), &"0".repeat(65)] {
            assert!(bad.parse::<FilesHash>().is_err(), "{bad:?}");
        }
    }
}
