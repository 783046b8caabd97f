//! Sessions: shells that keep their state from one command to the next.

use belljar_proto::v1;

use super::{Execution, GuestClient, Result};

impl GuestClient {
    /// Opens a session.
    ///
    /// # Errors
    /// See [`GuestError`]; `ResourceExhausted` if too many are open.
    pub async fn open_session(&self, request: v1::SessionOpen) -> Result<v1::SessionOpened> {
        self.call(request).await
    }

    /// Runs a command in a session and attaches to it. Its exit event reports whether the session continues
    /// ([`v1::Exited::session_state`]).
    ///
    /// # Errors
    /// See [`GuestError`]; `FailedPrecondition` while another command runs, `NotFound` if the session has ended.
    pub async fn run_in_session(&self, request: v1::SessionRun) -> Result<Execution> {
        self.call(request).await
    }

    /// Lists the open sessions.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn list_sessions(&self) -> Result<Vec<v1::SessionInfo>> {
        self.call(v1::ListSessionsRequest::default()).await
    }

    /// Ends a session with everything that was started in it.
    ///
    /// # Errors
    /// See [`GuestError`]; `NotFound` if it has ended.
    pub async fn close_session(&self, id: u64) -> Result<()> {
        self.call(v1::SessionClose { id, ..Default::default() }).await
    }
}
