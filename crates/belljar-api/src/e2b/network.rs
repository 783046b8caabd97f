//! Conversion between E2B's network settings of a sandbox and network policies.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use belljar_keeper::{PortAccess, PortSettings};
use belljar_model::{NetworkFile, NetworkMode, NetworkPolicy, SecretFile};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::not_offered;
use crate::problem::Problem;

/// Range of all addresses.
const ALL_TRAFFIC: &str = "0.0.0.0/0";

/// Prefix of a stored secret's name in a header value, for E2B and in policies.
const SECRET: [&str; 2] = ["${e2b.secrets.", "${secrets."];

/// The port in a mask of hosts, for E2B and here.
const PORT: [&str; 2] = ["${PORT}", "{port}"];

/// Prefix of the name of an identity's token, for E2B.
const IDENTITY: &str = "${e2b.identity.";

/// A sandbox's network. In a change, missing fields are cleared.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NetworkBody {
    allow_public_traffic: Option<bool>,
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    dns_servers: Option<Vec<String>>,
    egress_proxy: Option<Value>,
    mask_request_host: Option<String>,
    https_ports: Option<Vec<u16>>,
    rules: Option<BTreeMap<String, Vec<RuleBody>>>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
}

/// A rule for requests to a host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleBody {
    transform: Option<TransformBody>,
}

/// Changes to requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TransformBody {
    headers: Option<BTreeMap<String, String>>,
}

impl NetworkBody {
    /// Returns the settings of the ports. They are public unless the request or the operator (`public`) says otherwise.
    pub(super) fn ports(&self, public: bool) -> Result<PortSettings, Problem> {
        let is_public = public && self.allow_public_traffic != Some(false);
        let host = self.mask_request_host.as_ref().map(|mask| mask.replace(PORT[0], PORT[1]).parse());
        Ok(PortSettings {
            access: if is_public { PortAccess::Public } else { PortAccess::Token },
            host: host.transpose().map_err(|_| {
                Problem::field(
                    "network.maskRequestHost",
                    "it is not allowed; give a host, such as localhost:${PORT}",
                )
            })?,
        })
    }

    /// Returns the policy; `None` if no field is given. `internet` is the request's other field about the network.
    ///
    /// # Errors
    /// Fails on settings that this server does not offer, or that contradict each other.
    pub(super) fn into_file(self, internet: Option<bool>) -> Result<Option<NetworkFile>, Problem> {
        let is_given = |value: &Option<Value>| {
            value
                .as_ref()
                .is_some_and(|value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()))
        };
        let not_here = [
            ("network.dnsServers", self.dns_servers.is_some_and(|servers| !servers.is_empty())),
            ("network.egressProxy", is_given(&self.egress_proxy)),
            ("network.httpsPorts", self.https_ports.is_some_and(|ports| !ports.is_empty())),
        ];
        if let Some((field, _)) = not_here.into_iter().find(|(_, given)| *given) {
            return Err(not_offered(field));
        }
        let headers = to_headers(self.rules.unwrap_or_default())?;
        let convert = |rule: &String| to_rule(rule).unwrap_or_else(|| rule.clone());
        let allow: Vec<String> = self.allow_out.unwrap_or_default().iter().map(convert).collect();
        let mut deny = self.deny_out.unwrap_or_default();
        if internet.or(self.allow_internet_access) == Some(false) {
            deny.push(ALL_TRAFFIC.to_owned());
        }
        let all = deny.len();
        deny.retain(|rule| rule != ALL_TRAFFIC && rule != "::/0");
        let denies_all = deny.len() < all;
        let deny: Vec<String> = deny.iter().map(convert).collect();
        match (denies_all, allow.is_empty()) {
            (true, true) if headers.is_empty() => Ok(Some("disabled".into())),
            // Without allowed hosts it can connect to nothing; hosts may be allowed while it runs.
            (true, _) => Ok(Some(to_policy("whitelist", allow, deny, headers))),
            // Names need no rule in an open network. Ranges do, if the operator has made an exception for them.
            (false, false) if allow.iter().any(|rule| !rule.contains('/')) => Err(Problem::field(
                "network.allowOut",
                "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all \
                 other traffic.",
            )),
            (false, true) if deny.is_empty() && headers.is_empty() => Ok(None),
            (false, _) => Ok(Some(to_policy("open", allow, deny, headers))),
        }
    }
}

fn to_policy(mode: &str, allow: Vec<String>, deny: Vec<String>, headers: Vec<SecretFile>) -> NetworkFile {
    let some = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
    NetworkFile {
        mode: Some(mode.to_owned()),
        allow: some(allow),
        deny: some(deny),
        headers: Some(headers).filter(|headers| !headers.is_empty()),
        ..NetworkFile::default()
    }
}

