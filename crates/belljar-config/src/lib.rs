//! How an operator configures the service. Two steps: [`Said`] is what the file, the environment and the flags say, each
//! value with the place where it stands; [`Config`] is what that means. There is no I/O here: callers bring the texts.
#![forbid(unsafe_code)]

mod config;
mod error;
mod example;
mod file;
mod home;
mod origin;
mod read;
mod resolve;
mod said;
mod secret;
mod setting;
mod settings;
mod show;

pub use config::{
    AuditConfig, Config, HeadRoomConfig, LogConfig, LogFormat, LogLevel, MetricsConfig, MountsConfig, OnExit,
    OtlpConfig, QuotasConfig, SandboxesConfig, ServerConfig, StoreConfig, StoreDurability, TlsConfig,
};
pub use error::{ConfigError, ConfigErrors};
pub use example::example;
pub use file::MAX_FILE_BYTES;
pub use home::{config_candidates, home_dir};
pub use origin::Origin;
pub use resolve::is_domain;
pub use said::{Changed, Said};
pub use secret::Secret;
pub use setting::{Form, Setting};
pub use settings::{SETTINGS, setting};
pub use show::show;
