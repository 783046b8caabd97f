//! API keys. A key is 256 random bits, shown once; the store has its SHA-256 only. A slow hash is not needed, as no person chose
//! the secret.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_model::{Approval, Role, TreeBase};
use belljar_store::{KeyRow, KeyUpdate, ServiceWall, StoreError, TemplateKind, TemplateRow};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use sha2::{Digest as _, Sha256};

use crate::action::{KEY_CREATE, KEY_LIST, KEY_REVOKE, KEY_UPDATE};
use crate::built::built_record;
use crate::caller::{Caller, DEFAULT_TENANT, OPERATOR, Quotas};
use crate::code_steps::KEY_ENDED;
use crate::create::fill_random;
use crate::error::KeeperError;
use crate::info::{CreatedKey, KeyInfo};
use crate::keeper::{Keeper, Result};
use crate::query::{Page, Part};
use crate::token::{PREFIX as TOKEN_PREFIX, Scope, Token};
use crate::validity::{KeyEnds, Rights, Standing, Validity};

/// Interval at which the key of what waits is checked for having expired, or having been revoked or lowered by another server.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Time after which a call counts as having waited for something.
const NO_WAIT: Duration = Duration::from_millis(20);

/// Prefix of keys.
pub const KEY_PREFIX: &str = "bj_";

/// Alternative prefix of the same keys, for clients that check the form of E2B's keys.
pub const E2B_KEY_PREFIX: &str = "e2b_";

/// Number of characters of a key that are shown to identify it.
const HINT_CHARS: usize = 8;

/// Time for which a key is cached. A revocation by another keeper takes effect after at most that time.
const CACHE_TTL: Duration = Duration::from_secs(2);

/// Interval of writing the last uses of keys, and so their precision.
const TOUCH_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum length of the name of a key or tenant, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// A request for a new key.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// Name, such as its purpose.
    pub name: String,
    /// Role of its holder.
    pub role: Role,
    /// Tenant whose sandboxes it sees; [`DEFAULT_TENANT`] if empty.
    pub tenant: String,
    /// Time until it expires.
    pub expires: Option<Duration>,
    /// Quotas of its sandboxes; if there are none, the operator's defaults, except for administrators.
    pub quotas: Quotas,
    /// The person to whom it belongs: keys of one owner are one person's. Without an owner it is a person of its own.
    pub owner: Option<String>,
    /// Whether calls with it wait for approval.
    pub approval: Approval,
}

/// Changes of a key. What is `None` stays.
#[derive(Debug, Clone, Default)]
pub struct KeyChange {
    /// New name.
    pub name: Option<String>,
    /// New role of its holder.
    pub role: Option<Role>,
    /// New time from now on until it expires; `Some(None)` for one that does not expire.
    pub expires: Option<Option<Duration>>,
    /// Quotas that replace all earlier ones.
    pub quotas: Option<Quotas>,
    /// New owner; `Some(None)` for none.
    pub owner: Option<Option<String>>,
    /// Whether calls with it wait for approval.
    pub approval: Option<Approval>,
}

/// Why a credential was denied. Clients cannot tell the reasons apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The key or token does not exist.
    Unknown,
    /// It has expired.
    Expired,
    /// It was revoked.
    Revoked,
    /// The store is unavailable.
    Unavailable,
}

/// Recently used keys, by their hash.
pub(crate) struct Keys {
    cache: Mutex<HashMap<[u8; 32], CachedKey>>,
    touched: Mutex<HashMap<String, (Instant, Timestamp)>>,
    several_tenants: AtomicBool,
    /// Publishes the ids of keys that were revoked, or may do less than before.
    revoked: tokio::sync::broadcast::Sender<String>,
    /// The same, for callers that were authenticated before.
    ends: KeyEnds,
}

impl Default for Keys {
    fn default() -> Self {
        let revoked = tokio::sync::broadcast::Sender::new(256);
        Self {
            cache: Mutex::default(),
            touched: Mutex::default(),
            several_tenants: AtomicBool::new(false),
            revoked,
            ends: KeyEnds::default(),
        }
    }
}

#[derive(Clone)]
struct CachedKey {
    row: KeyRow,
    at: Instant,
}

impl Keys {
    /// Reports whether more than one tenant has a valid key.
    pub(crate) fn several_tenants(&self) -> bool {
        self.several_tenants.load(Ordering::Relaxed)
    }

