//! Entry point: turns a process that was started as a guest into one.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_guest_config::{
    BRIDGE_ARGUMENT, GUEST_ARGUMENT, GUEST_FAILED, GUEST_WITHOUT_LANDLOCK, GUEST_WITHOUT_SETUP, GuestConfig,
    LISTEN_ARGUMENT, OnHostLoss, WARM_PARENT_ARGUMENT,
};

use crate::direct;
use crate::guest::{Guest, GuestError, Host, run_listening, runtime};

/// Runs the guest, and never returns, if this process was started as one. Call it first in `main`: it starts neither
/// threads nor a runtime unless needed.
pub fn enter() {
    let mut arguments = std::env::args_os().skip(1);
    let argument = arguments.next().unwrap_or_default();
    let done = if argument == GUEST_ARGUMENT {
        let listen = arguments.next().filter(|argument| argument == LISTEN_ARGUMENT);
        let path = listen.and_then(|_| arguments.next()).map(PathBuf::from);
        run(path.as_deref())
    } else if argument == BRIDGE_ARGUMENT {
        let path = PathBuf::from(arguments.next().unwrap_or_default());
        crate::bootstrap::bridge(&path).map_err(GuestError::Bridge)
    } else if argument == WARM_PARENT_ARGUMENT {
        Err(crate::warm_parent::run_warm_parent())
    } else {
        return;
    };
    let status = match done {
        Ok(()) => 0,
        Err(error) => {
            report(&error);
            match error {
                GuestError::Landlock(_) => GUEST_WITHOUT_LANDLOCK,
                GuestError::Setup { .. } if argument == GUEST_ARGUMENT => GUEST_WITHOUT_SETUP,
                _ => GUEST_FAILED,
            }
        }
    };
    std::process::exit(status);
}

/// Prints an error for a guest that was started by hand; in a sandbox, its standard error is discarded.
fn report(error: &GuestError) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "belljar: {}", error.chain());
}

/// Runs the guest until its connection closes, or its deadline passes. With `listen` it inherits nothing, and listens there.
///
/// # Errors
/// See [`GuestError`]: a guest that cannot build its walls does not serve.
fn run(listen: Option<&Path>) -> Result<(), GuestError> {
    belljar_linux::reset_fault_handlers();
    if let Some(path) = listen {
        return run_listening(path);
    }
    let config =
        belljar_linux::inherited_fd(belljar_linux::GUEST_CONFIG_FD).map_err(GuestError::Connection)?;
    let mut text = String::new();
    std::fs::File::from(config).read_to_string(&mut text).map_err(GuestError::Connection)?;
    let config: GuestConfig = serde_json::from_str(&text).map_err(GuestError::Config)?;
    let socket =
        belljar_linux::inherited_fd(belljar_linux::GUEST_SOCKET_FD).map_err(GuestError::Connection)?;
    let mut guest = Guest::start(config)?;
    if guest.config.direct {
        if !direct::run(&guest, &socket)? && guest.config.when_alone == OnHostLoss::End {
            return Ok(());
        }
        guest.spawner = guest.spawner.into_thread()?;
    }
    runtime()?.block_on(Arc::new(guest).serve(Host::Inherited(socket)))
}
