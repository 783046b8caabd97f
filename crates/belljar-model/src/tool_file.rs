//! Stored tools, as they are written in a file or a request.

use std::collections::BTreeSet;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::checks::Approval;
use crate::error::ModelError;
use crate::languages::Languages;
use crate::limits::LimitsFile;
use crate::network::NetworkFile;
use crate::node::{Fields, Node};
use crate::timeout::Timeout;

/// Maximum length of a tool's name, in characters: what the interfaces of models take as the name of a function.
/// Source: docs/spec.md; held by `tests::names_are_those_of_functions`.
pub const MAX_TOOL_NAME: usize = 64;

/// Maximum length of a tool's description, in bytes. Source: docs/spec.md; held by `tests::values_are_checked`.
pub const MAX_TOOL_DESCRIPTION: usize = 1024;

/// Maximum number of languages of a tool. Source: docs/spec.md; held by `tests::values_are_checked`.
pub const MAX_TOOL_LANGUAGES: usize = 16;

/// Longest text of a file of tools, in bytes.
const MAX_FILE_BYTES: usize = 1 << 20;

const NAME_ALLOWED: &str = "1 to 64 characters from a to z, 0 to 9, - and _, the first a letter";

/// A tool: what a model may run, and how. All but its name can be changed, which makes a new version.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolFile {
    /// Name, unique in the tenant.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// Names of the languages of its code. The first is used if a call names none.
    pub languages: Vec<String>,
    /// Template of its sandboxes; the server's default if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Longest time of a call.
    pub timeout: Timeout,
    /// Whether calls share a sandbox, which is kept; else each has one of its own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub session: bool,
    /// Which of its calls wait until another person approves them.
    #[serde(skip_serializing_if = "Approval::is_never")]
    pub approval: Approval,
    /// Limits of its sandboxes; the template's where absent.
    #[serde(skip_serializing_if = "LimitsFile::is_empty")]
    pub limits: LimitsFile,
    /// Network policy of its sandboxes; the template's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkFile>,
}

/// An error in a file of tools.
#[derive(Debug, thiserror::Error)]
#[error("tool {index}{}: {source}", name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default())]
pub struct ToolListError {
    /// Number of the tool in the file, 1 for the first.
    index: usize,
    /// Its name, if it has a valid one.
    name: Option<String>,
    /// What is wrong with it.
    source: ModelError,
}

/// An error in a file of tools, or of the whole file.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// The file.
    #[error(transparent)]
    File(#[from] ModelError),
    /// Tools, each with its first error.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Tools(Vec<ToolListError>),
}

impl ToolFile {
    /// Parses a file with any number of tables `[[tool]]`.
    ///
    /// # Errors
    ///
    /// Fails if the text is too long, is no TOML or has other keys, if tools are invalid, or if two have the same name.
    pub fn list_from_toml(text: &str) -> Result<Vec<Self>, ToolsError> {
        if text.len() > MAX_FILE_BYTES {
            let allowed = format!("at most {MAX_FILE_BYTES} bytes");
            let length = format!("{} bytes", text.len());
            return Err(ModelError::NotAllowed { field: "file", value: length, allowed }.into());
        }
        let mut fields = Fields::root(Node::from_toml(text)?)?;
        let tables = fields.table_list("tool")?.unwrap_or_default();
        fields.finish()?;
        let mut names = BTreeSet::new();
        let (mut tools, mut errors) = (Vec::new(), Vec::new());
        for (index, table) in tables.into_iter().enumerate() {
            let mut name = None;
            // The error names the tool by its number, and a key within it.
            let tool = Self::from_fields(table.rooted(), &mut name).and_then(|tool| {
                let unique = || ModelError::not_allowed("name", tool.name.clone(), "each name once");
                if names.insert(tool.name.clone()) { Ok(tool) } else { Err(unique()) }
            });
            match tool {
                Ok(tool) => tools.push(tool),
                Err(source) => errors.push(ToolListError { index: index + 1, name, source }),
            }
        }
        if errors.is_empty() { Ok(tools) } else { Err(ToolsError::Tools(errors)) }
    }

