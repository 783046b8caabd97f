//! Copies a run's outputs to the host: files, and directories as `belljar sandbox cp` does.

use belljar_engine::{GuestClient, v1};

use crate::copy_out::{CopyError, Output, Outputs};
use crate::message::{FAILED, Quit, chain, say};
use crate::service::copy::{RemotePath, is_dir};
use crate::service::long::ByteCounter;
use crate::service::tree::{self, Rules, Target};
use crate::signals::{self, Signals};

/// Copies all outputs to the host, each of at most `most` bytes, and returns the errors of those that failed. A signal cancels it.
pub(crate) async fn bring_out(
    outputs: &Outputs,
    guest: &GuestClient,
    most: u64,
    signals: &mut Signals,
) -> Result<Vec<CopyError>, Quit> {
    let mut errors = Vec::new();
    for output in outputs.iter() {
        let stat = tokio::select! {
            stat = output.stat(guest) => stat,
            signal = signals.next() => return Err(Quit::Status(signals::status(signal))),
        };
        let copied = match stat {
            Ok(entry) if is_dir(&entry) => copy_tree(output, guest, &entry, most, signals).await?,
            Ok(_) => tokio::select! {
                copied = output.copy(guest, most) => copied,
                signal = signals.next() => return Err(Quit::Status(signals::status(signal))),
            },
            Err(error) => Err(error),
        };
        errors.extend(copied.err());
    }
    Ok(errors)
}

/// Prints the errors of outputs that could not be copied, and returns the exit status of a command that would end with `status`. Of one that
/// has `failed`, missing outputs are only a warning.
pub(crate) fn report(errors: &[CopyError], failed: bool, quiet: bool, mut status: u8) -> u8 {
    for error in errors {
        if failed && error.may_follow_failure() {
            if !quiet {
                say(&format!("warning: {}", chain(error)));
            }
        } else {
            say(&chain(error));
            status = FAILED;
        }
    }
    status
}

/// Copies a directory with its content to the host.
async fn copy_tree(
    output: &Output,
    guest: &GuestClient,
    entry: &v1::Entry,
    most: u64,
    signals: &mut Signals,
) -> Result<Result<(), CopyError>, Quit> {
    let path = output.source.clone();
    let from =
        RemotePath { guest: guest.clone(), path: output.source.as_os_str(), shown: format!("{path:?}") };
    let hint = "; pack it in the sandbox, and bring out the archive";
    let rules = Rules { most, outward_links: false, hint };
    let copied = match Target::at(&output.target, &from.shown) {
        Ok(target) => tree::copy_to(&from, target, entry, rules, &ByteCounter::default(), signals).await,
        Err(error) => Err(error.into()),
    };
    match copied {
        Ok(0) => Ok(Ok(())),
        Ok(_) => Ok(Err(CopyError::Tree { path, source: "not all of it could be copied".into() })),
        Err(Quit::Error(error)) => Ok(Err(CopyError::Tree { path, source: error.into() })),
        Err(quit) => Err(quit),
    }
}
