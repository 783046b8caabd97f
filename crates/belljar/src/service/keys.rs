//! `belljar key` and `belljar template`.

use belljar_client::{Method, RestBody, v1};
use belljar_keeper::{CreatedKey, KeyInfo, Quotas};
use belljar_model::{NetworkCeiling, NetworkFile, Role};
use serde::Deserialize;
use serde_json::json;

use super::build::{self, in_path};
use super::key_args::{KeyCommand, QuotaArgs};
use super::link::Link;
use super::network::lost;
use super::show::{Table, away, distance, print};
use super::template_args::TemplateCommand;
use super::values;
use crate::message::Quit;
use crate::net::policy_message;
use crate::units::bytes;

/// Response of the server with the keys.
#[derive(Deserialize)]
struct Keys {
    keys: Vec<KeyInfo>,
}

/// Runs `belljar key`.
pub(crate) async fn keys(link: &Link, command: &KeyCommand) -> Result<u8, Quit> {
    match command {
        KeyCommand::Create { .. } => create(link, command).await?,
        KeyCommand::Ls => list(link).await?,
        KeyCommand::Set { .. } => set(link, command).await?,
        KeyCommand::Revoke { id } => {
            let Keys { keys } = link.client.fetch("/v1/keys").await?;
            let path = format!("/v1/keys/{}", in_path(&find_id(&keys, id)?));
            link.client.value::<()>(Method::DELETE, &path, RestBody::Empty).await?;
            link.remark("the key is revoked, and so is every token that was created with it");
        }
    }
    Ok(0)
}

async fn create(link: &Link, command: &KeyCommand) -> Result<(), Quit> {
    let KeyCommand::Create { name, role, tenant, expires, person, quotas } = command else { return Ok(()) };
    let quotas = merge_quotas(quotas, Quotas::default())?;
    let role = parse_role(role)?;
    let expires = expires.as_deref().map(|expires| values::lifetime("expires", expires)).transpose()?;
    let mut request = json!({
        "name": name,
        "role": role,
        "tenant": tenant,
        "expires": expires.map(|expires| expires.as_secs_f64()),
        "quotas": quotas,
    });
    person.add_to(&mut request);
    let created: CreatedKey = link.client.send(Method::POST, "/v1/keys", &request).await?;
    if !link.json(&created)? {
        link.remark("Save this key; it won't be shown again");
        print(&format!("{}\n", created.key))?;
        remark_name(link, name, &created.info.id).await;
    }
    Ok(())
}

/// Says that a key is named by its id, if its name does not tell.
async fn remark_name(link: &Link, name: &str, id: &str) {
    let why = match link.client.fetch::<Keys>("/v1/keys").await {
        _ if name.is_empty() => "it has no name",
        Ok(Keys { keys }) if find_id(&keys, name).is_err() => "other keys have its name",
        _ => return,
    };
    link.remark(&format!("{why}: belljar key set and belljar key revoke take its id, {id}"));
}

/// Returns the id of the key that `given` names, by its id or by a name that no other valid key has.
fn find_id(keys: &[KeyInfo], given: &str) -> Result<String, Quit> {
    let is_named = |key: &&KeyInfo| key.name == given && key.revoked_at.is_none();
    let named: Vec<&str> = keys.iter().filter(is_named).map(|key| key.id.as_str()).collect();
    match named[..] {
        _ if keys.iter().any(|key| key.id == given) => Ok(given.to_owned()),
        [id] => Ok(id.to_owned()),
        [] => Err(Quit::Error(anyhow::anyhow!(
            "key {given:?} not found; belljar key ls lists keys with their ids"
        ))),
        _ => Err(Quit::Usage(format!(
            "{given:?} is the name of several keys; give one of their ids: {}",
            named.join(", ")
        ))),
    }
}

fn parse_role(text: &str) -> Result<Role, Quit> {
    let error =
        |_| Quit::Usage(format!("--role: {text:?} is not allowed; give admin, user, approver or read"));
    text.parse().map_err(error)
}

