//! Command-line arguments of the commands that use a server.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar_model::ImageReference;
use clap::{Args, Subcommand, ValueEnum};

use crate::limits::{CreateLimits, UpdateLimits};

/// The server to use, and the output format.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// Server, as http://HOST:PORT, https://HOST or unix:PATH [default: $BELLJAR_API_URL, else the one of this user's home]
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    pub(crate) server: Option<String>,
    /// File of certificates to trust in the place of this machine's [default: $SSL_CERT_FILE]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    pub(crate) cacert: Option<PathBuf>,
    /// API key [default: $BELLJAR_API_KEY]
    #[arg(long, global = true, value_name = "KEY", help_heading = "Server")]
    pub(crate) api_key: Option<String>,
    /// Use the server of this directory [default: $BELLJAR_HOME, ~/.local/share/belljar, for root /var/lib/belljar]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Server")]
    pub(crate) home: Option<PathBuf>,
    /// Output format
    #[arg(long, global = true, value_enum, default_value = "table", help_heading = "Output")]
    pub(super) format: Format,
    /// The same as --format json
    #[arg(long, global = true, hide = true)]
    pub(super) json: bool,
    /// Print only ids, and no messages except errors
    #[arg(short, long, global = true, help_heading = "Output")]
    pub(crate) quiet: bool,
}

impl ServerArgs {
    /// Returns the server of the environment.
    pub(crate) fn new(quiet: bool) -> Self {
        Self {
            server: None,
            cacert: None,
            api_key: None,
            home: None,
            format: Format::Table,
            json: false,
            quiet,
        }
    }

    /// Returns the output format.
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

/// The output format of a command without a server.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct FormatArgs {
    /// Output format
    #[arg(long, value_enum, default_value = "table", help_heading = "Output")]
    format: Format,
    /// The same as --format json
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl FormatArgs {
    /// Reports whether JSON is printed.
    pub(crate) fn is_json(self) -> bool {
        self.json || self.format == Format::Json
    }
}

/// Output format of answers. Descriptions of the values would have clap print all options in its long form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
}

/// Arguments of `belljar sandbox`.
#[derive(Debug, Args)]
pub(crate) struct SandboxCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: SandboxCommand,
}

