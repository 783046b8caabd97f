//! Connection to the server: the named one, or the one of this user's home.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_client::v1::{CreateSandboxRequest, CreateSandboxResponse, GetSandboxRequest, Waiting};
use belljar_client::{Client, ClientError, Credential, Target};
use belljar_config::home_dir;
use belljar_engine::{GuestClient, GuestError};
use belljar_model::Approval;
use jiff::Timestamp;
use serde::Deserialize;

use super::args::{Format, ServerArgs};
use super::show::rough;
use super::start::{Reached, reach};
use crate::message::{Quit, say};
use crate::serve::holder;
use crate::spec::LIMITS_VARIABLE;

/// Message when the first server is started in a home.
const STARTED: &str = "started a background server; it exits when no sandboxes remain";

/// A server, and how its answers are shown.
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) format: Format,
    pub(crate) quiet: bool,
    /// Whether it is the server of this user's home.
    pub(crate) is_own: bool,
    /// The server's address, if it has one besides a socket.
    pub(crate) url: Option<String>,
    /// Whether a key is given; without one, the caller is the operator.
    has_key: bool,
    /// The server's socket, if the connection uses one.
    socket: Option<PathBuf>,
    /// Keeps a server in the background from ending.
    _lease: Option<File>,
}

impl Link {
    /// Finds the server. If none is named and none is running, starts one.
    pub(crate) async fn open(args: &ServerArgs) -> Result<Self, Quit> {
        let Named { server, key } = Named::find(args, |name| std::env::var(name).ok())?;
        let mut url = None;
        let (target, lease, is_own) = match server {
            Some(server) => (Target::parse_trusting(&server, args.cacert.as_deref())?, None, false),
            None if args.cacert.is_some() => {
                return Err(Quit::Usage(
                    "--cacert: a server on a socket has no certificate; give --server".to_owned(),
                ));
            }
            None => {
                let home = home(args)?;
                let Reached { socket, lease, is_first } = reach(&home)?;
                url = holder(&home).and_then(|holder| holder.url);
                if is_first && !args.quiet {
                    say(STARTED);
                }
                (Target::Unix(socket), lease, true)
            }
        };
        let socket = match &target {
            Target::Unix(path) => Some(path.clone()),
            other => {
                url = Some(other.to_string());
                None
            }
        };
        // On the socket, the client acts as the operator unless a key is given.
        let has_key = key.is_some();
        let client = Client::connect(target, key.map_or(Credential::None, Credential::key))?;
        let (format, quiet) = (args.format(), args.quiet);
        Ok(Self { client, format, quiet, is_own, url, has_key, socket, _lease: lease })
    }
}

/// An engine that a server offers.
#[derive(Deserialize)]
pub(super) struct Engine {
    /// Its name.
    pub(super) name: String,
    /// Whether it is that of requests without one.
    pub(super) is_default: bool,
    /// Whether it has images of its own.
    #[serde(default)]
    pub(super) images: bool,
    /// Whether limits of running sandboxes can be changed.
    live_limits: bool,
}

#[derive(Deserialize)]
struct Engines {
    engines: Vec<Engine>,
}

/// What a key says of its calls.
#[derive(Deserialize)]
struct Me {
    #[serde(default)]
    approval: Approval,
}

/// Tells the user that a call waits for another person.
pub(crate) fn say_waiting(approval: &str, expires_at: Timestamp) {
    let left = Duration::try_from(expires_at.duration_since(Timestamp::now())).unwrap_or_default();
    say(&format!(
        "the call waits for approval {approval}, for {} at most; another person decides: belljar approval approve {approval}",
        rough(left)
    ));
}

impl Link {
    /// Returns a client of a sandbox's guest. Before a call waits for approval, `prepare` is called, and the user is told.
    pub(crate) fn guest_preparing(
        &self,
        sandbox: &str,
        prepare: impl Fn() + Send + Sync + 'static,
    ) -> Result<GuestClient, ClientError> {
        let quiet = self.quiet;
        let report = move |waiting: Waiting| {
            let at = waiting.expires_at.as_option().and_then(|at| Timestamp::from_second(at.seconds).ok());
            prepare();
            if !quiet {
                say_waiting(&waiting.approval, at.unwrap_or_default());
            }
        };
        Ok(self.client.guest(sandbox)?.on_waiting(report))
    }

    /// Returns a client of a sandbox's guest. If a call waits for approval, the user is told.
    pub(crate) fn guest(&self, sandbox: &str) -> Result<GuestClient, ClientError> {
        self.guest_preparing(sandbox, || ())
    }

    /// Reports whether calls with the key may wait for approval, which covers no later input.
    pub(crate) async fn may_wait(&self) -> Result<bool, ClientError> {
        if !self.has_key {
            return Ok(false);
        }
        Ok(self.client.fetch::<Me>("/v1/me").await?.approval != Approval::Never)
    }
}

impl Link {
    /// Creates a sandbox. On the server of this user's home, `BELLJAR_LIMITS` applies as to a sandbox without a server: it may have been
    /// started without.
    pub(crate) async fn create(
        &self,
        mut request: CreateSandboxRequest,
    ) -> Result<CreateSandboxResponse, ClientError> {
        if self.is_own && request.grade.is_empty() {
            request.grade = std::env::var(LIMITS_VARIABLE).unwrap_or_default();
        }
        self.client.create(request, None).await
    }

    /// Returns the engines of the server.
    pub(super) async fn engines(&self) -> Result<Vec<Engine>, ClientError> {
        let Engines { engines } = self.client.fetch("/v1/engines").await?;
        Ok(engines)
    }