    fn cache(&self) -> MutexGuard<'_, HashMap<[u8; 32], CachedKey>> {
        self.cache.lock()
    }

    /// Forgets the row of a key.
    fn forget(&self, id: &str) {
        self.cache().retain(|_, seen| seen.row.id != id);
    }

    /// Adds the end of a key, and forgets its row, as one step: who sees the end must not find the row from before it.
    fn end(&self, id: &str) {
        let mut cache = self.cache();
        self.ends.add(id);
        cache.retain(|_, seen| seen.row.id != id);
    }

    /// Takes the uses that have not been written yet.
    fn take_touched(&self) -> Vec<(String, Timestamp)> {
        let mut touched = self.touched.lock();
        touched.drain().map(|(id, (_, at))| (id, at)).collect()
    }
}

impl Keeper {
    /// Authenticates the holder of a credential: an API key, or the token of one sandbox.
    ///
    /// # Errors
    /// Returns the reason if the credential is denied.
    pub async fn authenticate(
        &self,
        credential: &str,
        client: &str,
        request_id: &str,
    ) -> std::result::Result<Caller, Denied> {
        let (outcome, row) = self.identify(credential, client, request_id).await;
        if let Err(why) = outcome {
            self.note_denied(why, row.as_ref(), client, request_id);
        }
        outcome
    }

    /// Authenticates as [`Keeper::authenticate`] does, without an audit record; also returns the row of the key, if it exists.
    pub(crate) async fn identify(
        &self,
        credential: &str,
        client: &str,
        request_id: &str,
    ) -> (std::result::Result<Caller, Denied>, Option<KeyRow>) {
        if ServiceWall::Keys.is_down() {
            return (Ok(Caller::operator(client, request_id)), None);
        }
        let validity = self.read_keys();
        let (row, only) = match self.find_credential(credential).await {
            Ok(found) => found,
            Err(why) => return (Err(why), None),
        };
        let identified = check_row(&row).map(|()| {
            self.touch(&row.id);
            caller(&row, only, validity, client, request_id)
        });
        (identified, Some(row))
    }

    /// Finds the key that a credential is, or that issued it. It may be expired or revoked.
    async fn find_credential(
        &self,
        credential: &str,
    ) -> std::result::Result<(KeyRow, Option<belljar_model::SandboxId>), Denied> {
        let (row, only) = if credential.starts_with(TOKEN_PREFIX) {
            let token = self.read_token(credential).ok_or(Denied::Unknown)?;
            if token.scope != Scope::Sandbox {
                return Err(Denied::Unknown);
            }
            (self.issuing_key(&token).await?, Some(token.sandbox))
        } else {
            (self.key_by_secret(credential).await?, None)
        };
        Ok((row, only))
    }

    /// Returns the valid key that issued a token, which is valid only as long as the key.
    pub(crate) async fn live_key_of(&self, token: &Token) -> std::result::Result<KeyRow, Denied> {
        let row = self.issuing_key(token).await?;
        check_row(&row).map(|()| row)
    }

    async fn issuing_key(&self, token: &Token) -> std::result::Result<KeyRow, Denied> {
        self.key_row(&token.key).await
    }

    /// Reads the key with this id from the store.
    pub(crate) async fn key_row(&self, id: &str) -> std::result::Result<KeyRow, Denied> {
        self.find_key(id).await.map_err(|_| Denied::Unavailable)?.ok_or(Denied::Unknown)
    }

    /// Reads the key with this id from the store, where a failure of the store must not pass for a missing key.
    pub(crate) async fn find_key(&self, id: &str) -> Result<Option<KeyRow>> {
        if id == OPERATOR {
            return Ok(Some(operator_row()));
        }
        Ok(self.inner.store.keys().get(id).await?)
    }

