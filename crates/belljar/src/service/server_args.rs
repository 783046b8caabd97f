//! Command-line arguments of the commands that administer a server: keys, secrets, volumes, templates, the audit log, events, leftovers.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar_model::{ImageReference, ModelError};
use belljar_store::Head;
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;

use super::args::{CopyArgs, ServerArgs};
use super::build_display::ProgressStyle;
use crate::limits::CreateLimits;

/// Arguments of `belljar key`.
#[derive(Debug, Args)]
pub(crate) struct KeyCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

/// The commands of `belljar key`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key and print it; it is not shown again
    Create {
        /// Name or purpose
        #[arg(long, value_name = "TEXT", default_value = "")]
        name: String,
        /// Role: admin, user, approver or read
        #[arg(long, value_name = "ROLE", default_value = "user")]
        role: String,
        /// Tenant
        #[arg(long, value_name = "NAME", default_value = "default")]
        tenant: String,
        /// Lifetime, such as 24h
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
        #[command(flatten)]
        person: PersonArgs,
        #[command(flatten)]
        quotas: QuotaArgs,
    },
    /// List keys
    #[command(visible_alias = "list")]
    Ls,
    /// Change the name, role, lifetime or quotas of a key; a quota of none is as much as the machine has
    Set {
        /// Its id, or its name if no other key has it
        id: String,
        /// Name or purpose
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
        /// Role: admin, user, approver or read
        #[arg(long, value_name = "ROLE")]
        role: Option<String>,
        /// Lifetime from now on, such as 24h, or none for a key that does not expire
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
        #[command(flatten)]
        person: PersonArgs,
        #[command(flatten)]
        quotas: QuotaArgs,
    },
    /// Revoke a key permanently
    Revoke {
        /// Its id, or its name if no other key has it
        id: String,
    },
}

/// Whose a key is, and whether its calls wait for somebody else.
#[derive(Debug, Args)]
pub(crate) struct PersonArgs {
    /// Person to whom it belongs, who approves no calls made with it; "" for none
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Which of its calls wait until another person approves them: never, on-risk, on-medium-risk or always
    #[arg(long, value_name = "WHEN")]
    pub(crate) approval: Option<String>,
}

impl PersonArgs {
    /// Adds what is given to a request.
    pub(crate) fn add_to(&self, request: &mut serde_json::Value) {
        for (field, value) in [("owner", &self.owner), ("approval", &self.approval)] {
            if let Some(value) = value {
                request[field] = value.as_str().into();
            }
        }
    }
}

/// Arguments of `belljar secret`.
#[derive(Debug, Args)]
pub(crate) struct SecretCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: SecretCommand,
}

/// The commands of `belljar secret`.
#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Store a secret on the server, for --secret …:secret=NAME and --header …:secret=NAME of sandboxes
    Create {
        /// Name: a-z, 0-9, -, _ and .
        name: String,
        #[command(flatten)]
        source: SecretSourceArgs,
    },
    /// Change a secret's value, also for running sandboxes
    Set {
        /// Name or id
        name: String,
        #[command(flatten)]
        source: SecretSourceArgs,
    },
    /// List secrets, without their values
    #[command(visible_alias = "list")]
    Ls,
    /// Show a secret, without its value
    #[command(visible_alias = "get")]
    Info {
        /// Name or id
        name: String,
    },
    /// Remove a secret
    #[command(visible_alias = "delete")]
    Rm {
        /// Name or id
        name: String,
    },
}

/// Source of a secret's value; standard input if not given.
#[derive(Debug, Args)]
pub(crate) struct SecretSourceArgs {
    /// Read the value from this environment variable
    #[arg(long, value_name = "VARIABLE", conflicts_with = "file")]
    pub(crate) env: Option<String>,
    /// Read the value from this file
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// Metadata; with `set` it replaces all of the existing metadata
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<String>,
    /// Host that it may be sent to, such as api.example.com or *.example.com; may be repeated. Without hosts only the key that stores
    /// it and administrators may use it
    #[arg(long = "host", value_name = "HOST")]
    pub(crate) hosts: Vec<String>,
    /// The only header that it may be put into
    #[arg(long, value_name = "HEADER", requires = "hosts")]
    pub(crate) header: Option<String>,
}

/// Quotas of all sandboxes of a key together. `none` removes a quota.
#[derive(Debug, Args)]
#[command(next_help_heading = "Quotas")]
pub(crate) struct QuotaArgs {
    /// Sandboxes at once
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_sandboxes: Option<String>,
    /// Sum of the memory limits of its sandboxes
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_memory: Option<String>,
    /// Sum of the disk limits of its sandboxes
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_disk: Option<String>,
    /// Processor seconds in any hour
    #[arg(long, value_name = "SECONDS")]
    pub(crate) max_cpu_per_hour: Option<String>,
    /// Executions in any minute
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_executions_per_minute: Option<String>,
    /// The most that networks of its sandboxes may be: disabled, whitelist or open
    #[arg(long, value_name = "MODE", conflicts_with_all = ["max_preset", "max_allow"])]
    pub(crate) max_network: Option<String>,
    /// Let networks of its sandboxes reach no hosts but those of this preset, and of the other --max-preset and --max-allow
    #[arg(long, value_name = "NAME")]
    pub(crate) max_preset: Vec<String>,
    /// Let networks of its sandboxes reach no hosts but these, and those of the other --max-preset and --max-allow
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) max_allow: Vec<String>,
    /// Whether networks of its sandboxes may use secrets that are stored on the server
    #[arg(long, value_name = "BOOL")]
    pub(crate) stored_secrets: Option<bool>,
}

