//! The way to the server: the one that is named, or the one of this user's home.

use std::path::PathBuf;

use belljar_client::{Client, ClientError, Credential, Target};

use super::args::{Format, ServerArgs};
use crate::message::Quit;

/// The socket's name in the home of the service.
const SOCKET: &str = "belljar.sock";

/// A server, and how its answers are shown.
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) format: Format,
    pub(crate) quiet: bool,
}

impl Link {
    /// Finds the server.
    pub(crate) async fn open(args: &ServerArgs) -> Result<Self, Quit> {
        let (target, credential) = match &args.server {
            Some(url) => (Target::parse(url)?, credential(args)),
            None => {
                let socket = home(args)?.join(SOCKET);
                if !socket.exists() {
                    return Err(anyhow::anyhow!(
                        "no server is running here: there is no {}; start one with `belljar serve`, or name one with \
                         --server",
                        socket.display()
                    )
                    .into());
                }
                // Whoever can open the socket is the operator, unless he comes as somebody else.
                (Target::Unix(socket), credential(args))
            }
        };
        let client = Client::connect(target, credential)?;
        Ok(Self { client, format: args.format, quiet: args.quiet })
    }
}

fn credential(args: &ServerArgs) -> Credential {
    args.api_key.as_ref().filter(|key| !key.is_empty()).map_or(Credential::None, Credential::key)
}

fn home(args: &ServerArgs) -> Result<PathBuf, Quit> {
    let named = args.home.clone().or_else(|| variable("BELLJAR_HOME"));
    if let Some(home) = named {
        return Ok(home);
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/belljar"));
    }
    let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")));
    data.map(|data| data.join("belljar"))
        .ok_or_else(|| Quit::Usage("set BELLJAR_HOME: neither it nor HOME is set".to_owned()))
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Whether the server says that there is no such thing, or that it has ended.
pub(crate) fn is_missing(error: &ClientError) -> bool {
    error.is("sandbox_not_found") || error.is("sandbox_gone")
}
