//! `belljar secret`: secrets stored on a server for network policies.

use std::io::{IsTerminal as _, Read as _};

use belljar_client::{Method, RestBody, v1};
use belljar_keeper::SecretInfo;
use serde::Deserialize;
use serde_json::json;

use super::build::in_path;
use super::key_args::{SecretCommand, SecretSourceArgs};
use super::link::Link;
use super::sandbox::find_all;
use super::show::{Table, away, print};
use super::values;
use crate::message::Quit;
use crate::net::{MAX_SECRET_BYTES, read_secret_file, read_secret_variable, without_line_end};

/// A page of secrets.
#[derive(Deserialize)]
struct Secrets {
    secrets: Vec<SecretInfo>,
    next_cursor: Option<String>,
}

/// Runs a command of `belljar secret`.
pub(crate) async fn secrets(link: &Link, command: &SecretCommand) -> Result<u8, Quit> {
    let path = |name: &str| format!("/v1/secrets/{}", in_path(name));
    match command {
        SecretCommand::Create { name, source } => {
            let (hosts, header) = (&source.hosts, &source.header);
            let body = json!({
                "name": name, "value": value(source)?, "metadata": metadata(source)?, "hosts": hosts, "header": header,
            });
            show(link, &link.client.send(Method::POST, "/v1/secrets", &body).await?)?;
        }
        SecretCommand::Set { name, source } => {
            let metadata = metadata(source)?;
            let metadata = Some(metadata).filter(|metadata| !metadata.is_empty());
            let hosts = Some(&source.hosts).filter(|hosts| !hosts.is_empty());
            let body = json!({"value": value(source)?, "metadata": metadata, "hosts": hosts, "header": source.header});
            show(link, &link.client.send(Method::PUT, &path(name), &body).await?)?;
        }
        SecretCommand::Ls => list(link).await?,
        SecretCommand::Info { name } => table(link, vec![link.client.fetch(&path(name)).await?])?,
        SecretCommand::Rm { name } => {
            let secret: SecretInfo = link.client.fetch(&path(name)).await?;
            let users = users_of(link, &secret.name).await?;
            link.client.value::<()>(Method::DELETE, &path(name), RestBody::Empty).await?;
            if !users.is_empty() {
                let users = users.join(", ");
                link.remark(&format!(
                    "requests of {users} no longer get {}, which their policy names",
                    secret.name
                ));
            }
        }
    }
    Ok(0)
}

/// Returns the sandboxes that have not ended and whose network policies name a stored secret.
async fn users_of(link: &Link, secret: &str) -> Result<Vec<String>, Quit> {
    let reference = format!("${{secrets.{secret}}}");
    let names_it = |policy: &v1::NetworkPolicy| {
        policy.secrets.values().chain(&policy.headers).any(|one| one.value.contains(&reference))
    };
    let all = find_all(link, &[], &[], false).await?;
    let users = all.into_iter().filter(|info| info.network_policy.as_option().is_some_and(names_it));
    Ok(users.map(|info| if info.name.is_empty() { info.id } else { info.name }).collect())
}

/// Reads the value. It is no argument, because other users can see those.
fn value(source: &SecretSourceArgs) -> Result<String, Quit> {
    let value = read_value(source)?;
    if !value.is_empty() {
        return Ok(value);
    }
    let place = match (&source.env, &source.file) {
        (Some(variable), _) => format!("the variable {variable}"),
        (None, Some(file)) => format!("{file:?}"),
        (None, None) => "standard input".to_owned(),
    };
    Err(Quit::Usage(format!(
        "value: {place} is empty; give --env VARIABLE or --file PATH, or write the value to standard input"
    )))
}

fn read_value(source: &SecretSourceArgs) -> Result<String, Quit> {
    match (&source.env, &source.file) {
        (Some(variable), _) => read_secret_variable("value", variable),
        (None, Some(file)) => read_secret_file("value", file),
        (None, None) if std::io::stdin().is_terminal() => Err(Quit::Usage(
            "value: missing; give --env VARIABLE or --file PATH, or write it to standard input".to_owned(),
        )),
        (None, None) => {
            let mut text = String::new();
            let read = std::io::stdin().take(MAX_SECRET_BYTES).read_to_string(&mut text);
            read.map_err(|error| Quit::Usage(format!("value: cannot read standard input: {error}")))?;
            Ok(without_line_end(text))
        }
    }
}

fn metadata(source: &SecretSourceArgs) -> Result<std::collections::HashMap<String, String>, Quit> {
    values::pairs("metadata", &source.metadata)
}

fn show(link: &Link, secret: &SecretInfo) -> Result<(), Quit> {
    if link.json(secret)? { Ok(()) } else { print(&format!("{}\n", secret.name)) }
}

async fn list(link: &Link) -> Result<(), Quit> {
    let (mut all, mut query) = (Vec::new(), String::new());
    loop {
        let Secrets { secrets, next_cursor } = link.client.fetch(&format!("/v1/secrets{query}")).await?;
        all.extend(secrets);
        match next_cursor {
            Some(cursor) => query = format!("?cursor={}", in_path(&cursor)),
            None => return table(link, all),
        }
    }
}

fn table(link: &Link, secrets: Vec<SecretInfo>) -> Result<(), Quit> {
    let mut table = Table::new(&["NAME", "ID", "VERSION", "CHANGED", "HOSTS", "METADATA"]);
    for secret in secrets {
        if link.json(&secret)? {
            continue;
        }
        let metadata: Vec<String> =
            secret.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let (version, changed) = (secret.version.to_string(), away(secret.updated_at));
        let header = secret.header.map(|header| format!(" ({header})")).unwrap_or_default();
        let hosts = secret.hosts.join(" ") + &header;
        table.row(vec![secret.name, secret.id, version, changed, hosts, metadata.join(" ")]);
    }
    link.list(&table, 1)
}
