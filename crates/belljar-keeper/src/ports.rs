//! What is opened to others for a time, or to the world: published ports, signed files, tokens.

use std::time::Duration;

use belljar_engine::EngineError;
use belljar_model::{SandboxId, SandboxState};
use belljar_store::{PortRow, PortVisibility, ServiceWall};
use bytes::Bytes;
use jiff::Timestamp;

use crate::action::{PORT_LOOK, PORT_PUBLISH, PORT_UNPUBLISH, TOKEN_ISSUE, TOKEN_READ};
use crate::caller::Caller;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::info::PublishedPort;
use crate::keeper::{Entered, Keeper, Result, not_found};
use crate::keys::{Denied, caller as caller_of};
use crate::steps::run_detached;
use crate::token::{Scope, Token};

/// The most ports that a sandbox may publish.
const MAX_PORTS: usize = 64;

/// The longest life of a token.
const MAX_TOKEN_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The longest path of a signed file, in bytes (PATH_MAX, path_resolution(7)).
const MAX_PATH_BYTES: usize = 4096;

/// A token that was made.
#[derive(Debug, Clone)]
pub struct IssuedToken {
    /// The token.
    pub token: String,
    /// When it stops to work.
    pub expires_at: Timestamp,
}

/// What may be done with a signed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOperation {
    /// It may be read.
    Read,
    /// It may be written.
    Write,
}

/// A file that a signature opened.
pub struct SignedFile {
    /// The sandbox.
    pub entered: Entered,
    /// The path, as it was signed.
    pub path: Bytes,
    /// What may be done.
    pub operation: FileOperation,
    /// Who signed.
    pub caller: Caller,
}

impl Keeper {
    /// Publishes a port, or changes whether it needs a credential.
    ///
    /// # Errors
    /// As [`Keeper::get`]; port 0 and too many ports are refused.
    pub async fn publish_port(
        &self,
        caller: &Caller,
        id: &str,
        port: u16,
        public: bool,
    ) -> Result<PublishedPort> {
        let (keeper, caller, id) = self.owned(caller, id);
        run_detached(&self.inner.tasks, async move { keeper.publish_inner(&caller, &id, port, public).await })
            .await
    }

    async fn publish_inner(
        &self,
        caller: &Caller,
        id: &str,
        port: u16,
        public: bool,
    ) -> Result<PublishedPort> {
        self.require(caller, PORT_PUBLISH)?;
        if port == 0 {
            return Err(KeeperError::field("port", "0 is not allowed; give 1 to 65535"));
        }
        let entry = self.find(caller, id).await?;
        let _step = entry.step.lock().await;
        {
            let live = entry.live();
            if !live.ports.contains_key(&port) && live.ports.len() >= MAX_PORTS {
                return Err(KeeperError::field(
                    "port",
                    format!("a sandbox may publish at most {MAX_PORTS} ports"),
                ));
            }
        }
        let visibility = if public { PortVisibility::Public } else { PortVisibility::Private };
        let row = PortRow { sandbox: entry.id.clone(), port, visibility, created_at: Timestamp::now() };
        let put = self.inner.store.ports().publish(&row).await.map_err(KeeperError::from);
        let details = vec![("port", port.to_string()), ("public", public.to_string())];
        self.audit(caller, PORT_PUBLISH, Some(&entry.id), &put, details).await?;
        put?;
        entry.live().ports.insert(port, public);
        Ok(PublishedPort { port, public })
    }

    /// Takes a port back. Connections through it are not cut.
    ///
    /// # Errors
    /// As [`Keeper::get`]; a port that is not published is not found.
    pub async fn unpublish_port(&self, caller: &Caller, id: &str, port: u16) -> Result<()> {
        let (keeper, caller, id) = self.owned(caller, id);
        run_detached(&self.inner.tasks, async move { keeper.unpublish_inner(&caller, &id, port).await }).await
    }

    async fn unpublish_inner(&self, caller: &Caller, id: &str, port: u16) -> Result<()> {
        self.require(caller, PORT_UNPUBLISH)?;
        let entry = self.find(caller, id).await?;
        let _step = entry.step.lock().await;
        if !entry.live().ports.contains_key(&port) {
            return Err(KeeperError::NotFound { what: "port", id: port.to_string() });
        }
        let removed =
            self.inner.store.ports().withdraw(&entry.id, port).await.map(|_| ()).map_err(KeeperError::from);
        self.audit(caller, PORT_UNPUBLISH, Some(&entry.id), &removed, vec![("port", port.to_string())])
            .await?;
        removed?;
        entry.live().ports.remove(&port);
        Ok(())
    }

