//! `belljar config check`, `show` and `example`.

use std::io::Write as _;

use belljar_config::{ConfigErrors, example, show};

use crate::cli::{ConfigCommand, ServiceArgs};
use crate::config::Sources;
use crate::message::Quit;
use crate::output::write_failed;
use crate::serve;

/// Runs `belljar config`.
pub(crate) fn config(command: &ConfigCommand) -> Result<u8, Quit> {
    let text = match command {
        ConfigCommand::Check { file, service } => check(file.as_ref(), service)?,
        ConfigCommand::Show { service } => show_effective(service)?,
        ConfigCommand::Example => example(),
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(write_failed)?;
    Ok(0)
}

/// Checks the configuration that `belljar serve` would use, and the files that it names.
fn check(file: Option<&std::path::PathBuf>, service: &ServiceArgs) -> Result<String, Quit> {
    let mut service = service.clone();
    if let Some(file) = file {
        service.config = Some(file.clone());
    }
    let (loaded, errors) = Sources::new(&service).read()?;
    let problems = ConfigErrors::check(errors).err().map(|errors| errors.to_string());
    let problems: Vec<String> = problems.into_iter().chain(serve::check(&loaded)).collect();
    if !problems.is_empty() {
        return Err(anyhow::anyhow!(problems.join("\n")).into());
    }
    Ok(match &loaded.file {
        Some(path) => format!("{}: good\n", path.display()),
        None => "good; there is no file: the defaults apply except where variables or flags override them\n"
            .to_owned(),
    })
}

fn show_effective(service: &ServiceArgs) -> Result<String, Quit> {
    let loaded = Sources::new(service).load()?;
    let file = loaded.file.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string());
    Ok(format!("# home: {}\n# file: {file}\n\n{}", loaded.home.display(), show(&loaded.layers)))
}
