//! `belljar sandbox net`: the network policy of a running sandbox.

use std::collections::BTreeMap;

use belljar_client::v1;

use super::args::NetworkCommand;
use super::link::Link;
use super::sandbox::print_changed;
use super::show::{Table, distance, print};
use crate::message::{Quit, one_line};
use crate::units::bytes;

/// Maximum length of a printed record, in characters.
const MAX_SHOWN_CHARS: usize = 300;

/// Runs `belljar sandbox net`.
pub(crate) async fn network(link: &Link, sandbox: &str, command: &NetworkCommand) -> Result<(), Quit> {
    match command {
        NetworkCommand::Get => get(link, sandbox).await,
        NetworkCommand::Set { net } => {
            let Some(policy) = net.message()? else {
                let text = "nothing to change; give --net, --preset, --allow, --deny, --request, --secret or --header";
                return Err(Quit::Usage(text.to_owned()));
            };
            let update = v1::UpdateSandboxRequest {
                sandbox: sandbox.to_owned(),
                network_policy: policy.into(),
                ..Default::default()
            };
            print_changed(link, &link.client.update(update).await?)
        }
        NetworkCommand::Log { follow } => log(link, sandbox, *follow).await,
    }
}

async fn get(link: &Link, sandbox: &str) -> Result<(), Quit> {
    let request = v1::GetSandboxRequest { sandbox: sandbox.to_owned(), ..Default::default() };
    let policy = link.client.get(request).await?.network_policy.into_option().unwrap_or_default();
    if link.json(&policy)? {
        return Ok(());
    }
    let mut table = Table::new(&["mode", &policy.mode]);
    for (name, list) in [("preset", &policy.presets), ("allow", &policy.allow), ("deny", &policy.deny)] {
        for item in list {
            table.row(vec![name.to_owned(), item.clone()]);
        }
    }
    for (host, v1::NetworkRequests { rules, .. }) in policy.requests.iter().collect::<BTreeMap<_, _>>() {
        // A host without any rule gets no request at all.
        let rules = if rules.is_empty() { "none".to_owned() } else { rules.join(", ") };
        table.row(vec!["request".to_owned(), format!("{host}={rules}")]);
    }
    // The only values that the server returns are names of stored secrets.
    let target = |v1::NetworkSecret { host, header, value, .. }: &v1::NetworkSecret| match value.as_str() {
        "" => format!("{host}:{header}"),
        value => format!("{host}:{header}  {value}"),
    };
    for (name, secret) in policy.secrets.iter().collect::<BTreeMap<_, _>>() {
        table.row(vec!["secret".to_owned(), format!("{name}={}", target(secret))]);
    }
    for header in &policy.headers {
        table.row(vec!["header".to_owned(), target(header)]);
    }
    for (host, mode) in policy.tls.iter().collect::<BTreeMap<_, _>>() {
        table.row(vec!["tls".to_owned(), format!("{host}={mode}")]);
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
