//! The gateway's process.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::net::SendFlags;
use tokio::runtime::Runtime;

use crate::config::STARTED;
use crate::control;
use crate::gateway::Gateway;
use crate::resolve::Resolver;
use crate::terminate::{Termination, TerminationError};

/// First argument of a process that is started as a gateway. Its standard input is the control socket.
pub const ARGUMENT: &str = "gateway";

/// Exit status of a gateway that failed.
const FAILED: i32 = 125;

/// Error that ends a gateway.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("cannot read its configuration: {0}")]
    Configuration(#[source] std::io::Error),
    #[error("cannot be jailed: {0}")]
    Jail(#[from] belljar_linux::JailError),
    #[error("cannot end TLS: {0}")]
    Termination(#[from] TerminationError),
    #[error("cannot serve its sockets: {0}")]
    Serve(#[from] std::io::Error),
}

/// Runs as a gateway and never returns, if this process was started as one. Must be called at the very beginning of `main`.
pub fn enter_gateway() {
    if std::env::args_os().nth(1).as_deref() != Some(std::ffi::OsStr::new(ARGUMENT)) {
        return;
    }
    let status = match run() {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "belljar: the gateway {error}");
            FAILED
        }
    };
    std::process::exit(status);
}

fn run() -> Result<(), StartError> {
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"belljar-gate");
    // Whatever this process has inherited besides its three standard streams is none of a gateway's business.
    belljar_linux::close_from(3).map_err(std::io::Error::from)?;
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(std::io::Error::from)?;
    let started = start(&control);
    // The host may be gone, and its sandbox with it.
    let _ = match &started {
        Ok(_) => rustix::net::send(&control, &[STARTED], SendFlags::NOSIGNAL),
        Err(error) => rustix::net::send(&control, error.to_string().as_bytes(), SendFlags::NOSIGNAL),
    };
    let (gateway, network, runtime) = started?;
    let served = tokio::task::LocalSet::new().block_on(&runtime, async {
        let served = tokio::select! {
            Err(error) = control::serve_network(&gateway, network) => Err(error),
            served = control::serve(&gateway, control) => served,
        };
        gateway.close().await;
        served
    });
    // The sandbox is gone, so nothing waits for its open connections.
    std::process::exit(if served.is_ok() { 0 } else { FAILED });
}

/// Receives the configuration, builds the gateway, and enters the jail.
fn start(control: &OwnedFd) -> Result<(Rc<Gateway>, OwnedFd, Runtime), StartError> {
    let (config, network) = control::configuration(control).map_err(StartError::Configuration)?;
    // Everything that needs files happens before the jail.
    let resolver = Resolver::of_this_machine(&config.setup.resolvers);
    let termination = match &config.authority {
        Some(authority) => Some(Termination::new(authority, &config)?),
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    belljar_linux::enter_jail(config.user, belljar_linux::Reach::Network)?;
    Ok((Rc::new(Gateway::new(&config, resolver, termination)), network, runtime))
}
