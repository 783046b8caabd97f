//! Matcher: a policy with indexed rules, for decisions in a time that does not grow with their number.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::network::cidr::Cidr;
use crate::network::decision::{DecidedBy, Decision};
use crate::network::mode::NetworkMode;
use crate::network::name::{DomainName, DomainPattern};
use crate::network::policy::NetworkPolicy;
use crate::network::preset::Preset;
use crate::network::ranges::{always_denied, always_denied_name};
use crate::network::request::{self, RequestRule};
use crate::network::rule::{Ports, Rule, Target};

/// What the reason of a denied connection asks for, before the rule that would allow it. It is for code, and whoever runs it.
pub const ASK_TO_ALLOW: &str = "ask whoever created the sandbox to allow ";

/// Maximum number of rules named in a reason.
const MAX_NAMED_RULES: usize = 3;

/// Decides about connections by a policy and the operator's exceptions.
///
/// A deny rule takes precedence over everything. An address in an always denied range is reached only if an exception of the
/// operator covers it and a rule of the policy names it or the name that it was resolved from.
#[derive(Debug, Clone)]
pub struct Matcher {
    mode: NetworkMode,
    allow: Index,
    deny: Index,
    exceptions: Vec<Cidr>,
    requests: BTreeMap<DomainName, Vec<RequestRule>>,
    /// Hosts whose TLS is terminated.
    terminated: Vec<DomainPattern>,
    /// Whether a name is denied.
    denies_names: bool,
    /// Short description of the allowed hosts, for reasons.
    summary: String,
}

impl Matcher {
    /// Indexes a policy. `exceptions` are the operator's exceptions from the always denied ranges.
    pub fn new(policy: &NetworkPolicy, exceptions: &[Cidr]) -> Self {
        let (mut allow, mut deny) = (Index::default(), Index::default());
        for preset in policy.presets().iter().filter_map(|name| Preset::find(name)) {
            for rule in preset.hosts().iter().flat_map(|host| host.rules()) {
                allow.insert(&rule, DecidedBy::Preset { preset: preset.name(), host: rule.clone() });
            }
        }
        policy.allow().iter().for_each(|rule| allow.insert(rule, DecidedBy::Allow(rule.clone())));
        policy.deny().iter().for_each(|rule| deny.insert(rule, DecidedBy::Deny(rule.clone())));
        Self {
            mode: policy.mode(),
            allow,
            deny,
            exceptions: exceptions.to_vec(),
            requests: policy.requests().clone(),
            terminated: policy.terminated_hosts().cloned().collect(),
            denies_names: policy.deny().iter().any(|rule| matches!(rule.target(), Target::Name(_))),
            summary: summary(policy),
        }
    }

    /// Decides about a connection to a name, before the name is resolved.
    pub fn name(&self, name: &DomainName, port: u16) -> Decision {
        self.decision(name.as_str(), port, self.by_name(name, port))
    }

