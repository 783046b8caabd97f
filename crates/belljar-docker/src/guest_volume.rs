//! The volume with the guest's program: named by its digest, made once for each daemon, read-only in containers.
//!
//! A volume works with any daemon, and with containers whose own root is read-only. It is filled through a container that is never started.
//! The program gets its name there as the last step, so a volume that has it is complete.

use std::path::{Path, PathBuf};

use belljar_engine::EngineError;
use belljar_guest_config::GUEST_PROGRAM;
use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions};
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder, ListVolumesOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveVolumeOptions, UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::daemon::{failed, status};

/// Where the volume is mounted in containers.
const MOUNT: &str = "/.belljar/bin";

/// The guest's program in containers.
pub(crate) const PROGRAM: &str = "/.belljar/bin/guest";

/// Label of such volumes, and of the containers through which they are filled.
const LABEL: &str = "belljar.guest";

/// Characters of a container's id that are enough to tell two apart.
const UNIQUE_CHARS: usize = 12;

/// Digits of the digest in a volume's name.
const DIGITS: usize = 32;

/// The guest's program.
#[derive(Debug)]
pub(crate) struct Guest {
    content: Bytes,
    digest: String,
}

impl Guest {
    /// Reads the program at this path; by default the one beside this program, or this program itself.
    pub(crate) fn read(path: Option<&Path>) -> std::io::Result<Self> {
        let content = match path {
            Some(path) => std::fs::read(path)?,
            None => {
                let own = std::fs::read_link("/proc/self/exe")?;
                std::fs::read(own.with_file_name(GUEST_PROGRAM))
                    .or_else(|_| std::fs::read("/proc/self/exe"))?
            }
        };
        let digest = hex::encode(Sha256::digest(&content)).chars().take(DIGITS).collect();
        Ok(Self { content: content.into(), digest })
    }

    fn volume(&self) -> String {
        format!("belljar-guest-{}", self.digest)
    }

    /// Returns the mount of the volume. The daemon makes an empty one if there is none.
    pub(crate) fn mount(&self, read_only: bool) -> Mount {
        let options = MountVolumeOptions {
            no_copy: Some(true),
            labels: Some([(LABEL.to_owned(), self.digest.clone())].into()),
            ..MountVolumeOptions::default()
        };
        Mount {
            target: Some(MOUNT.to_owned()),
            source: Some(self.volume()),
            typ: Some(MountType::VOLUME),
            read_only: Some(read_only),
            volume_options: Some(options),
            ..Mount::default()
        }
    }

    /// Fills the volume, through a container of this image, unless it has the program. Returns whether it was filled.
    pub(crate) async fn fill(&self, client: &Docker, image: &str) -> Result<bool, EngineError> {
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(vec![PROGRAM.to_owned()]),
            labels: Some([(LABEL.to_owned(), self.digest.clone())].into()),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                mounts: Some(vec![self.mount(false)]),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::new().build();
        let made = client.create_container(Some(options), body).await;
        let id = made.map_err(failed("create the container through which the guest's program is stored"))?.id;
        let filled = self.fill_through(client, &id).await;
        // With those that the image declares; the named one stays.
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removed = client.remove_container(&id, Some(options)).await;
        let filled = filled?;
        removed.map_err(failed("remove the container through which the guest's program was stored"))?;
        Ok(filled)
    }

    async fn fill_through(&self, client: &Docker, container: &str) -> Result<bool, EngineError> {
        if is_there(client, container).await? {
            return Ok(false);
        }
        let step = "store the guest's program in its volume";
        let archive = archive(&self.content, container)
            .map_err(|source| EngineError::Launch { step: step.to_owned(), source })?;
        let options = UploadToContainerOptionsBuilder::new().path(MOUNT).build();
        let body = bollard::body_full(archive.into());
        match client.upload_to_container(container, Some(options), body).await {
            Ok(()) => Ok(true),
            // The daemon removes a name before it links it, so of two that do it at once one may fail.
            Err(_) if is_there(client, container).await? => Ok(false),
            Err(error) => Err(failed(step)(error)),
        }
    }

    /// Removes the volumes of other versions that no container uses.
    pub(crate) async fn remove_others(&self, client: &Docker) {
        let filters = [("label", vec![LABEL])].into_iter().collect();
        let options = ListVolumesOptionsBuilder::new().filters(&filters).build();
        let Ok(listed) = client.list_volumes(Some(options)).await else { return };
        for volume in listed.volumes.unwrap_or_default() {
            if volume.name != self.volume() {
                // The daemon refuses for one that is in use.
                let _ = client.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await;
            }
        }
    }
}

/// Reports whether the volume has the program.
async fn is_there(client: &Docker, container: &str) -> Result<bool, EngineError> {
    let options = ContainerArchiveInfoOptionsBuilder::new().path(PROGRAM).build();
    match client.get_container_archive_info(container, Some(options)).await {
        Ok(_) => Ok(true),
        Err(error) if status(&error) == Some(404) => Ok(false),
        Err(error) => Err(failed("look for the guest's program in its volume")(error)),
    }
}

/// Returns an archive that stores the program under another name first, and links it to its own when it is complete. `unique` is a part of
/// that name, as several launches may fill a new volume at the same time.
fn archive(content: &[u8], unique: &str) -> std::io::Result<Vec<u8>> {
    let own = PathBuf::from(PROGRAM.rsplit('/').next().unwrap_or_default());
    let unique: String = unique.chars().take(UNIQUE_CHARS).collect();
    let other = own.with_extension(unique);
    let mut archive = tar::Builder::new(Vec::with_capacity(content.len() + 4096));
    let header = |kind, size| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o555);
        header.set_size(size);
        header
    };
    let size = content.len().try_into().map_err(std::io::Error::other)?;
    archive.append_data(&mut header(tar::EntryType::Regular, size), &other, content)?;
    archive.append_link(&mut header(tar::EntryType::Link, 0), &own, &other)?;
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_names_the_program_last() {
        let bytes = archive(b"program", "0123456789abcdef").unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let link = entry.link_name().unwrap().map(|link| link.into_owned());
            (entry.path().unwrap().into_owned(), entry.size(), entry.header().mode().unwrap(), link)
        });
        let expected = [
            (PathBuf::from("guest.0123456789ab"), 7, 0o555, None),
            (PathBuf::from("guest"), 0, 0o555, Some(PathBuf::from("guest.0123456789ab"))),
        ];
        assert_eq!(entries.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn volume_is_named_by_the_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("guest");
        let volume = |content: &str| {
            std::fs::write(&path, content).unwrap();
            Guest::read(Some(&path)).unwrap().volume()
        };
        assert_eq!(volume("one"), "belljar-guest-7692c3ad3540bb803c020b3aee66cd88");
        assert_ne!(volume("two"), volume("one"));
    }
}
