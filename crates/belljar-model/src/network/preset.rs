//! Presets: the hosts that a package manager needs, each with its purpose and its risk.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::error::ModelError;
use crate::nearest::{choice, nearest};
use crate::network::name::DomainPattern;
use crate::network::rule::{Ports, Rule, Target};
use crate::network::tls::TlsMode;

/// Content of `presets.toml`. An invalid file would yield an empty table; a test ensures that it is valid.
static TABLE: LazyLock<PresetTable> =
    LazyLock::new(|| toml::from_str(include_str!("presets.toml")).unwrap_or_default());

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PresetTable {
    version: u32,
    preset: Vec<Preset>,
}

/// The hosts that a package manager needs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    name: String,
    purpose: String,
    #[serde(default)]
    tls: TlsMode,
    hosts: Vec<PresetHost>,
}

/// Host of a preset.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetHost {
    name: DomainPattern,
    #[serde(default = "https")]
    ports: Vec<u16>,
    purpose: String,
    risk: Option<String>,
}

fn https() -> Vec<u16> {
    vec![443]
}

/// Returns every preset, by name.
pub fn presets() -> &'static [Preset] {
    &TABLE.preset
}

/// Returns the version of the presets' hosts. It grows when a host is added, changed or removed.
pub fn presets_version() -> u32 {
    TABLE.version
}

impl Preset {
    /// Finds a preset.
    pub fn find(name: &str) -> Option<&'static Self> {
        presets().iter().find(|preset| preset.name == name)
    }

    /// Finds a preset.
    ///
    /// # Errors
    /// Fails if there is no such preset; the error suggests the nearest name.
    pub(super) fn parse(name: &str) -> Result<&'static Self, ModelError> {
        Self::find(name).ok_or_else(|| {
            let known: Vec<&str> = presets().iter().map(Self::name).collect();
            let meant = nearest(name, known.iter().copied())
                .or_else(|| presets().iter().find(|preset| preset.is_known_as(name)).map(Self::name));
            ModelError::not_allowed("network.presets", name, choice(meant, &known))
        })
    }

    /// Reports whether a word is another one for what the preset is for: a name in its purpose, such as `Python`, or its registry's, such
    /// as `pypi` and `pypi.org`.
    fn is_known_as(&self, word: &str) -> bool {
        let is_name = |part: &str| part.starts_with(|first: char| first.is_ascii_uppercase());
        let mut names =
            self.purpose.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|part| is_name(part));
        let registry = self.hosts.first().map(|host| host.name.to_string()).unwrap_or_default();
        let domain = registry.rsplit('.').nth(1).unwrap_or_default();
        names.any(|name| name.eq_ignore_ascii_case(word))
            || [domain, registry.as_str()].iter().any(|name| name.eq_ignore_ascii_case(word))
    }

    /// Returns the preset's name, such as `pip`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The preset's purpose.
    pub fn purpose(&self) -> &str {
        &self.purpose
    }

    /// Treatment of TLS to the hosts, unless a policy names another.
    pub fn tls(&self) -> TlsMode {
        self.tls
    }

    /// Returns the hosts whose TLS is terminated by default.
    pub(super) fn terminated_hosts(&self) -> impl Iterator<Item = &DomainPattern> {
        let is_terminated = |host: &&PresetHost| self.tls == TlsMode::Terminate && host.ports.contains(&443);
        self.hosts.iter().filter(is_terminated).map(PresetHost::name)
    }

    /// The hosts.
    pub fn hosts(&self) -> &[PresetHost] {
        &self.hosts
    }
}

impl PresetHost {
    /// The host's name, or a pattern for all names below one.
    pub fn name(&self) -> &DomainPattern {
        &self.name
    }

    /// The allowed ports.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// The host's purpose.
    pub fn purpose(&self) -> &str {
        &self.purpose
    }

    /// The host's risk, if there is one: data could be exfiltrated, or third parties control the content.
    pub fn risk(&self) -> Option<&str> {
        self.risk.as_deref()
    }

    /// The host as rules that allow it, one for each port.
    pub fn rules(&self) -> impl Iterator<Item = Rule> {
        self.ports.iter().map(|port| Rule::new(Target::Name(self.name.clone()), Ports::One(*port)))
    }
}
