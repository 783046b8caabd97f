//! The network policy: checked, and in one canonical form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::ModelError;
use crate::network::file::NetworkFile;
use crate::network::header::{self, SetHeader};
use crate::network::mode::NetworkMode;
use crate::network::name::{DomainName, DomainPattern};
use crate::network::preset::Preset;
use crate::network::request::RequestRule;
use crate::network::rule::Rule;
use crate::network::scope::SecretUse;
use crate::network::secret::{self, Secret, SecretSource};
use crate::network::stored;
use crate::network::tls::TlsMode;

/// Network policy of a sandbox. Created by [`NetworkFile::resolve`]; the default reaches nothing.
///
/// Always valid and canonical: names and ports have one form, and lists are sorted without duplicates, so equivalent policies
/// are equal and have the same bytes. Serde serializes it in full, including the values of secrets, and validates it on
/// deserialization.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "NetworkFile", into = "NetworkFile")]
pub struct NetworkPolicy {
    pub(super) mode: NetworkMode,
    pub(super) presets: Vec<&'static str>,
    pub(super) allow: Vec<Rule>,
    pub(super) deny: Vec<Rule>,
    pub(super) requests: BTreeMap<DomainName, Vec<RequestRule>>,
    pub(super) secrets: BTreeMap<String, Secret>,
    pub(super) headers: Vec<SetHeader>,
    pub(super) tls: BTreeMap<DomainPattern, TlsMode>,
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

    /// Returns this policy with one more preset, which opens it to the preset's hosts. Mode `open` reaches them already.
    ///
    /// An unknown preset adds nothing.
    #[must_use]
    pub fn with_preset(&self, name: &str) -> Self {
        let mut policy = self.clone();
        if let Some(preset) = Preset::find(name)
            && policy.mode != NetworkMode::Open
        {
            policy.mode = NetworkMode::Whitelist;
            policy.presets.push(preset.name());
            policy.presets.sort_unstable();
            policy.presets.dedup();
        }
        policy
    }

    /// The rules that allow, beside the presets, sorted.
    pub fn allow(&self) -> &[Rule] {
        &self.allow
    }

    /// The rules that deny, sorted. They take precedence over everything that allows.
    pub fn deny(&self) -> &[Rule] {
        &self.deny
    }

    /// Rules for requests, by host.
    pub fn requests(&self) -> &BTreeMap<DomainName, Vec<RequestRule>> {
        &self.requests
    }

    /// Headers that the gateway sets in requests, sorted by host and name.
    pub fn headers(&self) -> &[SetHeader] {
        &self.headers
    }

    /// Treatment of TLS that the policy names, by host.
    pub fn tls(&self) -> &BTreeMap<DomainPattern, TlsMode> {
        &self.tls
    }

    /// Returns the hosts whose TLS the policy itself has terminated.
    pub fn terminated_hosts(&self) -> impl Iterator<Item = &DomainPattern> {
        self.tls.iter().filter(|(_, mode)| **mode == TlsMode::Terminate).map(|(host, _)| host)
    }

    /// Returns the hosts whose requests the gateway has to read, also within TLS: those with secrets, headers, rules for requests or
    /// terminated TLS.
    pub fn required_hosts(&self) -> BTreeSet<DomainPattern> {
        let hosts = self.secrets.values().map(Secret::host).chain(self.requests.keys());
        let exact = hosts.cloned().map(DomainPattern::Exact);
        let patterns = self.headers.iter().map(SetHeader::host).chain(self.terminated_hosts());
        exact.chain(patterns.cloned()).collect()
    }

    /// Returns the hosts whose requests the gateway reads where it can: the [required](Self::required_hosts) ones, and those of presets
    /// with terminated TLS, unless the policy passes it on.
    pub fn read_hosts(&self) -> BTreeSet<DomainPattern> {
        let passed = |host: &DomainPattern| {
            self.tls.iter().any(|(pattern, mode)| *mode == TlsMode::Pass && pattern.covers(host))
        };
        let presets = self.presets.iter().filter_map(|name| Preset::find(name));
        let hosts = presets.flat_map(Preset::terminated_hosts).filter(|host| !passed(host)).cloned();
        self.required_hosts().into_iter().chain(hosts).collect()
    }

    /// Returns the names of the stored secrets that values of this policy refer to.
    pub fn stored_secrets(&self) -> BTreeSet<String> {
        self.sources().flat_map(SecretSource::stored).map(str::to_owned).collect()
    }

