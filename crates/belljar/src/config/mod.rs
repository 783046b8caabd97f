//! The service's configuration, merged from the command line, the environment and the file. `belljar config`.

mod commands;
mod flags;
mod load;

pub(crate) use commands::config;
pub(crate) use flags::SettingArgs;
pub(crate) use load::{LoadError, Loaded, Sources};
