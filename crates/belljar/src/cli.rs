//! The command line.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use belljar_guest_config::BUILD_ID;
use belljar_model::ImageReference;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::code::CodeArgs;
use crate::config::SettingArgs;
use crate::limits::RunLimits;
use crate::message::Quit;
use crate::service::args::{Format, FormatArgs, SandboxCommandArgs, ServerArgs};
use crate::service::key_args::{KeyCommandArgs, SecretCommandArgs};
use crate::service::server_args::{
    AuditCommandArgs, CollectArgs, ConsoleArgs, EventsArgs, StatusArgs, TopArgs,
};
use crate::service::template_args::{ImageCommandArgs, TemplateCommandArgs, VolumeCommandArgs};
use crate::service::tool_args::{ApprovalCommandArgs, McpArgs, ToolCommandArgs};
use crate::{advice, cert, code, config, doctor, engine, languages, net, run, screen, serve, service, shell};

const EXAMPLES: &str = "\
Examples:
  belljar run -c 'print(2**64)'             Python by default
  belljar run script.js                     language by extension, #! line or -l
  belljar run -f data.csv analyse.py        put a file in
  belljar run -o plot.png plot.py           bring a file out
  belljar run --with requests get.py        with a package of Python
  belljar run --rich plot.py                show what it shows: tables, pictures
  belljar run --template NAME script.py     with the packages of a template
  belljar run notebook.ipynb                cell after cell; --save FILE keeps the outputs
  belljar code                              cell by cell
  belljar shell                             a terminal in a sandbox
  belljar doctor                            what this machine can enforce";

const RUN_EXAMPLES: &str = "\
Examples:
  belljar run -c 'print(2**64)'
  belljar run script.js one two
  cat data.csv | belljar run -f data.csv analyse.py
  belljar run --memory 256m --cpus 0.5 --timeout 30 --mount /data:/data:ro job.py
  belljar run --json -l bash -c 'ls /'
  belljar run --rich plot.py
  belljar run --with 'pandas>=2' --with rich table.py
  belljar run --save out.ipynb notebook.ipynb

Exit status: the code's own; 124 timed out, 137 out of memory, 128+n killed by signal n,
125 Belljar itself failed or refused something, 2 wrong usage.";

const CODE_EXAMPLES: &str = "\
Examples:
  belljar code                              Python, with a prompt; Ctrl-D ends it
  belljar code -l bash
  belljar code --sandbox ID                 in an existing sandbox, which is kept
  echo 'print(2**64)' | belljar code        one cell
  belljar code --engine local               without a server

A blank line ends a block. Ctrl-C interrupts the code. Pictures are shown in terminals that can, and saved otherwise.";

const NET_CHECK_EXAMPLES: &str = "\
Examples:
  belljar net check --preset pip --allow x.example x.example:443 y.example
  belljar net check --allow '*.example.com' --deny admin.example.com:443 api.example.com:8443
  belljar net check --net open 10.0.0.1:443
  belljar net check --sandbox web api.example.com";

const NET_PROBE_EXAMPLES: &str = "\
Examples:
  belljar net probe web
  belljar net probe web pypi.org example.com:80

Tried besides: a name that nobody has, the address of cloud metadata, and where the server is on this machine, a listener on its
loopback and one on its own address.";

const SERVE_EXAMPLES: &str = "\
Examples:
  belljar serve                             on 127.0.0.1:8787; prints a first API key once
  belljar serve --pool 16 --log-format json
  belljar serve --config /etc/belljar/belljar.toml

SIGHUP reloads the configuration; SIGTERM stops the server, and its sandboxes keep running for the next one.";

const SCREEN_EXAMPLES: &str = "\
Examples:
  belljar screen analyse.py
  belljar screen -c 'import os; os.system(\"rm -rf /\")' --json
  belljar screen install.sh --language bash
  belljar screen *.py
  belljar screen analyse.py --allow-module numpy --allow-module pandas

