//! `belljar sandbox process`: existing processes in a sandbox.

use belljar_client::v1;
use belljar_engine::{Execution, GuestClient, GuestError, ProcessEvent};

use super::args::ProcessCommand;
use super::exec::status;
use super::link::Link;
use crate::descriptor::Inherited;
use crate::message::Quit;
use crate::output::write_failed;
use crate::signals::{self, Signals};
use crate::stdin::Stdin;

/// Signals that are accepted by name, with their numbers on Linux (signal(7)).
const SIGNALS: [(&str, i32); 11] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
];

/// Selection of a process's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Show {
    /// All output, until it ends.
    All,
    /// The output so far.
    Written { stdout: u64, stderr: u64, terminal: u64 },
    /// No output; only waits for its end.
    Nothing,
}

/// Runs `belljar sandbox process`.
pub(super) async fn process(link: &Link, command: &ProcessCommand) -> Result<u8, Quit> {
    match command {
        ProcessCommand::Attach { sandbox, process, no_stdin } => {
            let guest = link.client.guest(sandbox)?;
            let feeding = Stdin::open().filter(|_| !no_stdin).map(|stdin| {
                let (guest, process) = (guest.clone(), *process);
                tokio::spawn(async move { guest.feed(process, stdin, true).await })
            });
            let done = follow(guest.attach(*process, [0; 3]).await?, Show::All).await;
            if let Some(feeding) = feeding {
                feeding.abort();
            }
            done
        }
        ProcessCommand::Read { sandbox, process } => {
            let guest = link.client.guest(sandbox)?;
            let Some(info) = find(&guest, *process).await? else {
                // Lets the guest return the error.
                return follow(guest.attach(*process, [0; 3]).await?, Show::Nothing).await;
            };
            let (stdout, stderr, terminal) = (info.stdout_bytes, info.stderr_bytes, info.terminal_bytes);
            let execution = guest.attach(*process, [0; 3]).await?;
            follow(execution, Show::Written { stdout, stderr, terminal }).await?;
            Ok(0)
        }
        ProcessCommand::Wait { sandbox, process } => {
            let guest = link.client.guest(sandbox)?;
            // Skips the output so far.
            let offsets = find(&guest, *process).await?.unwrap_or_default();
            let offsets = [offsets.stdout_bytes, offsets.stderr_bytes, offsets.terminal_bytes];
            follow(guest.attach(*process, offsets).await?, Show::Nothing).await
        }
        ProcessCommand::Kill { sandbox, process, signal } => {
            let guest = link.client.guest(sandbox)?;
            let number = parse_signal(signal)?;
            if guest.signal(*process, number, true).await? == 0 {
                return Err(anyhow::anyhow!("process {process} is not running in {sandbox}").into());
            }
            Ok(0)
        }
    }
}

/// Looks up a process in the guest.
async fn find(guest: &GuestClient, process: u64) -> Result<Option<v1::ProcessInfo>, GuestError> {
    Ok(guest.list_processes().await?.into_iter().find(|info| info.id == process))
}

/// Shows a process's output, and returns its exit status. A signal ends this command, and not the process.
async fn follow(mut execution: Execution, show: Show) -> Result<u8, Quit> {
    let mut signals = Signals::catch()?;
    let (mut stdout, mut stderr) = (Inherited::stdout(), Inherited::stderr());
    let mut ends = match show {
        Show::Written { stdout, stderr, terminal } => [stdout, stderr, terminal],
        _ => [u64::MAX; 3],
    };
    loop {
        if ends == [0; 3] {
            return Ok(0);
        }
        let event = tokio::select! {
            event = execution.next() => event?,
            signal = signals.next() => return Err(Quit::Status(signals::status(signal))),
        };
        match event {
            Some(ProcessEvent::Started { .. }) => {}
            Some(ProcessEvent::Output { stream, offset, data }) => {
                let (index, is_error) = match stream {
                    v1::Stream::STREAM_STDERR => (1, true),
                    v1::Stream::STREAM_TERMINAL => (2, false),
                    _ => (0, false),
                };
                // Bytes that are no longer kept are skipped.
                if offset.saturating_add(data.len() as u64) >= ends[index] {
                    ends[index] = 0;
                }
                if show == Show::Nothing {
                    continue;
                }
                let out = if is_error { &mut stderr } else { &mut stdout };
                out.write_all(&data).await.map_err(write_failed)?;
            }
            Some(ProcessEvent::Exited(exited)) => return Ok(status(&exited)),
            None => return Err(anyhow::anyhow!("the sandbox has ended, and the process with it").into()),
        }
    }
}

/// Parses a signal's name or number.
fn parse_signal(text: &str) -> Result<i32, Quit> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let known = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    known.or_else(|| text.parse().ok().filter(|number| (1..=64).contains(number))).ok_or_else(|| {
        let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
        Quit::Usage(format!(
            "--signal: {text:?} is not allowed; give 1 to 64, or one of {}",
            names.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, expected) in
            [("9", Some(9)), ("kill", Some(9)), ("SIGTERM", Some(15)), ("0", None), ("65", None), ("X", None)]
        {
            assert_eq!(parse_signal(text).ok(), expected, "{text}");
        }
    }
}