/// Arguments of `belljar volume`.
#[derive(Debug, Args)]
pub(crate) struct VolumeCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

/// The commands of `belljar volume`. A volume is named by its id or by its name.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume and print its id
    Create {
        /// Name
        name: String,
        /// Size, reserved on the server's disk [default: set by the operator, initially 1g]
        #[arg(long, value_name = "SIZE")]
        size: Option<String>,
    },
    /// List volumes
    #[command(visible_alias = "list")]
    Ls,
    /// Show volume details
    Info {
        /// Volume
        volume: String,
    },
    /// Remove volumes and their files; a volume that a sandbox mounts is not removed
    Rm {
        /// Volumes
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// Copy files and directories in or out; one of the two places is VOLUME:PATH
    #[command(after_help = VOLUME_COPY_EXAMPLES)]
    Cp(CopyArgs),
}

const VOLUME_COPY_EXAMPLES: &str = "\
Examples:
  belljar volume cp a.csv data:             into the volume's root
  belljar volume cp src data:/app           a directory, as app, or into app if it exists
  belljar volume cp data:/out/. results     what is in out, into results
  belljar volume cp data:/out - | tar tf -  a directory, as a tar

Exit status 1: some entries could not be copied, such as sockets and unreadable files.";

/// Arguments of `belljar template`.
#[derive(Debug, Args)]
pub(crate) struct TemplateCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: TemplateCommand,
}

/// Arguments of `belljar image`.
#[derive(Debug, Args)]
pub(crate) struct ImageCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

/// The commands of `belljar image`.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull an image from its registry, for --image and as a template
    Pull {
        /// The image, such as python:3.12-slim or ghcr.io/org/app@sha256:…
        image: ImageReference,
        /// Unpack it again, also if its layer is there
        #[arg(long)]
        fresh: bool,
    },
    /// List pulled images
    #[command(visible_alias = "list")]
    Ls,
    /// Show image details
    Info {
        /// The image
        image: ImageReference,
    },
    /// Remove pulled images; sandboxes that use them keep running
    Rm {
        /// The images
        #[arg(required = true)]
        images: Vec<ImageReference>,
    },
    /// Import an image from a file: a tar of docker save, or an OCI image layout as a tar or a directory
    Import {
        /// The file or directory; - is standard input
        file: PathBuf,
        /// Name of the image, if not the one in the file; of several in the file, the one to import
        #[arg(long, value_name = "IMAGE")]
        name: Option<ImageReference>,
        /// How to show progress; auto is tty on a terminal, else plain
        #[arg(long, value_name = "STYLE", value_enum, default_value_t)]
        progress: ProgressStyle,
    },
    /// Write an image, or a built template, as a tar that docker load and other programs read
    Export {
        /// The image, or the name or id of a template with a tree of its own
        #[arg(value_name = "NAME")]
        image: String,
        /// The file; - is standard output
        file: PathBuf,
    },
    /// Build a template from a Dockerfile with FROM, RUN, COPY, ENV, WORKDIR, USER and ARG
    #[command(after_help = IMAGE_BUILD_EXAMPLES)]
    Build(Box<ImageBuildArgs>),
    /// Store an account at a registry, with which its images are pulled
    Login {
        /// The registry, such as docker.io or registry.corp.example:5000
        registry: String,
        /// Name of the account; asked for if not given
        #[arg(short, long, visible_alias = "username", value_name = "NAME")]
        user: Option<String>,
        /// Read the password, or a token in place of one, from standard input
        #[arg(long)]
        password_stdin: bool,
    },
    /// Remove the account at a registry
    Logout {
        /// The registry
        registry: String,
    },
    /// List the accounts at registries that are stored
    Accounts,
    /// Remove what no sandbox, template or tag needs of images
    Gc {
        /// Only print what would be removed
        #[arg(long)]
        dry_run: bool,
    },
}

const IMAGE_BUILD_EXAMPLES: &str = "\
Examples:
  belljar image build --preset pip .           the Dockerfile of this directory; its steps reach the Python index
  belljar image build -t app -f app.dockerfile src
  belljar sandbox create --template app        a sandbox of it";