Advice, not a wall: code can do what its text does not show. The exit status does not depend on what is found.";

const MCP_EXAMPLES: &str = "\
Examples:
  belljar mcp                               for clients that start a program
  claude mcp add belljar -- belljar mcp
  belljar mcp --tools codex
  belljar mcp --server https://box.example.com    with a key in BELLJAR_API_KEY

`belljar serve` has the same at /mcp, for clients that connect over HTTP.";

const CERT_EXAMPLES: &str = "\
Examples:
  belljar cert sandboxes.localhost          in the home; prints how a server uses it
  belljar cert sandboxes.localhost --dir ./tls

The certificate's authority is limited to the domain, and the authority's key is not stored.";

const BACKUP_EXAMPLES: &str = "\
Examples:
  belljar backup /mnt/backups/monday.tar
  belljar restore /mnt/backups/monday.tar --home /var/lib/belljar

Volumes and running sandboxes are not in it. The store's key is not either, unless --with-key is given: without it a backup cannot be
restored.";

const COMPLETION_EXAMPLES: &str = "\
Examples:
  belljar completion bash > ~/.local/share/bash-completion/completions/belljar
  belljar completion zsh > \"${fpath[1]}/_belljar\"
  belljar completion fish > ~/.config/fish/completions/belljar.fish";

/// Run untrusted code in a sandbox
#[derive(Debug, Parser)]
#[command(name = "belljar", version = version(), about, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// `belljar run` alone.
#[derive(Debug, Parser)]
struct Run {
    #[command(flatten)]
    args: RunArgs,
}

impl Cli {
    /// Parses a command line. For `run`, which should start fast, the other commands are not built, unless help or an error has to
    /// be shown.
    fn parse_words(words: &[OsString]) -> Self {
        if let Some(args) = parse_run(words) {
            return Self { command: Command::Run(args) };
        }
        Self::try_parse_from(words)
            .unwrap_or_else(|error| advice::advise(error, words, &Self::command()).exit())
    }
}

/// Parses the command line of a run. `None` for other commands, and if help or an error has to be shown.
pub(crate) fn parse_run(words: &[OsString]) -> Option<Box<RunArgs>> {
    let run @ [first, ..] = words.get(1..)? else { return None };
    if first != "run" {
        return None;
    }
    Run::try_parse_from(run).ok().map(|run| Box::new(run.args))
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run code in a sandbox
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Run code in a context that keeps its variables, cell by cell
    #[command(after_help = CODE_EXAMPLES)]
    Code(Box<CodeArgs>),
    /// Open an interactive terminal in a sandbox
    Shell(Box<ShellArgs>),
    /// Show what this machine can enforce, what is missing, and how to fix it
    Doctor(DoctorArgs),
    /// List the engines, and show what each enforces here
    #[command(subcommand)]
    Engine(EngineCommand),
    /// List the languages that can be run here, with versions
    Languages(LanguagesArgs),
    /// Read code, and report what it seems to do; nothing is run, and no server is needed
    #[command(after_help = SCREEN_EXAMPLES)]
    Screen(ScreenArgs),
    /// Turn this machine into a sandbox service that programs use over the network
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Offer sandboxes as tools to a model, over the Model Context Protocol on standard streams
    #[command(after_help = MCP_EXAMPLES)]
    Mcp(Box<McpArgs>),
    /// Check, show or begin the service's configuration
    #[command(subcommand)]
    Config(Box<ConfigCommand>),
    /// Make a certificate for a domain and the host names below it, for TLS on this machine
    #[command(after_help = CERT_EXAMPLES)]
    Cert(CertArgs),
    /// Create and manage long-lived sandboxes
    Sandbox(Box<SandboxCommandArgs>),
    /// Create and manage volumes: files that outlive sandboxes
    Volume(Box<VolumeCommandArgs>),
    /// Create, list and revoke API keys
    Key(Box<KeyCommandArgs>),
    /// Store secrets on the server, for network policies
    Secret(Box<SecretCommandArgs>),
    /// Build and manage templates
    Template(Box<TemplateCommandArgs>),
    /// Store tools, which models call by their names
    Tool(Box<ToolCommandArgs>),
    /// Decide about calls that wait for another person
    Approval(Box<ApprovalCommandArgs>),
    /// Print a link that signs in to the console, once
    Console(Box<ConsoleArgs>),
    /// Pull images of registries, and manage them
    Image(Box<ImageCommandArgs>),
    /// Read and check the audit trail
    Audit(Box<AuditCommandArgs>),
    /// Print what happens to sandboxes, processes, templates and keys
    Events(Box<EventsArgs>),
    /// Show the server: whether it can create sandboxes, and what this key uses of its quotas
    Status(Box<StatusArgs>),
    /// Show what sandboxes use, those with most processor time first
    Top(Box<TopArgs>),
    /// Show what network policies allow
    #[command(subcommand)]
    Net(Box<NetCommand>),
    /// Write what the server of this home keeps to a file, while it runs
    #[command(after_help = BACKUP_EXAMPLES)]
    Backup(BackupArgs),
    /// Restore a home from such a file, while no server uses it
    Restore(RestoreArgs),
    /// Delete unused data
    Gc(Box<CollectArgs>),
    /// Print a script that completes this command line in a shell
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion {
        /// Shell
        shell: clap_complete::Shell,
    },
}

