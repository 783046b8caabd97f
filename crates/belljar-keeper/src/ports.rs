//! Published ports, signed file URLs and tokens.

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::EngineError;
use belljar_model::{SandboxId, SandboxState};
use belljar_store::{PortRow, PortVisibility, ServiceWall};
use bytes::Bytes;
use jiff::Timestamp;

use crate::action::{PORT_LOOK, PORT_PUBLISH, PORT_UNPUBLISH, SANDBOX_PORTS, TOKEN_ISSUE, TOKEN_READ};
use crate::caller::Caller;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::info::PublishedPort;
use crate::keeper::{Entered, Keeper, Result, not_found};
use crate::keys::{Denied, caller as caller_of};
use crate::request::{PortAccess, PortSettings};
use crate::steps::run_detached;
use crate::token::{Scope, Token};

/// Maximum number of published ports of a sandbox.
const MAX_PORTS: usize = 64;

/// Maximum lifetime of a token.
const MAX_TOKEN_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum length of the path of a signed file, in bytes (PATH_MAX, path_resolution(7)).
const MAX_PATH_BYTES: usize = 4096;

/// An issued token.
#[derive(Debug, Clone)]
pub struct IssuedToken {
    /// The token.
    pub token: String,
    /// Expiry.
    pub expires_at: Timestamp,
}

/// Operation allowed on a signed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOperation {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Packing a directory with everything in it.
    Archive,
}

/// A file opened by its signature.
pub struct SignedFile {
    /// The sandbox.
    pub entered: Entered,
    /// The path, as it was signed.
    pub path: Bytes,
    /// The allowed operation.
    pub operation: FileOperation,
    /// The caller that signed it.
    pub caller: Caller,
}

impl Keeper {
    /// Publishes a port, or changes whether it needs a credential.
    ///
    /// # Errors
    /// As [`Keeper::get`]; fails for port 0 and for too many ports.
    pub async fn publish_port(
        &self,
        caller: &Caller,
        id: &str,
        port: u16,
        public: bool,
    ) -> Result<PublishedPort> {
        self.transact(PORT_PUBLISH, caller, id, move |keeper, caller, id| async move {
            if port == 0 {
                return Err(KeeperError::field("port", "0 is not allowed; give 1 to 65535"));
            }
            let entry = keeper.find(&caller, &id).await?;
            let _step = entry.step.lock().await;
            let state = entry.state();
            if state == SandboxState::Gone {
                return Err(entry.wrong_state(state, "publishing a port", "there"));
            }
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
            let put = keeper.inner.store.ports().publish(&row).await.map_err(KeeperError::from);
            let details = vec![("port", port.to_string()), ("public", public.to_string())];
            keeper.audit(&caller, PORT_PUBLISH, Some(&entry.id), &put, details).await?;
            put?;
            entry.live().ports.insert(port, public);
            Ok(PublishedPort { port, public })
        })
        .await
    }

    /// Unpublishes a port. Its open connections are kept.
    ///
    /// # Errors
    /// As [`Keeper::get`]; returns [`KeeperError::NotFound`] if the port is not published.
    pub async fn unpublish_port(&self, caller: &Caller, id: &str, port: u16) -> Result<()> {
        self.transact(PORT_UNPUBLISH, caller, id, move |keeper, caller, id| async move {
            let entry = keeper.find(&caller, &id).await?;
            let _step = entry.step.lock().await;
            if !entry.live().ports.contains_key(&port) {
                return Err(KeeperError::NotFound { what: "port", id: port.to_string() });
            }
            let removed = keeper
                .inner
                .store
                .ports()
                .withdraw(&entry.id, port)
                .await
                .map(|_| ())
                .map_err(KeeperError::from);
            keeper
                .audit(&caller, PORT_UNPUBLISH, Some(&entry.id), &removed, vec![("port", port.to_string())])
                .await?;
            removed?;
            entry.live().ports.remove(&port);
            Ok(())
        })
        .await
    }

    /// Lists the published ports.
    ///
    /// # Errors
    /// As [`Keeper::get`].
    pub async fn ports(&self, caller: &Caller, id: &str) -> Result<Vec<PublishedPort>> {
        let entry = self.find_to_look(caller, id, SANDBOX_PORTS).await?;
        let live = entry.live();
        Ok(live.ports.iter().map(|(port, public)| PublishedPort { port: *port, public: *public }).collect())
    }

    /// Lists the ports on which programs in the sandbox listen. This does not count as a use: a paused sandbox stays paused, and
    /// the list is empty.
    ///
    /// # Errors
    /// As [`Keeper::get`]; [`KeeperError::Forbidden`] for read-only keys; fails if a running sandbox does.
    pub async fn listening_ports(&self, caller: &Caller, id: &str) -> Result<Vec<u16>> {
        let entry = self.find_to_look(caller, id, PORT_LOOK).await?;
        let Ok(sandbox) = entry.require_running("looking at its ports") else { return Ok(Vec::new()) };
        match sandbox.guest().list_ports().await {
            Ok(listening) => Ok(listening),
            // It was paused or has ended meanwhile.
            Err(_) if entry.state() != SandboxState::Running => Ok(Vec::new()),
            Err(error) => Err(sandbox.explain(EngineError::Guest(error)).await.into()),
        }
    }

