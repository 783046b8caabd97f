//! Headers that the gateway sets in requests, overwriting those that code in a sandbox has set.

use crate::error::ModelError;
use crate::network::name::DomainPattern;
use crate::network::secret::{SecretFile, SecretSource};

pub(super) const FIELD: &str = "network.headers";

/// A header that the gateway sets in requests to one host, or to all hosts below one, over HTTPS.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SetHeader {
    pub(super) host: DomainPattern,
    pub(super) header: String,
    pub(super) source: SecretSource,
}

impl SetHeader {
    /// The hosts whose requests get the header.
    pub fn host(&self) -> &DomainPattern {
        &self.host
    }

    /// The header, in lower case.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// The source of the value.
    pub fn source(&self) -> &SecretSource {
        &self.source
    }

    fn resolve(file: SecretFile) -> Result<Self, ModelError> {
        let what = file.host.clone().unwrap_or_default();
        let (host, header, source) = file.check(FIELD, &what)?;
        let host =
            DomainPattern::read(&host).map_err(|allowed| ModelError::not_allowed(FIELD, host, allowed))?;
        Ok(Self { host, header, source })
    }
}

/// Checks headers and returns the canonical form: sorted by host and name, without duplicates.
pub(super) fn resolve_all(files: Vec<SecretFile>) -> Result<Vec<SetHeader>, ModelError> {
    let mut headers = files.into_iter().map(SetHeader::resolve).collect::<Result<Vec<_>, _>>()?;
    headers.sort_by(|one, other| (&one.host, &one.header).cmp(&(&other.host, &other.header)));
    let is_twice = |pair: &&[SetHeader]| pair[0].host == pair[1].host && pair[0].header == pair[1].header;
    match headers.windows(2).find(is_twice) {
        Some([twice, ..]) => {
            let what = format!("{}:{}", twice.host, twice.header);
            Err(ModelError::not_allowed(FIELD, what, "each header of a host once"))
        }
        _ => Ok(headers),
    }
}

impl From<&SetHeader> for SecretFile {
    fn from(set: &SetHeader) -> Self {
        Self { host: Some(set.host.to_string()), header: Some(set.header.clone()), ..(&set.source).into() }
    }
}
