//! `belljar serve`: this machine as a sandbox service.
//!
//! ```text
//!   home (one server at a time) → log → store, audit → launcher's engine → keeper → API on TCP and on a Unix socket
//!      SIGHUP: what can change is taken anew       SIGTERM: requests finish, then the server ends; sandboxes live on
//! ```

mod background;
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
pub(crate) use handover::connect;
pub(crate) use home::{CLIENTS_FILE, HomeError, SOCKET_FILE, holder, prepare};

/// Serves until a signal says otherwise.
pub(crate) fn serve(args: &ServeArgs) -> Result<u8, Quit> {
    if args.background {
        return background::serve(args);
    }
    let sources = Sources::new(&args.service);
    let loaded = sources.load()?;
    let mut home = Home::take_over(&loaded.home)?;
    run(&sources, loaded, &mut home, || Ok(None))
}

/// Serves with a home that has been taken. `background` is asked within the runtime.
fn run(
    sources: &Sources<'_>,
    loaded: Loaded,
    home: &mut Home,
    background: impl FnOnce() -> Result<Option<Background>, Quit>,
) -> Result<u8, Quit> {
    // The certificates of other programs' libraries are none of ours: one provider for all TLS here.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    raise_descriptors();
    let passed = listen::Passed::take()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let status = runtime.block_on(async { server::run(sources, loaded, passed, home, background()?).await });
    // What still runs there has nothing to do that would have to be waited for.
    runtime.shutdown_background();
    status
}

/// Says what is wrong with a configuration, as far as that is seen without serving: addresses, the mount policy, the files
/// of TLS.
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

/// Each sandbox and each connection takes descriptors, and the soft limit is low by old habit.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // With fewer than could be had it works as well, just for fewer.
    let _: Result<(), io::Error> =
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
            .map_err(Into::into);
}
