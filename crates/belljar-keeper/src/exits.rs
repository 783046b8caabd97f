//! Ends of processes in sandboxes.

use std::time::Duration;

use belljar_engine::{ErrorCode, GuestError, ProcessEvent, Sandbox, v1};

/// Time after which a guest is asked again that has not answered.
pub(crate) const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Offset in the output of a process behind all that it may write, for those who wait for its end alone.
const BEHIND_ALL_OUTPUT: u64 = u64::MAX >> 1;

/// Waits until a process has exited, and returns how; `None` if so many have exited since that the guest has forgotten it.
pub(crate) async fn wait_for_exit(sandbox: &Sandbox, process: u64) -> Option<v1::Exited> {
    loop {
        let watching = async {
            let mut execution = sandbox.guest().attach(process, [BEHIND_ALL_OUTPUT; 3]).await?;
            while let Some(event) = execution.next().await? {
                if let ProcessEvent::Exited(exited) = event {
                    return Ok(Some(exited));
                }
            }
            Ok::<_, GuestError>(None)
        };
        match watching.await {
            Ok(Some(exited)) => return Some(exited),
            Err(error) if error.is(ErrorCode::NotFound) => return None,
            // The connection broke, or the sandbox is paused.
            Ok(None) | Err(_) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
        }
    }
}

/// Returns the processes that run in a sandbox, at most `most`; `None` if its guest does not answer in time.
pub(crate) async fn running(sandbox: &Sandbox, most: u32) -> Option<Vec<u64>> {
    let asking = tokio::time::timeout(ASK_AGAIN_AFTER, sandbox.guest().list_processes());
    let processes = asking.await.ok()?.ok()?;
    // The guest's answer is not trusted.
    Some(
        processes
            .iter()
            .filter(|process| process.running)
            .map(|process| process.id)
            .take(most as usize)
            .collect(),
    )
}
