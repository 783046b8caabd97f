//! A facade is one wire interface of the service. The guards and the server know facades by the trait alone; the list is in `api.rs`.
//!
//! A request belongs to the facade that has claimed one of its headers, else to the one that has claimed the beginning of its path,
//! else to the last of the list. That facade alone routes it, and writes its errors.

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use futures::future::BoxFuture;
use http::{HeaderMap, Method};

use crate::guard::PortHost;
use crate::problem::Problem;

/// The head of a request.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path, as received.
    pub path: &'a str,
    /// The headers.
    pub headers: &'a HeaderMap,
}

impl<'a> Head<'a> {
    /// Returns the head of a request.
    pub fn of(request: &'a Request) -> Self {
        Self { method: request.method(), path: request.uri().path(), headers: request.headers() }
    }
}

/// What belongs to one facade and to no other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Claims {
    /// Labels of host names below the server's domain, such as `api` for `api.{domain}`.
    pub labels: &'static [&'static str],
    /// Headers, in lower case. A request with one of them belongs to the facade, whatever its path is.
    pub headers: &'static [&'static str],
    /// Beginnings of paths.
    pub prefixes: &'static [&'static str],
}

/// Writes the refusal of one request in the facade's own form. The text is the id of the request.
pub type Form = Box<dyn FnOnce(&Problem, &str) -> Response + Send>;

/// Answers one request.
pub type Answer = Box<dyn FnOnce(Request) -> BoxFuture<'static, Response> + Send>;

/// One wire interface of the service.
pub trait Facade: Send + Sync + 'static {
    /// Name, in lower case.
    fn name(&self) -> &'static str;

    /// Returns what belongs to this facade.
    fn claims(&self) -> Claims;

    /// Returns the form of the errors for a request.
    fn form(&self, head: Head<'_>) -> Form;

    /// Returns the routes. Each is reached with a valid key only, and has the [`belljar_keeper::Caller`] in the request's extensions,
    /// unless the request [is open](Self::is_open).
    fn router(&self) -> Router;

    /// Reports whether a request needs no key: what it asks for is public, or its handler checks another credential.
    fn is_open(&self, _head: Head<'_>) -> bool {
        false
    }

    /// Reports whether the body of a request that is open is kept in memory. There is a limit on the number of those at a time.
    fn keeps_open_body(&self, _head: Head<'_>) -> bool {
        false
    }

    /// Reports whether pages with a session may use it, besides callers with a key.
    fn takes_sessions(&self) -> bool {
        false
    }

    /// Reports whether the body of a request may pause for long, as input that a person types does.
    fn may_be_silent(&self, _head: Head<'_>) -> bool {
        false
    }

    /// Reports whether a request of the method POST begins also while many answers of its key are unread: it ends something and has a short
    /// answer, or its handler checks that itself.
    fn may_always_begin(&self, _head: Head<'_>) -> bool {
        false
    }

    /// Takes a request that is not for a route but for a sandbox, and has its own credentials. `port` is the port of a sandbox whose host
    /// name the request is for; such requests are offered to every facade.
    fn direct(&self, _head: Head<'_>, _port: Option<&PortHost>) -> Option<Answer> {
        None
    }
}

/// Two facades that claim the same requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the facades {first} and {second} both claim {what}")]
pub struct FacadeConflict {
    first: &'static str,
    second: &'static str,
    what: String,
}

/// Returns the index of the facade that a request belongs to.
pub(crate) fn owner_of(all: &[Claims], head: Head<'_>) -> usize {
    let by_header = |claims: &Claims| claims.headers.iter().any(|name| head.headers.contains_key(*name));
    let by_path = |claims: &Claims| claims.prefixes.iter().any(|prefix| head.path.starts_with(prefix));
    let owner = all.iter().position(by_header).or_else(|| all.iter().position(by_path));
    owner.unwrap_or(all.len() - 1)
}

/// Checks that no two facades claim the same requests.
pub(crate) fn check(all: &[&dyn Facade]) -> Result<(), FacadeConflict> {
    for (at, second) in all.iter().enumerate() {
        for first in &all[..at] {
            if let Some(what) = conflict(*first, *second) {
                return Err(FacadeConflict { first: first.name(), second: second.name(), what });
            }
        }
    }
    Ok(())
}

fn conflict(first: &dyn Facade, second: &dyn Facade) -> Option<String> {
    if first.name() == second.name() {
        return Some(format!("the name {}", first.name()));
    }
    let (one, other) = (first.claims(), second.claims());
    let shared = |one: &[&str], other: &[&'static str]| other.iter().find(|name| one.contains(name)).copied();
    let overlap =
        |prefix: &&&str| one.prefixes.iter().any(|own| own.starts_with(**prefix) || prefix.starts_with(own));
    shared(one.labels, other.labels)
        .map(|label| format!("the host name {label}"))
        .or_else(|| shared(one.headers, other.headers).map(|name| format!("the header {name}")))
        .or_else(|| other.prefixes.iter().find(overlap).map(|prefix| format!("the path {prefix}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(&'static str, Claims);

    impl Facade for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn claims(&self) -> Claims {
            self.1
        }

        fn form(&self, _head: Head<'_>) -> Form {
            Box::new(|_, _| Response::default())
        }

        fn router(&self) -> Router {
            Router::new()
        }
    }

    const ONE: Claims = Claims { labels: &["api"], headers: &["x-one"], prefixes: &["/one/", "/both"] };

    #[test]
    fn conflicts_are_found() {
        let none = Claims::default();
        let cases = [
            (
                "other",
                Claims { labels: &["apis"], headers: &["x-on"], prefixes: &["/other/", "/onetime"] },
                None,
            ),
            ("one", none, Some("the name one")),
            ("other", Claims { labels: &["b", "api"], ..none }, Some("the host name api")),
            ("other", Claims { headers: &["x-one"], ..none }, Some("the header x-one")),
            ("other", Claims { prefixes: &["/one/more"], ..none }, Some("the path /one/more")),
            ("other", Claims { prefixes: &["/on"], ..none }, Some("the path /on")),
        ];
        for (name, claims, expected) in cases {
            let found = check(&[&Named("one", ONE), &Named(name, claims)]);
            let expected = expected.map(|what| format!("the facades one and {name} both claim {what}"));
            assert_eq!(found.err().map(|conflict| conflict.to_string()), expected);
        }
    }

    #[test]
    fn headers_take_precedence_over_paths() {
        let two = Claims { headers: &["x-two"], prefixes: &["/two/"], ..Claims::default() };
        let all = [two, ONE, Claims::default()];
        let owner = |path: &str, header: Option<&'static str>| {
            let headers =
                header.map(|name| (http::HeaderName::from_static(name), http::HeaderValue::from_static("")));
            owner_of(&all, Head { method: &Method::GET, path, headers: &HeaderMap::from_iter(headers) })
        };
        assert_eq!((owner("/one/a", None), owner("/one/a", Some("x-two"))), (1, 0));
        assert_eq!((owner("/two/a", None), owner("/elsewhere", None), owner("/one", None)), (0, 2, 2));
    }
}
