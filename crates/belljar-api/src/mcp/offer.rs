//! What one connection is offered: the query of the endpoint.

use http::Uri;
use serde::Deserialize;

use crate::extract::parse_query;
use crate::problem::Problem;

/// Maximum length of a label, in bytes: it is a part of the name of a sandbox.
const MAX_LABEL_BYTES: usize = 16;

/// Built-in tools of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Profile {
    /// All of Belljar's own.
    #[default]
    Default,
    /// Those whose names and arguments Claude models know.
    Claude,
    /// Those of Codex.
    Codex,
    /// None, so only stored ones.
    None,
    /// The fixtures of the conformance suite, which have nothing to do with sandboxes.
    Conformance,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfferQuery {
    tools: Option<Profile>,
    #[serde(default)]
    tool: Vec<String>,
    sandbox: Option<String>,
    base_url: Option<String>,
}

/// What a connection is offered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Offer {
    /// The built-in tools.
    pub(super) profile: Profile,
    /// Names of stored tools; all if empty.
    pub(super) stored: Vec<String>,
    /// Label of the default sandbox. Connections with the same key and label share it.
    pub(super) label: Option<String>,
    /// Base URL of the server, for a client that is connected to its socket.
    pub(super) base_url: Option<String>,
}

impl Offer {
    /// Reports whether a model has a tool that lists its sandboxes.
    pub(super) fn lists_sandboxes(&self) -> bool {
        self.profile == Profile::Default
    }

    /// Parses the query of the endpoint.
    ///
    /// # Errors
    /// Fails, naming the parameter, if it is unknown or its value is not allowed.
    pub(super) fn parse(query: &str) -> Result<Self, Problem> {
        let OfferQuery { tools, tool, sandbox, base_url } = parse_query(query)?;
        // With stored tools alone, only those are meant.
        let default = if tool.is_empty() { Profile::Default } else { Profile::None };
        if let Some(label) = sandbox.as_deref() {
            let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            if !(1..=MAX_LABEL_BYTES).contains(&label.len()) || !label.bytes().all(allowed) {
                let reason = format!(
                    "{label:?} is not allowed; give 1 to {MAX_LABEL_BYTES} characters from a to z, 0 to 9 and -"
                );
                return Err(Problem::field("sandbox", reason));
            }
        }
        if let Some(url) = base_url.as_deref() {
            let uri = url.parse::<Uri>().ok();
            let is_http = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
            if uri.filter(|uri| is_http(uri) && uri.authority().is_some()).is_none() {
                return Err(Problem::field(
                    "base_url",
                    "it is not allowed; give a URL such as http://127.0.0.1:8787",
                ));
            }
        }
        let base_url = base_url.map(|url| url.trim_end_matches('/').to_owned());
        Ok(Self { profile: tools.unwrap_or(default), stored: tool, label: sandbox, base_url })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_parsed() {
        let offer = |query: &str| Offer::parse(query).map_err(|problem| problem.detail().to_owned());
        assert_eq!(offer(""), Ok(Offer::default()));
        let stored = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let expected = Offer { profile: Profile::None, stored: stored(&["a", "b"]), ..Offer::default() };
        assert_eq!(offer("tool=a&tool=b"), Ok(expected.clone()));
        assert_eq!(offer("tool=a&tools=claude&tool=b"), Ok(Offer { profile: Profile::Claude, ..expected }));
        let expected = Offer { label: Some("one-2".to_owned()), ..Offer::default() };
        assert_eq!(offer("sandbox=one-2"), Ok(expected));
        for (query, field) in [
            ("tools=all", "tools"),
            ("sandbox=", "sandbox"),
            ("sandbox=A", "sandbox"),
            ("sandbox=abcdefghijklmnopq", "sandbox"),
            ("base_url=ftp://x", "base_url"),
            ("base_url=x", "base_url"),
            ("toolz=a", "toolz"),
        ] {
            let refused = offer(query).unwrap_err();
            assert!(refused.starts_with(field), "{query}: {refused}");
        }
    }
}
