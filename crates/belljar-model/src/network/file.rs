//! The network part of a file, a request or flags, before it is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::Error as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::ModelError;
use crate::network::decision::DecidedBy;
use crate::network::header;
use crate::network::matcher::Matcher;
use crate::network::mode::NetworkMode;
use crate::network::name::{DomainName, DomainPattern};
use crate::network::policy::NetworkPolicy;
use crate::network::preset::Preset;
use crate::network::request::{self, RequestRule};
use crate::network::rule::{List, Rule};
use crate::network::secret::{self, Secret, SecretFile};
use crate::network::tls::{self, TlsMode};
use crate::node::{Fields, Node};

/// A network policy as it was written: each value, and only those that were given.
///
/// A text is a mode; a table has the keys `mode`, `presets`, `allow`, `deny`, `requests`, `secrets`, `headers` and `tls`. Unknown keys and keys that are
/// given twice are refused; null counts as not given. A mode alone is written as a text, as all versions read it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkFile {
    /// `disabled`, `whitelist` or `open`. Without it, presets or an allow list mean `whitelist`, even empty ones; otherwise
    /// nothing is reached.
    pub mode: Option<String>,
    /// Names of presets.
    pub presets: Option<Vec<String>>,
    /// Rules that allow; see [`Rule`].
    pub allow: Option<Vec<String>>,
    /// Rules that deny, whatever is allowed; see [`Rule`].
    pub deny: Option<Vec<String>>,
    /// Rules for requests, by the host that gets them; see [`RequestRule`].
    ///
    /// [`RequestRule`]: crate::RequestRule
    pub requests: Option<BTreeMap<String, Vec<String>>>,
    /// Secrets that the gateway puts into requests, by name.
    pub secrets: Option<BTreeMap<String, SecretFile>>,
    /// Headers that the gateway sets in requests; their hosts may be `*.SUFFIX`.
    pub headers: Option<Vec<SecretFile>>,
    /// Treatment of TLS by host, `terminate` or `pass`; hosts may be `*.SUFFIX`.
    pub tls: Option<BTreeMap<String, String>>,
}

impl NetworkFile {
    /// Validates the policy and converts it to its canonical form. [`NetworkPolicy::check_available`] checks whether this version can
    /// enforce it.
    ///
    /// # Errors
    ///
    /// Fails if a mode, preset, rule or secret is invalid, a list is too long, or parts contradict each other.
    pub fn resolve(self) -> Result<NetworkPolicy, ModelError> {
        let field = if self.is_mode_alone() { "network" } else { "network.mode" };
        let mode = match &self.mode {
            Some(text) => NetworkMode::parse(field, text)?,
            None if self.presets.is_some() || self.allow.is_some() => NetworkMode::Whitelist,
            None => NetworkMode::Disabled,
        };
        let presets = self.presets.unwrap_or_default();
        let presets = presets.iter().map(|name| Preset::parse(name).map(Preset::name));
        let secrets = self.secrets.unwrap_or_default().into_iter();
        let secret = |(name, file): (String, SecretFile)| file.resolve(&name).map(|secret| (name, secret));
        let policy = NetworkPolicy {
            mode,
            presets: presets.collect::<Result<BTreeSet<_>, _>>()?.into_iter().collect(),
            allow: List::Allow.parse(&self.allow.unwrap_or_default())?,
            deny: List::Deny.parse(&self.deny.unwrap_or_default())?,
            requests: requests(self.requests.unwrap_or_default())?,
            secrets: secrets.map(secret).collect::<Result<_, _>>()?,
            headers: header::resolve_all(self.headers.unwrap_or_default())?,
            tls: tls::resolve_all(self.tls.unwrap_or_default())?,
        };
        refuse_contradictions(&policy)?;
        refuse_unread(&policy)?;
        refuse_unreachable(&policy)?;
        Ok(policy)
    }

    /// Returns the error of each preset and rule that is invalid, or else the first one of the policy as a whole.
    pub fn problems(&self) -> Vec<ModelError> {
        let presets = self.presets.iter().flatten().filter_map(|name| Preset::parse(name).err());
        let rules = |list: List, rules: &Option<Vec<String>>| -> Vec<ModelError> {
            let rules = rules.iter().flatten();
            rules.filter_map(|rule| list.parse(std::slice::from_ref(rule)).err()).collect()
        };
        let [allow, deny] = [rules(List::Allow, &self.allow), rules(List::Deny, &self.deny)];
        let mut found: Vec<_> = presets.chain(allow).chain(deny).collect();
        if found.is_empty() {
            found.extend(self.clone().resolve().err());
        }
        found
    }

