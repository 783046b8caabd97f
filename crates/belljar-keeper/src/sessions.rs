//! Sessions: a key that a person's browser holds as a cookie. Whatever a session does is done by its key, which is looked up at each request.
//!
//! ```text
//!   key ──────► session: a cookie, which scripts cannot read, and a token, which only pages of the origin have
//!    └─► link ──┘ once, within LINK_LIFE
//! ```
//!
//! A cookie alone is not a credential: a browser attaches it by itself, also to requests that pages of other origins make, and sends it
//! to other ports of the same host.

use std::time::Duration;

use belljar_store::{KeyRow, ServiceWall, SessionRow};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::action::{SESSION_CREATE, SESSION_END, SESSION_LINK};
use crate::caller::Caller;
use crate::create::fill_random;
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};
use crate::keys::{Denied, caller as caller_of, check_row};
use crate::steps::run_detached;

/// Time without a request after which a session ends.
/// Source: docs/spec.md; held by `sessions::tests::sessions_end_when_idle_and_after_their_life`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2 * 3600);

/// Longest life of a session.
/// Source: docs/spec.md; held by `sessions::tests::sessions_end_when_idle_and_after_their_life`.
const MAX_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Time for which a link can be used.
/// Source: docs/spec.md.
const LINK_LIFE: Duration = Duration::from_secs(15 * 60);

/// Precision with which the last use of a session is stored.
const TOUCH_INTERVAL: Duration = Duration::from_secs(60);

/// Prefix of links.
pub const LINK_PREFIX: &str = "bjl_";

/// A new session.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Value of the cookie.
    pub cookie: String,
    /// Token that each request has beside the cookie.
    pub token: String,
    /// Expiry, unless the session is used.
    pub expires_at: Timestamp,
    /// Longest life.
    pub max_life: Duration,
}

/// A link that begins a session, once.
#[derive(Debug, Clone)]
pub struct SessionLink {
    /// The link's secret.
    pub link: String,
    /// Expiry.
    pub expires_at: Timestamp,
}

impl Keeper {
    /// Begins a session that acts as the caller's key.
    ///
    /// # Errors
    /// Needs a key: a session cannot begin another one.
    pub async fn create_session(&self, caller: &Caller) -> Result<NewSession> {
        let (keeper, caller) = (self.clone(), caller.clone());
        run_detached(&self.inner.tasks, async move {
            keeper.require_key(&caller, SESSION_CREATE)?;
            keeper.begin_session(&caller, "key").await
        })
        .await
    }

    async fn begin_session(&self, caller: &Caller, from: &'static str) -> Result<NewSession> {
        let (cookie, token) = (secret("bjc_")?, secret("")?);
        let now = Timestamp::now();
        let row = SessionRow {
            hash: hash(&cookie),
            token: Some(hash(&token)),
            key: caller.key.clone(),
            created_at: now,
            expires_at: after(now, IDLE_TIMEOUT),
        };
        let inserted = self.inner.store.sessions().insert(&row).await.map_err(KeeperError::from);
        self.audit(caller, SESSION_CREATE, None, &inserted, vec![("from", from.to_owned())]).await?;
        inserted?;
        Ok(NewSession { cookie, token, expires_at: row.expires_at, max_life: MAX_LIFE })
    }

    /// Creates a link that begins a session of the caller's key, once.
    ///
    /// # Errors
    /// Needs a key: a session cannot begin another one.
    pub async fn create_session_link(&self, caller: &Caller) -> Result<SessionLink> {
        let (keeper, caller) = (self.clone(), caller.clone());
        run_detached(&self.inner.tasks, async move {
            keeper.require_key(&caller, SESSION_LINK)?;
            let link = secret(LINK_PREFIX)?;
            let now = Timestamp::now();
            let row = SessionRow {
                hash: hash(&link),
                token: None,
                key: caller.key.clone(),
                created_at: now,
                expires_at: after(now, LINK_LIFE),
            };
            let inserted = keeper.inner.store.sessions().insert(&row).await.map_err(KeeperError::from);
            keeper.audit(&caller, SESSION_LINK, None, &inserted, Vec::new()).await?;
            inserted?;
            Ok(SessionLink { link, expires_at: row.expires_at })
        })
        .await
    }

