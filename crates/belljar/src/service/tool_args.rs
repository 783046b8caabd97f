//! Command-line arguments of tools, MCP and approvals.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar_model::ModelError;
use clap::{Args, Subcommand, ValueEnum};

use super::args::ServerArgs;
use crate::limits::CreateLimits;

/// Arguments of `belljar mcp`.
#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Built-in tools [default: default, or none with --tool]
    #[arg(long, value_name = "PROFILE", value_enum)]
    pub(crate) tools: Option<McpTools>,
    /// Offer a stored tool, by its name or NAME@VERSION; may be given more than once. All stored tools if not given; if given, built-in ones only with --tools
    #[arg(long = "tool", value_name = "NAME")]
    pub(crate) stored: Vec<String>,
    /// Label of the default sandbox, which clients with the same label share
    #[arg(long, value_name = "LABEL")]
    pub(crate) sandbox: Option<String>,
    /// Offer the fixtures of the protocol's conformance suite instead
    #[arg(long, hide = true)]
    pub(crate) conformance_fixtures: bool,
}

/// Built-in tools of `belljar mcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum McpTools {
    /// Belljar's own
    Default,
    /// bash, read, write, edit, glob and grep, as Claude models know them
    Claude,
    /// exec_command, write_stdin, apply_patch and view_image, as Codex has them
    Codex,
    /// None
    None,
}

impl McpTools {
    /// Returns the name in requests.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::None => "none",
        }
    }
}

/// Arguments of `belljar tool`.
#[derive(Debug, Args)]
pub(crate) struct ToolCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: ToolCommand,
}

/// The commands of `belljar tool`.
#[derive(Debug, Subcommand)]
pub(crate) enum ToolCommand {
    /// Store a tool, which models call by its name
    Add {
        /// Name: a letter, then a-z, 0-9, - and _
        name: String,
        #[command(flatten)]
        definition: Box<ToolDefinitionArgs>,
    },
    /// List tools
    #[command(visible_alias = "list")]
    Ls,
    /// Show a tool
    #[command(visible_alias = "info")]
    Show {
        /// Name, or NAME@VERSION
        name: String,
    },
    /// Store a new version of a tool, with what the flags change
    Edit {
        /// Name, or NAME@VERSION to begin with an earlier version
        name: String,
        #[command(flatten)]
        definition: Box<ToolDefinitionArgs>,
    },
    /// Remove a tool, or one of its versions
    #[command(visible_alias = "delete")]
    Rm {
        /// Name, or NAME@VERSION
        name: String,
    },
    /// Print tools as TOML
    Export {
        /// Names; all tools if none is given
        names: Vec<String>,
    },
    /// Store the tools of a TOML file; those that have changed get a new version
    Import {
        /// File, as export prints it
        file: PathBuf,
    },
    /// Print the description of a tool that a vendor's interface takes
    Schema {
        /// Name, or NAME@VERSION
        name: String,
        /// Interface
        #[arg(long = "for", value_name = "WHOM", value_enum)]
        dialect: ToolDialect,
    },
    /// Call a tool, and wait for its end
    Call {
        /// Name, or NAME@VERSION
        name: String,
        #[command(flatten)]
        call: ToolCallArgs,
        /// Directory for the files that the call has written; those that exist are not replaced
        #[arg(short, long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Show what would be decided about a call, by which rule and why; nothing runs
    Test {
        /// Name, or NAME@VERSION
        name: String,
        #[command(flatten)]
        call: ToolCallArgs,
    },
}

/// A tool's definition.
#[derive(Debug, Args)]
#[command(mut_arg("net", |arg| arg.visible_alias("network")))]
pub(crate) struct ToolDefinitionArgs {
    /// What it does, for the model
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
    /// Language of its code; may be given more than once, the first is used if a call names none
    #[arg(short, long = "language", value_name = "NAME")]
    pub(crate) languages: Vec<String>,
    /// Template of its sandboxes
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// Longest time of a call, such as 30s [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Whether calls of a key share a sandbox: true or false [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) session: Option<bool>,
    /// Which of its calls wait until another person approves them: never, on-risk, on-medium-risk or always
    /// [default: never]
    #[arg(long, value_name = "WHEN")]
    pub(crate) approval: Option<String>,
    #[command(flatten)]
    pub(crate) limits: CreateLimits,
    #[command(flatten)]
    pub(crate) net: crate::cli::NetArgs,
}

impl ToolDefinitionArgs {
    /// Reports whether nothing is given.
    pub(crate) fn is_empty(&self) -> Result<bool, ModelError> {
        let Self { description, languages, template, timeout, session, approval, limits, net } = self;
        let texts = [description, template, timeout, approval];
        let has_own = !languages.is_empty() || session.is_some() || texts.into_iter().any(Option::is_some);
        Ok(!has_own && limits.is_empty() && net.file()?.is_none())
    }
}

/// Arguments of a call.
#[derive(Debug, Args)]
pub(crate) struct ToolCallArgs {
    /// Code, instead of a script
    #[arg(short, long, value_name = "CODE", allow_hyphen_values = true)]
    pub(crate) code: Option<String>,
    /// Language
    #[arg(short, long, value_name = "NAME")]
    pub(crate) language: Option<String>,
    /// Timeout
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Put a file in; DEST is below the home directory; may be given more than once
    #[arg(short, long = "file", value_name = "SRC[:DEST]")]
    pub(crate) files: Vec<OsString>,
    /// Script
    #[arg(value_name = "SCRIPT", conflicts_with = "code")]
    pub(crate) script: Option<PathBuf>,
}

/// Whose form a description has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ToolDialect {
    /// A function of OpenAI's Responses interface
    Openai,
    /// A tool of Anthropic's Messages interface
    Anthropic,
    /// A tool of the Model Context Protocol
    Mcp,
}

impl ToolDialect {
    /// Returns the name in requests.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
            Self::Mcp => "mcp",
        }
    }
}

/// Arguments of `belljar approval`.
#[derive(Debug, Args)]
pub(crate) struct ApprovalCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: ApprovalCommand,
}

/// The commands of `belljar approval`.
#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalCommand {
    /// List calls that wait
    #[command(visible_alias = "list")]
    Ls {
        /// Also those that were decided, and those that did not run
        #[arg(short, long)]
        all: bool,
    },
    /// Show a call: what it would run, where, and for whom
    #[command(visible_alias = "info")]
    Show {
        /// Id of the approval
        id: String,
    },
    /// Let a call run, once
    Approve(ApproveArgs),
    /// Refuse a call, or end the budget of an approval
    Deny {
        /// Id of the approval
        id: String,
        /// Why, for the caller and the audit log
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
    },
    /// Print calls when they begin to wait, and what becomes of them
    Watch,
}

/// An approval.
#[derive(Debug, Args)]
pub(crate) struct ApproveArgs {
    /// Id of the approval
    pub(crate) id: String,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) note: String,
    /// Approve further calls of the same person, too: this many with the one that waits
    #[arg(long = "for", value_name = "NUMBER")]
    pub(crate) uses: Option<u32>,
    /// Time within which they must begin [default: 10m]
    #[arg(long, value_name = "TIME", requires = "uses")]
    pub(crate) within: Option<String>,
    /// Which: call (the same call) or tool (any call of the same version of the tool)
    #[arg(long, value_name = "WHICH", requires = "uses", default_value = "call")]
    pub(crate) scope: String,
}
