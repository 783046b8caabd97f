//! `belljar serve`: this machine as a sandbox service.
//!
//! ```text
//!   home (one server at a time) → log → store, audit → launcher's engine → keeper → API on TCP and on a Unix socket
//!      SIGHUP: reloads the configuration       SIGTERM: requests finish, then the server ends; sandboxes keep running
//! ```

mod background;
mod backup;
mod first_key;
mod handover;
mod home;
mod listen;
mod log;
mod notify;
mod otlp;
mod parts;
mod process_metrics;
mod reload;
mod server;

use std::io;

use crate::cli::ServeArgs;
use crate::config::{Loaded, Sources};
use crate::message::{Quit, chain};
use background::Background;
use home::Home;

pub(crate) use background::{HELD, LOG_FILE, OLD_LOG_FILE, READY};
pub(crate) use backup::{backup, restore};
pub(crate) use handover::connect;
pub(crate) use home::{CLIENTS_FILE, HomeError, SOCKET_FILE, holder, prepare};

/// Serves until a signal ends the server.
pub(crate) fn serve(args: &ServeArgs) -> Result<u8, Quit> {
    if args.background {
        return background::serve(args);
    }
    let sources = Sources::new(&args.service);
    let loaded = sources.load()?;
    let mut home = Home::take_over(&loaded.home)?;
    run(&sources, loaded, &mut home, || Ok(None))
}

/// Serves with a home that has been taken. `background` is called within the runtime.
fn run(
    sources: &Sources<'_>,
    loaded: Loaded,
    home: &mut Home,
    background: impl FnOnce() -> Result<Option<Background>, Quit>,
) -> Result<u8, Quit> {
    // Dependencies may bring other cryptography providers: this one is used for all TLS here.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    raise_descriptors();
    let passed = listen::Passed::take()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let status = runtime.block_on(async { server::run(sources, loaded, passed, home, background()?).await });
    // Remaining tasks do nothing that has to be waited for.
    runtime.shutdown_background();
    status
}

/// Returns the problems of a configuration that can be detected without serving: the store's address, the mount policy, the
/// files of TLS.
pub(crate) fn check(loaded: &Loaded) -> Vec<String> {
    let checks = [
        parts::store_url(loaded).map(drop).map_err(Quit::from),
        parts::mount_policy(loaded).map(drop),
        listen::tls(loaded).map(drop).map_err(Quit::from),
    ];
    let text = |check: Result<(), Quit>| match check.err()? {
        Quit::Error(error) => Some(chain(error.as_ref())),
        Quit::Usage(text) => Some(text),
        Quit::Status(_) => None,
    };
    checks.into_iter().filter_map(text).collect()
}

/// Raises the soft limit of descriptors, which is low for historical reasons: each sandbox and each connection takes some.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A failure only means fewer sandboxes and connections.
    let _: Result<(), io::Error> =
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
            .map_err(Into::into);
}