    /// The ports that are published.
    ///
    /// # Errors
    /// As [`Keeper::get`].
    pub async fn ports(&self, caller: &Caller, id: &str) -> Result<Vec<PublishedPort>> {
        let entry = self.find(caller, id).await?;
        let live = entry.live();
        Ok(live.ports.iter().map(|(port, public)| PublishedPort { port: *port, public: *public }).collect())
    }

    /// Ports that programs inside listen on. To look is no use of the sandbox: one that stands still goes on standing still,
    /// and tells of none.
    ///
    /// # Errors
    /// As [`Keeper::get`]; [`KeeperError::Forbidden`] for a key that may only look at what is known outside; and what goes
    /// wrong in one that runs.
    pub async fn listening(&self, caller: &Caller, id: &str) -> Result<Vec<u16>> {
        self.check(caller, PORT_LOOK)?;
        let entry = self.find(caller, id).await?;
        let Ok(sandbox) = entry.running("looking at its ports") else { return Ok(Vec::new()) };
        match sandbox.guest().list_ports().await {
            Ok(listening) => Ok(listening),
            // It has been paused, or has ended, meanwhile.
            Err(_) if entry.state() != SandboxState::Running => Ok(Vec::new()),
            Err(error) => Err(sandbox.explain(EngineError::Guest(error)).await.into()),
        }
    }

    /// A token that opens the sandbox's own routes, and nothing else.
    ///
    /// # Errors
    /// As [`Keeper::get`]; a life that is too long is refused.
    pub async fn sandbox_token(&self, caller: &Caller, id: &str, expires: Duration) -> Result<IssuedToken> {
        self.issue(caller, id, Scope::Sandbox, expires).await
    }

    /// The token that opens the sandbox's own routes for as long as the sandbox and its key live. It is the same each time.
    ///
    /// # Errors
    /// As [`Keeper::get`]; [`KeeperError::Forbidden`] for a key that may only look.
    pub async fn issue_access_token(&self, caller: &Caller, id: &str) -> Result<String> {
        self.require(caller, TOKEN_ISSUE)?;
        let entry = self.find(caller, id).await?;
        let details = vec![("scope", "sandbox".to_owned()), ("expires_at", "with the sandbox".to_owned())];
        self.audit(caller, TOKEN_ISSUE, Some(&entry.id), &Ok(()), details).await?;
        Ok(self.token_of(&entry))
    }

    /// The same token once more, for a caller that may have it issued.
    ///
    /// # Errors
    /// As [`Keeper::issue_access_token`].
    pub async fn access_token(&self, caller: &Caller, id: &str) -> Result<String> {
        self.check(caller, TOKEN_READ)?;
        let entry = self.find(caller, id).await?;
        Ok(self.token_of(&entry))
    }

    fn token_of(&self, entry: &Entry) -> String {
        let key = entry.live().row.key_id.clone();
        let token = Token { sandbox: entry.id.clone(), key, expires: i64::MAX, scope: Scope::Sandbox };
        self.inner.tokens.issue(&token)
    }

    /// The holder of the access token ([`Keeper::issue_access_token`]) that `matches`: of the sandbox `id`, or of any. It is for signatures
    /// that are made with a token and name no sandbox.
    ///
    /// # Errors
    /// None matches, or nobody may come in with it.
    pub async fn authenticate_by(
        &self,
        id: Option<&SandboxId>,
        matches: impl Fn(&str) -> bool + Send,
        client: &str,
        request_id: &str,
    ) -> std::result::Result<Caller, Denied> {
        let among = |entry: &std::sync::Arc<Entry>| id.is_none_or(|id| *id == entry.id);
        let mut tokens = self.entries().into_iter().filter(among).map(|entry| self.token_of(&entry));
        let Some(token) = tokens.find(|token| matches(token)) else {
            self.note_denied(Denied::Unknown, None, client, request_id);
            return Err(Denied::Unknown);
        };
        drop(tokens);
        self.authenticate(&token, client, request_id).await
    }

    /// The state of a sandbox, for whoever knows its id: it tells nothing else. `None` for one that is gone.
    #[must_use]
    pub fn state_of(&self, id: &SandboxId) -> Option<SandboxState> {
        self.entry(id).map(|entry| entry.state())
    }

    /// A token that opens one published port.
    ///
    /// # Errors
    /// As [`Keeper::sandbox_token`]; a port that is not published is not found.
    pub async fn port_token(
        &self,
        caller: &Caller,
        id: &str,
        port: u16,
        expires: Duration,
    ) -> Result<IssuedToken> {
        let entry = self.find(caller, id).await?;
        if !entry.live().ports.contains_key(&port) {
            return Err(KeeperError::NotFound { what: "port", id: port.to_string() });
        }
        self.issue(caller, id, Scope::Port(port), expires).await
    }

