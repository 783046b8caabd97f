//! `belljar sandbox shell`: an interactive terminal in a sandbox.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use belljar_client::v1;
use belljar_engine::{ErrorCode, Execution, GuestClient, GuestError};
use bytes::Bytes;
use tokio::signal::unix::{SignalKind, signal};

use super::exec::{report_start_failure, status};
use super::link::Link;
use crate::message::Quit;
use crate::shell::{RawMode, SHELLS, forward_output, size, terminal_type};
use crate::signals::{self, Signals};
use crate::stdin::Stdin;

/// Opens a terminal, and returns the exit status of the program that runs on it.
pub(crate) async fn shell(
    link: &Link,
    sandbox: &str,
    user: Option<&str>,
    command: &[OsString],
) -> Result<u8, Quit> {
    if !rustix::termios::isatty(rustix::stdio::stdin()) {
        return Err(Quit::Usage(
            "shell needs a terminal on standard input; without one use belljar sandbox exec".to_owned(),
        ));
    }
    let guest = link.client.guest(sandbox)?;
    let mut signals = Signals::catch()?;
    let mut resized = signal(SignalKind::window_change())?;
    let execution = match start(&guest, user, command).await {
        Ok(execution) => execution,
        Err(error) => return report_start_failure(error),
    };
    let id = execution.id;
    let _raw = RawMode::enter()?;
    let feeding = Stdin::open().map(|stdin| {
        let guest = guest.clone();
        tokio::spawn(async move { guest.feed(id, stdin, false).await })
    });
    let passing = forward_output(execution);
    tokio::pin!(passing);
    let ended = loop {
        tokio::select! {
            ended = &mut passing => break ended,
            _ = resized.recv() => {
                let (rows, columns) = size();
                // The program may have just ended.
                let _ = guest.resize(id, rows, columns).await;
            }
            signal = signals.next() => break Err(Quit::Status(signals::status(signal))),
        }
    };
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    match ended? {
        Some(exited) => Ok(status(&exited)),
        None => Err(anyhow::anyhow!("the sandbox has ended, and the terminal with it").into()),
    }
}

async fn start(
    guest: &GuestClient,
    user: Option<&str>,
    command: &[OsString],
) -> Result<Execution, GuestError> {
    let (rows, columns) = size();
    let terminal = v1::Terminal { rows: rows.into(), columns: columns.into(), ..Default::default() };
    let request = |argv: Vec<Bytes>| v1::StartRequest {
        argv,
        env: terminal_type().into_iter().collect(),
        user: user.unwrap_or_default().to_owned(),
        stdin_open: true,
        terminal: terminal.clone().into(),
        kill_rest: true,
        ..Default::default()
    };
    if !command.is_empty() {
        let argv = command.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        return guest.start(request(argv)).await;
    }
    let [first, second] = SHELLS.map(|shell| vec![Bytes::from_static(shell.as_bytes())]);
    match guest.start(request(first)).await {
        Err(error) if error.is(ErrorCode::NotFound) => guest.start(request(second)).await,
        started => started,
    }
}
