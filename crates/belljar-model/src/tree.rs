//! Root file system of a sandbox.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::ModelError;
use crate::image_reference::ImageReference;
use crate::text::quote_path;

/// Path inside the sandbox of the layer of a template on the machine's own tree.
pub const TEMPLATE_DIR: &str = "/opt/template";

/// Path in a build's sandbox of what it has changed so far, if its tree has layers: read-only, in the form of an overlay's upper directory.
pub const TREE_CHANGES: &str = "/dev/belljar/changes";

/// Directories of the disk of a machine: what has changed in the tree, the overlay's work directory, and the home directory.
pub const DISK_CHANGES: &str = "upper";
/// See [`DISK_CHANGES`].
pub const DISK_WORK: &str = "work";
/// See [`DISK_CHANGES`].
pub const DISK_HOME: &str = "home";

/// Path in a build's sandbox of its tree before the build, read-only.
pub const TREE_BEFORE: &str = "/dev/belljar/before";

/// Maximum number of layers of a tree. The kernel takes the paths of all in one text of at most 255 bytes
/// (`fsconfig(2)`).
pub const MAX_TREE_LAYERS: usize = 24;

/// Root file system of a sandbox. No file of a caller can set it: it comes from a template, and the keeper decides which, or is an image of
/// the engine's own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tree {
    /// The machine's own tree, read-only.
    #[default]
    Host,
    /// The tree of a template.
    Template(Box<TemplateTree>),
    /// An image of the engine's own store, such as that of a Docker daemon.
    Image(ImageReference),
    /// A home directory, `/dev` and `/proc`, and nothing else: no program, and no other writable directory.
    Bare,
}

impl Tree {
    /// Returns the tree of a template, if it is one.
    #[must_use]
    pub fn template(&self) -> Option<&TemplateTree> {
        match self {
            Self::Template(tree) => Some(tree),
            Self::Host | Self::Image(_) | Self::Bare => None,
        }
    }

    /// Reports whether it is that of a template which has nothing of the machine's own.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.template().is_some_and(|tree| tree.base == TreeBase::Own)
    }

    /// Returns the settings of the build, while the tree is being built.
    #[must_use]
    pub fn build(&self) -> Option<&TreeBuild> {
        self.template()?.build.as_ref()
    }
}

/// Tree of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateTree {
    /// Base below the layers.
    pub base: TreeBase,
    /// Files of the template, the lowest layer first: each has what it changes in those below. At most [`MAX_TREE_LAYERS`].
    #[serde(
        default,
        alias = "layer",
        deserialize_with = "one_or_several",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub layers: Vec<TreeLayer>,
    /// Owner of the mounted layers. Only sandboxes of one owner share their page cache.
    pub owner: String,
    /// Modules that its warm interpreters have imported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warm: Vec<String>,
    /// Commands that the template starts in each sandbox, also known to copies of the sandbox.
    #[serde(default, skip_serializing_if = "TemplateStart::is_empty")]
    pub start: TemplateStart,
    /// Set while the template is being built: the tree is writable then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<TreeBuild>,
}

/// Commands that a template starts in each of its sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateStart {
    /// Command line that is started and keeps running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Command line that succeeds as soon as the sandbox is ready for use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Working directory of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
}

impl TemplateStart {
    /// Reports whether there is nothing to start.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Base of a template's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeBase {
    /// The machine's own tree; the layers are at [`TEMPLATE_DIR`].
    Host,
    /// None: the layers are the whole tree.
    Own,
}

impl TreeBase {
    /// Returns the name: `host` or `own`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Own => "own",
        }
    }
}

/// Squashfs file with files of a template. A device with the number 0 in it removes the file of its name from the layers below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeLayer {
    /// Absolute path. The file never changes.
    #[serde(with = "crate::files::as_bytes")]
    pub path: PathBuf,
    /// SHA-256 of the file, in hexadecimal.
    pub digest: String,
}

/// Settings of a build.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeBuild {
    /// Directories of the machine that are shown read-only during the build, with their names in the home directory inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<ShownDir>,
}

/// Directory that a build sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShownDir {
    /// Absolute path of the directory or file.
    #[serde(with = "crate::files::as_bytes")]
    pub source: PathBuf,
    /// Name in the home directory: letters, digits, hyphens, dots.
    pub name: String,
    /// Whether the server has made it, below its own home, and nobody has named it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own: bool,
}

