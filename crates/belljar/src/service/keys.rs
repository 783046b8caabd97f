//! `belljar key` and `belljar template`.

use belljar_client::v1;

use super::args::{Format, KeyCommand, QuotaArgs, TemplateCommand};
use super::build;
use super::link::Link;
use super::show::{Table, bytes, distance, print};
use super::words;
use crate::message::Quit;

/// Does what was asked for about keys.
pub(crate) async fn keys(link: &Link, command: &KeyCommand) -> Result<u8, Quit> {
    match command {
        KeyCommand::Create { .. } => create(link, command).await?,
        KeyCommand::Ls => list(link).await?,
        KeyCommand::Set { .. } => set(link, command).await?,
        KeyCommand::Revoke { id } => {
            let request = v1::RevokeKeyRequest { id: id.clone(), ..Default::default() };
            link.client.revoke_key(request).await?;
            link.remark("the key is taken back, and with it every token that was made with it");
        }
    }
    Ok(0)
}

async fn create(link: &Link, command: &KeyCommand) -> Result<(), Quit> {
    let KeyCommand::Create { name, role, tenant, expires, quotas } = command else { return Ok(()) };
    let quotas = changed(quotas, v1::KeyQuotas::default())?;
    let role = match role.as_str() {
        "read" => v1::KeyRole::KEY_ROLE_READ,
        "user" => v1::KeyRole::KEY_ROLE_USER,
        "admin" => v1::KeyRole::KEY_ROLE_ADMIN,
        other => {
            return Err(Quit::Usage(format!("--role: {other:?} is not allowed; give admin, user or read")));
        }
    };
    let request = v1::CreateKeyRequest {
        name: name.clone(),
        role: role.into(),
        tenant: tenant.clone(),
        expires: words::span("expires", expires.as_deref())?,
        quotas: if quotas == v1::KeyQuotas::default() { Default::default() } else { quotas.into() },
        ..Default::default()
    };
    let made = link.client.create_key(request).await?;
    if !link.json(&made)? {
        link.remark("Save this key; it won't be shown again");
        print(&format!("{}\n", made.key))?;
    }
    Ok(())
}

/// Changes the quotas that are named, and leaves the others as they are.
async fn set(link: &Link, command: &KeyCommand) -> Result<(), Quit> {
    let KeyCommand::Set { id, quotas } = command else { return Ok(()) };
    let keys = link.client.keys(v1::ListKeysRequest::default()).await?.keys;
    // One that is not there is refused by the server, in its own words.
    let key = keys.into_iter().find(|key| key.id == *id).unwrap_or_default();
    let quotas = changed(quotas, key.quotas.into_option().unwrap_or_default())?;
    let request = v1::UpdateKeyRequest { id: id.clone(), quotas: quotas.into(), ..Default::default() };
    let changed = link.client.update_key(request).await?;
    if !link.json(&changed)? {
        print(&format!("{}\n", changed.id))?;
    }
    Ok(())
}

/// The quotas that there are, with those that were given in their places.
fn changed(given: &QuotaArgs, now: v1::KeyQuotas) -> Result<v1::KeyQuotas, Quit> {
    Ok(v1::KeyQuotas {
        sandboxes: or_now(&given.max_sandboxes, now.sandboxes, |text| words::number("max-sandboxes", text))?,
        memory_bytes: or_now(&given.max_memory, now.memory_bytes, |text| words::size("max-memory", text))?,
        disk_bytes: or_now(&given.max_disk, now.disk_bytes, |text| words::size("max-disk", text))?,
        cpu_seconds_per_hour: or_now(&given.max_cpu_per_hour, now.cpu_seconds_per_hour, |text| {
            words::number("max-cpu-per-hour", text)
        })?,
        executions_per_minute: or_now(&given.max_executions_per_minute, now.executions_per_minute, |text| {
            words::number("max-executions-per-minute", text)
        })?,
        ..Default::default()
    })
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
    let keys = link.client.keys(v1::ListKeysRequest::default()).await?.keys;
    let mut table = Table::new(&["ID", "KEY", "NAME", "ROLE", "TENANT", "LAST USED", "WORKS"]);
    for key in keys {
        if link.json(&key)? {
            continue;
        }
        let role = match key.role.as_known().unwrap_or_default() {
            v1::KeyRole::KEY_ROLE_ADMIN => "admin",
            v1::KeyRole::KEY_ROLE_READ => "read",
            _ => "user",
        };
        let works = match (key.revoked_at.as_option(), key.expires_at.as_option()) {
            (Some(_), _) => "taken back".to_owned(),
            (None, Some(_)) => format!("ends {}", distance(&key.expires_at)),
            (None, None) => "yes".to_owned(),
        };
        let used = distance(&key.last_used_at);
        table.row(vec![key.id, format!("{}…", key.hint), key.name, role.to_owned(), key.tenant, used, works]);
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