/// Changes what is named, and leaves the rest as it is.
async fn set(link: &Link, command: &KeyCommand) -> Result<(), Quit> {
    let KeyCommand::Set { id, name, role, expires, person, quotas } = command else { return Ok(()) };
    let expires = match expires.as_deref() {
        Some("none") => Some(0.0),
        Some(text) => Some(values::lifetime("expires", text)?.as_secs_f64()),
        None => None,
    };
    let mut request = json!({});
    person.add_to(&mut request);
    if let Some(name) = name {
        request["name"] = json!(name);
    }
    if let Some(role) = role {
        request["role"] = json!(parse_role(role)?);
    }
    if let Some(expires) = expires {
        request["expires"] = json!(expires);
    }
    if request == json!({}) && *quotas == QuotaArgs::default() {
        return Err(Quit::Usage("nothing to change; see belljar key set --help".to_owned()));
    }
    let Keys { keys } = link.client.fetch("/v1/keys").await?;
    let id = find_id(&keys, id)?;
    let current = keys.into_iter().find(|key| key.id == id).map(|key| key.quotas).unwrap_or_default();
    let names_mode = quotas.max_network.is_some();
    let quotas = merge_quotas(quotas, current.clone())?;
    let ceiling =
        |quotas: &Quotas| quotas.network.clone().map(|most| policy_message(NetworkFile::from(most)));
    let lost = match (ceiling(&current), ceiling(&quotas)) {
        (Some(before), Some(after)) if !names_mode => lost(&before, &after),
        // A mode is wider than lists.
        _ => None,
    };
    if quotas != current {
        request["quotas"] = json!(quotas);
    }
    let path = format!("/v1/keys/{}", in_path(&id));
    let updated: KeyInfo = link.client.send(Method::PATCH, &path, &request).await?;
    if !link.json(&updated)? {
        print(&format!("{}\n", updated.id))?;
    }
    if let Some(lost) = lost {
        link.remark(&format!(
            "the flags replace all that its networks may reach, which no longer has {lost}"
        ));
    }
    Ok(())
}

/// Returns the current quotas with the given ones replaced.
fn merge_quotas(given: &QuotaArgs, current: Quotas) -> Result<Quotas, Quit> {
    Ok(Quotas {
        sandboxes: or_current(&given.max_sandboxes, current.sandboxes, |text| {
            values::number("max-sandboxes", text)
        })?,
        memory_bytes: or_current(&given.max_memory, current.memory_bytes, |text| {
            values::size("max-memory", text)
        })?,
        disk_bytes: or_current(&given.max_disk, current.disk_bytes, |text| values::size("max-disk", text))?,
        cpu_seconds_per_hour: or_current(&given.max_cpu_per_hour, current.cpu_seconds_per_hour, |text| {
            values::number("max-cpu-per-hour", text)
        })?,
        executions_per_minute: or_current(
            &given.max_executions_per_minute,
            current.executions_per_minute,
            |text| values::number("max-executions-per-minute", text),
        )?,
        network: ceiling(given, current.network)?,
        stored_secrets: given.stored_secrets.or(current.stored_secrets),
    })
}

/// Returns the given ceiling of networks, or the current one.
fn ceiling(given: &QuotaArgs, current: Option<NetworkCeiling>) -> Result<Option<NetworkCeiling>, Quit> {
    let QuotaArgs { max_network, max_preset, max_allow, .. } = given;
    let file = match max_network.as_deref() {
        Some("none") => return Ok(None),
        Some(mode) => NetworkFile::from(mode),
        None if max_preset.is_empty() && max_allow.is_empty() => return Ok(current),
        None => NetworkFile {
            presets: Some(max_preset.clone()),
            allow: Some(max_allow.clone()),
            ..NetworkFile::default()
        },
    };
    Ok(Some(NetworkCeiling::try_from(file).map_err(|error| Quit::Usage(error.to_string()))?))
}

/// Returns the given quota, or the current one. `none` means without a limit.
fn or_current<T>(
    given: &Option<String>,
    current: Option<T>,
    read: impl FnOnce(Option<&str>) -> Result<Option<T>, Quit>,
) -> Result<Option<T>, Quit> {
    match given.as_deref() {
        None => Ok(current),
        Some("none") => Ok(None),
        text => read(text),
    }
}

/// Formats usage, with the quota if there is one.
pub(super) fn of_quota(used: u64, quota: Option<u64>, format: impl Fn(u64) -> String) -> String {
    let used = format(used);
    quota.map_or(used.clone(), |quota| format!("{used} of {}", format(quota)))
}

async fn list(link: &Link) -> Result<(), Quit> {
    let Keys { keys } = link.client.fetch("/v1/keys").await?;
    let mut table =
        Table::new(&["ID", "KEY", "NAME", "ROLE", "OWNER", "TENANT", "SANDBOXES", "LAST USED", "WORKS"]);
    for key in keys {
        if link.json(&key)? {
            continue;
        }
        let works = match (key.revoked_at, key.expires_at) {
            (Some(_), _) => "revoked".to_owned(),
            (None, Some(expires)) => format!("ends {}", away(expires)),
            (None, None) => "yes".to_owned(),
        };
        let owner = key.owner.unwrap_or_else(|| "-".to_owned());
        let used = key.last_used_at.map_or_else(|| "-".to_owned(), away);
        let hint = format!("{}…", key.hint);
        let sandboxes = of_quota(key.usage.sandboxes.into(), key.quotas.sandboxes.map(u64::from), |count| {
            count.to_string()
        });
        table.row(vec![
            key.id,
            hint,
            key.name,
            key.role.to_string(),
            owner,
            key.tenant,
            sandboxes,
            used,
            works,
        ]);
    }
    link.list(&table, 0)
}

