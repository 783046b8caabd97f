//! Where the configuration comes from.

use std::path::{Path, PathBuf};

use belljar_config::{
    Config, ConfigError, ConfigErrors, ConfigLayers, MAX_FILE_BYTES, config_candidates, home_dir,
};

use crate::cli::ServiceArgs;
use crate::input::{InputError, read_text};
use crate::serve::SOCKET_FILE;

/// Where the settings of a server in the background come from that nobody else says.
const IN_BACKGROUND: &str = "--background";

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// Nothing says where the service's files are.
    #[error("there is no home directory; name one with BELLJAR_HOME or --home")]
    NoHome,
    /// The working directory is gone, so that a relative path means nothing.
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

/// Where the configuration comes from. A reload asks the same again.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    args: &'a ServiceArgs,
    background: bool,
}

/// A configuration, and where it comes from.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The service's directory, an absolute path.
    pub(crate) home: PathBuf,
    /// The file, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// What was said, and where.
    pub(crate) said: ConfigLayers,
    /// What it means.
    pub(crate) config: Config,
}

impl<'a> Sources<'a> {
    pub(crate) fn new(args: &'a ServiceArgs) -> Self {
        Self { args, background: false }
    }

    /// Those of a server that a command has started: it listens on its socket in the home, and nowhere else.
    pub(crate) fn in_background(args: &'a ServiceArgs) -> Self {
        Self { args, background: true }
    }

    /// Reads everything, the later over the earlier: the file, the environment, flags.
    pub(crate) fn load(&self) -> Result<Loaded, LoadError> {
        let (loaded, errors) = self.read()?;
        ConfigErrors::check(errors)?;
        Ok(loaded)
    }

    /// The same, with the default in the place of each value that is wrong, and all that is wrong.
    pub(crate) fn read(&self) -> Result<(Loaded, Vec<ConfigError>), LoadError> {
        let mut errors = Vec::new();
        let mut note = |said: Result<(), ConfigErrors>| {
            errors.extend(said.err().iter().flat_map(|wrong| wrong.errors().iter().cloned()));
        };
        let home = self.home()?;
        let file = self.file(&home);
        let mut said = ConfigLayers::default();
        if self.background {
            // What is said anywhere wins over this: sandboxes that are made ahead would keep memory for a few commands.
            said.add_flag(IN_BACKGROUND, "sandboxes.pool", &["0".to_owned()])?;
        }
        if let Some(path) = &file {
            let text = read_text("config", path, MAX_FILE_BYTES as u64)?;
            note(said.add_file(path, &text));
        }
        note(said.add_environment(std::env::vars_os()));
        for (name, key, values) in self.args.flags()? {
            note(said.add_flag(&name, &key, &values));
        }
        if self.background {
            said.add_flag(IN_BACKGROUND, "server.listen", &[String::new()])?;
            said.add_flag(IN_BACKGROUND, "server.socket", &[format!("$BELLJAR_HOME/{SOCKET_FILE}")])?;
        }
        let (config, wrong) = Config::resolve_all(&said, &home);
        errors.extend(wrong);
        Ok((Loaded { home, file, said, config }, errors))
    }

    /// The service's directory, an absolute path.
    pub(crate) fn home(&self) -> Result<PathBuf, LoadError> {
        let is_root = rustix::process::geteuid().is_root();
        let variable = |name: &str| std::env::var_os(name);
        let path = match &self.args.home {
            Some(path) => path.clone(),
            None => home_dir(variable, is_root).ok_or(LoadError::NoHome)?,
        };
        std::path::absolute(&path).map_err(|source| LoadError::Home { path, source })
    }

    /// One that was named must be there; else the first that is.
    fn file(&self, home: &Path) -> Option<PathBuf> {
        let variable =
            || std::env::var_os("BELLJAR_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        let named = self.args.config.clone().or_else(variable);
        // Only a file that is surely not there is passed over.
        let is_there = |path: &PathBuf| !matches!(path.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound);
        named.or_else(|| config_candidates(home).into_iter().find(is_there))
    }
}

impl ServiceArgs {
    /// The flags that were given: as they were written, with their key and their values.
    fn flags(&self) -> Result<Vec<(String, String, Vec<String>)>, LoadError> {
        let named = [
            ("--listen", "server.listen", self.listen.clone()),
            ("--socket", "server.socket", self.socket.iter().cloned().collect()),
            ("--domain", "server.domain", self.domain.iter().cloned().collect()),
            ("--e2b", "server.e2b", self.e2b.then(|| "true".to_owned()).into_iter().collect()),
            ("--store", "store.url", self.store.iter().cloned().collect()),
            ("--engine", "sandboxes.engine", self.engine.iter().cloned().collect()),
            ("--pool", "sandboxes.pool", self.pool.iter().cloned().collect()),
            ("--on-exit", "sandboxes.on_exit", self.on_exit.iter().cloned().collect()),
            ("--log-format", "log.format", self.log_format.iter().cloned().collect()),
            ("--log-level", "log.level", self.log_level.iter().cloned().collect()),
        ];
        let mut flags: Vec<_> = named
            .into_iter()
            .filter(|(.., values)| !values.is_empty())
            .map(|(name, key, values)| (name.to_owned(), key.to_owned(), values))
            .collect();
        for text in &self.set {
            let (key, value) = text.split_once('=').ok_or_else(|| LoadError::Set { text: text.clone() })?;
            flags.push((format!("--set {key}"), key.to_owned(), vec![value.to_owned()]));
        }
        Ok(flags)
    }
}