impl TemplateTree {
    /// Validates what the types cannot express.
    ///
    /// # Errors
    /// Fails if a path is not absolute or a name is invalid.
    pub fn check(&self) -> Result<(), ModelError> {
        let absolute = |field: &'static str, path: &PathBuf| {
            let plain = path.components().all(|part| !matches!(part, std::path::Component::ParentDir));
            if path.is_absolute() && plain {
                return Ok(());
            }
            Err(ModelError::not_allowed(field, quote_path(path).to_string(), "an absolute path without .."))
        };
        if self.layers.len() > MAX_TREE_LAYERS {
            let count = self.layers.len().to_string();
            return Err(ModelError::not_allowed("tree.layers", count, "at most 24 layers"));
        }
        for layer in &self.layers {
            absolute("tree.layers.path", &layer.path)?;
            let hex = layer.digest.len() == 64 && layer.digest.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !hex {
                return Err(ModelError::not_allowed(
                    "tree.layers.digest",
                    &layer.digest,
                    "64 hexadecimal digits",
                ));
            }
        }
        if self.base == TreeBase::Own && self.layers.is_empty() {
            return Err(ModelError::not_allowed("tree.layers", "nothing", "a layer for a tree of its own"));
        }
        for dir in self.build.iter().flat_map(|build| &build.shown) {
            absolute("tree.build.shown.source", &dir.source)?;
            let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
            let named = !dir.name.is_empty() && dir.name.bytes().all(letters) && !dir.name.starts_with('.');
            if !named {
                return Err(ModelError::not_allowed(
                    "tree.build.shown.name",
                    &dir.name,
                    "letters, digits, hyphens and dots, the first no dot",
                ));
            }
        }
        Ok(())
    }
}

/// Deserializes a list, or the single value or nothing of its former form.
///
/// # Errors
/// Fails if the input is neither.
pub fn one_or_several<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form<T> {
        Several(Vec<T>),
        One(T),
    }
    Ok(match Option::<Form<T>>::deserialize(deserializer)? {
        None => Vec::new(),
        Some(Form::One(one)) => vec![one],
        Some(Form::Several(several)) => several,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> TemplateTree {
        TemplateTree {
            base: TreeBase::Own,
            layers: vec![TreeLayer { path: "/a/b".into(), digest: "0".repeat(64) }],
            owner: "t".to_owned(),
            build: Some(TreeBuild {
                shown: vec![ShownDir { source: "/m".into(), name: "mirror".to_owned(), own: false }],
            }),
            warm: Vec::new(),
            start: TemplateStart::default(),
        }
    }

    #[test]
    fn trees_are_validated() {
        tree().check().unwrap();
        let mut bad: Vec<(TemplateTree, &str)> =
            vec![(tree(), "tree.layers.path"), (tree(), "tree.layers.digest")];
        bad[0].0.layers[0].path = "a/../b".into();
        bad[1].0.layers[0].digest = "zz".to_owned();
        bad.push((TemplateTree { layers: Vec::new(), ..tree() }, "tree.layers"));
        let many = vec![tree().layers[0].clone(); MAX_TREE_LAYERS + 1];
        bad.push((TemplateTree { layers: many, ..tree() }, "tree.layers"));
        for name in ["", ".x", "a/b", ".."] {
            let mut one = tree();
            one.build.as_mut().unwrap().shown[0].name = name.to_owned();
            bad.push((one, "tree.build.shown.name"));
        }
        for (tree, field) in bad {
            let error = tree.check().unwrap_err().to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }

    #[test]
    fn a_tree_of_the_former_form_is_read() {
        let layer = serde_json::to_value(&tree().layers[0]).unwrap();
        for (layer, layers) in [(layer, tree().layers), (serde_json::Value::Null, Vec::new())] {
            let former = serde_json::json!({ "base": "host", "layer": layer, "owner": "t" });
            assert_eq!(serde_json::from_value::<TemplateTree>(former).unwrap().layers, layers);
        }
        let text = serde_json::to_string(&self::tree()).unwrap();
        assert_eq!(serde_json::from_str::<TemplateTree>(&text).unwrap(), self::tree());
    }
}