/// Runs `belljar template`.
pub(crate) async fn templates(link: &Link, command: &TemplateCommand) -> Result<u8, Quit> {
    let shown = match command {
        TemplateCommand::Builds => return build::list(link).await,
        TemplateCommand::Attach { build, progress } => return build::attach(link, build, *progress).await,
        TemplateCommand::Cancel { build } => return build::cancel(link, build).await,
        TemplateCommand::Ls => link.client.templates(v1::ListTemplatesRequest::default()).await?.templates,
        TemplateCommand::Info { template } => {
            let request = v1::GetTemplateRequest { template: template.clone(), ..Default::default() };
            return template_info(link, link.client.template(request).await?);
        }
        TemplateCommand::Rm { template } => {
            let request = v1::RemoveTemplateRequest { template: template.clone(), ..Default::default() };
            let named = v1::GetTemplateRequest { template: template.clone(), ..Default::default() };
            let info = link.client.template(named).await?;
            link.client.remove_template(request).await?;
            if !link.json(&info)? {
                print(&format!("{}\n", info.id))?;
            }
            return remark_children(link, &info.name).await;
        }
        TemplateCommand::Build { file, mirror, name, fresh, progress } => {
            return build::build(link, file, mirror.as_deref(), name.as_deref(), *fresh, *progress).await;
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
    link.list(&table, 0)?;
    Ok(0)
}

/// Says which templates are based on one that was removed.
async fn remark_children(link: &Link, parent: &str) -> Result<u8, Quit> {
    let all = link.client.templates(v1::ListTemplatesRequest::default()).await?.templates;
    let names: Vec<String> = all
        .into_iter()
        .filter(|one| !parent.is_empty() && one.parent == parent)
        .map(|one| one.name)
        .collect();
    if !names.is_empty() {
        link.remark(&format!(
            "{} based on {parent}: they keep all their files; building them again needs {parent}",
            names.join(", ")
        ));
    }
    Ok(0)
}

/// Shows a template in full.
fn template_info(link: &Link, info: v1::TemplateInfo) -> Result<u8, Quit> {
    if link.json(&info)? {
        return Ok(0);
    }
    if link.quiet {
        print(&format!("{}\n", info.id))?;
        return Ok(0);
    }
    let kind = info.kind.as_known();
    let is_built = kind == Some(v1::TemplateKind::TEMPLATE_KIND_BUILT);
    let mut table = Table::new(&["id", &info.id]);
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            table.row(vec![name.to_owned(), value]);
        }
    };
    row("name", info.name);
    row(
        "kind",
        match kind {
            Some(v1::TemplateKind::TEMPLATE_KIND_BUILTIN) => "builtin".to_owned(),
            Some(v1::TemplateKind::TEMPLATE_KIND_SNAPSHOT) => format!("snapshot of {}", info.source),
            _ => "built".to_owned(),
        },
    );
    row("note", info.note);
    row("parent", info.parent);
    let tree = if info.base == "own" { "its own" } else { "the machine's own" };
    row("tree", tree.to_owned());
    row("machine", if info.machine { "yes" } else { "" }.to_owned());
    if kind != Some(v1::TemplateKind::TEMPLATE_KIND_BUILTIN) {
        row("created", distance(&info.created_at));
        row("size", bytes(info.bytes));
        row("sha256", info.digest);
    }
    if is_built {
        let warm = if info.warm.is_empty() { "no modules imported".to_owned() } else { info.warm.join(", ") };
        row("warm", warm);
    }
    row("start", info.start);
    row("ready", info.ready);
    row("workdir", info.workdir);
    for (name, value) in info.limits.iter().collect::<std::collections::BTreeMap<_, _>>() {
        row("limit", format!("{name} {value}"));
    }
    for (name, value) in info.env.iter().collect::<std::collections::BTreeMap<_, _>>() {
        row("env", format!("{name}={value}"));
    }
    for kind in ["apt", "pip", "npm"] {
        let packages = info.steps.iter().filter(|step| step.kind == kind).map(|step| step.summary.as_str());
        row(kind, packages.collect::<Vec<_>>().join(" "));
    }
    for (index, step) in info.steps.iter().enumerate() {
        let is_packages = ["apt", "pip", "npm"].contains(&step.kind.as_str());
        let summary = if is_packages { "" } else { step.summary.as_str() };
        row("step", format!("{} {} {summary}", index + 1, step.kind).trim_end().to_owned());
    }
    table.print()?;
    Ok(0)
}
