//! `belljar key` and `belljar template`.

use belljar_client::{Method, RestBody, v1};
use belljar_keeper::{CreatedKey, KeyInfo, Quotas};
use belljar_model::{NetworkCeiling, NetworkFile, Role};
use serde::Deserialize;
use serde_json::json;

use super::args::{Format, KeyCommand, QuotaArgs, TemplateCommand};
use super::build::{self, in_path};
use super::link::Link;
use super::show::{Table, away, bytes, distance, print};
use super::words;
use crate::message::Quit;

/// The keys, as the server tells them.
#[derive(Deserialize)]
struct Keys {
    keys: Vec<KeyInfo>,
}

/// Does what was asked for about keys.
pub(crate) async fn keys(link: &Link, command: &KeyCommand) -> Result<u8, Quit> {
    match command {
        KeyCommand::Create { .. } => create(link, command).await?,
        KeyCommand::Ls => list(link).await?,
        KeyCommand::Set { .. } => set(link, command).await?,
        KeyCommand::Revoke { id } => {
            let path = format!("/v1/keys/{}", in_path(id));
            link.client.value::<()>(Method::DELETE, &path, RestBody::Empty).await?;
            link.remark("the key is taken back, and with it every token that was made with it");
        }
    }
    Ok(0)
}

async fn create(link: &Link, command: &KeyCommand) -> Result<(), Quit> {
    let KeyCommand::Create { name, role, tenant, expires, quotas } = command else { return Ok(()) };
    let quotas = changed(quotas, Quotas::default())?;
    let role: Role = role
        .parse()
        .map_err(|_| Quit::Usage(format!("--role: {role:?} is not allowed; give admin, user or read")))?;
    let expires = expires.as_deref().map(|expires| words::time("expires", expires)).transpose()?;
    let request = json!({
        "name": name,
        "role": role,
        "tenant": tenant,
        "expires": expires.map(|expires| expires.as_secs_f64()),
        "quotas": quotas,
    });
    let made: CreatedKey = link.client.send(Method::POST, "/v1/keys", &request).await?;
    if !link.json(&made)? {
        link.remark("Save this key; it won't be shown again");
        print(&format!("{}\n", made.key))?;
    }
    Ok(())
}

/// Changes the quotas that are named, and leaves the others as they are.
async fn set(link: &Link, command: &KeyCommand) -> Result<(), Quit> {
    let KeyCommand::Set { id, quotas } = command else { return Ok(()) };
    let Keys { keys } = link.client.fetch("/v1/keys").await?;
    // One that is not there is refused by the server, in its own words.
    let now = keys.into_iter().find(|key| key.id == *id).map(|key| key.quotas).unwrap_or_default();
    let request = json!({"quotas": changed(quotas, now)?});
    let path = format!("/v1/keys/{}", in_path(id));
    let changed: KeyInfo = link.client.send(Method::PATCH, &path, &request).await?;
    if !link.json(&changed)? {
        print(&format!("{}\n", changed.id))?;
    }
    Ok(())
}

/// The quotas that there are, with those that were given in their places.
fn changed(given: &QuotaArgs, now: Quotas) -> Result<Quotas, Quit> {
    Ok(Quotas {
        sandboxes: or_now(&given.max_sandboxes, now.sandboxes, |text| words::number("max-sandboxes", text))?,
        memory_bytes: or_now(&given.max_memory, now.memory_bytes, |text| words::size("max-memory", text))?,
        disk_bytes: or_now(&given.max_disk, now.disk_bytes, |text| words::size("max-disk", text))?,
        cpu_seconds_per_hour: or_now(&given.max_cpu_per_hour, now.cpu_seconds_per_hour, |text| {
            words::number("max-cpu-per-hour", text)
        })?,
        executions_per_minute: or_now(&given.max_executions_per_minute, now.executions_per_minute, |text| {
            words::number("max-executions-per-minute", text)
        })?,
        network: ceiling(given, now.network)?,
    })
}

