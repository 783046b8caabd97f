//! Access to a sandbox: the access token in a header, or a signature made with it.

use axum::extract::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use belljar_keeper::{Caller, Denied, PortAccess, ServiceWall};
use belljar_model::SandboxId;
use http::{Extensions, HeaderMap, header};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::api::Shared;
use crate::guard::{Client, RequestId, RequestMemory, refuse};
use crate::problem::{Code, Problem};

const ACCESS_TOKEN: &str = "x-access-token";

/// The token for ports of a sandbox, which is the same token here. Clients send it to the code interpreter without the other
/// header.
const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// The only user of a sandbox.
pub(super) const USER: &str = "user";

fn unauthenticated() -> Problem {
    Problem::new(Code::Unauthenticated, "missing or invalid access token of this sandbox")
}

/// Reports whether everyone may reach the ports of a sandbox: it was created so, and the operator still allows that.
pub(super) fn has_public_ports(shared: &Shared, id: &SandboxId) -> bool {
    let ports = shared.keeper.port_settings(id);
    shared.config.e2b_public_ports && ports.is_some_and(|ports| ports.access == PortAccess::Public)
}

/// A request without its body, so that it can be shared with other threads.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    pub(super) fn from_request(request: &'a Request) -> Self {
        Self { headers: request.headers(), extensions: request.extensions() }
    }
}

/// Origin of a request, for the audit log and for counting failures.
struct Origin {
    client: Client,
    request_id: String,
}

impl Origin {
    fn new(shared: &Shared, head: Head<'_>) -> Self {
        Self {
            client: Client::from_request(&shared.config, head.headers, head.extensions),
            request_id: RequestId::from_extensions(head.extensions),
        }
    }
}

/// Returns the access token of a request.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    [ACCESS_TOKEN, TRAFFIC_TOKEN].iter().find_map(|name| headers.get(*name)?.to_str().ok())
}

/// Authenticates the caller by the sandbox's access token.
pub(super) async fn caller(shared: &Shared, id: &SandboxId, head: Head<'_>) -> Result<Caller, Problem> {
    let origin = Origin::new(shared, head);
    let token = token(head.headers).ok_or_else(unauthenticated)?;
    let found = shared.keeper.authenticate(token, &origin.client.text, &origin.request_id).await;
    let is_for_it = |caller: &Caller| ServiceWall::TokenScope.allows(caller.only.as_ref() == Some(id));
    let found = found.and_then(|caller| if is_for_it(&caller) { Ok(caller) } else { Err(Denied::Unknown) });
    found.map_err(|why| refuse(shared, &origin.client, why, unauthenticated()))
}

/// Authenticates the caller as [`caller`] does. What is kept in memory of the request's body counts for the token.
pub(super) async fn caller_with_body(
    shared: &Shared,
    id: &SandboxId,
    request: &mut Request,
) -> Result<Caller, Problem> {
    let caller = caller(shared, id, Head::from_request(request)).await?;
    request.extensions_mut().insert(RequestMemory::new(&shared.answers, &caller.key));
    bind(shared, &caller, request);
    Ok(caller)
}

/// Makes the body of a request break off when its caller may not send it any more.
pub(super) fn bind(shared: &Shared, caller: &Caller, request: &mut Request) {
    let body = std::mem::take(request.body_mut());
    *request.body_mut() = shared.streams.bind(caller, body);
}

/// A signature in the URL of a file, and the values that it covers.
pub(super) struct Signature<'a> {
    pub(super) path: &'a str,
    /// `read` or `write`.
    pub(super) operation: &'a str,
    /// Empty if the URL names none.
    pub(super) user: &'a str,
    /// Expiry, in seconds since 1970.
    pub(super) expires: Option<i64>,
    /// The signature as received.
    pub(super) text: &'a str,
}

