//! Shells that remember from one command to the next.

use belljar_proto::{Connection, v1};

use super::{CALL_TIMEOUT, Execution, GuestClient, GuestError, Result, START_TIMEOUT, begun};

/// The most sessions that a guest may tell of.
const MAX_SESSIONS: usize = 64;

impl GuestClient {
    fn sessions(&self, timeout: Option<std::time::Duration>) -> v1::SessionClient<Connection> {
        v1::SessionClient::new(self.connection.clone(), belljar_proto::client_config(timeout))
    }

    /// Opens a session.
    ///
    /// # Errors
    /// See [`GuestError`]; `ResourceExhausted` when too many are open.
    pub async fn open_session(&self, request: v1::SessionOpen) -> Result<v1::SessionOpened> {
        Ok(self.sessions(Some(CALL_TIMEOUT)).open(request).await?.into_owned())
    }

    /// Runs a command in a session and attaches to it. Its end says whether the session goes on
    /// ([`v1::Exited::session_state`]).
    ///
    /// # Errors
    /// See [`GuestError`]; `FailedPrecondition` while another command runs, `NotFound` when the session has ended.
    pub async fn run_in_session(&self, request: v1::SessionRun) -> Result<Execution> {
        let starting = async { begun(self.sessions(None).run(request).await?).await };
        let started = tokio::time::timeout(START_TIMEOUT, starting).await;
        started.unwrap_or(Err(GuestError::Protocol { what: "a command neither started nor failed to" }))
    }

    /// Lists the open sessions.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn list_sessions(&self) -> Result<Vec<v1::SessionInfo>> {
        let request = v1::ListSessionsRequest::default();
        let sessions = self.sessions(Some(CALL_TIMEOUT)).list(request).await?.into_owned().sessions;
        if sessions.len() > MAX_SESSIONS {
            return Err(GuestError::Protocol { what: "there are more sessions than can be open" });
        }
        Ok(sessions)
    }

    /// Ends a session with everything that was started in it.
    ///
    /// # Errors
    /// See [`GuestError`]; `NotFound` when it has ended.
    pub async fn close_session(&self, id: u64) -> Result<()> {
        self.sessions(Some(CALL_TIMEOUT)).close(v1::SessionClose { id, ..Default::default() }).await?;
        Ok(())
    }
}
