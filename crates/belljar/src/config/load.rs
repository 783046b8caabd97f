//! Sources of the configuration: flags, the environment and the file.

use std::path::{Path, PathBuf};

use belljar_config::{
    Config, ConfigError, ConfigErrors, ConfigLayers, MAX_FILE_BYTES, config_candidates, home_dir,
};

use crate::cli::ServiceArgs;
use crate::engines;
use crate::input::{InputError, read_text};
use crate::serve::SOCKET_FILE;

/// Origin of the default settings of a server in the background.
const IN_BACKGROUND: &str = "--background";

/// Error from loading the configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The service's directory is not configured, and has no default.
    #[error("there is no home directory; name one with BELLJAR_HOME or --home")]
    NoHome,
    /// The working directory no longer exists, so a relative path cannot be resolved.
    #[error("home: cannot use {path:?}")]
    Home { path: PathBuf, source: std::io::Error },
    /// See [`InputError`].
    #[error(transparent)]
    File(#[from] InputError),
    /// A flag `--set` without a value.
    #[error("--set: {text:?} has no =; give KEY=VALUE, such as sandboxes.pool=8")]
    Set { text: String },
    /// See [`ConfigErrors`].
    #[error(transparent)]
    Config(#[from] ConfigErrors),
}

/// Sources of the configuration. A reload reads the same ones again.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    args: &'a ServiceArgs,
    background: bool,
}

/// A configuration, and its sources.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The service's directory, an absolute path.
    pub(crate) home: PathBuf,
    /// The file, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// The settings, with the origin of each.
    pub(crate) layers: ConfigLayers,
    /// The resolved configuration.
    pub(crate) config: Config,
}

impl<'a> Sources<'a> {
    pub(crate) fn new(args: &'a ServiceArgs) -> Self {
        Self { args, background: false }
    }

    /// Returns the sources of a server that a command has started, which listens only on its socket in the home.
    pub(crate) fn in_background(args: &'a ServiceArgs) -> Self {
        Self { args, background: true }
    }

    /// Loads the configuration. Flags override the environment, which overrides the file.
    pub(crate) fn load(&self) -> Result<Loaded, LoadError> {
        let (loaded, errors) = self.read()?;
        ConfigErrors::check(errors)?;
        Ok(loaded)
    }

    /// Like [`Sources::load`], but replaces each invalid value by its default, and returns all errors.
    pub(crate) fn read(&self) -> Result<(Loaded, Vec<ConfigError>), LoadError> {
        let mut errors = Vec::new();
        let mut note = |added: Result<(), ConfigErrors>| {
            errors.extend(added.err().iter().flat_map(|wrong| wrong.errors().iter().cloned()));
        };
        let home = self.home()?;
        let file = self.file(&home);
        let mut layers = ConfigLayers::default();
        layers.engines = engines::names();
        if self.background {
            // Every other source overrides this. Pre-warmed sandboxes would hold memory for the sake of a few commands.
            layers.add_flag(IN_BACKGROUND, "sandboxes.pool", &["0".to_owned()])?;
        }
        if let Some(path) = &file {
            let text = read_text("config", path, MAX_FILE_BYTES as u64)?;
            note(layers.add_file(path, &text));
        }
        note(layers.add_environment(std::env::vars_os()));
        for (name, key, values) in self.args.flags()? {
            note(layers.add_flag(&name, &key, &values));
        }
        if self.background {
            layers.add_flag(IN_BACKGROUND, "server.listen", &[String::new()])?;
            layers.add_flag(IN_BACKGROUND, "server.socket", &[format!("$BELLJAR_HOME/{SOCKET_FILE}")])?;
        }
        let (config, wrong) = Config::resolve_all(&layers, &home);
        errors.extend(wrong);
        Ok((Loaded { home, file, layers, config }, errors))
    }

    /// Returns the service's directory, an absolute path.
    pub(crate) fn home(&self) -> Result<PathBuf, LoadError> {
        let is_root = rustix::process::geteuid().is_root();
        let variable = |name: &str| std::env::var_os(name);
        let path = match &self.args.home {
            Some(path) => path.clone(),
            None => home_dir(variable, is_root).ok_or(LoadError::NoHome)?,
        };
        std::path::absolute(&path).map_err(|source| LoadError::Home { path, source })
    }

    /// Returns the configuration file: the named one, which must exist, else the first existing default.
    fn file(&self, home: &Path) -> Option<PathBuf> {
        let variable =
            || std::env::var_os("BELLJAR_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        let named = self.args.config.clone().or_else(variable);
        // A file is skipped only if it certainly does not exist.
        let may_exist = |path: &PathBuf| !matches!(path.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound);
        named.or_else(|| config_candidates(home).into_iter().find(may_exist))
    }
}

impl ServiceArgs {
    /// Returns the given flags: as written, with their key and their values.
    fn flags(&self) -> Result<Vec<(String, String, Vec<String>)>, LoadError> {
        let mut flags = self.settings.given();
        for text in &self.set {
            let (key, value) = text.split_once('=').ok_or_else(|| LoadError::Set { text: text.clone() })?;
            flags.push((format!("--set {key}"), key.to_owned(), vec![value.to_owned()]));
        }
        Ok(flags)
    }
}