    /// Returns the uses of stored secrets.
    pub fn secret_uses(&self) -> Vec<SecretUse> {
        let secrets = self
            .secrets
            .values()
            .map(|secret| (DomainPattern::Exact(secret.host().clone()), secret.header(), secret.source()));
        let headers = self.headers.iter().map(|set| (set.host.clone(), set.header.as_str(), &set.source));
        let uses = secrets.chain(headers).flat_map(|(host, header, source)| {
            let names: Vec<_> = source.stored().map(str::to_owned).collect();
            names.into_iter().map(move |name| SecretUse {
                name,
                host: host.clone(),
                header: header.to_owned(),
            })
        });
        uses.collect()
    }

    /// Returns the policy with these hosts denied, and without what it has for them: secrets, headers and rules for requests.
    #[must_use]
    pub fn without_hosts(&self, hosts: &BTreeSet<DomainPattern>) -> Self {
        let is_denied = |name: &DomainName| hosts.iter().any(|host| host.matches(name));
        let mut policy = self.clone();
        policy.secrets.retain(|_, secret| !is_denied(secret.host()));
        policy.headers.retain(|set| !hosts.iter().any(|host| host.covers(&set.host)));
        policy.requests.retain(|host, _| !is_denied(host));
        policy.deny.extend(hosts.iter().cloned().map(Rule::every_port));
        policy.deny.sort_by_cached_key(ToString::to_string);
        policy.deny.dedup();
        policy
    }

    /// Returns the policy with references replaced by the values of stored secrets. Entries with missing secrets are left out.
    #[must_use]
    pub fn fill(&self, secrets: &BTreeMap<String, String>) -> Self {
        let secret = |(name, secret): (&String, &Secret)| Some((name.clone(), secret.fill(secrets)?));
        let header = |set: &SetHeader| Some(SetHeader { source: set.source.fill(secrets)?, ..set.clone() });
        Self {
            secrets: self.secrets.iter().filter_map(secret).collect(),
            headers: self.headers.iter().filter_map(header).collect(),
            ..self.clone()
        }
    }

    /// Refuses a policy that refers to stored secrets.
    ///
    /// # Errors
    ///
    /// Fails if a value refers to one.
    pub fn check_filled(&self) -> Result<(), ModelError> {
        match self.stored_secrets().into_iter().next() {
            Some(name) => {
                let allowed =
                    "the value itself, from a variable or a file: secrets are stored on servers only";
                Err(ModelError::not_allowed(secret::FIELD, stored::reference(&name), allowed))
            }
            None => Ok(()),
        }
    }

    fn sources(&self) -> impl Iterator<Item = &SecretSource> {
        self.secrets.values().map(Secret::source).chain(self.headers.iter().map(SetHeader::source))
    }

    /// Secrets that the gateway puts into requests, by name.
    pub fn secrets(&self) -> &BTreeMap<String, Secret> {
        &self.secrets
    }

    /// Returns the mode's name: `disabled`, `whitelist` or `open`.
    pub fn as_str(&self) -> &'static str {
        self.mode.as_str()
    }

    /// Refuses a policy with unread secrets: its author's program must read variables and files, as a gateway needs the values.
    ///
    /// # Errors
    ///
    /// Fails if a secret has another source than its value.
    pub fn check_available(&self) -> Result<(), ModelError> {
        let unread = |source: &SecretSource| !matches!(source, SecretSource::Value(_));
        let secret = self.secrets.iter().find(|(_, secret)| unread(secret.source()));
        let header = self.headers.iter().find(|set| unread(&set.source));
        let refuse = |field, what: &str, source: &SecretSource| {
            let allowed =
                format!("its value here; what {} names is read by the command line alone", source.kind());
            Err(ModelError::not_allowed(field, what, allowed))
        };
        match (secret, header) {
            (Some((name, secret)), _) => refuse(secret::FIELD, name, secret.source()),
            (None, Some(set)) => refuse(header::FIELD, &set.host.to_string(), &set.source),
            (None, None) => Ok(()),
        }
    }

    /// Returns the policy without values: of secrets and headers only names, hosts and references to stored secrets.
    pub fn without_values(&self) -> NetworkFile {
        let mut file = NetworkFile::from(self);
        file.sources_mut().for_each(|(_, secret)| secret.remove_source());
        file
    }

    /// Removes secrets and headers.
    pub fn remove_secrets(&mut self) {
        self.secrets.clear();
        self.headers.clear();
    }

    /// Returns the policy as canonical JSON, for digests and logs: the same policy gives the same bytes.
    ///
    /// Of a secret's source only the kind is included (its key, with an empty text): digests are published, and a weak value could be
    /// guessed from one.
    pub fn canonical_json(&self) -> String {
        let mut file = NetworkFile::from(self);
        file.sources_mut().for_each(|(_, secret)| secret.redact());
        // Cannot fail: texts, lists and maps with text keys only.
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