    /// Adds a secret in the form of a flag, `NAME=HOST:HEADER[:env=VARIABLE|:file=PATH|:secret=STORED]`; without a source it is in the variable `NAME`.
    /// Errors show only the name, as the rest may be a value that was given by mistake.
    ///
    /// # Errors
    ///
    /// Fails if the text is not of this form, or a secret of that name already exists.
    pub fn add_secret(&mut self, text: &str) -> Result<(), ModelError> {
        let (name, secret) = SecretFile::parse_flag(text)?;
        match self.secrets.get_or_insert_default().insert(name.clone(), secret) {
            Some(_) => Err(ModelError::not_allowed(secret::FIELD, name, "each name once")),
            None => Ok(()),
        }
    }

    /// Adds a header in the form of a flag: `HOST:HEADER:env=VARIABLE`, or with `file=PATH` or `secret=STORED`.
    ///
    /// # Errors
    ///
    /// Fails if the text is not of this form. Host and header are checked by [`resolve`](Self::resolve).
    pub fn add_header(&mut self, text: &str) -> Result<(), ModelError> {
        self.headers.get_or_insert_default().push(SecretFile::parse_header_flag(text)?);
        Ok(())
    }

    /// Gives secrets and headers that are as a policy shows its own, without their values, the values that they have there.
    pub fn keep_values(&mut self, old: &NetworkPolicy) {
        let (mut full, mut shown) = (Self::from(old), old.without_values());
        let shown = shown.sources_mut().map(|(name, one)| (name, one.clone()));
        let known: Vec<_> = shown.zip(full.sources_mut().map(|(_, one)| one.clone())).collect();
        for (name, one) in self.sources_mut() {
            let is_shown = |shown: &(String, SecretFile)| shown.0 == name && shown.1 == *one;
            if let Some((_, value)) = known.iter().find(|(shown, _)| is_shown(shown)) {
                *one = value.clone();
            }
        }
    }

    /// Iterates over secrets and headers, each with its name in errors.
    pub fn sources_mut(&mut self) -> impl Iterator<Item = (String, &mut SecretFile)> {
        let secrets = self.secrets.iter_mut().flatten();
        let secrets = secrets.map(|(name, secret)| (format!("{}: {name}", secret::FIELD), secret));
        let headers = self.headers.iter_mut().flatten().map(|set| {
            let host = set.host.clone().unwrap_or_default();
            (format!("{}: {host}", header::FIELD), set)
        });
        secrets.chain(headers)
    }

    /// Adds a rule for requests in the form of a flag: `HOST=METHOD PATH`.
    ///
    /// # Errors
    ///
    /// Fails if the text is not of this form. Host, method and path are checked by [`resolve`](Self::resolve).
    pub fn add_request(&mut self, text: &str) -> Result<(), ModelError> {
        let Some((host, rule)) = text.split_once('=') else {
            let allowed = "HOST=METHOD PATH, such as 'api.example.com=GET /v1/*'";
            return Err(ModelError::not_allowed(request::FIELD, text, allowed));
        };
        self.requests.get_or_insert_default().entry(host.to_owned()).or_default().push(rule.to_owned());
        Ok(())
    }

    /// Adds the treatment of TLS to a host in the form of a flag: `HOST=terminate` or `HOST=pass`.
    ///
    /// # Errors
    ///
    /// Fails if the text is not of this form. The host is checked by [`resolve`](Self::resolve).
    pub fn add_tls(&mut self, text: &str) -> Result<(), ModelError> {
        let Some((host, mode)) = text.split_once('=') else {
            let allowed = "HOST=terminate or HOST=pass, such as cdn.example.com=terminate";
            return Err(ModelError::not_allowed(tls::FIELD, text, allowed));
        };
        match self.tls.get_or_insert_default().insert(host.to_owned(), mode.to_owned()) {
            Some(_) => Err(ModelError::not_allowed(tls::FIELD, host, "each host once")),
            None => Ok(()),
        }
    }

    /// Reads the value of the key `network`.
    pub(crate) fn from_node(node: Node) -> Result<Self, ModelError> {
        let mut fields = match node {
            Node::Text(mode) => return Ok(mode.into()),
            node @ Node::Table(_) => Fields::open("network".to_owned(), node)?,
            other => {
                return Err(ModelError::WrongType {
                    key: "network".to_owned(),
                    found: other.name(),
                    expected: "a text or a table",
                });
            }
        };
        let secrets = fields.tables("secrets")?.map(|tables| {
            let secret = |(name, fields)| Ok((name, SecretFile::from_fields(fields)?));
            tables.into_iter().map(secret).collect::<Result<_, ModelError>>()
        });
        let headers = fields
            .table_list("headers")?
            .map(|tables| tables.into_iter().map(SecretFile::from_fields).collect::<Result<_, ModelError>>());
        let requests = fields.table("requests")?.map(Fields::all_texts).transpose()?;
        let file = Self {
            mode: fields.text("mode")?,
            presets: fields.texts("presets")?,
            allow: fields.texts("allow")?,
            deny: fields.texts("deny")?,
            requests,
            secrets: secrets.transpose()?,
            headers: headers.transpose()?,
            tls: fields.text_table("tls")?,
        };
        fields.finish()?;
        Ok(file)
    }