    /// Decides about a request to a host whose connection is allowed; `None` if the host has no rules for requests.
    pub fn request<'a>(
        &self,
        host: &DomainName,
        method: &str,
        path: &str,
        headers: impl Iterator<Item = &'a str>,
    ) -> Option<Decision> {
        let reason = request::check(self.requests.get(host)?, method, path, headers).err()?;
        let what = format!(
            "{method} {path} is not allowed at {host}: {reason}; ask whoever created the sandbox to allow it"
        );
        Some(Decision::deny_request(what))
    }

    /// Reports whether a host may get only requests that the gateway has read, as it has rules for them or its TLS is terminated.
    pub fn must_read(&self, host: &DomainName) -> bool {
        self.requests.contains_key(host) || self.terminated.iter().any(|pattern| pattern.matches(host))
    }

    /// Reports whether connections to addresses have to be read for the names of hosts in them.
    pub fn must_read_names(&self) -> bool {
        self.denies_names || !self.requests.is_empty() || !self.terminated.is_empty()
    }

    /// Decides about a connection to an address within which a program asks for a host by name, in TLS or in a request; `None` if
    /// nothing is against it. The connection itself has been allowed.
    pub fn named(&self, name: &DomainName, port: u16) -> Option<Decision> {
        if let Some(by) = self.refused_name(name, port) {
            return Some(self.decision(name.as_str(), port, by));
        }
        self.must_read(name).then(|| {
            Decision::deny_other_name(format!(
                "{name}:{port} is reached by its name only, as the network policy has requests to it read"
            ))
        })
    }

    /// Decides about a connection to an address that names no host, where names have to be read; `None` if nothing is against it. The
    /// connection itself has been allowed. In mode open, whose addresses nobody has named, it may be for any host.
    pub fn unnamed(&self, address: Ipv4Addr, port: u16) -> Option<Decision> {
        (self.address(address, port).by == DecidedBy::Open).then(|| {
            Decision::deny_other_name(format!(
                "the connection to {address}:{port} names no host, and the network policy has names checked; use the host's \
                 name, or allow the address (--allow {address}/32:{port})"
            ))
        })
    }

    /// Decides about a connection to a name that is, in DNS, another name (CNAME) for `alias`; `None` if nothing is against it.
    pub fn alias(&self, name: &DomainName, alias: &DomainName, port: u16) -> Option<Decision> {
        let by = self.refused_name(alias, port)?;
        let reason = format!("{name}:{port} is denied, as it is another name for {alias} ({by})");
        Some(Decision { allowed: false, by, reason })
    }

    /// Decides about a connection to an address that a program used without a name.
    pub fn address(&self, address: Ipv4Addr, port: u16) -> Decision {
        let by = match self.mode {
            NetworkMode::Disabled => DecidedBy::Disabled,
            _ => self.refused_address(address, port).unwrap_or_else(|| {
                match self.allow.address(address, port) {
                    Some(by) => by.clone(),
                    None if self.mode == NetworkMode::Open && always_denied(address).is_none() => {
                        DecidedBy::Open
                    }
                    None => DecidedBy::NoRule,
                }
            }),
        };
        // What the policy allows by a rule needs the operator's exception alone.
        let is_allowed = self.allow.address(address, port).is_some();
        let wanted = (!is_allowed).then(|| format!("{address}/32:{port}"));
        self.decision_about(&address.to_string(), port, by, wanted)
    }

    /// Decides about a connection to an address that the gateway has resolved a name to: both have to pass.
    pub fn resolved(&self, name: &DomainName, address: Ipv4Addr, port: u16) -> Decision {
        let by = self.by_name(name, port);
        if !allows(&by) {
            return self.decision(name.as_str(), port, by);
        }
        // In mode open any name may resolve to the address, so an exception alone does not allow it: a rule has to name it.
        let excepted_for_others = by == DecidedBy::Open
            && always_denied(address).is_some()
            && self.allow.address(address, port).is_none();
        let (refused, wanted) = match self.refused_address(address, port) {
            Some(refused) => {
                let wanted = (by == DecidedBy::Open).then(|| format!("{name}:{port}"));
                (refused, wanted)
            }
            None if excepted_for_others => (DecidedBy::NoRule, Some(format!("{name}:{port}"))),
            None => return self.decision(name.as_str(), port, by),
        };
        self.decision_about(&address.to_string(), port, refused, wanted)
    }

    /// Reports whether some port of a name may be allowed, so that the name gets an address. It does not replace the decision.
    pub fn may_resolve(&self, name: &DomainName) -> bool {
        let every_port_denied = self.deny.targets(name).any(|ports| ports.contains_key(&Ports::Any));
        let allowed = match self.mode {
            NetworkMode::Disabled => false,
            NetworkMode::Whitelist => self.allow.targets(name).next().is_some(),
            NetworkMode::Open => true,
        };
        allowed && !every_port_denied && !always_denied_name(name)
    }

    /// Returns what the allow rules do not cover of `rule`: the rule, or the port of it. `None` if they cover every host and port.
    pub(super) fn beyond(&self, rule: &Rule) -> Option<String> {
        let of_target: Vec<&ByPort> = match rule.target() {
            Target::Name(DomainPattern::Exact(name)) => self.allow.targets(name).collect(),
            Target::Name(DomainPattern::Below(suffix)) => {
                let suffixes = std::iter::once(suffix.as_str()).chain(suffix.parents());
                suffixes.filter_map(|suffix| self.allow.below.get(suffix)).collect()
            }
            Target::Address(range) => self.allow.covering(*range).collect(),
        };
        let covers = |port: u16| of_target.iter().any(|by_port| at_port(by_port, port).is_some());
        let is_covered = match rule.ports() {
            Ports::One(port) => covers(port),
            Ports::Web => match (covers(80), covers(443)) {
                // Without a port, a rule is for both.
                (false, true) => return Some(format!("{rule}:80, though {rule}:443 is within")),
                (true, false) => return Some(format!("{rule}:443, though {rule}:80 is within")),
                (both, _) => both,
            },
            Ports::Any => of_target.iter().any(|by_port| by_port.contains_key(&Ports::Any)),
        };
        (!is_covered).then(|| rule.to_string())
    }

    /// Short description of the allowed hosts.
    pub(super) fn summary(&self) -> &str {
        &self.summary
    }

    fn by_name(&self, name: &DomainName, port: u16) -> DecidedBy {
        if self.mode == NetworkMode::Disabled {
            return DecidedBy::Disabled;
        }
        if let Some(refused) = self.refused_name(name, port) {
            return refused;
        }
        match self.mode {
            _ if self.requests.contains_key(name) && port != 443 && port != 80 => DecidedBy::Requests,
            mode => self.allow.name(name, port).cloned().unwrap_or(match mode {
                NetworkMode::Open => DecidedBy::Open,
                _ => DecidedBy::NoRule,
            }),
        }
    }

    /// Returns the rule that denies a name regardless of the allow rules.
    fn refused_name(&self, name: &DomainName, port: u16) -> Option<DecidedBy> {
        let metadata = || always_denied_name(name).then_some(DecidedBy::MetadataName);
        self.deny.name(name, port).cloned().or_else(metadata)
    }

    /// Returns the rule that denies an address regardless of the allow rules.
    fn refused_address(&self, address: Ipv4Addr, port: u16) -> Option<DecidedBy> {
        let excepted = || self.exceptions.iter().any(|range| range.contains(address));
        match self.deny.address(address, port) {
            Some(denied) => Some(denied.clone()),
            None => always_denied(address).filter(|_| !excepted()).map(DecidedBy::AlwaysDenied),
        }
    }

    fn decision(&self, host: &str, port: u16, by: DecidedBy) -> Decision {
        self.decision_about(host, port, by, Some(format!("{host}:{port}")))
    }

    /// Returns a decision with its reason. `rule` is the one that the policy lacks, if any.
    fn decision_about(&self, host: &str, port: u16, by: DecidedBy, rule: Option<String>) -> Decision {
        let allowed = allows(&by);
        let what = format!("{host}:{port}");
        let then = rule.as_ref().map(|rule| format!(", after which the policy has to allow {rule}"));
        let (rule, then) = (rule.unwrap_or_default(), then.unwrap_or_default());
        let reason = match &by {
            DecidedBy::Preset { .. } | DecidedBy::Allow(_) | DecidedBy::Open => {
                format!("{what} is allowed ({by})")
            }
            DecidedBy::Deny(rule) => format!(
                "{what} is denied by the rule {rule} of the network policy; ask whoever created the sandbox to remove it"
            ),
            DecidedBy::AlwaysDenied(range) => format!(
                "{what} is denied in every mode, as {range} is not public ({}, {}); only the operator's configuration can \
                 make an exception (sandboxes.network.exceptions of a server, network.exceptions of a policy file){then}",
                range.purpose(),
                range.source()
            ),
            DecidedBy::MetadataName => {
                format!("{what} is denied in every mode, as it is the metadata service of a cloud")
            }
            // The gateway decides these, with reasons of its own.
            DecidedBy::Requests => format!(
                "{what} is denied, as requests to {host} are restricted by rules, which apply on ports 443 and 80 only"
            ),
            DecidedBy::OwnAddress | DecidedBy::OtherName | DecidedBy::Secret => {
                format!("{what} is denied ({by})")
            }
            DecidedBy::Disabled => {
                format!(
                    "{what} cannot be reached: this sandbox has no network; ask whoever created it to allow {rule}"
                )
            }
            DecidedBy::NoRule => format!(
                "{what} is not allowed by the network policy, which allows {}; {ASK_TO_ALLOW}{rule}",
                self.summary
            ),
        };
        Decision { allowed, by, reason }
    }
}