    /// Returns a caller with what its key may do now, for what goes on in its name.
    ///
    /// # Errors
    /// [`KeeperError::Policy`] if the key was revoked or has expired, or the session that it came with has ended; fails if the store fails.
    pub(crate) async fn caller_now(&self, before: &Caller) -> Result<Caller> {
        if ServiceWall::RevokedCalls.is_down() {
            return Ok(before.clone());
        }
        let gone = |reason: &str| KeeperError::Policy { field: "key", reason: reason.to_owned() };
        let validity = self.read_keys();
        let row = self.find_key(&before.key).await?.ok_or_else(|| gone("it is not there any more"))?;
        check_row(&row).map_err(|_| gone("it was revoked, or has expired"))?;
        if before.session.as_ref().is_some_and(|session| session.has_ended()) {
            return Err(gone("the session has ended"));
        }
        let now = caller(&row, before.only.clone(), validity, &before.client, &before.request_id);
        Ok(Caller { session: before.session.clone(), ..now })
    }

    /// Returns the moment before keys are read, which their callers keep.
    pub(crate) fn read_keys(&self) -> Validity {
        self.inner.keys.ends.now()
    }

    pub(crate) fn read_token(&self, text: &str) -> Option<Token> {
        self.inner.tokens.read(text, Timestamp::now().as_second())
    }

    async fn key_by_secret(&self, secret: &str) -> std::result::Result<KeyRow, Denied> {
        if secret.len() > 256 {
            return Err(Denied::Unknown);
        }
        let own_spelling = secret.strip_prefix(E2B_KEY_PREFIX).map(|hex| format!("{KEY_PREFIX}{hex}"));
        let secret = own_spelling.as_deref().unwrap_or(secret);
        if !secret.starts_with(KEY_PREFIX) {
            return Err(Denied::Unknown);
        }
        // Digests are compared, so the time of the comparison reveals nothing about the key.
        let hash: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        if let Some(seen) = self.inner.keys.cache().get(&hash).filter(|seen| seen.at.elapsed() < CACHE_TTL) {
            return Ok(seen.row.clone());
        }
        let validity = self.read_keys();
        let found = self.inner.store.keys().find_by_hash(&hash).await.map_err(|_| Denied::Unavailable)?;
        let row = found.ok_or(Denied::Unknown)?;
        let is_known = self.inner.keys.cache().contains_key(&hash);
        if !is_known && self.look_for_tenants().await.is_err() {
            // Another keeper may have created it for a new tenant, and tenants share less than the keys of one.
            return Err(Denied::Unavailable);
        }
        let mut cache = self.inner.keys.cache();
        // A row from before its end would hide it.
        if !validity.has_ended(&row.id) {
            cache.insert(hash, CachedKey { row: row.clone(), at: Instant::now() });
        }
        Ok(row)
    }

    pub(crate) fn touch(&self, id: &str) {
        let mut touched = self.inner.keys.touched.lock();
        touched.insert(id.to_owned(), (Instant::now(), Timestamp::now()));
    }