    /// Begins a session with a link, which is used up.
    ///
    /// # Errors
    /// Returns the reason if the link or its key is not valid (any more), or an error of the store.
    pub async fn redeem_session_link(
        &self,
        link: &str,
        client: &str,
        request_id: &str,
    ) -> Result<std::result::Result<(NewSession, Caller), Denied>> {
        let (keeper, link) = (self.clone(), link.to_owned());
        let (client, request_id) = (client.to_owned(), request_id.to_owned());
        run_detached(&self.inner.tasks, async move {
            let validity = keeper.read_keys();
            let (found, key) = keeper.redeem(&link).await;
            if let Err(why) = found {
                keeper.note_denied(why, key.as_ref(), &client, &request_id);
                return Ok(Err(why));
            }
            let Some(key) = key else { return Ok(Err(Denied::Unknown)) };
            let caller = caller_of(&key, None, validity, &client, &request_id);
            Ok(Ok((keeper.begin_session(&caller, "link").await?, caller)))
        })
        .await
    }

    async fn redeem(&self, link: &str) -> (std::result::Result<(), Denied>, Option<KeyRow>) {
        if !link.starts_with(LINK_PREFIX) {
            return (Err(Denied::Unknown), None);
        }
        let (sessions, hash) = (self.inner.store.sessions(), hash(link));
        let row = match sessions.get(&hash).await {
            Ok(Some(row)) if row.token.is_none() => row,
            Ok(_) => return (Err(Denied::Unknown), None),
            Err(_) => return (Err(Denied::Unavailable), None),
        };
        match sessions.remove(&hash).await {
            Ok(true) => {}
            Ok(false) => return (Err(Denied::Unknown), None),
            Err(_) => return (Err(Denied::Unavailable), None),
        }
        let key = match self.key_row(&row.key).await {
            Ok(key) => key,
            Err(why) => return (Err(why), None),
        };
        let is_late = row.expires_at <= Timestamp::now();
        let outcome = if is_late { Err(Denied::Expired) } else { check_row(&key) };
        (outcome, Some(key))
    }

    /// Authenticates a session: the first of the cookies that belongs to the token. A page of another host below the server's domain may
    /// have set further cookies of that name.
    ///
    /// # Errors
    /// Returns the reason if there is none, or the session or its key is not valid any more.
    pub async fn authenticate_session(
        &self,
        cookies: &[&str],
        token: Option<&str>,
        client: &str,
        request_id: &str,
    ) -> std::result::Result<Caller, Denied> {
        let token = token.map(hash);
        let validity = self.read_keys();
        let mut found = None;
        for cookie in cookies {
            let row = self.inner.store.sessions().get(&hash(cookie)).await;
            let row = row.map_err(|_| Denied::Unavailable)?.filter(|row| row.token.is_some());
            // Digests are compared, so the time of the comparison reveals nothing about the token.
            let is_own = |row: &SessionRow| ServiceWall::CrossSiteRequests.allows(row.token == token);
            found = row.filter(is_own);
            if found.is_some() {
                break;
            }
        }
        let row = found.ok_or(Denied::Unknown)?;
        let Some(expires_at) = next_expiry(&row, Timestamp::now()) else {
            self.inner.sessions.end(|hash, _| *hash == row.hash);
            return Err(Denied::Expired);
        };
        let key = self.key_row(&row.key).await?;
        if let Err(why) = check_row(&key) {
            self.note_denied(why, Some(&key), client, request_id);
            return Err(why);
        }
        self.extend(&row, expires_at).await;
        self.touch(&key.id);
        let (session, is_new) = self.inner.sessions.see(&row);
        // It may have ended since it was read: sessions that were not seen yet have nothing to end.
        if is_new && !matches!(self.inner.store.sessions().get(&row.hash).await, Ok(Some(_))) {
            self.inner.sessions.end(|hash, _| *hash == row.hash);
            return Err(Denied::Expired);
        }
        Ok(Caller { session: Some(session), ..caller_of(&key, None, validity, client, request_id) })
    }