/// Arguments of `belljar run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Language of the code, by name or alias; see `belljar languages`
    #[arg(short, long, value_name = "NAME")]
    pub(crate) language: Option<String>,
    /// Code to run, instead of a script
    #[arg(short, long, value_name = "CODE", allow_hyphen_values = true)]
    pub(crate) code: Option<String>,
    /// Put a file or directory in; DEST is below the home directory
    #[arg(short, long = "file", value_name = "SRC[:DEST]")]
    pub(crate) files: Vec<OsString>,
    /// Bring a file or directory out after the run; DEST is SRC's name in this directory if not given
    #[arg(short, long = "out", value_name = "SRC[:DEST]")]
    pub(crate) outs: Vec<OsString>,
    /// Use the files and programs of a template of the server, and its limits where no flag sets another
    #[arg(long, value_name = "NAME", conflicts_with = "engine", help_heading = "Sandbox")]
    pub(crate) template: Option<String>,
    /// Use those of an image, such as python:3.12-slim, which the server pulls once; with the engine docker, the daemon
    #[arg(long, value_name = "IMAGE", conflicts_with = "template", help_heading = "Sandbox")]
    pub(crate) image: Option<ImageReference>,
    /// Install a Python package before the code runs, with the network preset pip, which is closed again then
    #[arg(long, value_name = "PACKAGE", allow_hyphen_values = true, help_heading = "Sandbox")]
    pub(crate) with: Vec<String>,
    /// Let the code call a stored tool as belljar.tools.NAME(…), with --rich or in a notebook; may be given more than once
    #[arg(long = "tool", value_name = "NAME", conflicts_with = "engine", help_heading = "Sandbox")]
    pub(crate) tools: Vec<String>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
    /// Print one JSON result instead of the program's output
    #[arg(long, conflicts_with = "events", help_heading = "Output")]
    json: bool,
    /// Output format: table is the program's own output, json the same as --json
    #[arg(long, value_enum, default_value = "table", hide_default_value = true, help_heading = "Output")]
    format: Format,
    /// Show results and pictures, as a notebook does
    #[arg(long, conflicts_with_all = ["events", "timings", "log_dir"], help_heading = "Output")]
    pub(crate) rich: bool,
    /// Directory for pictures that cannot be shown, with --rich or of a notebook [default: this one]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) pictures: Option<PathBuf>,
    /// Write the notebook with the outputs of this run
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) save: Option<PathBuf>,
    /// Print one JSON event a line as things happen
    #[arg(long, help_heading = "Output")]
    pub(crate) events: bool,
    /// Print how long each step took
    #[arg(long, help_heading = "Output")]
    pub(crate) timings: bool,
    /// Directory for the whole of an output stream that is more than is kept
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Wait for the removal of the sandbox, or leave it to the background
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value = "wait",
        conflicts_with = "rich",
        help_heading = "Sandbox"
    )]
    pub(crate) cleanup: Cleanup,
    /// Script, or - for standard input, and arguments for the program
    #[arg(value_name = "SCRIPT] [ARGS", trailing_var_arg = true)]
    pub(crate) words: Vec<OsString>,
}