    /// Issues a token for the sandbox's own routes only.
    ///
    /// # Errors
    /// As [`Keeper::get`]; fails if the lifetime is too long.
    pub async fn sandbox_token(&self, caller: &Caller, id: &str, expires: Duration) -> Result<IssuedToken> {
        self.issue(caller, id, Scope::Sandbox, expires).await
    }

    /// Issues the token for the sandbox's own routes that is valid as long as the sandbox and the caller's key. It is the same each time,
    /// and another one for each key: it acts as the key that asked for it.
    ///
    /// # Errors
    /// As [`Keeper::get`]; [`KeeperError::Forbidden`] for read-only keys.
    pub async fn issue_access_token(&self, caller: &Caller, id: &str) -> Result<String> {
        self.require(caller, TOKEN_ISSUE)?;
        let entry = self.find(caller, id).await?;
        let details = vec![("scope", "sandbox".to_owned()), ("expires_at", "with the sandbox".to_owned())];
        self.audit(caller, TOKEN_ISSUE, Some(&entry.id), &Ok(()), details).await?;
        self.token_for(caller, entry).await
    }

    /// Returns the same token again, for callers that may use the sandbox.
    ///
    /// # Errors
    /// As [`Keeper::issue_access_token`].
    pub async fn access_token(&self, caller: &Caller, id: &str) -> Result<String> {
        let entry = self.find_to_look(caller, id, TOKEN_READ).await?;
        self.token_for(caller, entry).await
    }

    /// Returns the access token of the caller's key, after recording that the key has one.
    async fn token_for(&self, caller: &Caller, entry: Arc<Entry>) -> Result<String> {
        let token = self.token_of(&entry.id, &caller.key);
        let is_recorded = entry.key == caller.key || entry.live().settings.token_keys.contains(&caller.key);
        if !is_recorded {
            let (keeper, key) = (self.clone(), caller.key.clone());
            let record = async move { keeper.record_token_key(&entry, key).await };
            run_detached(&self.inner.tasks, record).await?;
        }
        Ok(token)
    }

    /// Records with the sandbox that a key has an access token, with which URLs may be signed.
    async fn record_token_key(&self, entry: &Arc<Entry>, key: String) -> Result<()> {
        let _step = entry.step.lock().await;
        let mut settings = entry.live().settings.clone();
        settings.token_keys.insert(key);
        let text = entry.stored_settings(&settings)?;
        self.write(entry, |row| row.settings = text).await?;
        entry.live().settings = settings;
        Ok(())
    }

    fn token_of(&self, sandbox: &SandboxId, key: &str) -> String {
        let (sandbox, key) = (sandbox.clone(), key.to_owned());
        self.inner.tokens.issue(&Token { sandbox, key, expires: i64::MAX, scope: Scope::Sandbox })
    }

    /// Returns the access tokens of all keys that have one of this sandbox, its creator's first.
    fn tokens_of(&self, entry: &Entry) -> Vec<String> {
        let others = entry.live().settings.token_keys.clone();
        let keys = std::iter::once(&entry.key).chain(&others);
        keys.map(|key| self.token_of(&entry.id, key)).collect()
    }

    /// Authenticates the holder of the access token ([`Keeper::issue_access_token`]) that `matches`, of the sandbox `id` or of any. For
    /// signatures that are computed from a token and may name no sandbox.
    ///
    /// # Errors
    /// Returns [`Denied`] if no token matches, or the matching one is denied.
    pub async fn authenticate_by(
        &self,
        id: Option<&SandboxId>,
        matches: impl Fn(&str) -> bool + Send,
        client: &str,
        request_id: &str,
    ) -> std::result::Result<Caller, Denied> {
        let among = match id {
            Some(id) => self.entry(id).into_iter().collect(),
            None => self.entries(),
        };
        let mut tokens = among.into_iter().flat_map(|entry| self.tokens_of(&entry));
        let Some(token) = tokens.find(|token| matches(token)) else {
            self.note_denied(Denied::Unknown, None, client, request_id);
            return Err(Denied::Unknown);
        };
        drop(tokens);
        self.authenticate(&token, client, request_id).await
    }

    /// Returns the state of a sandbox by its id, without access control; `None` if it is gone.
    #[must_use]
    pub fn state_of(&self, id: &SandboxId) -> Option<SandboxState> {
        self.entry(id).map(|entry| entry.state())
    }