/// The ceiling of networks that was given, or the one that there is.
fn ceiling(given: &QuotaArgs, now: Option<NetworkCeiling>) -> Result<Option<NetworkCeiling>, Quit> {
    let QuotaArgs { max_network, max_preset, max_allow, .. } = given;
    let file = match max_network.as_deref() {
        Some("none") => return Ok(None),
        Some(mode) => NetworkFile::from(mode),
        None if max_preset.is_empty() && max_allow.is_empty() => return Ok(now),
        None => NetworkFile {
            presets: Some(max_preset.clone()),
            allow: Some(max_allow.clone()),
            ..NetworkFile::default()
        },
    };
    Ok(Some(NetworkCeiling::try_from(file).map_err(|error| Quit::Usage(error.to_string()))?))
}

/// A quota that was given, or the one that there is. `none` is without a limit.
fn or_now<T>(
    given: &Option<String>,
    now: Option<T>,
    read: impl FnOnce(Option<&str>) -> Result<Option<T>, Quit>,
) -> Result<Option<T>, Quit> {
    match given.as_deref() {
        None => Ok(now),
        Some("none") => Ok(None),
        text => read(text),
    }
}

async fn list(link: &Link) -> Result<(), Quit> {
    let Keys { keys } = link.client.fetch("/v1/keys").await?;
    let mut table = Table::new(&["ID", "KEY", "NAME", "ROLE", "TENANT", "LAST USED", "WORKS"]);
    for key in keys {
        if link.json(&key)? {
            continue;
        }
        let works = match (key.revoked_at, key.expires_at) {
            (Some(_), _) => "taken back".to_owned(),
            (None, Some(expires)) => format!("ends {}", away(expires)),
            (None, None) => "yes".to_owned(),
        };
        let used = key.last_used_at.map_or_else(|| "-".to_owned(), away);
        let hint = format!("{}…", key.hint);
        table.row(vec![key.id, hint, key.name, key.role.to_string(), key.tenant, used, works]);
    }
    if link.format == Format::Json { Ok(()) } else { table.print() }
}

/// Does what was asked for about templates.
pub(crate) async fn templates(link: &Link, command: &TemplateCommand) -> Result<u8, Quit> {
    let shown = match command {
        TemplateCommand::Ls => link.client.templates(v1::ListTemplatesRequest::default()).await?.templates,
        TemplateCommand::Info { template } => {
            let request = v1::GetTemplateRequest { template: template.clone(), ..Default::default() };
            vec![link.client.template(request).await?]
        }
        TemplateCommand::Rm { template } => {
            let request = v1::RemoveTemplateRequest { template: template.clone(), ..Default::default() };
            link.client.remove_template(request).await?;
            return Ok(0);
        }
        TemplateCommand::Build { file, mirror, name, fresh } => {
            return build::build(link, file, mirror.as_deref(), name.as_deref(), *fresh).await;
        }
        TemplateCommand::Export { template, file } => return build::export(link, template, file).await,
        TemplateCommand::Import { file, name } => return build::import(link, file, name.as_deref()).await,
    };
    let mut table = Table::new(&["ID", "NAME", "FROM", "SIZE", "CREATED", "NOTE"]);
    for template in shown {
        if link.json(&template)? {
            continue;
        }
        let builtin = template.kind.as_known() == Some(v1::TemplateKind::TEMPLATE_KIND_BUILTIN);
        let from = match (builtin, template.source.is_empty()) {
            (true, _) => "belljar".to_owned(),
            (false, true) => "build".to_owned(),
            (false, false) => template.source,
        };
        table.row(vec![
            template.id,
            template.name,
            from,
            bytes(template.bytes),
            if builtin { "-".to_owned() } else { distance(&template.created_at) },
            template.note,
        ]);
    }
    if link.format == Format::Table {
        table.print()?;
    }
    Ok(0)
}
