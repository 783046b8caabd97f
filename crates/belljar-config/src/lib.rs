//! Configuration of the service, in two steps: [`ConfigLayers`] holds the values of the file, the environment and the flags, each
//! with its origin; [`Config`] is the validated result. This crate does no I/O: callers pass the texts.
#![forbid(unsafe_code)]

mod config;
mod error;
mod example;
mod file;
mod home;
mod layers;
mod origin;
mod read;
mod resolve;
mod secret;
mod setting;
mod settings;
mod show;

pub use config::{
    ApprovalsConfig, AuditConfig, Config, HeadRoomConfig, ImagesConfig, LogConfig, LogFormat, LogLevel,
    MetricsConfig, MountsConfig, OnExit, OtlpConfig, QuotasConfig, SandboxesConfig, ServerConfig,
    StoreConfig, StoreDurability, TlsConfig, VolumesConfig, WebhooksConfig,
};
pub use error::{ConfigError, ConfigErrors};
pub use example::example;
pub use file::MAX_FILE_BYTES;
pub use home::{config_candidates, home_dir};
pub use layers::{ConfigLayers, SettingChange};
pub use origin::Origin;
pub use read::one_of;
pub use resolve::is_domain;
pub use secret::Secret;
pub use setting::{Setting, ValueKind};
pub use settings::{SETTINGS, setting};
pub use show::show;
