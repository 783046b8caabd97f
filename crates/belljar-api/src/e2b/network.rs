//! What E2B says of a sandbox's network, as a network policy.

use belljar_model::NetworkFile;
use serde::Deserialize;
use serde_json::Value;

use super::error::not_offered;
use crate::problem::Problem;

/// What stands for every address.
const ALL_TRAFFIC: &str = "0.0.0.0/0";

/// A sandbox's network. What is not said of a running sandbox's is cleared.
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
    rules: Option<Value>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
}

impl NetworkBody {
    /// The policy; `None` where nothing is said. `internet` is what the request says beside it.
    ///
    /// # Errors
    /// What this server cannot do, or what contradicts itself.
    pub(super) fn into_file(self, internet: Option<bool>) -> Result<Option<NetworkFile>, Problem> {
        let is_said = |value: &Option<Value>| {
            value
                .as_ref()
                .is_some_and(|value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()))
        };
        let not_here = [
            ("network.dnsServers", self.dns_servers.is_some_and(|servers| !servers.is_empty())),
            ("network.egressProxy", is_said(&self.egress_proxy)),
            ("network.maskRequestHost", self.mask_request_host.is_some()),
            ("network.httpsPorts", self.https_ports.is_some_and(|ports| !ports.is_empty())),
            ("network.rules", is_said(&self.rules)),
        ];
        if let Some((field, _)) = not_here.into_iter().find(|(_, said)| *said) {
            return Err(not_offered(field));
        }
        // Every port of a sandbox needs its token here, so `allowPublicTraffic: false` is what holds anyway.
        let _ = self.allow_public_traffic;
        let allow = self.allow_out.unwrap_or_default();
        let mut deny = self.deny_out.unwrap_or_default();
        if internet.or(self.allow_internet_access) == Some(false) {
            deny.push(ALL_TRAFFIC.to_owned());
        }
        let all = deny.len();
        deny.retain(|rule| rule != ALL_TRAFFIC && rule != "::/0");
        let denies_all = deny.len() < all;
        match (denies_all, allow.is_empty()) {
            (true, true) => Ok(Some("disabled".into())),
            (true, false) => Ok(Some(policy("whitelist", allow, deny))),
            (false, false) => Err(Problem::field(
                "network.allowOut",
                "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all \
                 other traffic.",
            )),
            (false, true) if deny.is_empty() => Ok(None),
            (false, true) => Ok(Some(policy("open", allow, deny))),
        }
    }
}

fn policy(mode: &str, allow: Vec<String>, deny: Vec<String>) -> NetworkFile {
    let some = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
    NetworkFile {
        mode: Some(mode.to_owned()),
        allow: some(allow),
        deny: some(deny),
        ..NetworkFile::default()
    }
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
        assert_eq!((open.mode.as_deref(), open.deny), (Some("open"), Some(vec!["8.8.8.8/32".to_owned()])));
        assert!(file(r#"{"allowOut":["pypi.org"]}"#, None).is_err());
        assert!(file(r#"{"rules":{"a":[]}}"#, None).is_err());
        assert!(file(r#"{"rules":{}}"#, None).is_ok());
    }
}