impl RunArgs {
    /// Reports whether one JSON result is printed.
    pub(crate) fn is_json(&self) -> bool {
        self.json || self.format == Format::Json
    }
}

/// Cleanup of the sandbox after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cleanup {
    // The command waits until everything is removed, and fails if that fails.
    Wait,
    // The supervisor removes it; the command returns as soon as there is a result.
    Background,
}

/// Arguments of `belljar screen`.
#[derive(Debug, Args)]
pub(crate) struct ScreenArgs {
    /// Language of the code, by name or alias; by extension or #! line if not given
    #[arg(short, long, value_name = "NAME")]
    pub(crate) language: Option<String>,
    /// Code to read, instead of a file
    #[arg(short, long, value_name = "CODE", allow_hyphen_values = true, conflicts_with = "files")]
    pub(crate) code: Option<String>,
    /// Report the import of this module and of those below it
    #[arg(long, value_name = "MODULE")]
    pub(crate) deny_module: Vec<String>,
    /// Report imports of other modules than these and those below them
    #[arg(long, value_name = "MODULE")]
    pub(crate) allow_module: Vec<String>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    /// Files, or - for standard input
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<OsString>,
}

/// Arguments of `belljar shell`.
#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
    /// Command to run instead of a shell
    #[arg(value_name = "CMD", last = true)]
    pub(crate) command: Vec<OsString>,
}

/// Arguments of `belljar serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
    /// A command has started this server, for itself and for those that follow
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}

/// Settings of the service on the command line, which override the environment and the file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServiceArgs {
    /// Configuration file [default: $BELLJAR_CONFIG, belljar.toml in the home, /etc/belljar/belljar.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Directory for the service's files [default: $BELLJAR_HOME, ~/.local/share/belljar, for root /var/lib/belljar]
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    /// Any setting by its key; `belljar config example` has them all
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// Arguments of `belljar backup`.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// File to write, which must not exist
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
    /// Put the store's key in, too: who has the file can then read all that the store has sealed
    #[arg(long)]
    pub(crate) with_key: bool,
    /// Print no messages except errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Arguments of `belljar restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// File that `belljar backup` has written
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
    /// Put what is in the home aside, under names that end with .old
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print no messages except errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Arguments of `belljar cert`.
#[derive(Debug, Args)]
pub(crate) struct CertArgs {
    /// Domain of the server, of at least two labels
    #[arg(value_name = "DOMAIN")]
    pub(crate) domain: String,
    /// Directory for the files, which replace earlier ones [default: tls in the home]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Directory for the service's files [default: $BELLJAR_HOME, ~/.local/share/belljar, for root /var/lib/belljar]
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    pub(crate) home: Option<PathBuf>,
}

/// The commands of `belljar config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration, and report all errors
    Check {
        /// File to check instead of the one that `belljar serve` would find
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        service: ServiceArgs,
    },
    /// Print every setting with its value and its origin
    Show {
        #[command(flatten)]
        service: ServiceArgs,
    },
    /// Print a file with every setting and its default
    Example,
}

