//! The image of a sandbox, in the daemon's own store.

use belljar_engine::EngineError;
use belljar_model::{DockerSettings, ImageReference, SandboxSpec, Tree};
use bollard::Docker;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures::StreamExt as _;

use crate::container::SOCKET_DIR;
use crate::daemon::{failed, status, unsupported};

/// Maximum number of directories that an image declares as volumes, each of which gets a file system in memory.
const MAX_VOLUMES: usize = 32;

/// What a container needs of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Image {
    /// Its id. Its name may be given to another image at any time.
    pub(crate) id: String,
    /// Its name.
    pub(crate) name: String,
    /// Its environment variables.
    pub(crate) env: Vec<(String, String)>,
    /// Directories that it declares as volumes.
    pub(crate) volumes: Vec<String>,
}

/// Returns the image that a specification asks for.
pub(crate) fn requested(
    spec: &SandboxSpec,
    settings: &DockerSettings,
) -> Result<ImageReference, EngineError> {
    match &spec.tree {
        Tree::Image(image) => Ok(image.clone()),
        Tree::Host => settings.image.clone().ok_or_else(|| {
            unsupported(
                "image",
                "none is given; give one, such as --image python:3.12-slim, or set engines.docker.image of a server, or \
                 BELLJAR_ENGINES_DOCKER_IMAGE in the environment",
            )
        }),
        Tree::Template(_) | Tree::Bare => {
            Err(unsupported("template", "sandboxes of this engine start from images"))
        }
    }
}

/// Finds an image in the daemon's store, to which it is pulled if the operator allows that.
pub(crate) async fn find(
    client: &Docker,
    image: &ImageReference,
    settings: &DockerSettings,
) -> Result<Image, EngineError> {
    let name = image.to_string();
    match client.inspect_image(&name).await {
        Err(error) if status(&error) == Some(404) => {}
        found => return read(name, found.map_err(failed(format!("look for the image {image}")))?),
    }
    if !settings.may_pull(image) {
        let reason = format!(
            "the daemon's store has no {image}, and this server pulls none from {}; pull it with docker pull, or add the registry to \
             images.registries",
            image.registry()
        );
        return Err(unsupported("image", reason));
    }
    let options = CreateImageOptionsBuilder::new().from_image(&name).build();
    let mut pulling = client.create_image(Some(options), None, None);
    while let Some(progress) = pulling.next().await {
        let refusal = |error| unsupported("image", format!("the daemon cannot pull {image}: {error}"));
        progress.map_err(refusal)?;
    }
    let found = client.inspect_image(&name).await;
    read(name, found.map_err(failed(format!("look for the image {image}, which was pulled")))?)
}

fn read(name: String, found: bollard::models::ImageInspect) -> Result<Image, EngineError> {
    let config = found.config.unwrap_or_default();
    let declared = config.volumes.unwrap_or_default();
    if declared.len() > MAX_VOLUMES {
        let count = declared.len();
        return Err(unsupported(
            "image",
            format!("{name} declares {count} volumes, and {MAX_VOLUMES} are allowed"),
        ));
    }
    let volume = |path: &String| {
        let refusal = || format!("{name} declares the volume {path:?}, which cannot be one");
        clean(path).ok_or_else(|| unsupported("image", refusal()))
    };
    let mut volumes = declared.iter().map(volume).collect::<Result<Vec<_>, _>>()?;
    volumes.sort();
    volumes.dedup();
    let env = config.env.unwrap_or_default();
    let env = env
        .iter()
        .filter_map(|text| text.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(Image { id: found.id.unwrap_or_default(), name, env: env.collect(), volumes })
}

/// Returns the path of a volume as the daemon mounts it, or `None` for one that is not absolute or would have the guest's directories in it.
fn clean(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.strip_prefix('/')?.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let own = SOCKET_DIR.split('/').next();
    let is_own = parts.first().is_none_or(|first| Some(*first) == own);
    (!is_own).then(|| format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_those_that_the_daemon_mounts() {
        for (path, volume) in [
            ("/data", Some("/data")),
            ("/a//b/./c/../", Some("/a/b")),
            ("/../x", Some("/x")),
            ("data", None),
            ("", None),
            ("/", None),
            ("//.", None),
            ("/x/../.belljar", None),
            ("/.belljar/run/", None),
            ("/.belljar/bin", None),
        ] {
            assert_eq!(clean(path).as_deref(), volume, "{path:?}");
        }
        let read_one = |volume: &str| {
            let text = format!(r#"{{"Id":"sha256:1","Config":{{"Volumes":{{"{volume}":{{}}}}}}}}"#);
            read("app".to_owned(), serde_json::from_str(&text).unwrap())
        };
        assert_eq!(read_one("/data/").unwrap().volumes, ["/data"]);
        let error = read_one("/.belljar").unwrap_err().to_string();
        assert!(error.contains("image: ") && error.contains(r#"the volume "/.belljar""#), "{error}");
    }

    #[test]
    fn image_is_that_of_the_specification_or_the_setting() {
        let image: ImageReference = "app:1".parse().unwrap();
        let mut settings = DockerSettings::default();
        let mut spec = SandboxSpec::default();
        let error = requested(&spec, &settings).unwrap_err().to_string();
        assert!(error.starts_with("image: ") && error.contains("engines.docker.image"), "{error}");
        settings.image = Some("other:2".parse().unwrap());
        assert_eq!(requested(&spec, &settings).unwrap().to_string(), "docker.io/library/other:2");
        spec.tree = Tree::Image(image.clone());
        assert_eq!(requested(&spec, &settings).unwrap(), image);
    }

    #[test]
    fn configuration_is_read() {
        let text = r#"{"Id":"sha256:1","Config":{"Env":["PATH=/a:/b","EMPTY=","BROKEN"],"Volumes":{"/data":{}},"Entrypoint":["/x"]}}"#;
        let image = read("app".to_owned(), serde_json::from_str(text).unwrap()).unwrap();
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(image.env, [variable("PATH", "/a:/b"), variable("EMPTY", "")]);
        assert_eq!(
            (image.id.as_str(), image.volumes.as_slice()),
            ("sha256:1", ["/data".to_owned()].as_slice())
        );
    }
}
