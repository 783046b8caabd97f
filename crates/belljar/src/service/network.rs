//! `belljar sandbox net`: the network policy of a running sandbox.

use std::collections::BTreeMap;

use belljar_client::v1;
use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::args::NetworkCommand;
use super::link::Link;
use super::sandbox::print_changed;
use super::show::{Table, distance, print};
use crate::message::{Quit, one_line};
use crate::net::Verdict;
use crate::units::bytes;

/// Maximum length of a printed record, in characters.
const MAX_SHOWN_CHARS: usize = 300;

/// Maximum number of parts that are named of what a policy no longer has.
const MAX_NAMED: usize = 8;

/// The answer of `POST /v1/network/check`.
#[derive(Deserialize)]
struct Forecast {
    hosts: Vec<Verdict>,
}

/// Returns what the policy in force of a sandbox says of destinations.
pub(super) async fn forecast(link: &Link, sandbox: &str, hosts: &[String]) -> Result<Vec<Verdict>, Quit> {
    let question = json!({ "sandbox": sandbox, "hosts": hosts });
    let forecast: Forecast = link.client.send(Method::POST, "/v1/network/check", &question).await?;
    Ok(forecast.hosts)
}

/// Runs `belljar sandbox net`.
pub(crate) async fn network(link: &Link, sandbox: &str, command: &NetworkCommand) -> Result<(), Quit> {
    match command {
        NetworkCommand::Get => get(link, sandbox).await,
        NetworkCommand::Set { net } => {
            let policy = given(net)?;
            let before = policy_of(link, sandbox).await?;
            let changed = update(link, sandbox, policy).await?;
            print_changed(link, &changed)?;
            if let Some(lost) = lost(&before, &changed.network_policy.into_option().unwrap_or_default()) {
                link.remark(&format!(
                    "the policy was replaced, and no longer has {lost}; belljar sandbox net {sandbox} add keeps what is there"
                ));
            }
            Ok(())
        }
        NetworkCommand::Add { net } => {
            let more = given(net)?;
            let mut policy = policy_of(link, sandbox).await?;
            add(&mut policy, more);
            print_changed(link, &update(link, sandbox, policy).await?)
        }
        NetworkCommand::Log { follow } => log(link, sandbox, *follow).await,
    }
}

/// Returns the policy of the flags.
fn given(net: &crate::cli::NetArgs) -> Result<v1::NetworkPolicy, Quit> {
    net.message()?.ok_or_else(|| {
        let text =
            "nothing to change; give --net, --preset, --allow, --deny, --request, --secret, --header or --tls";
        Quit::Usage(text.to_owned())
    })
}

async fn update(link: &Link, sandbox: &str, policy: v1::NetworkPolicy) -> Result<v1::SandboxInfo, Quit> {
    let update = v1::UpdateSandboxRequest {
        sandbox: sandbox.to_owned(),
        network_policy: policy.into(),
        ..Default::default()
    };
    Ok(link.client.update(update).await?)
}

/// Returns the policy of a sandbox as it is shown. What has no value in it keeps the one that it has.
async fn policy_of(link: &Link, sandbox: &str) -> Result<v1::NetworkPolicy, Quit> {
    let request = v1::GetSandboxRequest { sandbox: sandbox.to_owned(), ..Default::default() };
    Ok(link.client.get(request).await?.network_policy.into_option().unwrap_or_default())
}

/// Adds what another policy has. A secret, a header of a host and the treatment of TLS to one are replaced.
fn add(policy: &mut v1::NetworkPolicy, more: v1::NetworkPolicy) {
    if !more.mode.is_empty() {
        policy.mode = more.mode;
    } else if policy.mode == "disabled" {
        // What is allowed decides.
        policy.mode.clear();
    }
    policy.presets.extend(more.presets);
    policy.allow.extend(more.allow);
    policy.deny.extend(more.deny);
    for (host, rules) in more.requests {
        policy.requests.entry(host.to_ascii_lowercase()).or_default().rules.extend(rules.rules);
    }
    policy.secrets.extend(more.secrets);
    let is_same = |one: &v1::NetworkSecret, other: &v1::NetworkSecret| {
        one.host.eq_ignore_ascii_case(&other.host) && one.header.eq_ignore_ascii_case(&other.header)
    };
    policy.headers.retain(|old| !more.headers.iter().any(|new| is_same(old, new)));
    policy.headers.extend(more.headers);
    policy.tls.extend(more.tls.into_iter().map(|(host, mode)| (host.to_ascii_lowercase(), mode)));
}

/// Names what a policy had that the one in its place does not have, if there is something.
pub(super) fn lost(before: &v1::NetworkPolicy, after: &v1::NetworkPolicy) -> Option<String> {
    let after = parts(after);
    let mut lost: Vec<String> = parts(before)
        .into_iter()
        .filter(|part| !after.contains(part))
        .map(|(kind, value)| format!("{kind} {value}"))
        .collect();
    let more = lost.len().saturating_sub(MAX_NAMED);
    lost.truncate(MAX_NAMED);
    match (lost.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(lost.join(", ")),
        (false, more) => Some(format!("{} and {more} more", lost.join(", "))),
    }
}