    pub(super) fn is_mode_alone(&self) -> bool {
        let Self { mode, presets, allow, deny, requests, secrets, headers, tls } = self;
        let more = requests.is_some() || secrets.is_some() || headers.is_some() || tls.is_some();
        mode.is_some() && presets.is_none() && allow.is_none() && deny.is_none() && !more
    }
}

/// Refuses parts that have no effect in the mode, as their author expects one.
fn refuse_contradictions(policy: &NetworkPolicy) -> Result<(), ModelError> {
    const WHITELIST: &str = "mode whitelist with it: mode disabled reaches nothing";
    const EITHER: &str = "mode whitelist or open (--net open) with it: mode disabled reaches nothing";
    const OPEN: &str = "mode whitelist with it: mode open reaches every public name already";
    const BY_ADDRESS: &str = "mode whitelist with it: in mode open code reaches hosts by their addresses, where requests are not read";
    let rule = |rule: Option<&Rule>, allowed: &str| Some((rule?.to_string(), allowed.to_owned()));
    let of_host = |host: String| {
        let allowed = format!("its host in {} as well: mode disabled reaches nothing", allow_list(&host));
        (host, allowed)
    };
    let preset = policy.presets.first().map(|name| (*name).to_owned());
    let bound = policy.requests.keys().next().map(ToString::to_string);
    let refused = match policy.mode {
        NetworkMode::Disabled => vec![
            ("network.presets", preset.map(|preset| (preset, WHITELIST.to_owned()))),
            ("network.allow", rule(policy.allow.first(), WHITELIST)),
            ("network.deny", rule(policy.deny.first(), EITHER)),
            (request::FIELD, bound.map(of_host)),
            (
                secret::FIELD,
                policy
                    .secrets
                    .iter()
                    .next()
                    .map(|(name, secret)| (name.clone(), of_host(secret.host().to_string()).1)),
            ),
            (header::FIELD, policy.headers.first().map(|set| of_host(set.host.to_string()))),
            (tls::FIELD, policy.tls.keys().next().map(|host| of_host(host.to_string()))),
        ],
        // Hosts can be allowed: an operator may except their addresses from what is always denied.
        NetworkMode::Open => vec![
            ("network.presets", preset.map(|preset| (preset, OPEN.to_owned()))),
            (request::FIELD, bound.map(|host| (host, BY_ADDRESS.to_owned()))),
        ],
        NetworkMode::Whitelist => Vec::new(),
    };
    match refused.into_iter().find_map(|(field, refused)| Some((field, refused?))) {
        Some((field, (value, allowed))) => Err(ModelError::not_allowed(field, value, allowed)),
        None => Ok(()),
    }
}

/// Names the list that allows hosts, and the flag that adds this one to it.
fn allow_list(host: impl fmt::Display) -> String {
    let host = host.to_string();
    match host.contains('*') {
        true => format!("network.allow (--allow '{host}')"),
        false => format!("network.allow (--allow {host})"),
    }
}

/// Refuses to pass on TLS to hosts whose requests the gateway has to read.
fn refuse_unread(policy: &NetworkPolicy) -> Result<(), ModelError> {
    let read = policy.required_hosts();
    let passed = policy.tls.iter().filter(|(_, mode)| **mode == TlsMode::Pass);
    let overlaps = |host: &DomainPattern| read.iter().any(|read| read.covers(host) || host.covers(read));
    match passed.map(|(host, _)| host).find(|host| overlaps(host)) {
        Some(host) => {
            let allowed = "terminate, or no secret, header, rule for requests or termination for it";
            Err(ModelError::not_allowed(tls::FIELD, format!("{host}=pass"), allowed))
        }
        None => Ok(()),
    }
}

/// Checks rules for requests; each host has them once.
fn requests(
    given: BTreeMap<String, Vec<String>>,
) -> Result<BTreeMap<DomainName, Vec<RequestRule>>, ModelError> {
    let mut requests = BTreeMap::new();
    for (host, texts) in given {
        let name = DomainName::read(&host)
            .map_err(|allowed| ModelError::not_allowed(request::FIELD, &host, allowed))?;
        if requests.insert(name, request::parse_all(&texts)?).is_some() {
            return Err(ModelError::not_allowed(request::FIELD, host, "each host once"));
        }
    }
    Ok(requests)
}

