//! Names of images, as Docker's command line reads them.

use std::fmt;
use std::str::FromStr;

/// Registry of names without one.
const DEFAULT_REGISTRY: &str = "docker.io";

/// Host that serves it.
const DEFAULT_REGISTRY_HOST: &str = "registry-1.docker.io";

/// Maximum length of a repository's name, as of the distribution specification.
const MAX_REPOSITORY: usize = 255;

/// Numbers of digits of the ids that Docker's command line shows.
const SHOWN_IDS: [usize; 2] = [12, 64];

/// Maximum length of a tag.
const MAX_TAG: usize = 128;

/// An image in a registry: `[registry/]repository[:tag][@sha256:digest]`. A name without a tag and a digest has the tag `latest`;
/// with a digest, the tag is not looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageReference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// A name that is none of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not the name of an image: {reason}; give one such as python:3.12-slim, or ghcr.io/org/app@sha256:…"
)]
pub struct ImageReferenceError {
    text: String,
    reason: &'static str,
}

impl ImageReference {
    /// Returns the registry as it is named: a host, with a port if it has one.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the host that serves the registry, with a port if it has one.
    #[must_use]
    pub fn host(&self) -> &str {
        Self::host_of(&self.registry)
    }

    /// Returns the host that serves a registry, with a port if it has one.
    #[must_use]
    pub fn host_of(registry: &str) -> &str {
        if registry == DEFAULT_REGISTRY { DEFAULT_REGISTRY_HOST } else { registry }
    }

    /// Returns the repository in the registry, such as `library/python`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns what names the manifest: the digest if there is one, else the tag.
    #[must_use]
    pub fn version(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }

    /// Reports whether a text is a SHA-256 digest in the form of the image specification.
    #[must_use]
    pub fn is_digest(text: &str) -> bool {
        let digits = text.strip_prefix("sha256:").unwrap_or_default();
        digits.len() == 64 && digits.bytes().all(|one| matches!(one, b'0'..=b'9' | b'a'..=b'f'))
    }

    /// Reports whether a text is a host name or an IPv4 address, with an optional port. Addresses of IPv6 are not names of registries.
    #[must_use]
    pub fn is_host(text: &str) -> bool {
        is_host(text)
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(formatter, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(formatter, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for ImageReference {
    type Err = ImageReferenceError;

    fn from_str(text: &str) -> Result<Self, ImageReferenceError> {
        let refuse = |reason| ImageReferenceError { text: text.chars().take(300).collect(), reason };
        let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|one| one.is_ascii_hexdigit());
        if text.strip_prefix("sha256:").is_some_and(is_hex)
            || (SHOWN_IDS.contains(&text.len()) && is_hex(text))
        {
            return Err(refuse(
                "it is an image's id, and ids are not looked up; docker image ls shows names, and docker tag gives one",
            ));
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        if digest.is_some_and(|digest| !Self::is_digest(digest)) {
            return Err(refuse("its digest is not sha256: with 64 hexadecimal digits"));
        }
        // A colon after the last slash is that of a tag; one before it is that of a port.
        let (name, tag) = match name.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (name, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(refuse(
                "a tag has 1 to 128 letters, digits, _, . and -, and begins with a letter, a digit or _",
            ));
        }
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
                (first, rest.to_owned())
            }
            Some(_) => (DEFAULT_REGISTRY, name.to_owned()),
            None => (DEFAULT_REGISTRY, format!("library/{name}")),
        };
        let repository = match repository {
            short if registry == DEFAULT_REGISTRY && !short.contains('/') => format!("library/{short}"),
            whole => whole,
        };
        if !is_host(registry) {
            return Err(refuse("its registry is not a host name with an optional port"));
        }
        if !is_repository(&repository) {
            return Err(refuse(
                "a repository has parts of a-z, 0-9 and single separators (. _ __ -), with / between them",
            ));
        }
        let tag = tag.map(str::to_owned).or_else(|| digest.is_none().then(|| "latest".to_owned()));
        Ok(Self {
            registry: registry.to_ascii_lowercase(),
            repository,
            tag,
            digest: digest.map(str::to_owned),
        })
    }
}

/// A registry that the operator allows: a host with an optional port, `http://` and such a host for one without TLS, or `*` for all
/// registries with a public address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRegistry {
    /// `None` for all.
    host: Option<String>,
    is_plain: bool,
}

impl ImageRegistry {
    /// Returns the host, with its port if it has one; `None` for all registries.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Reports whether it has no TLS.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.is_plain
    }
}

impl FromStr for ImageRegistry {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "*" {
            return Ok(Self { host: None, is_plain: false });
        }
        let (host, is_plain) = match text.strip_prefix("http://") {
            Some(host) => (host, true),
            None => (text, false),
        };
        if !ImageReference::is_host(host) {
            return Err(
                "a registry such as ghcr.io or registry.corp.example:5000, http:// and one without TLS, or *",
            );
        }
        Ok(Self { host: Some(host.to_ascii_lowercase()), is_plain })
    }
}