fn allows(by: &DecidedBy) -> bool {
    matches!(by, DecidedBy::Preset { .. } | DecidedBy::Allow(_) | DecidedBy::Open)
}

/// Describes the hosts that a policy allows.
fn summary(policy: &NetworkPolicy) -> String {
    let mut parts: Vec<String> = Vec::new();
    if policy.mode() == NetworkMode::Open {
        parts.push("public hosts".to_owned());
    }
    if !policy.presets().is_empty() {
        let many = if policy.presets().len() == 1 { "" } else { "s" };
        parts.push(format!("the preset{many} {}", policy.presets().join(", ")));
    }
    parts.extend(policy.allow().iter().take(MAX_NAMED_RULES).map(ToString::to_string));
    match policy.allow().len().saturating_sub(MAX_NAMED_RULES) {
        0 if parts.is_empty() => "nothing".to_owned(),
        0 => parts.join(", "),
        more => format!("{} and {more} more", parts.join(", ")),
    }
}

type ByPort = BTreeMap<Ports, DecidedBy>;

/// Rules by their targets. A lookup takes as many steps as the name has labels, or the address has bits.
///
/// The maps are ordered: hashing would need random keys, and this crate has no source of them.
#[derive(Debug, Clone, Default)]
struct Index {
    exact: BTreeMap<String, ByPort>,
    below: BTreeMap<String, ByPort>,
    ranges: BTreeMap<Cidr, ByPort>,
}