    /// Reports whether a process may still run, without access control and without using the sandbox.
    pub async fn may_run(&self, id: &SandboxId, process: u64) -> bool {
        const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
        let Some(entry) = self.entry(id) else { return false };
        let sandbox = entry.live().sandbox.clone();
        let Some(sandbox) = sandbox.filter(|_| entry.state() == SandboxState::Running) else { return true };
        match tokio::time::timeout(ANSWER_TIMEOUT, sandbox.guest().list_processes()).await {
            Ok(Ok(all)) => all.iter().any(|one| one.id == process && one.running),
            // It cannot say at the moment.
            _ => true,
        }
    }

    /// Returns the settings of a sandbox's ports by its id, without access control; `None` if it is gone.
    #[must_use]
    pub fn port_settings(&self, id: &SandboxId) -> Option<PortSettings> {
        self.entry(id).map(|entry| entry.live().settings.ports.clone())
    }

    /// Enters a sandbox whose ports are public, for a connection to one of them, without a credential.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`] if they are not; else as [`Keeper::enter`].
    pub async fn enter_public(&self, id: &SandboxId) -> Result<Entered> {
        let is_public = |entry: &Arc<Entry>| entry.live().settings.ports.access == PortAccess::Public;
        let entry = self.entry(id).filter(is_public).ok_or_else(|| not_found(id.as_str()))?;
        self.enter_entry(entry).await
    }

    /// Issues a token for one published port.
    ///
    /// # Errors
    /// As [`Keeper::sandbox_token`]; returns [`KeeperError::NotFound`] if the port is not published.
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

    /// Issues a token for one file or directory.
    ///
    /// # Errors
    /// As [`Keeper::sandbox_token`]; fails if the path is empty or too long.
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
            FileOperation::Archive => Scope::PackDirectory(path.to_vec()),
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
            Scope::PackDirectory(_) => "file.archive",
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

    /// Enters a sandbox for a connection to a published port. A private port needs an API key, a sandbox token or a port token among
    /// the `credentials`; a public one needs none. Missing, unpublished and forbidden ports give the same error.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`]; else as [`Keeper::enter`].
    pub async fn open_port(
        &self,
        credentials: &[impl AsRef<str> + Sync],
        client: &str,
        request_id: &str,
        id: &str,
        port: u16,
    ) -> Result<Entered> {
        let sandbox: SandboxId = id.parse().map_err(|_| not_found(id))?;
        let entry = self.entry(&sandbox).ok_or_else(|| not_found(id))?;
        let public = entry.live().ports.get(&port).copied();
        let mut opener = None;
        let allowed = match public {
            None => ServiceWall::PublishedPorts.allows(false),
            Some(true) => true,
            Some(false) => {
                for text in credentials.iter().map(AsRef::as_ref) {
                    let opening = self.identify_for_port(text, port, client, request_id).await;
                    let may_open =
                        |caller: &Caller| caller.may_use() && caller.may_see(&entry.tenant, &sandbox);
                    opener = opening.filter(may_open);
                    if opener.is_some() {
                        break;
                    }
                }
                opener.is_some()
            }
        };
        if !allowed {
            return Err(not_found(id));
        }
        Ok(self.enter_entry(entry).await?.opened_by(opener))
    }

    /// Returns the holder of a credential for a port: a key, or a key's token for the sandbox or the port.
    async fn identify_for_port(
        &self,
        credential: &str,
        port: u16,
        client: &str,
        request_id: &str,
    ) -> Option<Caller> {
        if let Some(token) = self.read_token(credential)
            && token.scope == Scope::Port(port)
        {
            let validity = self.read_keys();
            let row = self.live_key_of(&token).await.ok()?;
            return Some(caller_of(&row, Some(token.sandbox), validity, client, request_id));
        }
        // A denial here is recorded when the caller authenticates for the refusal.
        self.identify(credential, client, request_id).await.0.ok()
    }

    /// Opens a file by its signature.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`] for an invalid or expired signature; else as [`Keeper::enter`].
    pub async fn open_signed(&self, token: &str, client: &str, request_id: &str) -> Result<SignedFile> {
        let missing = || KeeperError::NotFound { what: "signed file", id: String::new() };
        let denied = |why| {
            self.note_denied(why, None, client, request_id);
            missing()
        };
        let token = self.read_token(token).ok_or_else(|| denied(Denied::Unknown))?;
        let validity = self.read_keys();
        let row = self.live_key_of(&token).await.map_err(denied)?;
        let caller = caller_of(&row, Some(token.sandbox.clone()), validity, client, request_id);
        let (path, operation) = match token.scope {
            Scope::ReadFile(path) => (path, FileOperation::Read),
            Scope::WriteFile(path) => (path, FileOperation::Write),
            Scope::PackDirectory(path) => (path, FileOperation::Archive),
            Scope::Sandbox | Scope::Port(_) => return Err(missing()),
        };
        let entered = self.enter(&caller, token.sandbox.as_str()).await?;
        Ok(SignedFile { entered, path: path.into(), operation, caller })
    }
}