    /// Spawns a task that writes the last uses of keys.
    pub(crate) fn spawn_key_touching(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                tokio::time::sleep(TOUCH_INTERVAL).await;
                keeper.write_touched().await;
            }
        });
    }

    pub(crate) async fn write_touched(&self) {
        let touched = self.inner.keys.take_touched();
        if touched.is_empty() {
            return;
        }
        if let Err(error) = self.inner.store.keys().touch_many(&touched).await {
            tracing::warn!(error = %crate::error::chain(&error), "cannot write when keys were used");
        }
    }

    /// Creates a key, which is returned this once.
    ///
    /// # Errors
    /// Needs the role admin; fails for a name that is too long, and for an additional tenant for which no sandbox could be created.
    pub async fn create_key(&self, caller: &Caller, key: NewKey) -> Result<CreatedKey> {
        self.transact(KEY_CREATE, caller, "", move |keeper, caller, _| async move {
            check_text("name", &key.name)?;
            check_text("tenant", &key.tenant)?;
            check_owner(key.owner.as_deref())?;
            check_approval(key.approval, key.role)?;
            let mut secret = [0u8; 32];
            fill_random(&mut secret)?;
            let mut id = [0u8; 8];
            fill_random(&mut id)?;
            let secret = format!("{KEY_PREFIX}{}", hex::encode(secret));
            let now = Timestamp::now();
            let expires_at = key.expires.map(expiry).transpose()?;
            // Administrators can create keys, so default quotas would not bound them.
            let Quotas { network, stored_secrets, .. } = key.quotas.clone();
            let named = Quotas { network: network.clone(), stored_secrets, ..Quotas::default() };
            let quotas = match key.quotas == named && key.role != Role::Admin {
                true => Quotas { network, stored_secrets, ..keeper.default_quotas() },
                false => key.quotas,
            };
            let row = KeyRow {
                id: format!("key_{}", hex::encode(id)),
                hash: Sha256::digest(secret.as_bytes()).into(),
                hint: secret.chars().take(HINT_CHARS).collect(),
                name: key.name,
                tenant: if key.tenant.is_empty() { DEFAULT_TENANT.to_owned() } else { key.tenant },
                role: key.role,
                quotas: stored_quotas(&quotas)?,
                owner: key.owner,
                approval: key.approval,
                created_at: now,
                expires_at,
                revoked_at: None,
                last_used_at: None,
            };
            let inserted = match keeper.check_tenant(&row).await {
                Ok(()) => keeper.inner.store.keys().insert(&row).await.map_err(KeeperError::from),
                refused => refused,
            };
            let mut details = vec![
                ("key", row.id.clone()),
                ("name", row.name.clone()),
                ("role", row.role.to_string()),
                ("tenant", row.tenant.clone()),
            ];
            details.extend(row.owner.clone().map(|owner| ("owner", owner)));
            details.extend((!row.approval.is_never()).then(|| ("approval", row.approval.to_string())));
            keeper.audit(&caller, KEY_CREATE, None, &inserted, details).await?;
            inserted?;
            keeper.look_for_tenants().await?;
            Ok(CreatedKey { info: keeper.key_info(&row), key: secret })
        })
        .await
    }

    /// Checks that sandboxes could be created for the key's tenant, and still can for others ([`Keeper::create`]).
    async fn check_tenant(&self, key: &KeyRow) -> Result<()> {
        if self.inner.config.now().share_host_tree
            || !self.inner.engines.default_engine().is_some_and(|engine| engine.capabilities().own_tree)
        {
            return Ok(());
        }
        let (keys, now) = (self.inner.store.keys(), Timestamp::now());
        if keys.live_tenants(now).await?.is_none() || keys.is_live_tenant(&key.tenant, now).await? {
            return Ok(());
        }
        // An administrator can build or import templates for the tenant, but would end the use of the machine's own tree by all others.
        let default = self.inner.config.now().default_template.clone();
        let is_admin = key.role == Role::Admin;
        let is_default = |row: &TemplateRow| row.id == default || row.name.as_deref() == Some(&default);
        for template in self.inner.store.templates().list(None).await? {
            let is_own = template.tenant == key.tenant || template.kind == TemplateKind::Builtin;
            let counts = is_own || is_admin && is_default(&template);
            if counts && built_record(&template)?.is_some_and(|built| built.base == TreeBase::Own) {
                return Ok(());
            }
        }
        let (why, first) = match is_admin {
            true => (
                "sandboxes from that tree would be refused to all",
                "let sandboxes.default_template name a template with a tree of its own".to_owned(),
            ),
            false => (
                "no sandbox could be made",
                format!(
                    "build a template with a tree of its own, with a key of the role admin of tenant {:?}",
                    key.tenant
                ),
            ),
        };
        Err(KeeperError::Policy {
            field: "tenant",
            reason: format!(
                "keys of another tenant are in use, tenants do not share the machine's own tree, and {:?} has no template with \
                 another: {why}; {first} first, or allow sharing with sandboxes.share_host_tree = true (belljar serve --set \
                 sandboxes.share_host_tree=true)",
                key.tenant
            ),
        })
    }

    /// Lists keys, oldest first.
    ///
    /// # Errors
    /// Needs the role admin; returns [`KeeperError::Field`] for an invalid cursor.
    pub async fn keys(&self, caller: &Caller, part: &Part) -> Result<Page<KeyInfo>> {
        self.require(caller, KEY_LIST)?;
        self.write_touched().await;
        let rows = self.inner.store.keys().list(part.after()?, part.rows()).await?;
        let (rows, next_cursor) = part.cut(rows, |row| (row.created_at, &row.id));
        Ok(Page { items: rows.iter().map(|row| self.key_info(row)).collect(), next_cursor })
    }

    fn key_info(&self, row: &KeyRow) -> KeyInfo {
        KeyInfo {
            id: row.id.clone(),
            hint: row.hint.clone(),
            name: row.name.clone(),
            role: row.role,
            tenant: row.tenant.clone(),
            quotas: serde_json::from_str(&row.quotas).unwrap_or_default(),
            owner: row.owner.clone(),
            approval: row.approval,
            usage: self.inner.ledger.usage(&row.id),
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
            last_used_at: row.last_used_at,
        }
    }

    /// Changes a key, from its next request on. Existing sandboxes stay.
    ///
    /// # Errors
    /// Needs the role admin; returns [`KeeperError::NotFound`], also for a revoked key, and [`KeeperError::Field`].
    pub async fn update_key(&self, caller: &Caller, id: &str, change: KeyChange) -> Result<KeyInfo> {
        self.transact(KEY_UPDATE, caller, id, move |keeper, caller, id| async move {
            let mut details = vec![("key", id.chars().take(64).collect())];
            let before = keeper.inner.store.keys().get(&id).await?;
            let changed = keeper.change_row(&id, change, &mut details).await;
            if let (Some(before), Ok(after)) = (&before, &changed)
                && is_narrower(before, after)
            {
                keeper.end_key(&id);
            }
            keeper.inner.keys.forget(&id);
            keeper.audit(&caller, KEY_UPDATE, None, &changed, details).await?;
            let row = changed?;
            keeper.look_for_tenants().await?;
            Ok(keeper.key_info(&row))
        })
        .await
    }

    /// Changes the row of a key, and adds what is changed to the details of the audit record.
    async fn change_row(
        &self,
        id: &str,
        change: KeyChange,
        details: &mut Vec<(&'static str, String)>,
    ) -> Result<KeyRow> {
        let mut update = KeyUpdate::default();
        if let Some(name) = change.name {
            check_text("name", &name)?;
            details.push(("name", name.clone()));
            update.name = Some(name);
        }
        if let Some(role) = change.role {
            details.push(("role", role.to_string()));
            update.role = Some(role);
        }
        if let Some(expires) = change.expires {
            let at = expires.map(expiry).transpose()?;
            details.push(("expires_at", at.map_or_else(|| "never".to_owned(), |at| at.to_string())));
            update.expires_at = Some(at);
        }
        if let Some(owner) = change.owner {
            check_owner(owner.as_deref())?;
            details.push(("owner", owner.clone().unwrap_or_default()));
            update.owner = Some(owner);
        }
        if let Some(approval) = change.approval {
            details.push(("approval", approval.to_string()));
            update.approval = Some(approval);
        }
        if let (true, Some(now)) =
            (change.role.is_some() || change.approval.is_some(), self.inner.store.keys().get(id).await?)
        {
            check_approval(change.approval.unwrap_or(now.approval), change.role.unwrap_or(now.role))?;
        }
        if let Some(quotas) = change.quotas {
            let quotas = stored_quotas(&quotas)?;
            details.push(("quotas", quotas.clone()));
            update.quotas = Some(quotas);
        }
        match self.inner.store.keys().update(id, update).await {
            Err(StoreError::NotFound { .. }) => {
                Err(KeeperError::NotFound { what: "key", id: id.chars().take(64).collect() })
            }
            changed => Ok(changed?),
        }
    }

    /// Revokes a key. Its sandboxes keep running, for other keys of the tenant.
    ///
    /// # Errors
    /// Needs the role admin; [`KeeperError::NotFound`].
    pub async fn revoke_key(&self, caller: &Caller, id: &str) -> Result<()> {
        self.transact(KEY_REVOKE, caller, id, move |keeper, caller, id| async move {
            let revoked = match keeper.inner.store.keys().revoke(&id, Timestamp::now()).await {
                Ok(true) => Ok(()),
                Ok(false) | Err(StoreError::NotFound { .. }) => {
                    Err(KeeperError::NotFound { what: "key", id: id.chars().take(64).collect() })
                }
                Err(error) => Err(error.into()),
            };
            keeper.inner.keys.forget(&id);
            if revoked.is_ok() {
                keeper.end_key(&id);
            }
            keeper
                .audit(&caller, KEY_REVOKE, None, &revoked, vec![("key", id.chars().take(64).collect())])
                .await?;
            revoked?;
            keeper.look_for_tenants().await
        })
        .await
    }

    /// Ends what goes on for a key that is not valid any more, or may do less.
    fn end_key(&self, id: &str) {
        self.inner.keys.end(id);
        // There may be no subscribers.
        let _ = self.inner.keys.revoked.send(id.to_owned());
        if !ServiceWall::RevokedCalls.is_down() {
            self.inner.waiters.wake_key(id);
            self.inner.steps.close_key(id, KEY_ENDED);
        }
    }

    /// Subscribes to the ids of keys that this server has revoked, or whose role it has lowered or calls it lets wait for approval since:
    /// their open connections must be closed.
    #[must_use]
    pub fn revocations(&self) -> tokio::sync::broadcast::Receiver<String> {
        self.inner.keys.revoked.subscribe()
    }

    /// Reports whether a key has expired, was revoked by any server, or may do less than any of these rights. False while the store cannot
    /// be read.
    pub async fn has_ended(&self, key: &str, asked: &[Rights]) -> bool {
        self.is_over(key, |row| asked.iter().any(|asked| asked.exceed(rights(row)))).await
    }

    /// Reports whether a key has expired, was revoked by any server, or is over for this reason. False while the store cannot be read.
    pub(crate) async fn is_over(&self, key: &str, other: impl Fn(&KeyRow) -> bool) -> bool {
        let before = self.read_keys();
        let found = match self.key_row(key).await {
            Ok(row) => check_row(&row).map(|()| other(&row)),
            Err(why) => Err(why),
        };
        match found {
            Err(Denied::Unavailable) => false,
            Err(_) => {
                // All else in its name ends at the same moment, unless another call has found that out meanwhile.
                if !ServiceWall::RevokedCalls.is_down() && before.ended(key) != Some(true) {
                    self.end_key(key);
                }
                true
            }
            Ok(is_over) => is_over,
        }
    }

    /// Waits until a key, or the session that it came with, has ended, or the key may do less: for what waits in its name.
    pub(crate) async fn wait_for_key_end(&self, standing: &Standing) {
        if ServiceWall::RevokedCalls.is_down() {
            std::future::pending().await
        }
        let session_end = async {
            match &standing.session {
                Some(session) => session.wait_for_end().await,
                None => std::future::pending().await,
            }
        };
        let key_end = async {
            let mut ends = self.revocations();
            // However often other keys end.
            let mut checks = tokio::time::interval(KEY_CHECK_INTERVAL);
            checks.reset();
            let mut expiry = pin!(tokio::time::sleep(standing.validity.time_left().unwrap_or(Duration::MAX)));
            let mut is_expiring = true;
            while !standing.has_ended() {
                tokio::select! {
                    // Which keys have ended, `standing` knows.
                    _ = ends.recv() => continue,
                    () = &mut expiry, if is_expiring => is_expiring = false,
                    _ = checks.tick() => {}
                }
                let Some(rights) = standing.validity.rights() else { continue };
                if self.has_ended(&standing.key, &[rights]).await {
                    return;
                }
            }
        };
        tokio::select! {
            () = session_end => {}
            () = key_end => {}
        }
    }

    /// Checks that the caller's key, and the session that it came with, have not ended while a call waited for anything: what it then begins
    /// would outlive them. The store is asked if it has waited.
    ///
    /// # Errors
    /// [`KeeperError::Policy`] if it has ended, or may do less since.
    pub(crate) async fn check_key_still(&self, caller: &Caller) -> Result<()> {
        if ServiceWall::RevokedCalls.is_down() {
            return Ok(());
        }
        let (validity, session) = (&caller.validity, &caller.session);
        let known = validity.ended(&caller.key);
        let is_over = known == Some(true)
            || session.as_ref().is_some_and(|session| session.has_ended())
            || match validity.rights() {
                Some(rights) if known.is_none() || validity.is_older_than(NO_WAIT) => {
                    self.has_ended(&caller.key, &[rights]).await
                }
                _ => false,
            };
        if is_over { Err(ended_while_waiting()) } else { Ok(()) }
    }

    /// Looks whether more than one tenant has a valid key.
    pub(crate) async fn look_for_tenants(&self) -> Result<()> {
        let tenants = self.inner.store.keys().live_tenants(Timestamp::now()).await?;
        let several = tenants.is_some_and(|(first, last)| first != last);
        self.inner.keys.several_tenants.store(several, Ordering::Relaxed);
        Ok(())
    }

    /// Reports whether a valid key exists.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn has_keys(&self) -> Result<bool> {
        Ok(self.inner.store.keys().live_tenants(Timestamp::now()).await?.is_some())
    }
}

