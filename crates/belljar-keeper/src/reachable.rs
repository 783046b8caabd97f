//! Sandboxes whose guest does not answer.
//!
//! ```text
//! a connection to the guest breaks, or a call gets no answer ──► another connection ──► it answers: nothing is wrong
//!                                                                    │ ▲ every second
//!                                                                    └─┘
//!                                                                    └── not for `guest_timeout` ──► the sandbox is ended
//! ```
//!
//! A call opens another connection by itself if one has broken. So this finds only guests that are beyond reach: their
//! sandboxes would otherwise count as running, which no one could use.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belljar_engine::{EngineError, GuestError, Sandbox};
use belljar_model::SandboxState;

use crate::entry::Entry;
use crate::error::{KeeperError, chain};
use crate::keeper::Keeper;

/// Interval between attempts to reach a guest, and the shortest one between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Number of attempts that fit in the timeout if the guest answers none.
const ATTEMPTS: u32 = 3;

impl Keeper {
    /// Spawns a task that ends a sandbox once its guest is beyond reach. It ends with the sandbox.
    pub(crate) fn watch_guest(&self, entry: &Arc<Entry>) {
        let Some(sandbox) = entry.live().sandbox.clone() else { return };
        let (keeper, entry) = (self.clone(), Arc::clone(entry));
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = sandbox.wait_ended() => return,
                    () = sandbox.guest().wait_for_doubt() => {}
                }
                let Some(why) = keeper.find_silence(&entry, &sandbox).await else { continue };
                tracing::warn!(sandbox = %entry.id, %why, "the guest is beyond reach; its sandbox is ended");
                let reason = format!("it could not be reached any more: {why}");
                while let Err(error) = keeper.end(&entry, &reason).await {
                    if matches!(error, KeeperError::TakenOver { .. }) {
                        return;
                    }
                    tracing::error!(sandbox = %entry.id, error = %chain(&error), "cannot end a sandbox beyond reach; trying again");
                    tokio::time::sleep(CHECK_INTERVAL).await;
                }
                return;
            }
        });
    }

    /// Waits until the guest answers. Returns why it does not, once that has lasted too long.
    pub(crate) async fn find_silence(&self, entry: &Entry, sandbox: &Sandbox) -> Option<String> {
        let timeout = self.inner.config.now().guest_timeout;
        let mut since = Instant::now();
        loop {
            // The guest of a paused sandbox does not answer, and one that is stopped need not.
            if entry.state() != SandboxState::Running || self.inner.closing.load(Ordering::Relaxed) {
                tokio::time::sleep(CHECK_INTERVAL).await;
                return None;
            }
            let asked = async { Ok::<_, EngineError>(sandbox.connect().await?.check().await?) };
            let why = match tokio::time::timeout(timeout / ATTEMPTS, asked).await {
                Ok(Err(EngineError::Unreachable { .. })) => {
                    // That is no fault of the guest.
                    since = Instant::now();
                    String::new()
                }
                Ok(
                    Ok(_) | Err(EngineError::Ended { .. } | EngineError::Guest(GuestError::Refused { .. })),
                ) => {
                    tokio::time::sleep(CHECK_INTERVAL).await;
                    return None;
                }
                Ok(Err(error)) => chain(&error),
                Err(_) => "its guest does not answer".to_owned(),
            };
            if since.elapsed() >= timeout {
                return Some(why);
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}
