//! Entry point: turns a process that was started as a guest into one.

use belljar_guest_config::{
    GUEST_ARGUMENT, GUEST_FAILED, GUEST_WITHOUT_LANDLOCK, GUEST_WITHOUT_SETUP, WARM_PARENT_ARGUMENT,
};

use crate::guest::GuestError;

/// Runs the guest, and never returns, if this process was started as one. Call it first in `main`: it starts neither
/// threads nor a runtime unless needed.
pub fn enter() {
    let argument = std::env::args_os().nth(1).unwrap_or_default();
    if argument == WARM_PARENT_ARGUMENT {
        report(&crate::warm_parent::run_warm_parent());
        std::process::exit(GUEST_FAILED);
    }
    if argument != GUEST_ARGUMENT {
        return;
    }
    let status = match crate::guest::run() {
        Ok(()) => 0,
        Err(error) => {
            report(&error);
            match error {
                GuestError::Landlock(_) => GUEST_WITHOUT_LANDLOCK,
                GuestError::Setup { .. } => GUEST_WITHOUT_SETUP,
                _ => GUEST_FAILED,
            }
        }
    };
    std::process::exit(status);
}

/// Prints an error for a guest that was started by hand; in a sandbox, its standard error is discarded.
fn report(error: &GuestError) {
    use std::error::Error as _;
    use std::io::Write as _;
    let mut text = format!("belljar: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    let _ = writeln!(std::io::stderr(), "{text}");
}
