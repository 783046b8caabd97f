//! The service's configuration: from the command line, the environment and the file to what holds. `belljar config`.

mod commands;
mod load;

pub(crate) use commands::config;
pub(crate) use load::{Loaded, Sources};
