//! Images of registries, as bases of templates. An image is pulled into a layout directory, which is removed once its layer is built;
//! after a failure it stays until the next pull, which goes on with it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_image::{BuildEvent, is_unpacked};
use belljar_model::{Cidr, ImageReference, ImageRegistry};
use belljar_registry::{PullLimits, RegistryClient, RegistryError, RegistryHosts};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::caller::Caller;
use crate::error::{KeeperError, chain};
use crate::keeper::{Keeper, Result};

/// Maximum number of layers of an image, as many as Docker makes.
const MAX_LAYERS: usize = 128;

/// Interval between two reports of how far a pull is.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Time to wait if a registry accepts no more requests and does not say for how long.
const LIMITED_RETRY: Duration = Duration::from_secs(60);

/// Time to wait at most that a registry may ask for.
const MAX_LIMITED_RETRY: Duration = Duration::from_secs(24 * 3600);

/// Beginning of the names of templates that are pulled images.
pub const IMAGE_PREFIX: &str = "image-";

/// Beginning of what a request names in the place of a template to start from an image of the engine's own store, before the image's
/// name. It is that of a definition's base.
pub const ENGINE_IMAGE_PREFIX: &str = "image:";

/// Maximum number of characters of an image's name in that of its template.
const MAX_SLUG: usize = 40;

/// Number of hexadecimal digits that tell apart images whose names differ only in what is left out.
const DIGITS: usize = 10;

/// Where images come from.
#[derive(Debug, Clone, Default)]
pub struct ImagesConfig {
    /// Registries from which images may be pulled.
    pub registries: Vec<ImageRegistry>,
    /// Ranges to which registries may refer although they are not public.
    pub exceptions: Vec<Cidr>,
    /// PEM file of certificates that are trusted in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// Maximum size of an image, compressed, in bytes.
    pub max_bytes: u64,
}

impl Keeper {
    /// Pulls an image, and returns its layout directory. Only while this server builds nothing else.
    pub(crate) async fn pull_image(
        &self,
        caller: &Caller,
        reference: &ImageReference,
        fresh: bool,
        tell: &(dyn Fn(BuildEvent) + Sync),
    ) -> Result<PathBuf> {
        let config = self.inner.config.now();
        let ImagesConfig { registries, exceptions, ca_file, max_bytes } = config.images.clone();
        let client = RegistryClient::new(RegistryHosts { registries, exceptions }, ca_file.as_deref());
        let client = client.map_err(refused)?;
        let say = |line: String| tell(BuildEvent::Log { number: 0, line });
        say(format!("looking up {reference}"));
        let resolved = client.resolve(reference, None).await.map_err(refused)?;
        let all = config.state_dir.join("templates").join("images");
        let dir = all.join(resolved.digest.trim_start_matches("sha256:"));
        keep_only(&all, &dir).await?;
        let is_unpacked = !fresh && is_unpacked(&self.layers(), &resolved.digest).await;
        if !is_unpacked {
            self.check_lasting(caller, resolved.bytes()).await?;
        }
        let said = Mutex::new(Instant::now());
        let limits = PullLimits { max_bytes, max_layers: MAX_LAYERS };
        let progress = |progress: belljar_registry::Progress| {
            let mut last = said.lock();
            if last.elapsed() >= REPORT_INTERVAL {
                *last = Instant::now();
                say(format!("pulled {} of {} MiB", progress.bytes >> 20, progress.total_bytes >> 20));
            }
        };
        let pulled = match is_unpacked {
            true => client.pull_settings(reference, &resolved, None, &dir).await,
            false => client.pull(reference, &resolved, None, &dir, limits, &progress).await,
        };
        pulled.map_err(refused)?;
        say(format!("{reference} is {}", resolved.digest));
        Ok(dir)
    }

    /// Removes the layout of an image.
    pub(crate) async fn forget_image(&self, dir: PathBuf) {
        if let Err(error) = tokio::fs::remove_dir_all(&dir).await {
            tracing::warn!(dir = %dir.display(), %error, "cannot remove a pulled image");
        }
    }
}