/// Returns the refusal of a call whose key has ended before it began.
pub(crate) fn ended_while_waiting() -> KeeperError {
    let reason = "it was revoked or changed, or has expired, before the call began".to_owned();
    KeeperError::Policy { field: "key", reason }
}

/// Checks the name or the tenant of a key.
fn check_text(field: &'static str, text: &str) -> Result<()> {
    if text.len() <= MAX_NAME_BYTES && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let reason = format!("it is not allowed; give at most {MAX_NAME_BYTES} bytes without control characters");
    Err(KeeperError::field(field, reason))
}

/// Checks the owner of a new key, by the name under which a person decides: two of them must not look the same. Keys that have another owner
/// since an earlier version keep it. Ids of keys are no names of persons.
fn check_owner(owner: Option<&str>) -> Result<()> {
    let Some(owner) = owner else { return Ok(()) };
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_@+".contains(&byte);
    let begins = owner.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
    let is_taken = owner.starts_with("key_") || owner == crate::caller::OPERATOR;
    if !begins || is_taken || owner.len() > MAX_NAME_BYTES || !owner.bytes().all(allowed) {
        let reason = format!(
            "{owner:?} is not allowed; give 1 to {MAX_NAME_BYTES} characters from a to z, 0 to 9, ., -, _, @ and +, the first a letter or a \
             digit, and not {} or the id of a key",
            crate::caller::OPERATOR
        );
        return Err(KeeperError::field("owner", reason));
    }
    Ok(())
}

