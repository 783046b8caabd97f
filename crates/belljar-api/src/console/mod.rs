//! The console: pages for people, at `/console`. They are static files without a secret, which use the REST interface with a session.
//!
//! ```text
//!   /console            the page; its scripts and styles are files of this origin alone
//!   /console/terminal   a frame in which a library may add style elements
//!   /console/result     a frame of an opaque origin for HTML from sandboxes, in which nothing of it runs
//! ```

use std::io::Read as _;
use std::sync::OnceLock;

use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crate::facade::{Claims, Facade, Form, Head};
use crate::problem::Problem;

/// Built files with their names, compressed.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/console.rs"));

/// Directory of files with a hash of their content in their names.
const HASHED: &str = "assets/";

/// What the page may load, and from where.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    connect-src 'self'; font-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// As [`PAGE_POLICY`], in a frame of the page, with style elements.
const TERMINAL_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

/// HTML from a sandbox: no script but the frame's own, no connection, an opaque origin. `{hash}` is that of the script.
const RESULT_POLICY: &str = "sandbox allow-scripts; default-src 'none'; script-src 'sha256-{hash}'; \
    style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

/// A file, as it is served.
struct Asset {
    name: &'static str,
    packed: &'static [u8],
    etag: HeaderValue,
    kind: &'static str,
    policy: Option<HeaderValue>,
}

impl Asset {
    fn new(name: &'static str, packed: &'static [u8]) -> Self {
        let tag = hex(&Sha256::digest(packed)[..16]);
        let policy = match name {
            "index.html" => Some(PAGE_POLICY.to_owned()),
            "terminal.html" => Some(TERMINAL_POLICY.to_owned()),
            "result.html" => Some(RESULT_POLICY.replace("{hash}", &script_hash(&unpack(packed)))),
            _ => None,
        };
        Self {
            name,
            packed,
            etag: HeaderValue::try_from(format!("\"{tag}\"")).unwrap_or(HeaderValue::from_static("\"\"")),
            kind: kind_of(name),
            policy: policy.and_then(|policy| HeaderValue::try_from(policy).ok()),
        }
    }

    fn answer(&self, headers: &HeaderMap) -> Response {
        let caching =
            if self.name.starts_with(HASHED) { "public, max-age=31536000, immutable" } else { "no-cache" };
        let known = headers.get_all(header::IF_NONE_MATCH).iter().any(|known| {
            known.to_str().is_ok_and(|known| known.split(',').any(|tag| self.etag == tag.trim()))
        });
        let accepted = headers
            .get_all(header::ACCEPT_ENCODING)
            .iter()
            .any(|accepted| accepted.to_str().is_ok_and(|accepted| accepted.contains("gzip")));
        let mut response = match (known, accepted) {
            (true, _) => StatusCode::NOT_MODIFIED.into_response(),
            (false, true) => Bytes::from_static(self.packed).into_response(),
            (false, false) => unpack(self.packed).into_response(),
        };
        let set = response.headers_mut();
        if !known {
            set.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
            if accepted {
                set.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
        }
        set.insert(header::ETAG, self.etag.clone());
        set.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
        set.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        set.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        set.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        for (name, value) in [
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("x-dns-prefetch-control", "off"),
        ] {
            set.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        if let Some(policy) = &self.policy {
            set.insert(header::CONTENT_SECURITY_POLICY, policy.clone());
        }
        response
    }
}

/// Returns all files. Hashes are computed once.
fn assets() -> &'static [Asset] {
    static ASSETS: OnceLock<Vec<Asset>> = OnceLock::new();
    ASSETS.get_or_init(|| FILES.iter().map(|(name, packed)| Asset::new(name, packed)).collect())
}

fn find(name: &str) -> Option<&'static Asset> {
    assets().iter().find(|asset| asset.name == name)
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    // The files are part of the program.
    let _ = flate2::read::GzDecoder::new(packed).read_to_end(&mut whole);
    whole
}

/// Returns the SHA-256 of a page's only script, as policies spell it.
fn script_hash(page: &[u8]) -> String {
    let page = String::from_utf8_lossy(page);
    let script = page.split_once("<script>").and_then(|(_, rest)| rest.split_once("</script>"));
    BASE64.encode(Sha256::digest(script.map_or("", |(script, _)| script).as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn kind_of(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// The facade.
pub(crate) struct Console;

impl Facade for Console {
    fn name(&self) -> &'static str {
        "console"
    }

    fn claims(&self) -> Claims {
        Claims { prefixes: &["/console"], ..Claims::default() }
    }

    fn form(&self, _head: Head<'_>) -> Form {
        Box::new(|problem, request_id| problem.answer(request_id))
    }

    fn router(&self) -> Router {
        Router::new()
            .route("/console", get(async |headers: HeaderMap| answer("index.html", &headers)))
            .route("/console/", get(async |headers: HeaderMap| answer("index.html", &headers)))
            .route("/console/terminal", get(async |headers: HeaderMap| answer("terminal.html", &headers)))
            .route("/console/result", get(async |headers: HeaderMap| answer("result.html", &headers)))
            .route("/console/assets/{name}", get(asset))
    }

    /// The files are the same for everybody.
    fn is_open(&self, _head: Head<'_>) -> bool {
        true
    }
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    answer(&format!("{HASHED}{name}"), &headers)
}

fn answer(name: &str, headers: &HeaderMap) -> Response {
    find(name).map_or_else(|| Problem::no_endpoint().into_response(), |asset| asset.answer(headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of all that the first screen loads, compressed, in bytes.
    const MAX_FIRST_SCREEN: usize = 400_000;

    #[test]
    fn first_screen_is_small() {
        let page = find("index.html").unwrap();
        let text = String::from_utf8(unpack(page.packed)).unwrap();
        let loaded: Vec<_> =
            assets().iter().filter(|asset| asset.name == page.name || text.contains(asset.name)).collect();
        assert!(loaded.len() >= 3, "the page loads a script and styles");
        let size: usize = loaded.iter().map(|asset| asset.packed.len()).sum();
        assert!(size <= MAX_FIRST_SCREEN, "{size} bytes");
    }

    #[test]
    fn pages_have_no_inline_scripts_and_frames_have_one() {
        for asset in assets().iter().filter(|asset| asset.name.ends_with(".html")) {
            let text = String::from_utf8(unpack(asset.packed)).unwrap();
            assert_eq!(
                text.matches("<script>").count(),
                usize::from(asset.name == "result.html"),
                "{}",
                asset.name
            );
            assert!(!text.contains(" onload=") && !text.contains(" style="), "{}", asset.name);
            let policy = asset.policy.as_ref().unwrap().to_str().unwrap();
            assert!(!policy.contains("unsafe-eval"), "{policy}");
            let scripts = policy.split("; ").find(|part| part.starts_with("script-src")).unwrap();
            assert!(!scripts.contains("unsafe"), "{scripts}");
        }
    }
}