impl fmt::Display for ImageRegistry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_plain { "http://" } else { "" };
        write!(formatter, "{scheme}{}", self.host.as_deref().unwrap_or("*"))
    }
}

fn is_tag(text: &str) -> bool {
    let is_first = |one: u8| one.is_ascii_alphanumeric() || one == b'_';
    text.len() <= MAX_TAG
        && text.bytes().next().is_some_and(is_first)
        && text.bytes().all(|one| is_first(one) || matches!(one, b'.' | b'-'))
}

fn is_repository(text: &str) -> bool {
    let is_part = |part: &str| {
        let plain = |one: u8| one.is_ascii_lowercase() || one.is_ascii_digit();
        let (Some(first), Some(last)) = (part.bytes().next(), part.bytes().last()) else { return false };
        let has_doubles =
            ["..", ".-", "._", "-.", "-_", "_.", "_-", "___"].iter().any(|two| part.contains(two));
        plain(first)
            && plain(last)
            && !has_doubles
            && part.bytes().all(|one| plain(one) || matches!(one, b'.' | b'_' | b'-'))
    };
    text.len() <= MAX_REPOSITORY && text.split('/').all(is_part)
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let is_label = |label: &str| {
        let plain = |one: u8| one.is_ascii_alphanumeric() || one == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.len() <= 253
        && host.split('.').all(is_label)
        && port.is_none_or(|port| {
            port.bytes().all(|one| one.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_dockers_command_line_reads_them() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        for (text, shown, version) in [
            ("python", "docker.io/library/python:latest", "latest"),
            ("python:3.12-slim", "docker.io/library/python:3.12-slim", "3.12-slim"),
            ("org/app", "docker.io/org/app:latest", "latest"),
            ("docker.io/22c10fde373b", "docker.io/library/22c10fde373b:latest", "latest"),
            ("cafe", "docker.io/library/cafe:latest", "latest"),
            ("docker.io/python:3", "docker.io/library/python:3", "3"),
            ("GHCR.io/org/app_one/two:V1.0_a", "ghcr.io/org/app_one/two:V1.0_a", "V1.0_a"),
            ("localhost/app", "localhost/app:latest", "latest"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest", "latest"),
            ("127.0.0.1:5000/a:t", "127.0.0.1:5000/a:t", "t"),
            (&format!("quay.io/a/b@{digest}"), &format!("quay.io/a/b@{digest}"), digest.as_str()),
            (&format!("a:t@{digest}"), &format!("docker.io/library/a:t@{digest}"), digest.as_str()),
        ] {
            let read: ImageReference = text.parse().unwrap();
            assert_eq!((read.to_string().as_str(), read.version()), (shown, version), "{text}");
            assert_eq!(read.to_string().parse::<ImageReference>().unwrap(), read);
        }
        let hub: ImageReference = "python".parse().unwrap();
        assert_eq!((hub.registry(), hub.host()), ("docker.io", "registry-1.docker.io"));
    }

    #[test]
    fn registries_are_hosts() {
        for (text, host, is_plain) in [
            ("*", None, false),
            ("ghcr.io", Some("ghcr.io"), false),
            ("Registry.corp.example:5000", Some("registry.corp.example:5000"), false),
            ("http://127.0.0.1:5000", Some("127.0.0.1:5000"), true),
        ] {
            let read: ImageRegistry = text.parse().unwrap();
            assert_eq!(
                (read.host(), read.is_plain(), read.to_string()),
                (host, is_plain, text.to_lowercase())
            );
        }
        for text in ["", "https://a.example", "a.example/b", "*.example", "a b", "http://*", "http://"] {
            assert!(text.parse::<ImageRegistry>().is_err(), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let long = "a".repeat(256);
        for text in [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "A",
            "a:",
            "a:-t",
            "a:t:u",
            "a b",
            "a\n",
            "a@sha256:00",
            "a@md5:00",
            "a@",
            "-a",
            "a-",
            "a..b",
            "a.-b",
            "ex.ample:0/a",
            "ex.ample:x/a",
            "ex.ample:99999/a",
            "http://ex.ample/a",
            "[::1]:5000/a",
            "user@ex.ample/a",
            "ex..ample/a",
            "-ex.ample/a",
            "../a",
            "a/../b",
            "ex.ample/",
            "é",
            "ex.ample/a?b",
            "ex.ample/a%2e",
            "sha256:4ad798f312c7",
            "22c10fde373b",
            &format!("sha256:{}", "ab".repeat(32)),
            &"ab".repeat(32),
            &long,
        ] {
            let error = text.parse::<ImageReference>().unwrap_err().to_string();
            assert!(
                error.contains("is not the name of an image") && error.contains("python:3.12-slim"),
                "{error}"
            );
        }
    }
}