    /// Reports whether a text can be the name of a tool.
    pub fn is_name(text: &str) -> bool {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        (1..=MAX_TOOL_NAME).contains(&text.len())
            && text.starts_with(|first: char| first.is_ascii_lowercase())
            && text.bytes().all(allowed)
    }

    /// Checks all values that need no server, and writes the languages as their names.
    ///
    /// # Errors
    ///
    /// Fails, naming the field, if a value is not allowed.
    pub fn check(mut self) -> Result<Self, ModelError> {
        if !Self::is_name(&self.name) {
            return Err(ModelError::not_allowed("name", self.name, NAME_ALLOWED));
        }
        let is_text = |text: &str| text.chars().all(|one| !one.is_control() || one == '\n');
        if !(1..=MAX_TOOL_DESCRIPTION).contains(&self.description.len()) || !is_text(&self.description) {
            let allowed = format!("1 to {MAX_TOOL_DESCRIPTION} bytes of text without control characters");
            return Err(ModelError::NotAllowed { field: "description", value: self.description, allowed });
        }
        if !(1..=MAX_TOOL_LANGUAGES).contains(&self.languages.len()) {
            let allowed = format!("1 to {MAX_TOOL_LANGUAGES} languages");
            let value = format!("{} languages", self.languages.len());
            return Err(ModelError::NotAllowed { field: "languages", value, allowed });
        }
        let mut names = Vec::new();
        for given in &self.languages {
            let language = Languages::builtin().by_name(given).map_err(|unknown| match unknown {
                ModelError::UnknownLanguage { nearest: Some(near), .. } => {
                    ModelError::not_allowed("languages", given.clone(), format!("names such as {near}"))
                }
                _ => ModelError::not_allowed(
                    "languages",
                    given.clone(),
                    "names as belljar languages lists them",
                ),
            })?;
            if names.contains(&language.name) {
                return Err(ModelError::not_allowed("languages", given.clone(), "each language once"));
            }
            names.push(language.name.clone());
        }
        self.languages = names;
        if let Some(network) = &self.network {
            network.clone().resolve()?;
        }
        Ok(self)
    }

    /// Reads a tool, and sets `name` as soon as it is known. A key that does not exist is reported first: it may be a misspelt one that is
    /// missing then.
    fn from_fields(mut fields: Fields, name: &mut Option<String>) -> Result<Self, ModelError> {
        let given = fields.required_text("name");
        *name = given.as_ref().ok().filter(|given| Self::is_name(given)).cloned();
        let description = fields.required_text("description");
        let languages = fields.required_texts("languages");
        let (template, timeout) = (fields.text("template"), fields.scalar("timeout"));
        let (session, approval) = (fields.flag("session"), fields.text("approval"));
        let (limits, network) = (fields.table("limits"), fields.take("network"));
        fields.finish()?;
        let tool = Self {
            name: given?,
            description: description?,
            languages: languages?,
            template: template?,
            timeout: timeout?.map(|text| text.parse()).transpose()?.unwrap_or_default(),
            session: session?.unwrap_or(false),
            approval: approval?.map(|text| text.parse()).transpose()?.unwrap_or_default(),
            limits: limits?.map(LimitsFile::from_fields).transpose()?.unwrap_or_default(),
            network: network.map(NetworkFile::from_node).transpose()?,
        };
        tool.check()
    }
}

impl<'de> Deserialize<'de> for ToolFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::root(Node::deserialize(deserializer)?).map_err(D::Error::custom)?;
        Self::from_fields(fields, &mut None).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[[tool]]
name = "analyse"
description = "Analyses data."
languages = ["py", "r"]
template = "code-interpreter"
timeout = "30s"
limits = { memory = "512m", pids = 64 }
network = { presets = ["pip"] }

