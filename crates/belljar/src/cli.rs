//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};

use crate::message::Quit;
use crate::service::args::{AuditCommandArgs, KeyCommandArgs, SandboxCommandArgs, TemplateCommandArgs};
use crate::{doctor, languages, run, service, shell};

const EXAMPLES: &str = "\
Examples:
  belljar run -c 'print(2**64)'             Python by default
  belljar run script.js                     language by extension, #! line or -l
  belljar run -f data.csv analyse.py        put a file in
  belljar run -o plot.png plot.py           bring a file out
  belljar shell                             a terminal in a sandbox
  belljar doctor                            what this machine can enforce";

const RUN_EXAMPLES: &str = "\
Examples:
  belljar run -c 'print(2**64)'
  belljar run script.js one two
  cat data.csv | belljar run -f data.csv analyse.py
  belljar run --memory 256m --cpus 0.5 --timeout 30 --mount /data:/data:ro job.py
  belljar run --json -l bash -c 'ls /'

Exit status: the code's own; 124 timed out, 137 out of memory, 128+n killed by signal n,
125 Belljar itself failed or refused something, 2 wrong usage.";

/// Runs untrusted code behind walls.
#[derive(Debug, Parser)]
#[command(name = "belljar", version, about, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run code in a sandbox
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Open an interactive terminal in a sandbox
    Shell(Box<ShellArgs>),
    /// Say what this machine can enforce, what is missing, and how to fix it
    Doctor(DoctorArgs),
    /// List the languages that can be run here, with versions
    Languages(LanguagesArgs),
    /// Make, use and end sandboxes that live on
    Sandbox(Box<SandboxCommandArgs>),
    /// Make keys to the service, list them, take them back
    Key(Box<KeyCommandArgs>),
    /// List what sandboxes can start from
    Template(Box<TemplateCommandArgs>),
    /// Read and check the audit trail
    Audit(Box<AuditCommandArgs>),
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
    /// Bring a file out after the run; DEST is SRC's name in this directory if not given
    #[arg(short, long = "out", value_name = "SRC[:DEST]")]
    pub(crate) outs: Vec<OsString>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
    /// Print one JSON result instead of the program's output
    #[arg(long, conflicts_with = "events", help_heading = "Output")]
    pub(crate) json: bool,
    /// Print one JSON event a line as things happen
    #[arg(long, help_heading = "Output")]
    pub(crate) events: bool,
    /// Say where the time went
    #[arg(long, help_heading = "Output")]
    pub(crate) timings: bool,
    /// Directory for the whole of an output stream that is more than is kept
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Script, or - for standard input, and arguments for the program
    #[arg(value_name = "SCRIPT] [ARGS", trailing_var_arg = true)]
    pub(crate) words: Vec<OsString>,
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

/// Arguments of `belljar doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Attack the walls with programs that try to get out, and say what held
    #[arg(long)]
    pub(crate) self_test: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `belljar languages`.
#[derive(Debug, Args)]
pub(crate) struct LanguagesArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a sandbox is to be.
#[derive(Debug, Default, Args)]
pub(crate) struct SandboxArgs {
    /// Memory and swap of everything in the sandbox [default: 512m]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) memory: Option<String>,
    /// Processors, such as 0.5 [default: 1]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) cpus: Option<String>,
    /// Time until everything is stopped, such as 30, 500ms or 10m [default: 60s]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) timeout: Option<String>,
    /// Processes and threads at once [default: 128]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) pids: Option<String>,
    /// Size of /tmp [default: 100m]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) tmp: Option<String>,
    /// Size of the home directory [default: 1g]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) disk: Option<String>,
    /// Files and directories in each writable file system [default: 65536]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) inodes: Option<String>,
    /// What a result keeps of each output stream [default: 8m]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) output: Option<String>,
    /// What --log-dir may hold of each output stream [default: 256m]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) log: Option<String>,
    /// Open files of each process [default: 1024]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) open_files: Option<String>,
    /// How limits are held: cgroup, or watched, which is weaker
    #[arg(long, value_name = "GRADE", help_heading = "Limits")]
    pub(crate) limits: Option<String>,
    /// What builds the walls: local, process, or none for no walls [default: local]
    #[arg(long, value_name = "ENGINE", help_heading = "Sandbox")]
    pub(crate) engine: Option<String>,
    /// What the sandbox may reach [default: disabled]
    #[arg(long, value_name = "POLICY", help_heading = "Sandbox")]
    pub(crate) net: Option<String>,
    /// Show a directory or file of this machine inside, read-only unless rw
    #[arg(long = "mount", value_name = "SRC:DST[:ro|rw]", help_heading = "Sandbox")]
    pub(crate) mounts: Vec<String>,
    /// Set an environment variable; NAME alone takes its value from here
    #[arg(long = "env", value_name = "NAME[=VALUE]", help_heading = "Sandbox")]
    pub(crate) env: Vec<String>,
    /// Host name inside [default: belljar]
    #[arg(long, value_name = "NAME", help_heading = "Sandbox")]
    pub(crate) hostname: Option<String>,
    /// Read what the sandbox is to be from a .toml or .json file; flags win over it
    #[arg(long, value_name = "FILE", help_heading = "Sandbox")]
    pub(crate) spec: Option<PathBuf>,
    /// Read from a TOML file what may be mounted: read, write and forbidden paths
    #[arg(long, value_name = "FILE", help_heading = "Sandbox")]
    pub(crate) policy: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(long, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// Does what the command line asks for, and gives the exit status. `begin` is when the program began.
pub(crate) fn main(begin: Instant) -> u8 {
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(&args, begin),
        Command::Shell(args) => shell::shell(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Languages(args) => languages::languages(&args),
        Command::Sandbox(args) => service::sandbox(&args),
        Command::Key(args) => service::key(&args),
        Command::Template(args) => service::template(&args),
        Command::Audit(args) => service::audit(&args),
    };
    done.unwrap_or_else(Quit::report)
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
    fn the_definition_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn what_follows_the_script_is_the_programs() {
        let args = run_args(&["--memory", "1g", "x.py", "--memory", "2g", "-c", "--", "-"]).unwrap();
        assert_eq!(args.words, ["x.py", "--memory", "2g", "-c", "--", "-"]);
        assert_eq!(args.sandbox.memory.as_deref(), Some("1g"));
        assert_eq!(args.code, None);
        let args = run_args(&["-c", "-1", "a", "-b"]).unwrap();
        assert_eq!(args.code.as_deref(), Some("-1"));
        assert_eq!(args.words, ["a", "-b"]);
        assert_eq!(run_args(&["-"]).unwrap().words, ["-"]);
        assert!(run_args(&["--memroy", "1g", "x.py"]).is_err());
        assert!(run_args(&["--json", "--events", "x.py"]).is_err());
    }
}
