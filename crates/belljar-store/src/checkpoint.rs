//! Moves what SQLite has logged into the database, so that no writer has to.
//!
//! SQLite would do it within a commit, every hundred rows or so, and that commit would wait for the disk twice. A connection
//! of its own does it beside the writer. Only if it does not keep up does the writer do it after all.

use std::sync::Arc;
use std::time::Duration;

use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, Connection as _};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

/// For how long changes gather.
const PAUSE: Duration = Duration::from_millis(250);

/// The task that does it. It ends when this is dropped.
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

    /// Something was written.
    pub(crate) fn note_change(&self) {
        self.changed.notify_one();
    }

    pub(crate) async fn end(self) {
        drop(self.stop);
        // However it ends, it has ended.
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
            () = tokio::time::sleep(PAUSE) => {}
        }
        let moved = sqlx::raw_sql("PRAGMA wal_checkpoint(PASSIVE)").execute(&mut connection).await;
        if let Err(error) = moved {
            // As when the disk is full. The log grows on meanwhile, and nothing is lost.
            tracing::warn!(%error, "SQLite's log cannot be moved into the database; it is tried again");
            changed.notify_one();
        }
    }
    // That it ends badly adds nothing.
    drop(connection.close().await);
}
