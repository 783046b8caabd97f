//! The network policy: checked, and in one canonical form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::ModelError;
use crate::network::file::NetworkFile;
use crate::network::mode::NetworkMode;
use crate::network::name::DomainName;
use crate::network::request::RequestRule;
use crate::network::rule::Rule;
use crate::network::secret::{Secret, SecretFile, SecretSource};

/// The network policy of a sandbox. Made by [`NetworkFile::resolve`]; the default reaches nothing.
///
/// Always valid, and canonical: names and ports are in one form and lists are sorted, each meaning once, so policies that
/// say the same are equal and have the same bytes. Serde stores it whole, the values of secrets included, and checks it
/// again when it is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "NetworkFile", into = "NetworkFile")]
pub struct NetworkPolicy {
    pub(super) mode: NetworkMode,
    pub(super) presets: Vec<&'static str>,
    pub(super) allow: Vec<Rule>,
    pub(super) deny: Vec<Rule>,
    pub(super) requests: BTreeMap<DomainName, Vec<RequestRule>>,
    pub(super) secrets: BTreeMap<String, Secret>,
}

impl NetworkPolicy {
    /// The part of the network that is reached.
    pub fn mode(&self) -> NetworkMode {
        self.mode
    }

    /// The presets' names, sorted.
    pub fn presets(&self) -> &[&'static str] {
        &self.presets
    }

    /// The rules that allow, beside the presets, sorted.
    pub fn allow(&self) -> &[Rule] {
        &self.allow
    }

    /// The rules that deny, sorted. They beat all that allows.
    pub fn deny(&self) -> &[Rule] {
        &self.deny
    }

    /// The requests that hosts may get, of those that have such rules.
    pub fn requests(&self) -> &BTreeMap<DomainName, Vec<RequestRule>> {
        &self.requests
    }

    /// Hosts whose requests the gateway reads, also within TLS: those with secrets or rules for requests.
    pub fn read_hosts(&self) -> BTreeSet<&DomainName> {
        self.secrets.values().map(Secret::host).chain(self.requests.keys()).collect()
    }

    /// Secrets that the gateway puts into requests, by name.
    pub fn secrets(&self) -> &BTreeMap<String, Secret> {
        &self.secrets
    }

    /// The mode's name: `disabled`, `whitelist` or `open`.
    pub fn as_str(&self) -> &'static str {
        self.mode.as_str()
    }

    /// Refuses a policy whose secrets are still to be read: variables and files are read by whoever wrote it, and a gateway
    /// needs the values.
    ///
    /// # Errors
    ///
    /// When a secret has another source than its value.
    pub fn check_available(&self) -> Result<(), ModelError> {
        let is_read = |secret: &Secret| matches!(secret.source(), SecretSource::Value(_));
        match self.secrets.iter().find(|(_, secret)| !is_read(secret)) {
            Some((name, secret)) => Err(ModelError::not_allowed(
                "network.secrets",
                name,
                format!(
                    "its value here; what {} names is read by the command line alone",
                    secret.source().kind()
                ),
            )),
            None => Ok(()),
        }
    }

    /// Returns the policy for everybody to see: of secrets the names, hosts and headers.
    pub fn without_values(&self) -> NetworkFile {
        let mut file = NetworkFile::from(self);
        file.secrets.iter_mut().flat_map(BTreeMap::values_mut).for_each(SecretFile::remove_source);
        file
    }

    /// Forgets the secrets, which are of no more use.
    pub fn forget_secrets(&mut self) {
        self.secrets.clear();
    }

    /// Returns the policy as canonical JSON, for digests and logs: the same policy gives the same bytes.
    ///
    /// Of a secret's source only the kind is there (its key, with an empty text): a digest is published, and a weak value
    /// could be found from it by trying.
    pub fn canonical_json(&self) -> String {
        let mut file = NetworkFile::from(self);
        file.secrets.iter_mut().flat_map(BTreeMap::values_mut).for_each(|secret| secret.redact());
        // Texts, lists and maps with text keys: there is nothing in it that JSON cannot hold.
        serde_json::to_string(&file).unwrap_or_default()
    }
}

impl fmt::Display for NetworkPolicy {
    /// Writes the mode's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl TryFrom<NetworkFile> for NetworkPolicy {
    type Error = ModelError;

    fn try_from(file: NetworkFile) -> Result<Self, ModelError> {
        file.resolve()
    }
}
