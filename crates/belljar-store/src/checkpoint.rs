//! Background checkpoints of SQLite's write-ahead log, so that no writer has to run them.
//!
//! SQLite would checkpoint within a commit, every hundred rows or so, and that commit would wait for the disk twice. A separate
//! connection does it beside the writer. Only if it does not keep up does the writer checkpoint after all.

use std::sync::Arc;
use std::time::Duration;

use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, Connection as _};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

/// Delay after a change, so that changes are checkpointed together. The first commit after a checkpoint restarts the log, and waits
/// for the disk to do so; at a few megabytes a second the log stays well below the size at which the writer would checkpoint.
const CHECKPOINT_DELAY: Duration = Duration::from_secs(2);

/// Handle of the checkpoint task, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    changed: Arc<Notify>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Checkpointer {
    pub(crate) async fn start(address: &AnyConnectOptions) -> Result<Self, sqlx::Error> {
        let mut connection = AnyConnection::connect_with(address).await?;
        let setup = "PRAGMA busy_timeout = 0; PRAGMA synchronous = NORMAL";
        sqlx::raw_sql(setup).execute(&mut connection).await?;
        let changed = Arc::new(Notify::new());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(connection, Arc::clone(&changed), stopped));
        Ok(Self { changed, stop, task })
    }

    /// Requests a checkpoint after a write.
    pub(crate) fn note_change(&self) {
        self.changed.notify_one();
    }

    pub(crate) async fn stop(self) {
        drop(self.stop);
        // A panic of the task does not matter here.
        drop(self.task.await);
    }
}

async fn run(mut connection: AnyConnection, changed: Arc<Notify>, mut stopped: oneshot::Receiver<()>) {
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            () = changed.notified() => {}
        }
        tokio::select! {
            _ = &mut stopped => break,
            () = tokio::time::sleep(CHECKPOINT_DELAY) => {}
        }
        let checkpoint = sqlx::raw_sql("PRAGMA wal_checkpoint(PASSIVE)").execute(&mut connection).await;
        if let Err(error) = checkpoint {
            // For example, the disk is full. The log grows meanwhile, and nothing is lost.
            tracing::warn!(%error, "cannot checkpoint SQLite's write-ahead log; retrying");
            changed.notify_one();
        }
    }
    // An error on close has no consequence.
    drop(connection.close().await);
}
