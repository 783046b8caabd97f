//! Settings of the engine `docker`.

use crate::image_reference::{ImageReference, ImageRegistry};

/// Settings of the engine `docker`, determined by the operator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DockerSettings {
    /// Address of the daemon, such as `unix:///var/run/docker.sock`. Without one, that of Docker's own client.
    pub host: Option<String>,
    /// Runtime of containers, such as `runsc`. Without one, the daemon's default.
    pub runtime: Option<String>,
    /// Image of sandboxes that name none.
    pub image: Option<ImageReference>,
    /// Registries from which the daemon is asked to pull images that it lacks; `None` for all. One that stands for all registries with
    /// public addresses is none of them: the daemon checks no addresses.
    pub registries: Option<Vec<ImageRegistry>>,
}

impl DockerSettings {
    /// Reports whether the daemon may be asked to pull this image.
    #[must_use]
    pub fn may_pull(&self, image: &ImageReference) -> bool {
        let allows = |registry: &ImageRegistry| registry.host() == Some(image.registry());
        self.registries.as_ref().is_none_or(|registries| registries.iter().any(allows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_come_from_allowed_registries() {
        let image: ImageReference = "ghcr.io/org/app:1".parse().unwrap();
        let settings = |names: Option<&[&str]>| DockerSettings {
            registries: names.map(|names| names.iter().map(|name| name.parse().unwrap()).collect()),
            ..DockerSettings::default()
        };
        assert!(settings(None).may_pull(&image) && settings(Some(&["ghcr.io"])).may_pull(&image));
        for others in [&["*"] as &[&str], &["quay.io"], &[]] {
            assert!(!settings(Some(others)).may_pull(&image), "{others:?}");
        }
    }
}
