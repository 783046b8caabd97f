//! The way to the server: the one that is named, or the one of this user's home.

use std::fs::File;
use std::path::PathBuf;

use belljar_client::{Client, ClientError, Credential, Target};
use belljar_config::home_dir;
use belljar_engine::GuestError;

use super::args::{Format, ServerArgs};
use super::start::{Reached, reach};
use crate::message::{Quit, say};

/// What is said of the first server that is started in a home.
const STARTED: &str =
    "a server runs in the background now: it keeps sandboxes and their times, and ends when there are none";

/// A server, and how its answers are shown.
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) format: Format,
    pub(crate) quiet: bool,
    /// It is the server of this user's home.
    pub(crate) is_own: bool,
    /// Keeps a server in the background from ending.
    _lease: Option<File>,
}

impl Link {
    /// Finds the server. If none is named and none is there, one is started.
    pub(crate) async fn open(args: &ServerArgs) -> Result<Self, Quit> {
        let (target, lease, is_own) = match &args.server {
            Some(url) if !url.is_empty() => (Target::parse(url)?, None, false),
            _ => {
                let Reached { socket, lease, is_first } = reach(&home(args)?)?;
                if is_first && !args.quiet {
                    say(STARTED);
                }
                (Target::Unix(socket), lease, true)
            }
        };
        // Whoever can open the socket is the operator, unless he comes as somebody else.
        let client = Client::connect(target, credential(args))?;
        Ok(Self { client, format: args.format, quiet: args.quiet, is_own, _lease: lease })
    }
}

impl Link {
    /// A guest is reached by way of the server: where that cannot be reached, nothing is known of the guest.
    pub(crate) fn explained(&self, quit: Quit) -> Quit {
        let Quit::Error(error) = &quit else { return quit };
        let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<GuestError>());
        let unreachable = causes.find_map(|error| self.client.unreachable(error));
        unreachable.map_or(quit, Quit::from)
    }
}

fn credential(args: &ServerArgs) -> Credential {
    args.api_key.as_ref().filter(|key| !key.is_empty()).map_or(Credential::None, Credential::key)
}

/// The home of the service, an absolute path.
pub(super) fn home(args: &ServerArgs) -> Result<PathBuf, Quit> {
    let is_root = rustix::process::geteuid().is_root();
    let named = args.home.clone().or_else(|| home_dir(|name| std::env::var_os(name), is_root));
    let home = named.ok_or_else(|| Quit::Usage("set BELLJAR_HOME: neither it nor HOME is set".to_owned()))?;
    Ok(std::path::absolute(home)?)
}

/// Whether the server says that there is no such thing, or that it has ended.
pub(crate) fn is_missing(error: &ClientError) -> bool {
    error.is("sandbox_not_found") || error.is("sandbox_gone")
}