/// The commands of `belljar sandbox`. A sandbox is named by its id or by its name.
#[derive(Debug, Subcommand)]
pub(crate) enum SandboxCommand {
    /// Create a sandbox and print its id
    Create(Box<CreateArgs>),
    /// Run a command in a sandbox, and end with its status
    Exec(ExecArgs),
    /// Open a terminal in a sandbox
    Shell {
        /// User of the shell, by name or number, such as root in a machine
        #[arg(short, long, value_name = "USER")]
        user: Option<String>,
        /// Sandbox
        sandbox: String,
        /// Command to run instead of a shell
        #[arg(value_name = "CMD", trailing_var_arg = true)]
        command: Vec<OsString>,
    },
    /// Copy files and directories in or out: one of the two places is SANDBOX:PATH
    #[command(after_help = COPY_EXAMPLES)]
    Cp(CopyArgs),
    /// List sandboxes
    #[command(visible_alias = "list")]
    Ls {
        /// Only those in this state; may be given more than once
        #[arg(long, value_name = "STATE")]
        state: Vec<String>,
        /// Only those with this label; may be given more than once
        #[arg(long, value_name = "KEY=VALUE")]
        label: Vec<String>,
        /// Include ended sandboxes
        #[arg(short, long)]
        all: bool,
    },
    /// Show sandbox details
    Info {
        /// Sandbox
        sandbox: String,
    },
    /// Show what happened to a sandbox; for output, see belljar sandbox process read
    Logs {
        /// Sandbox
        sandbox: String,
        /// Follow new records
        #[arg(short, long)]
        follow: bool,
    },
    /// Show the resource usage of a sandbox
    Stats {
        /// Sandbox
        sandbox: String,
    },
    /// List the processes in a sandbox; a paused one is resumed
    Ps {
        /// Sandbox
        sandbox: String,
    },
    /// Attach to a process in a sandbox, read what it wrote, wait for it, kill it
    #[command(subcommand)]
    Process(ProcessCommand),
    /// Pause a sandbox
    Pause {
        /// Sandboxes
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Resume a sandbox
    Resume {
        /// Sandboxes
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Change the timeout, limits and labels of a sandbox
    Set {
        /// Sandbox
        sandbox: String,
        /// New timeout from now on, such as 10m; 0 ends the sandbox now
        #[arg(long, value_name = "TIME")]
        timeout: Option<String>,
        /// Idle timeout; 0 is none
        #[arg(long, value_name = "TIME")]
        idle_timeout: Option<String>,
        /// Action when its timeout expires: kill or pause
        #[arg(long, value_name = "WHAT")]
        on_timeout: Option<String>,
        #[command(flatten)]
        limits: UpdateLimits,
        /// Set a label, or remove it: KEY=VALUE or KEY-
        #[arg(long, value_name = "KEY=VALUE")]
        label: Vec<String>,
    },
    /// Show or change the network policy of a running sandbox
    Net {
        /// Sandbox
        sandbox: String,
        #[command(subcommand)]
        command: NetworkCommand,
    },
    /// Keep a sandbox's files as a template
    Snapshot {
        /// Sandbox
        sandbox: String,
        /// The template's name
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// A note
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
    /// Copy a sandbox's files into new sandboxes
    Fork {
        /// Sandbox
        sandbox: String,
        /// Number
        #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1)]
        count: u32,
        /// Timeout of the new sandboxes
        #[arg(long, value_name = "TIME")]
        timeout: Option<String>,
        /// Set a label
        #[arg(long, value_name = "KEY=VALUE")]
        label: Vec<String>,
    },
    /// Pass connections to a port of this machine on to one of a sandbox, until it is interrupted
    PortForward {
        /// Sandbox
        sandbox: String,
        /// Port here and port inside; 0 here is a free one
        #[arg(value_name = "PORT[:INSIDE]")]
        ports: String,
    },
    /// Publish a port and print its address, or list the published ones
    Port {
        /// Sandbox
        sandbox: String,
        /// Port
        port: Option<u16>,
        /// Allow access without a token
        #[arg(long)]
        public: bool,
        /// Unpublish it
        #[arg(long, conflicts_with = "public")]
        remove: bool,
        /// Print only a token for it that lasts this long, such as 10m; the address has one of 1h
        #[arg(long, value_name = "TIME", conflicts_with = "remove")]
        token: Option<String>,
    },
    /// End sandboxes, with all that is in them
    #[command(visible_alias = "rm")]
    Kill {
        /// Sandboxes
        #[arg(required_unless_present_any = ["all", "label"])]
        sandboxes: Vec<String>,
        /// All sandboxes
        #[arg(long, conflicts_with = "sandboxes")]
        all: bool,
        /// All with this label; may be given more than once
        #[arg(long, value_name = "KEY=VALUE", conflicts_with = "sandboxes")]
        label: Vec<String>,
    },
}

/// The commands of `belljar sandbox process`. A process is named by its number in `belljar sandbox ps` and `exec -d`.
#[derive(Debug, Subcommand)]
pub(crate) enum ProcessCommand {
    /// Show what a process wrote and writes, feed it, and end with its status; Ctrl-C leaves it alone
    Attach {
        /// Sandbox
        sandbox: String,
        /// Its number
        process: u64,
        /// Do not feed it from standard input
        #[arg(long)]
        no_stdin: bool,
    },
    /// Print what a process wrote so far, as far as the sandbox keeps it
    Read {
        /// Sandbox
        sandbox: String,
        /// Its number
        process: u64,
    },
    /// Wait for a process, and end with its status
    Wait {
        /// Sandbox
        sandbox: String,
        /// Its number
        process: u64,
    },
    /// Send a signal to a process and all that it started
    Kill {
        /// Sandbox
        sandbox: String,
        /// Its number
        process: u64,
        /// The signal, by number or name
        #[arg(short, long, value_name = "SIGNAL", default_value = "TERM")]
        signal: String,
    },
}

const COPY_EXAMPLES: &str = "\
Examples:
  belljar sandbox cp a.csv ID:              into the home directory
  belljar sandbox cp src ID:/home/user/app  a directory, as app, or into app if it exists
  belljar sandbox cp ID:out/. results       what is in out, into results
  belljar sandbox cp - ID:notes.txt         standard input, as a file
  belljar sandbox cp ID:out - | tar tf -    a directory, as a tar

Exit status 1: some entries could not be copied, such as sockets and unreadable files.";

/// Arguments of `belljar sandbox cp` and `belljar volume cp`.
#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// What is copied; - is standard input, and DIR/. what is in DIR
    #[arg(value_name = "FROM")]
    pub(crate) from: OsString,
    /// Where to; - is standard output
    #[arg(value_name = "TO")]
    pub(crate) to: OsString,
    /// When copying out, make symbolic links that lead out of the copied directory, too
    #[arg(long)]
    pub(crate) outward_links: bool,
}

/// Arguments of `belljar sandbox create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Template
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// Image, such as python:3.12-slim, which is pulled once
    #[arg(long, value_name = "IMAGE", conflicts_with = "template")]
    pub(crate) image: Option<ImageReference>,
    /// Engine, one of those that the server offers; with docker, an image is one of the daemon's
    #[arg(long, value_name = "ENGINE")]
    pub(crate) engine: Option<String>,
    /// Make it a machine: root inside, and a tree that is writable
    #[arg(long)]
    pub(crate) machine: bool,
    /// User to run as unless a command names another, such as root, in a machine
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Use the existing sandbox of that name, if any
    #[arg(long, requires = "name")]
    pub(crate) or_get: bool,
    /// Timeout, such as 10m [default: 5m]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Idle timeout
    #[arg(long, value_name = "TIME")]
    pub(crate) idle_timeout: Option<String>,
    /// Action when its timeout expires: kill or pause
    #[arg(long, value_name = "WHAT")]
    pub(crate) on_timeout: Option<String>,
    /// Refuse use while it is paused, instead of resuming it
    #[arg(long)]
    pub(crate) no_auto_resume: bool,
    /// Set a label; may be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    /// Set an environment variable; NAME alone takes its value from here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Put a file or directory in; DEST is below the home directory
    #[arg(short, long = "file", value_name = "SRC[:DEST]")]
    pub(crate) files: Vec<OsString>,
    #[command(flatten)]
    pub(crate) limits: CreateLimits,
    /// Show a directory or file of the server's machine inside (administrators only)
    #[arg(long = "mount", value_name = "SRC:DST[:ro|rw]")]
    pub(crate) mounts: Vec<String>,
    /// Mount a volume, by its name or id; read-only with ro
    #[arg(long = "volume", value_name = "NAME:DST[:ro|rw]")]
    pub(crate) volumes: Vec<String>,
    /// Host that programs on its ports see, such as localhost:{port}, instead of the one that the client used
    #[arg(long, value_name = "HOST")]
    pub(crate) port_host: Option<String>,
    #[command(flatten)]
    pub(crate) net: crate::cli::NetArgs,
}

/// Arguments of `belljar sandbox exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Sandbox
    pub(crate) sandbox: String,
    /// Directory to start in
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<OsString>,
    /// User to run as, such as root, in a machine
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Set an environment variable; NAME alone takes its value from here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Timeout; 0 is none
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Run in the background and print the process number
    #[arg(short, long, visible_alias = "background")]
    pub(crate) detach: bool,
    /// Run the command as one line in the shell
    #[arg(short = 'c', long)]
    pub(crate) shell: bool,
    /// Program and arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

/// The commands of `belljar sandbox net`.
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Show the network policy
    Get,
    /// Replace the whole network policy; connections that the new one does not allow are cut
    Set {
        #[command(flatten)]
        net: crate::cli::NetArgs,
    },
    /// Add to the network policy, and keep what is there
    Add {
        #[command(flatten)]
        net: crate::cli::NetArgs,
    },
    /// Print what was decided about connections
    Log {
        /// Follow new records
        #[arg(short, long)]
        follow: bool,
    },
}