/// Refuses secrets and rules for hosts that the policy does not allow. Headers may be for hosts that are allowed later.
fn refuse_unreachable(policy: &NetworkPolicy) -> Result<(), ModelError> {
    if policy.secrets.is_empty() && policy.requests.is_empty() {
        return Ok(());
    }
    let matcher = Matcher::new(policy, &[]);
    let is_reached = |host, port| matcher.name(host, port).allowed;
    // A rule helps unless another one denies the host.
    let lacks = |host| match matcher.name(host, 443).by {
        DecidedBy::NoRule => format!(", as it is not in {}", allow_list(host)),
        _ => String::new(),
    };
    if let Some((name, secret)) = policy.secrets.iter().find(|(_, secret)| !is_reached(secret.host(), 443)) {
        let host = secret.host();
        let allowed = format!("a host that the policy allows on port 443; {host} is none{}", lacks(host));
        return Err(ModelError::not_allowed(secret::FIELD, name, allowed));
    }
    match policy.requests.keys().find(|host| !is_reached(host, 443) && !is_reached(host, 80)) {
        Some(host) => {
            let allowed =
                format!("a host that the policy allows on port 443 or 80; it is none{}", lacks(host));
            Err(ModelError::not_allowed(request::FIELD, host.to_string(), allowed))
        }
        None => Ok(()),
    }
}

impl From<String> for NetworkFile {
    /// Takes a text for a mode, as in `network = "disabled"`.
    fn from(mode: String) -> Self {
        Self { mode: Some(mode), ..Self::default() }
    }
}

impl From<&str> for NetworkFile {
    /// Takes a text for a mode, as in `network = "disabled"`.
    fn from(mode: &str) -> Self {
        mode.to_owned().into()
    }
}

impl From<&NetworkPolicy> for NetworkFile {
    fn from(policy: &NetworkPolicy) -> Self {
        let texts = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>();
        let some = |texts: Vec<String>| Some(texts).filter(|texts| !texts.is_empty());
        let of_host = |(host, rules): (&DomainName, &Vec<RequestRule>)| {
            (host.to_string(), rules.iter().map(ToString::to_string).collect())
        };
        let requests: BTreeMap<String, Vec<String>> = policy.requests.iter().map(of_host).collect();
        let secret = |(name, secret): (&String, &Secret)| (name.clone(), secret.into());
        let secrets: BTreeMap<String, SecretFile> = policy.secrets.iter().map(secret).collect();
        let headers: Vec<SecretFile> = policy.headers.iter().map(SecretFile::from).collect();
        let tls: BTreeMap<String, String> =
            policy.tls.iter().map(|(host, mode)| (host.to_string(), mode.to_string())).collect();
        Self {
            mode: Some(policy.mode.to_string()),
            presets: some(policy.presets.iter().map(|name| (*name).to_owned()).collect()),
            allow: some(texts(&policy.allow)),
            deny: some(texts(&policy.deny)),
            requests: Some(requests).filter(|requests| !requests.is_empty()),
            secrets: Some(secrets).filter(|secrets| !secrets.is_empty()),
            headers: Some(headers).filter(|headers| !headers.is_empty()),
            tls: Some(tls).filter(|tls| !tls.is_empty()),
        }
    }
}

impl From<NetworkPolicy> for NetworkFile {
    fn from(policy: NetworkPolicy) -> Self {
        Self::from(&policy)
    }
}

impl Serialize for NetworkFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(mode) = self.mode.as_ref().filter(|_| self.is_mode_alone()) {
            return serializer.serialize_str(mode);
        }
        let mut map = serializer.serialize_map(None)?;
        if let Some(mode) = &self.mode {
            map.serialize_entry("mode", mode)?;
        }
        for (key, list) in [("presets", &self.presets), ("allow", &self.allow), ("deny", &self.deny)] {
            if let Some(list) = list {
                map.serialize_entry(key, list)?;
            }
        }
        if let Some(requests) = &self.requests {
            map.serialize_entry("requests", requests)?;
        }
        if let Some(secrets) = &self.secrets {
            map.serialize_entry("secrets", secrets)?;
        }
        if let Some(headers) = &self.headers {
            map.serialize_entry("headers", headers)?;
        }
        if let Some(tls) = &self.tls {
            map.serialize_entry("tls", tls)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for NetworkFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_node(Node::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