/// The commands of `belljar net`.
#[derive(Debug, Subcommand)]
pub(crate) enum NetCommand {
    /// List presets: each host, what it is for, and whether it carries a risk
    Presets {
        /// Presets to show instead of all
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Check whether a policy allows connections, and by which rule; the exit status is 1 if one is denied
    #[command(after_help = NET_CHECK_EXAMPLES)]
    Check(Box<NetCheckArgs>),
    /// Have a program inside a sandbox connect, and compare what it met with its policy; the exit status is 1 if something differs
    #[command(after_help = NET_PROBE_EXAMPLES)]
    Probe(Box<NetProbeArgs>),
}

/// Arguments of `belljar net probe`.
#[derive(Debug, Args)]
pub(crate) struct NetProbeArgs {
    /// Sandbox
    pub(crate) sandbox: String,
    /// Where else to connect, besides what no sandbox may reach; the port is 443 if none is given
    #[arg(value_name = "HOST[:PORT]")]
    pub(crate) hosts: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Arguments of `belljar net check`.
#[derive(Debug, Args)]
pub(crate) struct NetCheckArgs {
    #[command(flatten)]
    pub(crate) policy: NetPolicyArgs,
    /// Read the operator's exceptions from a TOML file, as belljar run does
    #[arg(long = "policy", value_name = "FILE")]
    pub(crate) operator: Option<PathBuf>,
    /// Check the policy in force of this sandbox of a server
    #[arg(
        long,
        value_name = "SANDBOX",
        conflicts_with_all = ["net", "presets", "allow", "deny", "requests", "secrets", "headers", "tls", "spec", "operator"]
    )]
    pub(crate) sandbox: Option<String>,
    /// Where connections would go; the port is 443 if none is given
    #[arg(value_name = "HOST[:PORT]", required = true)]
    pub(crate) hosts: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// A network policy.
#[derive(Debug, Args)]
pub(crate) struct NetPolicyArgs {
    #[command(flatten)]
    pub(crate) net: NetArgs,
    /// Read the policy from the key network of a .toml or .json file; flags replace it
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
}

/// Network flags of a sandbox.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NetArgs {
    /// disabled, whitelist or open [default: whitelist if something is allowed, else disabled]
    #[arg(long, value_name = "MODE", help_heading = "Network")]
    pub(crate) net: Option<String>,
    /// Allow what a package manager needs; see `belljar net presets`
    #[arg(long = "preset", value_name = "NAME", help_heading = "Network")]
    pub(crate) presets: Vec<String>,
    /// Allow a host, *.SUFFIX or CIDR, each with :PORT; hosts without a port on 443 and 80
    #[arg(long, value_name = "RULE", help_heading = "Network")]
    pub(crate) allow: Vec<String>,
    /// Deny what others allow, in the same form
    #[arg(long, value_name = "RULE", help_heading = "Network")]
    pub(crate) deny: Vec<String>,
    /// Allow a host only requests such as 'GET /v1/*'; * is any method, or any rest of the path at its end
    #[arg(long = "request", value_name = "HOST=RULE", help_heading = "Network")]
    pub(crate) requests: Vec<String>,
    /// NAME=HOST:HEADER[:env=VARIABLE|:file=PATH|:secret=STORED]: replace a placeholder in a header of requests to an allowed host by a secret.
    /// Code has only the placeholder, in its variable NAME. The secret is read from the variable NAME by default
    #[arg(long = "secret", value_name = "SECRET", help_heading = "Network")]
    pub(crate) secrets: Vec<String>,
    /// HOST:HEADER:env=VARIABLE, :file=PATH or :secret=STORED: set a header in requests to an allowed host, or to all hosts below *.SUFFIX
    #[arg(long = "header", value_name = "HEADER", help_heading = "Network")]
    pub(crate) headers: Vec<String>,
    /// HOST=terminate: end TLS to a host, or to all below *.SUFFIX, at the gateway, which reads the requests; HOST=pass: do not
    #[arg(long, value_name = "HOST=MODE", help_heading = "Network")]
    pub(crate) tls: Vec<String>,
}

/// Arguments of `belljar doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Attack the walls with programs that try to get out, and report the results
    #[arg(long)]
    pub(crate) self_test: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// The commands of `belljar engine`.
