//! Command-line arguments of the server as a whole: the audit log, status, events, leftovers, the console.

use std::path::PathBuf;

use belljar_store::Head;
use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::args::ServerArgs;

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