/// Removes what earlier pulls have left, except for this image.
async fn keep_only(all: &Path, dir: &Path) -> Result<()> {
    let failed = |source| KeeperError::File {
        action: "remove the files of earlier pulls in",
        path: all.to_owned(),
        source,
    };
    let mut entries = match tokio::fs::read_dir(all).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    while let Some(entry) = entries.next_entry().await.map_err(failed)? {
        if entry.path() != dir {
            tokio::fs::remove_dir_all(entry.path()).await.map_err(failed)?;
        }
    }
    Ok(())
}

fn refused(error: RegistryError) -> KeeperError {
    match error {
        RegistryError::NotAllowed { .. } => KeeperError::Policy { field: "base", reason: error.to_string() },
        RegistryError::Limited { after, .. } => KeeperError::Full {
            what: error.to_string(),
            retry_after: after.map_or(LIMITED_RETRY, Duration::from_secs).min(MAX_LIMITED_RETRY),
        },
        RegistryError::File { path, source } => KeeperError::File { action: "write", path, source },
        error => KeeperError::field("base", chain(&error)),
    }
}

/// Returns the name of the template of an image: letters of the image's name, and digits of its digest.
#[must_use]
pub fn image_template(image: &ImageReference) -> String {
    let full = image.to_string();
    let last = full.rsplit('/').next().unwrap_or_default().split('@').next().unwrap_or_default();
    let mut slug = String::new();
    for letter in last.chars().take(MAX_SLUG) {
        let plain = letter.to_ascii_lowercase();
        let fits = plain.is_ascii_lowercase() || plain.is_ascii_digit();
        if fits || !slug.ends_with('-') {
            slug.push(if fits { plain } else { '-' });
        }
    }
    let digits = hex::encode(Sha256::digest(&full));
    format!("{IMAGE_PREFIX}{}-{}", slug.trim_matches('-'), digits.get(..DIGITS).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_templates_follow_from_those_of_images() {
        let name = |text: &str| image_template(&text.parse().unwrap());
        assert_eq!(name("python:3.12-slim"), name("docker.io/library/python:3.12-slim"));
        assert!(name("python:3.12-slim").starts_with("image-python-3-12-slim-"));
        assert_ne!(name("python:3.12-slim"), name("python:3-12-slim"));
        assert_ne!(name("ghcr.io/a/python"), name("ghcr.io/b/python"));
        let digest = format!("ghcr.io/org/a@sha256:{}", "0".repeat(64));
        for text in
            ["python", "ghcr.io/org/__", "ghcr.io/a_b/c.d", &digest, &format!("a:{}", "t".repeat(128))]
        {
            let Ok(image) = text.parse() else { continue };
            let name = image_template(&image);
            assert!(name.len() <= 63 && name.parse::<crate::request::SandboxName>().is_ok(), "{name}");
        }
    }
    #[test]
    fn nobody_takes_the_name_of_an_image_or_of_the_default() {
        use crate::templates::check_new_name;
        let image: ImageReference = "python:3.12".parse().unwrap();
        let name = image_template(&image);
        assert!(check_new_name(&name, Some(&image)).is_ok() && check_new_name("images", None).is_ok());
        let other = "alpine".parse().unwrap();
        for (name, image) in
            [(name.as_str(), None), (&name, Some(&other)), ("image-x", None), ("default", None)]
        {
            assert!(matches!(check_new_name(name, image), Err(KeeperError::Field { .. })), "{name}");
        }
    }

    #[test]
    fn registries_cannot_make_callers_wait_for_days() {
        let waits = |after| match refused(RegistryError::Limited { registry: "r".to_owned(), after }) {
            KeeperError::Full { retry_after, .. } => retry_after,
            other => panic!("{other}"),
        };
        assert_eq!(waits(Some(17)), Duration::from_secs(17));
        assert_eq!((waits(None), waits(Some(u64::MAX))), (LIMITED_RETRY, MAX_LIMITED_RETRY));
    }
}
