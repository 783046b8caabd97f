//! Entry point: turns a process that was started as a guest into one.

use std::path::PathBuf;

use belljar_guest_config::{
    BRIDGE_ARGUMENT, GUEST_ARGUMENT, GUEST_FAILED, GUEST_WITHOUT_LANDLOCK, GUEST_WITHOUT_SETUP,
    LISTEN_ARGUMENT, WARM_PARENT_ARGUMENT,
};

use crate::guest::GuestError;

/// Runs the guest, and never returns, if this process was started as one. Call it first in `main`: it starts neither
/// threads nor a runtime unless needed.
pub fn enter() {
    let mut arguments = std::env::args_os().skip(1);
    let argument = arguments.next().unwrap_or_default();
    let done = if argument == GUEST_ARGUMENT {
        let listen = arguments.next().filter(|argument| argument == LISTEN_ARGUMENT);
        let path = listen.and_then(|_| arguments.next()).map(PathBuf::from);
        crate::guest::run(path.as_deref())
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
