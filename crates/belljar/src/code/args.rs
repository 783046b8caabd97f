//! Command-line arguments of `belljar code`.

use std::path::PathBuf;

use clap::Args;

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
    #[arg(long, value_name = "SANDBOX", conflicts_with_all = ["template", "engine", "env", "life"])]
    pub(crate) sandbox: Option<String>,
    /// Template of a new sandbox
    #[arg(long, value_name = "NAME", conflicts_with = "engine")]
    pub(crate) template: Option<String>,
    /// Set an environment variable in a new sandbox; NAME alone takes its value from here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Life of a new sandbox, such as 30m [default: 1h]
    #[arg(long, value_name = "TIME", conflicts_with = "engine")]
    pub(crate) life: Option<String>,
    /// Time limit of one execution, such as 30s [default: none]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Run without a server, with this engine: local, process, or none for no walls
    #[arg(long, value_name = "ENGINE")]
    pub(crate) engine: Option<String>,
    /// Directory for pictures that cannot be shown [default: this one]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