#[derive(Debug, Subcommand)]
pub(crate) enum EngineCommand {
    /// List the engines, and whether each can be used here
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show what an engine can and what it enforces, in a sandbox that is created for it
    Info {
        /// Engine
        #[arg(value_name = "ENGINE")]
        name: String,
        /// Image of the sandbox, for an engine that has images of its own
        #[arg(long, value_name = "IMAGE")]
        image: Option<ImageReference>,
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// Arguments of `belljar languages`.
#[derive(Debug, Args)]
pub(crate) struct LanguagesArgs {
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

const RUN_TIMEOUT: &str = "Time until everything is stopped, such as 30, 500ms or 10m [default: 60s, for a shell 24h; 10s with the engine process]";

/// Flags that describe a sandbox.
#[derive(Debug, Default, Args)]
#[command(mut_arg("timeout", |arg| arg.help(RUN_TIMEOUT)))]
pub(crate) struct SandboxArgs {
    #[command(flatten)]
    pub(crate) resources: RunLimits,
    /// How limits are enforced: cgroup, or watched, which is weaker
    #[arg(long, value_name = "GRADE", help_heading = "Limits")]
    pub(crate) limits: Option<String>,
    /// Engine: local, process, none for no walls, docker or gvisor [default: local]
    #[arg(long, value_name = "ENGINE", help_heading = "Sandbox")]
    pub(crate) engine: Option<String>,
    #[command(flatten)]
    pub(crate) net: NetArgs,
    /// Show a directory or file of this machine inside, read-only unless rw
    #[arg(long = "mount", value_name = "SRC:DST[:ro|rw]", help_heading = "Sandbox", value_parser = absolute_mount)]
    pub(crate) mounts: Vec<String>,
    /// Set an environment variable; NAME alone takes its value from here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", help_heading = "Sandbox")]
    pub(crate) env: Vec<String>,
    /// Host name inside [default: belljar]
    #[arg(long, value_name = "NAME", help_heading = "Sandbox")]
    pub(crate) hostname: Option<String>,
    /// Read the sandbox's specification from a .toml or .json file; flags override it
    #[arg(long, value_name = "FILE", help_heading = "Sandbox")]
    pub(crate) spec: Option<PathBuf>,
    /// Read from a TOML file what may be mounted: read, write and forbidden paths
    #[arg(long, value_name = "FILE", help_heading = "Sandbox")]
    pub(crate) policy: Option<PathBuf>,
    /// Print no messages except errors
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// Returns a mount whose source, if it begins with `.` or `..`, is that path below the working directory.
fn absolute_mount(mount: &str) -> Result<String, String> {
    let Some((source, rest)) = mount.split_once(':') else { return Ok(mount.to_owned()) };
    let mut parts = Path::new(source).components().peekable();
    if !matches!(parts.peek(), Some(Component::CurDir | Component::ParentDir)) {
        return Ok(mount.to_owned());
    }
    // It has no symbolic links, so its parent is the directory before it.
    let mut path =
        std::env::current_dir().map_err(|error| format!("there is no working directory: {error}"))?;
    while let Some(part @ (Component::CurDir | Component::ParentDir)) = parts.peek() {
        if *part == Component::ParentDir {
            path.pop();
        }
        parts.next();
    }
    path.extend(parts);
    let path = path.to_str().ok_or("the path of the working directory is not UTF-8")?;
    Ok(format!("{path}:{rest}"))
}

/// Runs the command line, and returns the exit status. `begin` is the time when the program started.
pub(crate) fn main(begin: Instant) -> u8 {
    let words = advice::help_as_flag(std::env::args_os().collect(), Cli::command);
    let done = match Cli::parse_words(&words).command {
        Command::Run(args) => run::run(&args, begin),
        Command::Code(args) => code::code(&args),
        Command::Shell(args) => shell::shell(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Engine(command) => engine::engine(&command),
        Command::Languages(args) => languages::languages(&args),
        Command::Screen(args) => screen::screen(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Mcp(args) => service::mcp(&args),
        Command::Config(command) => config::config(&command),
        Command::Cert(args) => cert::cert(&args),
        Command::Sandbox(args) => service::sandbox(&args),
        Command::Volume(args) => service::volume(&args),
        Command::Key(args) => service::key(&args),
        Command::Secret(args) => service::secret(&args),
        Command::Template(args) => service::template(&args),
        Command::Tool(args) => service::tool(&args),
        Command::Approval(args) => service::approval(&args),
        Command::Console(args) => service::console(&args),
        Command::Image(args) => service::image(&args),
        Command::Audit(args) => service::audit(&args),
        Command::Events(args) => service::events(&args),
        Command::Status(args) => service::status(&args),
        Command::Top(args) => service::top(&args),
        Command::Net(command) => net::net(&command),
        Command::Backup(args) => serve::backup(&args),
        Command::Restore(args) => serve::restore(&args),
        Command::Gc(args) => service::collect(&args),
        Command::Completion { shell } => completion(shell),
    };
    done.map_err(service::with_hint).unwrap_or_else(Quit::report)
}

/// Returns the version, the commit that it was built from, and the build id of the guest's program, shortened. The commit is that of
/// `BELLJAR_COMMIT` when it was compiled, which the Makefile sets.
fn version() -> String {
    const ID_DIGITS: usize = 12;
    let build = BUILD_ID.get(..ID_DIGITS).unwrap_or(BUILD_ID);
    let commit = option_env!("BELLJAR_COMMIT").filter(|commit| !commit.is_empty()).unwrap_or("unknown");
    format!("{} (commit {commit}, build {build}, {})", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// Returns the first word among the arguments of a program that looks like an option of `belljar run`.
pub(crate) fn misplaced_option(words: &[OsString]) -> Option<&str> {
    let run = Run::command();
    let is_option = |word: &&str| {
        let flag = word.split('=').next().unwrap_or_default();
        run.get_arguments().any(|arg| match flag.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => arg
                .get_short()
                .is_some_and(|short| flag.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4]))),
        })
    };
    words.iter().filter_map(|word| word.to_str()).find(is_option)
}

/// Prints a script that completes this command line.
fn completion(shell: clap_complete::Shell) -> Result<u8, Quit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "belljar", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script).map_err(crate::output::write_failed)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_args(args: &[&str]) -> Result<RunArgs, clap::Error> {
        let args = ["belljar", "run"].iter().chain(args);
        Cli::try_parse_from(args).map(|cli| match cli.command {
            Command::Run(args) => *args,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn command_definition_is_valid() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn run_is_parsed_alone_as_with_all_commands() {
        for line in [
            "run x.py",
            "run -c code -- a --memory 1g",
            "run -l python --memory 1g --timeout 5s -f a=b -q - one two",
            "run --json --limits watched --net disabled x.py",
        ] {
            let words: Vec<OsString> =
                ["belljar"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
            let whole = Cli::try_parse_from(&words).unwrap();
            assert_eq!(format!("{:?}", Cli::parse_words(&words)), format!("{whole:?}"), "{line}");
        }
    }

    #[test]
    fn arguments_after_the_script_belong_to_the_program() {
        let args = run_args(&["--memory", "1g", "x.py", "--memory", "2g", "-c", "--", "-"]).unwrap();
        assert_eq!(args.words, ["x.py", "--memory", "2g", "-c", "--", "-"]);
        assert_eq!(args.sandbox.resources.get("memory"), Some("1g"));
        assert_eq!(args.code, None);
        let args = run_args(&["-c", "-1", "a", "-b"]).unwrap();
        assert_eq!(args.code.as_deref(), Some("-1"));
        assert_eq!(args.words, ["a", "-b"]);
        assert_eq!(run_args(&["-"]).unwrap().words, ["-"]);
        assert!(run_args(&["--memroy", "1g", "x.py"]).is_err());
        assert!(run_args(&["--json", "--events", "x.py"]).is_err());
    }
}