impl Signature<'_> {
    /// Reports whether the signature was made with this token.
    pub(super) fn is_made_with(&self, token: &str) -> bool {
        let Self { path, operation, user, expires, .. } = self;
        let end = expires.map(|expires| format!(":{expires}")).unwrap_or_default();
        let digest = Sha256::digest(format!("{path}:{operation}:{user}:{token}{end}"));
        // Digests are compared: how long their common prefix is reveals nothing about the token.
        Sha256::digest(format!("v1_{}", STANDARD_NO_PAD.encode(digest))) == Sha256::digest(self.text)
    }
}

/// Authenticates the signer of a URL, by the token of this sandbox or, without an id, of any sandbox.
pub(super) async fn signer(
    shared: &Shared,
    id: Option<&SandboxId>,
    signature: &Signature<'_>,
    head: Head<'_>,
) -> Result<Caller, Problem> {
    let origin = Origin::new(shared, head);
    let matches = |token: &str| ServiceWall::E2bSignature.allows(signature.is_made_with(token));
    let found = shared.keeper.authenticate_by(id, matches, &origin.client.text, &origin.request_id).await;
    let caller = found.map_err(|why| match why {
        Denied::Unavailable => refuse(shared, &origin.client, why, unauthenticated()),
        // A browser sends the signature in a link of any page by itself.
        Denied::Unknown => Problem::new(Code::Unauthenticated, "invalid signature"),
        Denied::Expired | Denied::Revoked => unauthenticated(),
    })?;
    let is_current = signature.expires.is_none_or(|expires| Timestamp::now().as_second() <= expires);
    if !ServiceWall::E2bExpiry.allows(is_current) {
        return Err(Problem::new(Code::Unauthenticated, "signature is already expired"));
    }
    Ok(caller)
}

/// Checks the user that a call names, in `Authorization: Basic` or in the request itself.
pub(super) fn check_user(named: Option<&str>) -> Result<(), Problem> {
    match named {
        None | Some("" | USER) => Ok(()),
        Some(other) => {
            let detail = format!(
                "invalid username: '{other}'; give '{USER}', whose files these are, or none: only commands in a machine take another"
            );
            Err(Problem::new(Code::Unauthenticated, detail))
        }
    }
}

/// Returns the user named in a call's headers.
pub(super) fn user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    let text = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok().filter(|_| is_basic)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Some(text.split(':').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_covers_path_operation_user_token_and_expiry() {
        let made = |path: &str, operation: &str, user: &str, token: &str, expires: Option<i64>| {
            let end = expires.map(|at| format!(":{at}")).unwrap_or_default();
            let digest = Sha256::digest(format!("{path}:{operation}:{user}:{token}{end}"));
            format!("v1_{}", STANDARD_NO_PAD.encode(digest))
        };
        let good = made("a.txt", "read", "", "tok", Some(7));
        fn signature(text: &str) -> Signature<'_> {
            Signature { path: "a.txt", operation: "read", user: "", expires: Some(7), text }
        }
        assert!(signature(&good).is_made_with("tok"));
        assert!(!signature(&good).is_made_with("other"));
        for forged in [
            made("b.txt", "read", "", "tok", Some(7)),
            made("a.txt", "write", "", "tok", Some(7)),
            made("a.txt", "read", "user", "tok", Some(7)),
            made("a.txt", "read", "", "tok", Some(8)),
            made("a.txt", "read", "", "tok", None),
        ] {
            assert!(!signature(&forged).is_made_with("tok"));
        }
    }

    #[test]
    fn user_is_parsed_and_checked() {
        let mut headers = HeaderMap::new();
        assert_eq!(user(&headers), None);
        headers.insert(header::AUTHORIZATION, "Basic cm9vdDo=".parse().unwrap());
        assert_eq!(user(&headers).as_deref(), Some("root"));
        assert!(check_user(Some("root")).is_err());
        assert!(check_user(Some("user")).is_ok() && check_user(None).is_ok());
    }
}
