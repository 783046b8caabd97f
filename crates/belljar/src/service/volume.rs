//! `belljar volume`.

use belljar_client::{Method, RestBody};
use belljar_keeper::VolumeInfo;
use serde::Deserialize;
use serde_json::json;

use super::build::in_path;
use super::copy::{RemoteKind, copy};
use super::link::Link;
use super::show::{Table, away, print};
use super::template_args::VolumeCommand;
use crate::message::Quit;
use crate::units::bytes;

/// A list of volumes in a server's answer.
#[derive(Deserialize)]
struct Volumes {
    volumes: Vec<VolumeInfo>,
}

/// Runs a subcommand of `belljar volume`.
pub(crate) async fn run(link: &Link, command: &VolumeCommand) -> Result<u8, Quit> {
    let shown = match command {
        VolumeCommand::Create { name, size } => {
            let request = json!({"name": name, "size": size});
            let created: VolumeInfo = link.client.send(Method::POST, "/v1/volumes", &request).await?;
            if !link.json(&created)? {
                print(&format!("{}\n", created.id))?;
            }
            return Ok(0);
        }
        VolumeCommand::Cp(args) => return copy(link, args, RemoteKind::Volume).await,
        VolumeCommand::Rm { volumes } => {
            for volume in volumes {
                link.client.value::<()>(Method::DELETE, &path(volume), RestBody::Empty).await?;
            }
            return Ok(0);
        }
        VolumeCommand::Ls => link.client.fetch::<Volumes>("/v1/volumes").await?.volumes,
        VolumeCommand::Info { volume } => vec![find(link, volume).await?],
    };
    let mut table = Table::new(&["ID", "NAME", "SIZE", "TENANT", "CREATED", "SANDBOXES"]);
    for volume in shown {
        if link.json(&volume)? {
            continue;
        }
        let sandboxes: Vec<String> = volume.sandboxes.iter().map(ToString::to_string).collect();
        table.row(vec![
            volume.id.to_string(),
            volume.name,
            bytes(volume.bytes),
            volume.tenant,
            away(volume.created_at),
            if sandboxes.is_empty() { "-".to_owned() } else { sandboxes.join(",") },
        ]);
    }
    link.list(&table, 0)?;
    Ok(0)
}

/// Fetches a volume.
pub(super) async fn find(link: &Link, volume: &str) -> Result<VolumeInfo, Quit> {
    Ok(link.client.fetch(&path(volume)).await?)
}

fn path(volume: &str) -> String {
    format!("/v1/volumes/{}", in_path(volume))
}