    /// A token that opens one file.
    ///
    /// # Errors
    /// As [`Keeper::sandbox_token`]; an empty path and one that is too long are refused.
    pub async fn sign_file(
        &self,
        caller: &Caller,
        id: &str,
        path: Bytes,
        operation: FileOperation,
        expires: Duration,
    ) -> Result<IssuedToken> {
        if path.is_empty() || path.len() > MAX_PATH_BYTES || path.contains(&0) {
            let reason = format!("it is not allowed; give 1 to {MAX_PATH_BYTES} bytes");
            return Err(KeeperError::field("path", reason));
        }
        let scope = match operation {
            FileOperation::Read => Scope::ReadFile(path.to_vec()),
            FileOperation::Write => Scope::WriteFile(path.to_vec()),
        };
        self.issue(caller, id, scope, expires).await
    }

    async fn issue(&self, caller: &Caller, id: &str, scope: Scope, expires: Duration) -> Result<IssuedToken> {
        self.require(caller, TOKEN_ISSUE)?;
        if expires < Duration::from_secs(1) || expires > MAX_TOKEN_LIFE {
            return Err(KeeperError::field("expires", "it is not allowed; give a time from 1 s to 7 days"));
        }
        let entry = self.find(caller, id).await?;
        let expires_at = Timestamp::now()
            .checked_add(expires)
            .map_err(|_| KeeperError::field("expires", "it is too far in the future"))?;
        let kind = match scope {
            Scope::Sandbox => "sandbox",
            Scope::Port(_) => "port",
            Scope::ReadFile(_) => "file.read",
            Scope::WriteFile(_) => "file.write",
        };
        let token = Token {
            sandbox: entry.id.clone(),
            key: caller.key.clone(),
            expires: expires_at.as_second(),
            scope,
        };
        let details = vec![("scope", kind.to_owned()), ("expires_at", expires_at.to_string())];
        self.audit(caller, TOKEN_ISSUE, Some(&entry.id), &Ok(()), details).await?;
        Ok(IssuedToken { token: self.inner.tokens.issue(&token), expires_at })
    }

    /// A published port, for whoever has an API key, a sandbox token or a port token for it; anybody, if it is public.
    /// What is not there, not published and not allowed is answered alike.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`]; else as [`Keeper::enter`].
    pub async fn open_port(
        &self,
        credential: Option<&str>,
        client: &str,
        request_id: &str,
        id: &str,
        port: u16,
    ) -> Result<Entered> {
        let sandbox: SandboxId = id.parse().map_err(|_| not_found(id))?;
        let found = self.entries().into_iter().find(|entry| entry.id == sandbox);
        let entry = found.ok_or_else(|| not_found(id))?;
        let public = entry.live().ports.get(&port).copied();
        let allowed = match public {
            None => ServiceWall::PublishedPorts.allows(false),
            Some(true) => true,
            Some(false) => match credential {
                None => false,
                Some(text) => self.opens(text, &sandbox, &entry.tenant, port, client, request_id).await,
            },
        };
        if !allowed {
            return Err(not_found(id));
        }
        self.enter_entry(entry).await
    }

    async fn opens(
        &self,
        credential: &str,
        sandbox: &SandboxId,
        tenant: &str,
        port: u16,
        client: &str,
        request_id: &str,
    ) -> bool {
        if let Some(token) = self.read_token(credential)
            && token.scope == Scope::Port(port)
        {
            return token.sandbox == *sandbox && self.key_of(&token).await.is_ok();
        }
        // Whoever is refused here is looked at once more, and noted then.
        match self.recognize(credential, client, request_id).await.0 {
            Ok(caller) => caller.may_use() && caller.may_see(tenant, sandbox),
            Err(_) => false,
        }
    }

    /// The file that a signature opens.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`] for a signature that is not ours or whose time is over; else as [`Keeper::enter`].
    pub async fn open_signed(&self, token: &str, client: &str, request_id: &str) -> Result<SignedFile> {
        let missing = || KeeperError::NotFound { what: "signed file", id: String::new() };
        let denied = |why| {
            self.note_denied(why, None, client, request_id);
            missing()
        };
        let token = self.read_token(token).ok_or_else(|| denied(Denied::Unknown))?;
        let row = self.key_of(&token).await.map_err(denied)?;
        let caller = caller_of(&row, Some(token.sandbox.clone()), client, request_id);
        let (path, operation) = match token.scope {
            Scope::ReadFile(path) => (path, FileOperation::Read),
            Scope::WriteFile(path) => (path, FileOperation::Write),
            Scope::Sandbox | Scope::Port(_) => return Err(missing()),
        };
        let entered = self.enter(&caller, token.sandbox.as_str()).await?;
        Ok(SignedFile { entered, path: path.into(), operation, caller })
    }
}
