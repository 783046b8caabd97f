//! Command-line arguments of `belljar code`.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar_model::ImageReference;
use clap::Args;

use crate::cli::NetArgs;
use crate::limits::CreateLimits;
use crate::service::args::ServerArgs;

/// Arguments of `belljar code`.
#[derive(Debug, Args)]
pub(crate) struct CodeArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Language: python, javascript, typescript, bash, r, or jupyter:NAME [default: python]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) language: Option<String>,
    /// Sandbox to use and keep; without it, a new one is created and ended afterwards
    #[arg(long, value_name = "SANDBOX", conflicts_with_all = ["template", "image", "engine", "env", "life", "mounts", "volumes"])]
    pub(crate) sandbox: Option<String>,
    /// Template of a new sandbox
    #[arg(long, value_name = "NAME", conflicts_with = "engine")]
    pub(crate) template: Option<String>,
    /// Image of a new sandbox, such as python:3.12-slim, which is pulled once
    #[arg(long, value_name = "IMAGE", conflicts_with = "template")]
    pub(crate) image: Option<ImageReference>,
    /// Put a file or directory in; DEST is below the home directory
    #[arg(short, long = "file", value_name = "SRC[:DEST]")]
    pub(crate) files: Vec<OsString>,
    #[command(flatten)]
    pub(crate) new: NewSandboxArgs,
    /// Life of a new sandbox, such as 30m [default: 1h]
    #[arg(long, value_name = "TIME", conflicts_with = "engine")]
    pub(crate) life: Option<String>,
    /// Time limit of one execution, such as 30s [default: none]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Run without a server, with this engine: local, process, none for no walls, docker or gvisor
    #[arg(long, value_name = "ENGINE")]
    pub(crate) engine: Option<String>,
    /// Directory for pictures that cannot be shown [default: this one]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// A new sandbox.
#[derive(Debug, Args)]
// `--timeout` is the time limit of an execution here.
#[command(mut_arg("exec-timeout", |arg| arg.hide(true)))]
pub(crate) struct NewSandboxArgs {
    #[command(flatten)]
    pub(crate) limits: CreateLimits,
    #[command(flatten)]
    pub(crate) net: NetArgs,
    /// Set an environment variable; NAME alone takes its value from here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", help_heading = "Sandbox")]
    pub(crate) env: Vec<String>,
    /// Show a directory or file of the server's machine inside (administrators only)
    #[arg(long = "mount", value_name = "SRC:DST[:ro|rw]", help_heading = "Sandbox")]
    pub(crate) mounts: Vec<String>,
    /// Mount a volume, by its name or id; read-only with ro
    #[arg(
        long = "volume",
        value_name = "NAME:DST[:ro|rw]",
        conflicts_with = "engine",
        help_heading = "Sandbox"
    )]
    pub(crate) volumes: Vec<String>,
}