impl Index {
    fn insert(&mut self, rule: &Rule, by: DecidedBy) {
        let by_port = match rule.target() {
            Target::Name(DomainPattern::Exact(name)) => self.exact.entry(name.to_string()).or_default(),
            Target::Name(DomainPattern::Below(suffix)) => self.below.entry(suffix.to_string()).or_default(),
            Target::Address(range) => self.ranges.entry(*range).or_default(),
        };
        by_port.insert(rule.ports(), by);
    }

    /// Returns the rules for a name, the most specific first.
    fn targets<'a>(&'a self, name: &DomainName) -> impl Iterator<Item = &'a ByPort> {
        let below = name.parents().filter_map(|parent| self.below.get(parent));
        self.exact.get(name.as_str()).into_iter().chain(below)
    }

    fn name(&self, name: &DomainName, port: u16) -> Option<&DecidedBy> {
        self.targets(name).find_map(|by_port| at_port(by_port, port))
    }

    /// Returns the rules for ranges that contain a range, the most specific first.
    fn covering(&self, range: Cidr) -> impl Iterator<Item = &ByPort> {
        let ranges = (0..=range.prefix_len()).rev().map(move |len| Cidr::containing(range.base(), len));
        ranges.filter_map(|range| self.ranges.get(&range))
    }

    fn address(&self, address: Ipv4Addr, port: u16) -> Option<&DecidedBy> {
        self.covering(Cidr::containing(address, 32)).find_map(|by_port| at_port(by_port, port))
    }
}

fn at_port(by_port: &ByPort, port: u16) -> Option<&DecidedBy> {
    [Ports::One(port), Ports::Web, Ports::Any]
        .into_iter()
        .filter(|ports| ports.contain(port))
        .find_map(|ports| by_port.get(&ports))
}