/// Arguments of `belljar image build`.
#[derive(Debug, Args)]
pub(crate) struct ImageBuildArgs {
    /// Directory with the files that COPY names
    #[arg(value_name = "DIR")]
    pub(crate) context: PathBuf,
    /// The Dockerfile [default: Dockerfile in DIR]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Name of the template [default: that of DIR]
    #[arg(short = 't', long, visible_alias = "tag", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Set the value of an ARG; NAME alone takes it from here
    #[arg(long = "build-arg", value_name = "NAME[=VALUE]")]
    pub(crate) build_args: Vec<String>,
    /// Run all steps, including those with a cached result
    #[arg(long, visible_alias = "no-cache")]
    pub(crate) fresh: bool,
    /// How to show progress; auto is tty on a terminal, else plain, with the steps' whole output
    #[arg(long, value_name = "STYLE", value_enum, default_value_t)]
    pub(crate) progress: ProgressStyle,
    #[command(flatten)]
    pub(crate) net: crate::cli::NetArgs,
}

/// The commands of `belljar template`.
#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// List templates
    #[command(visible_alias = "list")]
    Ls,
    /// Show template details
    Info {
        /// Id or name
        template: String,
    },
    /// Build a template from its file, in sandboxes
    Build {
        /// The template's file, or the name of one that comes with Belljar: base, code-interpreter, code-interpreter-light or -full
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Directory with packages on the server's machine; see templates/mirror.sh
        #[arg(long, value_name = "DIR")]
        mirror: Option<PathBuf>,
        /// Another name than in the file
        #[arg(long)]
        name: Option<String>,
        /// Run all steps, including those with a cached result
        #[arg(long)]
        fresh: bool,
        /// How to show progress; auto is tty on a terminal, else plain, with the steps' whole output
        #[arg(long, value_name = "STYLE", value_enum, default_value_t)]
        progress: ProgressStyle,
    },
    /// List builds: those that run or wait, and the last that have ended
    Builds,
    /// Follow a build from its beginning; Ctrl-C leaves it running
    Attach {
        /// The build's id
        build: String,
        /// How to show progress, as for build
        #[arg(long, value_name = "STYLE", value_enum, default_value_t)]
        progress: ProgressStyle,
    },
    /// Cancel a build; steps that have ended stay cached
    Cancel {
        /// The build's id
        build: String,
    },
    /// Write a built template into one file
    Export {
        /// Id or name
        template: String,
        /// The file; - is standard output
        file: PathBuf,
    },
    /// Import a template from an exported file
    Import {
        /// The file; - is standard input
        file: PathBuf,
        /// Another name than in the file
        #[arg(long)]
        name: Option<String>,
    },
    /// Remove a template; sandboxes that use it keep running
    Rm {
        /// Id or name
        template: String,
    },
}

/// Arguments of `belljar audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: AuditCommand,
}

/// The commands of `belljar audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Print the last records, one JSON object a line
    Tail {
        /// Follow new records
        #[arg(short, long)]
        follow: bool,
        /// Only records of this sandbox
        #[arg(long, value_name = "ID")]
        sandbox: Option<String>,
        /// Only records of this action, such as exec
        #[arg(long, value_name = "NAME")]
        action: Option<String>,
        /// Number
        #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20)]
        lines: u32,
    },
    /// Check that no record was changed, removed or moved
    Verify {
        /// Files that were exported or archived, in any order, instead of the server's own trail
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Also check the server's own trail, and that it continues the files
        #[arg(long, requires = "files")]
        database: bool,
        /// A last record that was noted earlier, which must be there unchanged
        #[arg(long, value_name = "SEQ:HASH")]
        head: Option<Head>,
    },
    /// Print all records, in a form that can be checked without the server
    Export {
        /// From this record on
        #[arg(long, value_name = "NUMBER", default_value_t = 1)]
        first: u64,
    },
    /// Move the oldest records to files on the server's machine; without an option, all but the last
    Archive {
        /// Records older than this, such as 2026-01-01T00:00:00Z
        #[arg(long, value_name = "TIME", group = "until", value_parser = read_time)]
        before: Option<Timestamp>,
        /// Records older than this long, such as 90d
        #[arg(long, value_name = "TIME", group = "until")]
        keep: Option<String>,
        /// Records up to this one
        #[arg(long, value_name = "NUMBER", group = "until")]
        through: Option<u64>,
    },
}

fn read_time(text: &str) -> Result<Timestamp, String> {
    let allowed =
        "give a time such as 2026-01-01T00:00:00Z, or the age of the records with --keep, such as --keep 1d";
    text.parse().map_err(|_| allowed.to_owned())
}

/// Arguments of `belljar status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Start a server in the background if none is running, as other commands do
    #[arg(long)]
    pub(crate) start: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Arguments of `belljar top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Time between two looks; 0 looks once, without the use of processors
    #[arg(short, long, value_name = "TIME", default_value = "2s")]
    pub(crate) delay: String,
    /// Number of looks [default: until interrupted]
    #[arg(short = 'n', long, value_name = "NUMBER")]
    pub(crate) count: Option<u32>,
}

/// Arguments of `belljar events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print new events instead of recent ones
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only events of this kind, such as sandbox or process.exited; may be given more than once
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,
    /// Only those of sandboxes with this label; may be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    /// Only those of this sandbox
    #[arg(long, value_name = "ID")]
    pub(crate) sandbox: Option<String>,
    /// Only those after the event with this id
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<String>,
}

/// Arguments of `belljar gc`.
#[derive(Debug, Args)]
pub(crate) struct CollectArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Only print what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `belljar console`.
#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

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
