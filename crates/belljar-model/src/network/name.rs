//! Domain names in canonical form, for rules and for requests of programs.

use std::fmt;
use std::str::FromStr;

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

use crate::error::ModelError;
use crate::text::serde_as_text;

/// Maximum length of a text that is parsed as a name: a name of 253 characters fits in any script, and the work is bounded.
const MAX_INPUT_BYTES: usize = 1024;
/// Maximum length of a name, without the trailing dot. Source: RFC 1035, 2.3.4 (255 octets on the wire).
const MAX_NAME_BYTES: usize = 253;
/// Maximum length of a label. Source: RFC 1035, 2.3.4.
const MAX_LABEL_BYTES: usize = 63;
/// Characters that UTS 46 treats as a dot.
const DOTS: [char; 4] = ['.', '\u{3002}', '\u{ff0e}', '\u{ff61}'];

/// A domain name in canonical form: labels of `a-z`, `0-9` and `-`, lower case, without a dot at the end.
///
/// Other scripts are converted to their `xn--` form (UTS 46, non-transitional, STD3). Refused, each with a reason: IP
/// addresses in every spelling, `localhost` and names below it, empty and over-long labels, and characters that are invalid
/// in host names. When in doubt a name is refused: a name that two parsers read differently could bypass a policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainName(String);

impl DomainName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the names above this one, the nearest first: `b.c` and `c` for `a.b.c`.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(parent(&self.0), |name| parent(name))
    }

    /// Parses a name as servers and resolvers may use it, for a comparison with rules: a label that no rule can have, such as one with
    /// `_`, is replaced, so that the name stays below the same names. `None` if it is no name at all.
    pub fn lenient(text: &str) -> Option<Self> {
        let replaced = |is_invalid: fn(&str) -> bool| {
            let labels = text.strip_suffix('.').unwrap_or(text).split(DOTS);
            let labels: Vec<&str> = labels.map(|label| if is_invalid(label) { "x" } else { label }).collect();
            Self::read(&labels.join(".")).ok()
        };
        if text.is_empty() {
            return None;
        }
        let is_invalid = |label: &str| Self::read(&format!("{label}.x")).is_err();
        replaced(|_| false).or_else(|| replaced(is_invalid))
    }

    /// Parses a name; the error describes the expected form.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a name such as example.com".to_owned());
        }
        if text.len() > MAX_INPUT_BYTES {
            return Err(TOO_LONG.to_owned());
        }
        if let Some(reason) = url_reason(text) {
            return Err(reason);
        }
        let no_name = |char: &char| char.is_ascii() && !char.is_ascii_alphanumeric() && !"-.".contains(*char);
        if let Some(char) = text.chars().find(no_name) {
            return Err(without(char));
        }
        if text.split(DOTS).any(|label| label.starts_with('-') || label.ends_with('-')) {
            return Err("a name whose labels neither begin nor end with a hyphen".to_owned());
        }
        // Hyphens are allowed in the third and fourth place, as in browsers: existing names have them there.
        let ascii = Uts46::new()
            .to_ascii(text.as_bytes(), AsciiDenyList::STD3, Hyphens::CheckFirstLast, DnsLength::Ignore)
            .map_err(|_| "a valid name: this one breaks the rules for international names (UTS 46)")?;
        let name = ascii.strip_suffix('.').unwrap_or(&ascii);
        check(name)?;
        Ok(Self(name.to_owned()))
    }
}

/// Returns what to give in place of a URL: its host.
pub(super) fn url_reason(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("://")?;
    let host = rest.split(['/', '?', '#', ':']).next().filter(|host| DomainName::read(host).is_ok());
    let example = host.unwrap_or("example.com");
    Some(format!("a host name alone, without scheme and path, such as {example}"))
}

fn parent(name: &str) -> Option<&str> {
    name.split_once('.').map(|(_, parent)| parent)
}

/// Checks a name that UTS 46 has converted to ASCII.
fn check(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("a name such as example.com");
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(TOO_LONG);
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err("a name without empty labels: no dot at the beginning, no two dots in a row");
        }
        if label.len() > MAX_LABEL_BYTES {
            return Err("a name whose labels have at most 63 characters");
        }
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !label.bytes().all(plain) || label.starts_with('-') || label.ends_with('-') {
            return Err("a name of letters, digits and hyphens");
        }
    }
    if name.rsplit('.').next().is_some_and(is_number) {
        return Err(
            "a name; a rule for an address is written with prefix length and port, as 192.0.2.1/32:443",
        );
    }
    if name == "localhost" || name.ends_with(".localhost") {
        return Err("another name: localhost is the sandbox itself");
    }
    Ok(())
}

const TOO_LONG: &str = "a name of at most 253 characters";

/// Reports whether the last label makes the name an IP address to URL parsers and resolvers: decimal, octal, or hexadecimal.
/// Source: WHATWG URL, "ends in a number checker".
fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn without(char: char) -> String {
    match char {
        '_' => "a name without _: host names have letters, digits and hyphens".to_owned(),
        '*' => "a name, or *.example.com for all names below one: * is allowed as the whole first label only"
            .to_owned(),
        ':' | '[' | ']' => "a name without port and brackets; there is no IPv6 in a sandbox".to_owned(),
        '%' => "a name without percent-encoding".to_owned(),
        '@' => "a name without @ and what is before it".to_owned(),
        '/' | '\\' | '?' | '#' => "a host name alone, without scheme and path".to_owned(),
        _ if char.is_ascii_control() || char == ' ' => {
            "a name without spaces, line breaks and NULs".to_owned()
        }
        _ => format!("a name without {char}"),
    }
}

impl FromStr for DomainName {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::read(text).map_err(|allowed| ModelError::not_allowed("name", text, allowed))
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

serde_as_text!(DomainName);

/// Pattern of names: one name, or all names below one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DomainPattern {
    /// This name alone: `example.com`.
    Exact(DomainName),
    /// Every name below this one, and not the name itself: `*.example.com`.
    Below(DomainName),
}

impl DomainPattern {
    /// Reports whether the pattern matches a name.
    pub fn matches(&self, name: &DomainName) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Below(suffix) => name.parents().any(|parent| parent == suffix.as_str()),
        }
    }

    /// Reports whether the pattern matches every name that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exact(name)) => self.matches(name),
            (Self::Below(suffix), Self::Below(below)) => suffix == below || self.matches(below),
            (Self::Exact(_), Self::Below(_)) => false,
        }
    }

    /// Parses a pattern; the error describes the expected form.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Err(
                "names, or *.example.com for all below one; only mode open reaches every name".to_owned()
            );
        }
        match text.strip_prefix("*.") {
            Some(suffix) => DomainName::read(suffix).map(Self::Below),
            None => DomainName::read(text).map(Self::Exact),
        }
    }
}

impl FromStr for DomainPattern {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::read(text).map_err(|allowed| ModelError::not_allowed("name", text, allowed))
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Below(suffix) => write!(f, "*.{suffix}"),
        }
    }
}

serde_as_text!(DomainPattern);