/// Converts an address or a range to a rule for all ports; `None` for anything else.
fn to_rule(rule: &str) -> Option<String> {
    let (address, length) = rule.split_once('/').unwrap_or((rule, "32"));
    address.parse::<Ipv4Addr>().ok()?;
    Some(format!("{address}/{length}:*")).filter(|_| !length.contains(':'))
}

/// Returns the headers that rules set. If several rules of a host set the same header, the last one applies.
fn to_headers(rules: BTreeMap<String, Vec<RuleBody>>) -> Result<Vec<SecretFile>, Problem> {
    let mut all = Vec::new();
    for (host, rules) in rules {
        let transforms = rules.into_iter().filter_map(|rule| rule.transform);
        let named = transforms.flat_map(|transform| transform.headers.unwrap_or_default());
        let headers: BTreeMap<String, String> =
            named.map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
        for (header, value) in headers {
            let (host, value) = (Some(host.clone()), Some(to_reference(&value)?));
            all.push(SecretFile { host, header: Some(header), value, ..SecretFile::default() });
        }
    }
    Ok(all)
}

/// Converts a header's value to the form in policies, with the names of stored secrets.
fn to_reference(value: &str) -> Result<String, Problem> {
    if value.contains(IDENTITY) {
        return Err(not_offered("network.rules with tokens of an identity"));
    }
    let [theirs, ours] = SECRET;
    let mut pieces = value.split(theirs);
    let mut converted = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once('}').ok_or_else(|| {
            Problem::field("network.rules", format!("a value has {theirs} without a name and }}"))
        })?;
        // E2B's names are case-insensitive.
        converted.push_str(&format!("{ours}{}}}{rest}", name.to_ascii_lowercase()));
    }
    Ok(converted)
}

