//! Rules of a policy: a name, a pattern of names, or a range of addresses, with ports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use crate::error::ModelError;
use crate::network::cidr::{Cidr, decimal};
use crate::network::name::{DomainPattern, url_reason};
use crate::network::ranges::always_denied_name;

/// Maximum number of rules in one list. Held by `network::tests::rules::lists_are_bounded`.
pub const MAX_RULES: usize = 10_000;

/// Rule of the allow list or the deny list.
///
/// Written as `example.com`, `example.com:5432`, `example.com:*`, `*.example.com:443` or `192.0.2.0/24:443`. Without a
/// port, a name that is allowed is allowed on 443 and 80, and what is denied is denied on every port; a range that is
/// allowed always needs a port. [`fmt::Display`] gives the canonical form, which reads back in the same list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    target: Target,
    ports: Ports,
}

/// The hosts or addresses that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// A name, or all names below one.
    Name(DomainPattern),
    /// Addresses, which a program connects to without a name.
    Address(Cidr),
}

/// The ports of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ports {
    /// One port, never 0.
    One(u16),
    /// 443 and 80.
    Web,
    /// Every port.
    Any,
}

impl Ports {
    /// Reports whether a port is one of these.
    pub const fn contain(self, port: u16) -> bool {
        match self {
            Self::One(one) => one == port,
            Self::Web => matches!(port, 80 | 443),
            Self::Any => true,
        }
    }
}

/// The list that a rule is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Allow,
    Deny,
}

impl List {
    pub(super) const fn field(self) -> &'static str {
        match self {
            Self::Allow => "network.allow",
            Self::Deny => "network.deny",
        }
    }

    /// Parses the rules of a list into canonical form: sorted, without redundant rules.
    pub(super) fn parse(self, texts: &[String]) -> Result<Vec<Rule>, ModelError> {
        if texts.len() > MAX_RULES {
            let rules = format!("{} rules", texts.len());
            return Err(ModelError::not_allowed(self.field(), rules, format!("at most {MAX_RULES}")));
        }
        let mut by_target: BTreeMap<Target, BTreeSet<Ports>> = BTreeMap::new();
        for text in texts {
            let rule = Rule::parse(self, text)?;
            by_target.entry(rule.target).or_default().insert(rule.ports);
        }
        let mut rules = Vec::with_capacity(texts.len());
        for (target, mut ports) in by_target {
            self.normalize(&target, &mut ports);
            rules.extend(ports.into_iter().map(|ports| Rule { target: target.clone(), ports }));
        }
        rules.sort_by_cached_key(ToString::to_string);
        Ok(rules)
    }

    /// Removes ports that others of the same target cover, and merges 443 and 80 into the short form, where one exists.
    fn normalize(self, target: &Target, ports: &mut BTreeSet<Ports>) {
        let web = [Ports::One(80), Ports::One(443)];
        if ports.contains(&Ports::Any) {
            ports.retain(|one| *one == Ports::Any);
        } else if self == Self::Allow && matches!(target, Target::Name(_)) {
            if web.iter().all(|one| ports.contains(one)) {
                ports.insert(Ports::Web);
            }
            if ports.contains(&Ports::Web) {
                ports.retain(|one| !web.contains(one));
            }
        }
    }
}

impl Rule {
    /// Returns the rule for every port of these hosts.
    pub(super) fn every_port(host: DomainPattern) -> Self {
        Self { target: Target::Name(host), ports: Ports::Any }
    }

    /// Parses a rule of the allow list.
    ///
    /// # Errors
    ///
    /// Fails if the text is neither a name nor an IPv4 range, if a range has no port, or if the name is always denied.
    pub fn parse_allow(text: &str) -> Result<Self, ModelError> {
        Self::parse(List::Allow, text)
    }

    /// Parses a rule of the deny list. Without a port it denies every port.
    ///
    /// # Errors
    ///
    /// Fails if the text is neither a name nor an IPv4 range.
    pub fn parse_deny(text: &str) -> Result<Self, ModelError> {
        Self::parse(List::Deny, text)
    }

    /// The hosts or addresses that the rule matches.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The ports of the rule.
    pub fn ports(&self) -> Ports {
        self.ports
    }

    pub(super) fn new(target: Target, ports: Ports) -> Self {
        Self { target, ports }
    }

    fn parse(list: List, text: &str) -> Result<Self, ModelError> {
        read(list, text).map_err(|allowed| ModelError::not_allowed(list.field(), text, allowed))
    }
}

/// Parses a rule; the error describes the expected form.
fn read(list: List, text: &str) -> Result<Rule, String> {
    if let Some(reason) = url_reason(text) {
        return Err(reason);
    }
    let (target, port) = match text.split_once(':') {
        Some((target, port)) => (target, Some(port)),
        None => (text, None),
    };
    if text.starts_with('[') || port.is_some_and(|port| port.contains(':')) {
        return Err("a name or an IPv4 range, with one colon before the port: there is no IPv6 in a sandbox"
            .to_owned());
    }
    let target = if target.contains('/') {
        Target::Address(Cidr::read(target)?)
    } else if let Ok(address) = target.parse::<Ipv4Addr>() {
        let port = port.and_then(decimal).unwrap_or(443);
        return Err(format!("{address}/32:{port}: an address is a range of one"));
    } else {
        Target::Name(DomainPattern::read(target)?)
    };
    if let (List::Allow, Target::Name(DomainPattern::Exact(name) | DomainPattern::Below(name))) =
        (list, &target)
        && always_denied_name(name)
    {
        return Err("another name: no sandbox reaches the metadata service of a cloud".to_owned());
    }
    let ports = match (port, list, &target) {
        (Some("*"), _, _) | (None, List::Deny, _) => Ports::Any,
        (Some(port), _, _) => {
            let port = decimal(port).filter(|port| *port > 0);
            Ports::One(port.ok_or("a port from 1 to 65535 after the colon, or * for every port")?)
        }
        (None, List::Allow, Target::Name(_)) => Ports::Web,
        (None, List::Allow, Target::Address(range)) => {
            return Err(format!("{range}:443 or {range}:*: a range needs its port"));
        }
    };
    Ok(Rule { target, ports })
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(pattern) => write!(f, "{pattern}"),
            Self::Address(range) => write!(f, "{range}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ports {
            Ports::One(port) => write!(f, "{}:{port}", self.target),
            Ports::Web => write!(f, "{}", self.target),
            Ports::Any => write!(f, "{}:*", self.target),
        }
    }
}