/// Returns what a policy has beside its mode, each with its kind.
fn parts(policy: &v1::NetworkPolicy) -> Vec<(&'static str, String)> {
    let mut parts = Vec::new();
    for (kind, list) in [("preset", &policy.presets), ("allow", &policy.allow), ("deny", &policy.deny)] {
        parts.extend(list.iter().map(|item| (kind, item.clone())));
    }
    for (host, v1::NetworkRequests { rules, .. }) in policy.requests.iter().collect::<BTreeMap<_, _>>() {
        // A host without any rule gets no request at all.
        let rules = if rules.is_empty() { "none".to_owned() } else { rules.join(", ") };
        parts.push(("request", format!("{host}={rules}")));
    }
    // The only values that the server returns are names of stored secrets.
    let target = |v1::NetworkSecret { host, header, value, .. }: &v1::NetworkSecret| match value.as_str() {
        "" => format!("{host}:{header}"),
        value => format!("{host}:{header}  {value}"),
    };
    for (name, secret) in policy.secrets.iter().collect::<BTreeMap<_, _>>() {
        parts.push(("secret", format!("{name}={}", target(secret))));
    }
    parts.extend(policy.headers.iter().map(|header| ("header", target(header))));
    for (host, mode) in policy.tls.iter().collect::<BTreeMap<_, _>>() {
        parts.push(("tls", format!("{host}={mode}")));
    }
    parts
}

async fn get(link: &Link, sandbox: &str) -> Result<(), Quit> {
    let policy = policy_of(link, sandbox).await?;
    if link.json(&policy)? {
        return Ok(());
    }
    let mut table = Table::new(&["mode", &policy.mode]);
    for (kind, value) in parts(&policy) {
        table.row(vec![kind.to_owned(), value]);
    }
    table.print()
}

async fn log(link: &Link, sandbox: &str, follow: bool) -> Result<(), Quit> {
    let request = v1::NetworkLogRequest { sandbox: sandbox.to_owned(), follow, ..Default::default() };
    let mut records = link.client.network_log(request).await?;
    while let Some(record) = records.next().await? {
        if !link.json(&record)? {
            print(&format!(
                "{:>12}  {}\n",
                distance(&record.at),
                one_line(&format_record(&record), MAX_SHOWN_CHARS)
            ))?;
        }
    }
    Ok(())
}

fn format_record(record: &v1::NetworkRecord) -> String {
    let v1::NetworkRecord { host, port, address, rule, reason, .. } = record;
    match (record.event.as_str(), record.allowed) {
        ("ended", _) => {
            let [sent, received] = [record.sent, record.received].map(|count| bytes(count.unwrap_or(0)));
            // The number of an error says nothing more.
            let reason = reason.split(" (os error").next().unwrap_or_default();
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            format!("ended    {host}:{port}, {sent} sent, {received} received{why}")
        }
        ("connection", Some(true)) => {
            let to =
                if address.is_empty() || address == host { String::new() } else { format!(" at {address}") };
            format!("allowed  {host}:{port}{to}, by {rule}")
        }
        ("connection", _) => format!("denied   {host}:{port}: {reason}"),
        _ => format!("unknown  {host}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_parts_join_those_that_are_there() {
        let secret = |host: &str, header: &str, value: &str| v1::NetworkSecret {
            host: host.to_owned(),
            header: header.to_owned(),
            value: value.to_owned(),
            ..Default::default()
        };
        let rules = |rules: &[&str]| v1::NetworkRequests {
            rules: rules.iter().map(|rule| (*rule).to_owned()).collect(),
            ..Default::default()
        };
        let mut policy = v1::NetworkPolicy {
            mode: "whitelist".to_owned(),
            presets: vec!["pip".to_owned()],
            requests: [("a.example".to_owned(), rules(&["GET /"]))].into_iter().collect(),
            secrets: [("K".to_owned(), secret("a.example", "x", ""))].into_iter().collect(),
            headers: vec![secret("a.example", "x-team", ""), secret("b.example", "x-team", "")],
            ..Default::default()
        };
        let more = v1::NetworkPolicy {
            allow: vec!["b.example".to_owned()],
            requests: [("A.example".to_owned(), rules(&["POST /"]))].into_iter().collect(),
            headers: vec![secret("A.Example", "X-Team", "new")],
            ..Default::default()
        };
        add(&mut policy, more);
        let shown: Vec<String> =
            parts(&policy).into_iter().map(|(kind, value)| format!("{kind} {value}")).collect();
        assert_eq!(
            shown,
            [
                "preset pip",
                "allow b.example",
                "request a.example=GET /, POST /",
                "secret K=a.example:x",
                "header b.example:x-team",
                "header A.Example:X-Team  new",
            ]
        );
        assert_eq!(policy.mode, "whitelist");
        let pip = v1::NetworkPolicy { presets: vec!["pip".to_owned()], ..Default::default() };
        assert_eq!((lost(&pip, &policy), lost(&pip, &pip)), (None, None));
        assert_eq!(lost(&pip, &v1::NetworkPolicy::default()).as_deref(), Some("preset pip"));
        let many = (0..10).map(|number| format!("{number}.example")).collect();
        let many = v1::NetworkPolicy { deny: many, ..Default::default() };
        assert!(lost(&many, &pip).is_some_and(|lost| lost.ends_with("deny 7.example and 2 more")));
        let mut disabled = v1::NetworkPolicy { mode: "disabled".to_owned(), ..Default::default() };
        add(&mut disabled, v1::NetworkPolicy { presets: vec!["pip".to_owned()], ..Default::default() });
        assert_eq!(disabled.mode, "");
    }
}