[[tool]]
name = "shell"
description = "A shell."
languages = ["bash"]
session = true
approval = "always"
"#;

    #[test]
    fn files_round_trip() {
        let tools = ToolFile::list_from_toml(FILE).unwrap();
        assert_eq!(tools[0].languages, ["python", "r"]);
        assert_eq!((tools[0].session, tools[1].session), (false, true));
        assert_eq!((tools[0].approval, tools[1].approval), (Approval::Never, Approval::Always));
        assert_eq!(tools[1].timeout, Timeout::default());
        for tool in &tools {
            let json = serde_json::to_string(tool).unwrap();
            assert_eq!(&serde_json::from_str::<ToolFile>(&json).unwrap(), tool, "{json}");
        }
        assert!(ToolFile::list_from_toml("").unwrap().is_empty());
    }

    #[test]
    fn names_are_those_of_functions() {
        for (name, allowed) in [
            ("a", true),
            ("run-code_2", true),
            ("", false),
            ("2a", false),
            ("_a", false),
            ("Aa", false),
            ("a b", false),
            ("ü", false),
        ] {
            assert_eq!(ToolFile::is_name(name), allowed, "{name}");
        }
        assert!(
            ToolFile::is_name(&"a".repeat(MAX_TOOL_NAME))
                && !ToolFile::is_name(&"a".repeat(MAX_TOOL_NAME + 1))
        );
    }

    #[test]
    fn values_are_checked() {
        let long = "a".repeat(MAX_TOOL_DESCRIPTION + 1);
        let many = format!("[{}]", "\"python\", ".repeat(MAX_TOOL_LANGUAGES + 1));
        for (key, value, expected) in [
            ("name", "\"A\"", "tool 1: name: \"A\" is not allowed; give 1 to 64 characters"),
            ("name", "7", "tool 1: \"name\": a number is not allowed; give a text"),
            ("description", "\"\"", "tool 1 (t): description: "),
            ("description", "\"a\\u0007\"", "tool 1 (t): description: "),
            ("description", &format!("\"{long}\""), "tool 1 (t): description: "),
            ("languages", "[]", "tool 1 (t): languages: "),
            ("languages", &many, "tool 1 (t): languages: "),
            (
                "languages",
                "[\"cobol\"]",
                "tool 1 (t): languages: \"cobol\" is not allowed; give names as belljar languages",
            ),
            (
                "languages",
                "[\"python\", \"py\"]",
                "tool 1 (t): languages: \"py\" is not allowed; give each language once",
            ),
            ("timeout", "\"25h\"", "tool 1 (t): timeout: "),
            ("limits", "{ memory = \"1x\" }", "tool 1 (t): memory: "),
            ("limits", "{ memroy = \"1g\" }", "tool 1 (t): \"limits.memroy\": unknown key"),
            ("network", "{ presets = [\"nosuch\"] }", "tool 1 (t): "),
            ("session", "\"yes\"", "tool 1 (t): \"session\": a text is not allowed; give true or false"),
            ("mounts", "[\"/:/host\"]", "tool 1 (t): \"mounts\": unknown key"),
            (
                "approval",
                "\"sometimes\"",
                "tool 1 (t): approval: \"sometimes\" is not allowed; give never, on-risk, on-medium-risk or always",
            ),
        ] {
            let mut keys = vec![("name", "\"t\""), ("description", "\"d\""), ("languages", "[\"python\"]")];
            keys.retain(|(known, _)| *known != key);
            keys.push((key, value));
            let lines: String = keys.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
            let error = ToolFile::list_from_toml(&format!("[[tool]]\n{lines}")).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{key} = {value}: {error}");
        }
        let twice = FILE.replace("\"shell\"", "\"analyse\"");
        let error = ToolFile::list_from_toml(&twice).unwrap_err().to_string();
        assert_eq!(error, "tool 2 (analyse): name: \"analyse\" is not allowed; give each name once");
        // All tools are checked, and a misspelt key is named before the one that it leaves missing.
        let both = "[[tool]]\nname = 'a'\n[[tool]]\nname = 'b'\ndesription = 'd'\n";
        let error = ToolFile::list_from_toml(both).unwrap_err().to_string();
        let (first, second) = error.split_once("; tool 2 (b): ").unwrap();
        assert!(first.starts_with("tool 1 (a): \"description\""), "{error}");
        assert!(
            second.starts_with("\"desription\": unknown key") && second.contains("description"),
            "{error}"
        );
        let error = ToolFile::list_from_toml("[[tools]]\n").unwrap_err().to_string();
        assert!(error.contains("\"tools\": unknown key"), "{error}");
        assert!(ToolFile::list_from_toml("[[tool]").is_err());
    }
}