/// Checks whether calls of a key with this role can wait for approval: an administrator could create a key whose calls do not.
fn check_approval(approval: Approval, role: Role) -> Result<()> {
    if approval.is_never() || role != Role::Admin {
        return Ok(());
    }
    let reason = "a key with the role admin could create another one; give the role user";
    Err(KeeperError::field("approval", reason))
}

pub(crate) fn rights(row: &KeyRow) -> Rights {
    Rights { role: row.role, approval: row.approval }
}

/// Reports whether a key may do less after a change, or its calls wait for approval that did not before.
fn is_narrower(before: &KeyRow, after: &KeyRow) -> bool {
    rights(before).exceed(rights(after))
}

/// Returns when a key expires that is valid for this long from now on.
fn expiry(after: Duration) -> Result<Timestamp> {
    let at = Timestamp::now().checked_add(after);
    at.map_err(|_| KeeperError::field("expires", "it is too far in the future"))
}

fn stored_quotas(quotas: &Quotas) -> Result<String> {
    serde_json::to_string(quotas).map_err(|error| KeeperError::field("quotas", error.to_string()))
}

pub(crate) fn check_row(row: &KeyRow) -> std::result::Result<(), Denied> {
    if row.revoked_at.is_some() {
        return Err(Denied::Revoked);
    }
    if row.expires_at.is_some_and(|at| at <= Timestamp::now()) {
        return Err(Denied::Expired);
    }
    Ok(())
}

pub(crate) fn caller(
    row: &KeyRow,
    only: Option<belljar_model::SandboxId>,
    validity: Validity,
    client: &str,
    request_id: &str,
) -> Caller {
    Caller {
        key: row.id.clone(),
        tenant: row.tenant.clone(),
        role: row.role,
        // Unreadable quotas allow nothing.
        quotas: serde_json::from_str(&row.quotas).unwrap_or(Quotas {
            sandboxes: Some(0),
            executions_per_minute: Some(0),
            stored_secrets: Some(false),
            ..Quotas::default()
        }),
        owner: row.owner.clone(),
        approval: row.approval,
        only,
        session: None,
        validity: validity.with_rights(rights(row), row.expires_at),
        client: client.to_owned(),
        request_id: request_id.to_owned(),
    }
}

/// Returns a substitute row for the operator, who has no key but may issue tokens.
fn operator_row() -> KeyRow {
    let operator = Caller::operator("", "");
    KeyRow {
        id: operator.key,
        hash: [0; 32],
        hint: String::new(),
        name: String::new(),
        tenant: operator.tenant,
        role: operator.role,
        quotas: "{}".to_owned(),
        owner: None,
        approval: Approval::Never,
        created_at: Timestamp::UNIX_EPOCH,
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    }
}