    /// Returns how more of a limit is got, by its flag with a value, such as `--memory SIZE`: for a sandbox whose engine changes limits, or
    /// for another one.
    pub(super) async fn raise(&self, sandbox: &str, flag: &str) -> String {
        let request = GetSandboxRequest { sandbox: sandbox.to_owned(), ended: true, ..Default::default() };
        // Advice is no reason to fail.
        let engine = self.client.get(request).await.map(|info| info.engine).unwrap_or_default();
        let engines = self.engines().await.unwrap_or_default();
        match engines.iter().any(|one| one.name == engine && !one.live_limits) {
            true => format!(
                "limits of a running sandbox of the engine {engine} do not change; create one with {flag}"
            ),
            false => format!("raise it with belljar sandbox set {sandbox} {flag}"),
        }
    }

    /// Reports whether the server is named, or one is running in this user's home.
    pub(crate) fn is_running(args: &ServerArgs) -> Result<bool, Quit> {
        if Named::find(args, |name| std::env::var(name).ok())?.server.is_some() {
            return Ok(true);
        }
        let socket = holder(&home(args)?).and_then(|holder| holder.socket);
        Ok(socket.is_some_and(|socket| UnixStream::connect(socket).is_ok()))
    }

    /// Reports whether the server is known to be on this machine.
    pub(crate) fn is_here(&self) -> bool {
        self.socket.is_some()
    }

    /// Returns where the server is.
    pub(crate) fn place(&self) -> String {
        let socket = self.socket.as_deref().map(|path| format!("unix:{}", path.display()));
        self.url.clone().or(socket).unwrap_or_default()
    }

    /// Returns the server's socket, if the connection uses one.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Returns the server's socket for display, if it has no other address.
    pub(crate) fn only_socket(&self) -> Option<std::path::Display<'_>> {
        self.socket.as_deref().filter(|_| self.url.is_none()).map(Path::display)
    }

    /// Replaces an error of a guest call with that of the server, if the server cannot be reached: guest calls go through it.
    pub(crate) fn explain(&self, quit: Quit) -> Quit {
        let Quit::Error(error) = &quit else { return quit };
        let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<GuestError>());
        let unreachable = causes.find_map(|error| self.client.unreachable(error));
        unreachable.map_or(quit, Quit::from)
    }
}

/// The server and the key that the command line and the environment name.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    server: Option<String>,
    key: Option<String>,
}

impl Named {
    /// Resolves the server and the key. Flags take precedence over variables. `--home` overrides both variables: the key
    /// belongs to the server that is not used.
    fn find(args: &ServerArgs, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Quit> {
        let set = |value: Option<String>| value.filter(|text| !text.is_empty());
        let (server, key) = (set(args.server.clone()), set(args.api_key.clone()));
        if server.is_some() && args.home.is_some() {
            return Err(Quit::Usage("--server and --home name two servers; give one of them".to_owned()));
        }
        let other = set(variable("BELLJAR_API_URL")).filter(|_| server.is_none());
        let is_overridden = other.is_some() && args.home.is_some();
        Ok(Self {
            server: server.or(other).filter(|_| !is_overridden),
            key: key.or_else(|| set(variable("BELLJAR_API_KEY")).filter(|_| !is_overridden)),
        })
    }
}

/// Returns the home of the service, an absolute path.
pub(super) fn home(args: &ServerArgs) -> Result<PathBuf, Quit> {
    let is_root = rustix::process::geteuid().is_root();
    let named = args.home.clone().or_else(|| home_dir(|name| std::env::var_os(name), is_root));
    let home = named.ok_or_else(|| Quit::Usage("set BELLJAR_HOME: neither it nor HOME is set".to_owned()))?;
    Ok(std::path::absolute(home)?)
}

/// Reports whether the sandbox does not exist or has ended.
pub(crate) fn is_missing(error: &ClientError) -> bool {
    error.is("sandbox_not_found") || error.is("sandbox_gone")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_environment() {
        let args = |server: Option<&str>, key: Option<&str>, home: Option<&str>| ServerArgs {
            server: server.map(str::to_owned),
            api_key: key.map(str::to_owned),
            home: home.map(PathBuf::from),
            ..ServerArgs::new(false)
        };
        let both = |name: &str| Some(if name == "BELLJAR_API_URL" { "env" } else { "env-key" }.to_owned());
        let key_only = |name: &str| (name == "BELLJAR_API_KEY").then(|| "env-key".to_owned());
        let find = |args: ServerArgs, variable: &dyn Fn(&str) -> Option<String>| {
            let named = Named::find(&args, variable).ok()?;
            Some((named.server.unwrap_or_default(), named.key.unwrap_or_default()))
        };
        let pair = |server: &str, key: &str| Some((server.to_owned(), key.to_owned()));
        assert_eq!(find(args(None, None, None), &both), pair("env", "env-key"));
        assert_eq!(find(args(Some("flag"), None, None), &both), pair("flag", "env-key"));
        assert_eq!(find(args(Some(""), Some("flag-key"), None), &both), pair("env", "flag-key"));
        assert_eq!(find(args(None, None, Some("/home")), &both), pair("", ""));
        assert_eq!(find(args(None, Some("flag-key"), Some("/home")), &both), pair("", "flag-key"));
        assert_eq!(find(args(None, None, Some("/home")), &key_only), pair("", "env-key"));
        assert_eq!(find(args(Some("flag"), None, Some("/home")), &both), None);
    }
}