/// Converts a policy and the settings of ports to E2B's form, if there is more to them than a mode. Values show the names of stored
/// secrets only.
pub(super) fn to_json(policy: &NetworkPolicy, ports: &PortSettings) -> Option<Value> {
    let shown = policy.without_values();
    let of_all_ports = |rules: Option<Vec<String>>| -> Vec<String> {
        let short = |rule: String| rule.strip_suffix(":*").map(str::to_owned).unwrap_or(rule);
        rules.unwrap_or_default().into_iter().map(short).collect()
    };
    let (allow, mut deny) = (of_all_ports(shown.allow), of_all_ports(shown.deny));
    let mut rules: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let [theirs, ours] = SECRET;
    for SecretFile { host, header, value, .. } in shown.headers.unwrap_or_default() {
        let value = value.unwrap_or_else(|| "…".to_owned()).replace(ours, theirs);
        rules.entry(host.unwrap_or_default()).or_default().insert(header.unwrap_or_default(), value);
    }
    let [theirs, ours] = PORT;
    let mask = ports.host.as_ref().map(|mask| mask.as_str().replace(ours, theirs));
    let is_public = ports.access == PortAccess::Public;
    if allow.is_empty() && deny.is_empty() && rules.is_empty() && mask.is_none() && is_public {
        return None;
    }
    deny.extend((policy.mode() == NetworkMode::Whitelist).then(|| ALL_TRAFFIC.to_owned()));
    let rules: BTreeMap<String, Value> = rules
        .into_iter()
        .map(|(host, headers)| (host, json!([{"transform": {"headers": headers}}])))
        .collect();
    let mut network =
        json!({"allowOut": allow, "denyOut": deny, "rules": rules, "allowPublicTraffic": is_public});
    if let Some(mask) = mask {
        network["maskRequestHost"] = json!(mask);
    }
    Some(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str, internet: Option<bool>) -> Result<Option<NetworkFile>, Problem> {
        serde_json::from_str::<NetworkBody>(json).unwrap().into_file(internet)
    }

    #[test]
    fn lists_become_policies() {
        assert_eq!(file("{}", Some(true)).unwrap(), None);
        assert_eq!(file("{}", Some(false)).unwrap(), Some("disabled".into()));
        assert_eq!(file(r#"{"denyOut":["0.0.0.0/0"]}"#, None).unwrap(), Some("disabled".into()));
        let whitelist = file(r#"{"allowOut":["pypi.org"],"denyOut":["0.0.0.0/0"]}"#, None).unwrap().unwrap();
        assert_eq!(whitelist.mode.as_deref(), Some("whitelist"));
        assert_eq!(whitelist.allow, Some(vec!["pypi.org".to_owned()]));
        let open = file(r#"{"denyOut":["8.8.8.8/32"]}"#, None).unwrap().unwrap();
        assert_eq!((open.mode.as_deref(), open.deny), (Some("open"), Some(vec!["8.8.8.8/32:*".to_owned()])));
        let ranges = r#"{"allowOut":["1.1.1.1","8.8.8.0/24","10.0.0.0/8:443"],"denyOut":["0.0.0.0/0"]}"#;
        let ranges = file(ranges, None).unwrap().unwrap().resolve().unwrap();
        let rules: Vec<String> = ranges.allow().iter().map(ToString::to_string).collect();
        assert_eq!(rules, ["1.1.1.1/32:*", "10.0.0.0/8:443", "8.8.8.0/24:*"]);
        assert!(file(r#"{"allowOut":["pypi.org"]}"#, None).is_err());
        let excepted = file(r#"{"allowOut":["10.0.0.0/8:443"]}"#, None).unwrap().unwrap();
        assert_eq!(
            (excepted.mode.as_deref(), excepted.allow),
            (Some("open"), Some(vec!["10.0.0.0/8:443".to_owned()]))
        );
        assert_eq!(file(r#"{"rules":{}}"#, None).unwrap(), None);
        assert_eq!(file(r#"{"rules":{"a.example":[]}}"#, None).unwrap(), None);
    }

    #[test]
    fn ports_are_public_unless_someone_objects() {
        let ports = |json: &str, public| serde_json::from_str::<NetworkBody>(json).unwrap().ports(public);
        let access = |json, public| ports(json, public).unwrap().access;
        assert_eq!(access("{}", true), PortAccess::Public);
        assert_eq!(access(r#"{"allowPublicTraffic":true}"#, true), PortAccess::Public);
        assert_eq!(access(r#"{"allowPublicTraffic":false}"#, true), PortAccess::Token);
        assert_eq!(access(r#"{"allowPublicTraffic":true}"#, false), PortAccess::Token);
        let masked = ports(r#"{"maskRequestHost":"localhost:${PORT}"}"#, true).unwrap();
        assert_eq!(masked.host.as_ref().unwrap().for_port(5173), "localhost:5173");
        let shown = to_json(&NetworkPolicy::default(), &masked).unwrap();
        assert_eq!(
            (&shown["maskRequestHost"], &shown["allowPublicTraffic"]),
            (&json!("localhost:${PORT}"), &json!(true))
        );
        for wrong in ["", "a b", "a:b", "user@host", "a/b", ":80", "${PORT}:${PORT}:1", "a\r\nx: y"] {
            let body = json!({"maskRequestHost": wrong}).to_string();
            assert!(ports(&body, true).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_become_headers() {
        let public = PortSettings { access: PortAccess::Public, host: None };
        let rules = r#""rules": {
            "API.example": [
                {"transform": {"headers": {"Authorization": "Bearer ${e2b.secrets.OpenAI}", "x-a": "1"}}},
                {"transform": {"headers": {"X-A": "two words"}}}
            ],
            "*.example": [{"transform": {"headers": {"x-b": "${e2b.secrets.b}"}}}, {}]
        }"#;
        let open = file(&format!("{{{rules}}}"), Some(true)).unwrap().unwrap();
        let policy = open.resolve().unwrap();
        assert_eq!(policy.mode(), NetworkMode::Open);
        let headers: Vec<_> =
            policy.headers().iter().map(|set| (set.host().to_string(), set.header())).collect();
        let expected = [("api.example", "authorization"), ("api.example", "x-a"), ("*.example", "x-b")];
        assert_eq!(headers, expected.map(|(host, header)| (host.to_owned(), header)));
        assert_eq!(policy.stored_secrets().into_iter().collect::<Vec<_>>(), ["b", "openai"]);
        let body = to_json(&policy, &public).unwrap();
        let shown = json!({"authorization": "…${e2b.secrets.openai}", "x-a": "…"});
        assert_eq!(body["rules"]["api.example"], json!([{"transform": {"headers": shown}}]));
        assert_eq!(body["denyOut"], json!([]));
        // Hosts can be allowed later.
        let closed = file(&format!(r#"{{{rules}, "denyOut": ["0.0.0.0/0"]}}"#), None).unwrap().unwrap();
        let closed = closed.resolve().unwrap();
        assert_eq!((closed.mode(), closed.headers().len()), (NetworkMode::Whitelist, 3));
        assert_eq!(to_json(&closed, &public).unwrap()["denyOut"], json!(["0.0.0.0/0"]));
        assert_eq!(to_json(&NetworkPolicy::default(), &public), None);
        for wrong in [
            r#"{"rules": {"a.example": [{"transform": {"headers": {"x": "${e2b.identity.tokens.aws}"}}}]}}"#,
            r#"{"rules": {"a.example": [{"transform": {"headers": {"x": "${e2b.secrets.aws"}}}]}}"#,
        ] {
            assert!(file(wrong, None).is_err(), "{wrong}");
        }
        assert!(serde_json::from_str::<NetworkBody>(r#"{"rules": {"a.example": [{"other": {}}]}}"#).is_err());
    }
}
