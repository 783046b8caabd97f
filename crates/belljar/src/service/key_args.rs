//! Command-line arguments of keys, people and secrets.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::args::ServerArgs;

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
#[derive(Debug, Default, PartialEq, Args)]
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
