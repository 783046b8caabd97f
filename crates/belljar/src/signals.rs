//! Signals that this program handles instead of being killed by them, so that nothing is left behind.

use std::io::{self, Read as _};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// `SIGINT`, which Ctrl-C sends.
pub(crate) const SIGINT: i32 = 2;

/// `SIGTERM`.
pub(crate) const SIGTERM: i32 = 15;

/// Receives signals. A signal that the parent process has set to be ignored (`nohup`, a background job) stays ignored.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
}

impl Signals {
    /// Starts to catch signals.
    pub(crate) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let catch = |kind: SignalKind| {
            let is_ignored = ignored & (1 << (kind.as_raw_value() - 1)) != 0;
            if is_ignored { Ok(None) } else { signal(kind).map(Some) }
        };
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hangup: catch(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal, and returns its number.
    pub(crate) async fn next(&mut self) -> i32 {
        tokio::select! {
            number = next(&mut self.interrupt, SignalKind::interrupt()) => number,
            number = next(&mut self.terminate, SignalKind::terminate()) => number,
            number = next(&mut self.hangup, SignalKind::hangup()) => number,
        }
    }
}

/// Returns the exit status of a program that was ended by a signal, as a shell shows it.
pub(crate) fn status(signal: i32) -> u8 {
    u8::try_from(signal.saturating_add(128)).unwrap_or(u8::MAX)
}

async fn next(signal: &mut Option<Signal>, kind: SignalKind) -> i32 {
    match signal {
        Some(signal) => {
            signal.recv().await;
            kind.as_raw_value()
        }
        None => std::future::pending().await,
    }
}

/// Returns the mask of ignored signals.
fn ignored() -> u64 {
    // The file is less than half this long, and one read is faster than a growing buffer.
    let mut buffer = [0; 4096];
    let read = std::fs::File::open("/proc/self/status").and_then(|mut file| file.read(&mut buffer));
    let status = String::from_utf8_lossy(&buffer[..read.unwrap_or(0)]);
    parse_ignored(&status).unwrap_or(0)
}

fn parse_ignored(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_mask_is_parsed() {
        assert_eq!(parse_ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"), Some(0x1001));
        assert_eq!(parse_ignored("Name:\tx\n"), None);
    }

    #[test]
    fn status_matches_shell_convention() {
        assert_eq!([status(SIGINT), status(15), status(1)], [130, 143, 129]);
    }
}