    /// Writes that a session is in use.
    async fn extend(&self, row: &SessionRow, expires_at: Timestamp) {
        if expires_at <= after(row.expires_at, TOUCH_INTERVAL) {
            return;
        }
        if let Err(error) = self.inner.store.sessions().extend(&row.hash, expires_at).await {
            tracing::warn!(error = %crate::error::chain(&KeeperError::from(error)), "cannot write when a session was used");
        }
    }

    /// Ends the caller's session, or all sessions and links of its key. Their open streams end.
    ///
    /// # Errors
    /// Fails without a session, unless all are ended, or if the store fails.
    pub async fn end_session(&self, caller: &Caller, everywhere: bool) -> Result<()> {
        let (keeper, caller) = (self.clone(), caller.clone());
        run_detached(&self.inner.tasks, async move {
            keeper.require(&caller, SESSION_END)?;
            let sessions = keeper.inner.store.sessions();
            let ended = match &caller.session {
                _ if everywhere => sessions.remove_all(&caller.key).await.map(drop),
                Some(session) => sessions.remove(&session.hash).await.map(drop),
                None => {
                    let reason =
                        "the request has a key and no session; give everywhere=true to end all of the key";
                    return Err(KeeperError::field("everywhere", reason));
                }
            };
            let ended = ended.map_err(KeeperError::from);
            let details = vec![("everywhere", everywhere.to_string())];
            keeper.audit(&caller, SESSION_END, None, &ended, details).await?;
            ended?;
            let own = caller.session.as_ref().map(|session| session.hash);
            keeper.inner.sessions.end(|hash, key| match everywhere {
                true => key == caller.key,
                false => Some(*hash) == own,
            });
            Ok(())
        })
        .await
    }

    /// Ends the open streams of sessions that have expired, that another server has ended, or whose key is not valid any more.
    pub(crate) async fn sweep_sessions(&self) -> Result<()> {
        let sessions = self.inner.store.sessions();
        sessions.forget_expired(Timestamp::now()).await?;
        for seen in self.inner.sessions.hashes() {
            let is_valid = match sessions.get(&seen).await? {
                Some(row) => !self.is_over(&row.key, |_| false).await,
                None => false,
            };
            if !is_valid {
                self.inner.sessions.end(|hash, _| *hash == seen);
            }
        }
        Ok(())
    }

    fn require_key(&self, caller: &Caller, action: crate::action::Action) -> Result<()> {
        self.require(caller, action)?;
        if caller.session.is_none() {
            return Ok(());
        }
        let reason = "a session cannot begin another one, which would have no end; use the key".to_owned();
        Err(KeeperError::Policy { field: "session", reason })
    }
}

/// Returns when a session expires that is used now; `None` if it has expired.
fn next_expiry(row: &SessionRow, now: Timestamp) -> Option<Timestamp> {
    (now < row.expires_at).then(|| after(now, IDLE_TIMEOUT).min(after(row.created_at, MAX_LIFE)))
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

fn secret(prefix: &str) -> Result<String> {
    let mut bytes = [0u8; 32];
    fill_random(&mut bytes)?;
    Ok(format!("{prefix}{}", hex::encode(bytes)))
}

fn after(time: Timestamp, span: Duration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_when_idle_and_after_their_life() {
        let at = |seconds: u64| after(Timestamp::UNIX_EPOCH, Duration::from_secs(seconds));
        let row = |expires| SessionRow {
            hash: [0; 32],
            token: Some([0; 32]),
            key: "key_1".to_owned(),
            created_at: at(0),
            expires_at: at(expires),
        };
        let (idle, life) = (2 * 3600, 7 * 24 * 3600);
        for (expires, now, expected) in [
            (idle, 0, Some(idle)),
            (idle, idle - 1, Some(2 * idle - 1)),
            (idle, idle, None),
            (life, life - 1, Some(life)),
            (life, life, None),
        ] {
            assert_eq!(next_expiry(&row(expires), at(now)), expected.map(at), "{expires} {now}");
        }
    }
}
