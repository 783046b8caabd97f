//! The network policy of a sandbox: its rules, the presets, and the verdict on one connection.
//!
//! ```text
//! NetworkFile (as written) ── resolve ──► NetworkPolicy (checked, canonical) ── Matcher::new ──► Decision
//! ```
//!
//! Names are compared label by label in one canonical form ([`DomainName`]), never as they were written.

mod ceiling;
mod cidr;
mod decision;
mod destination;
mod file;
mod header;
mod matcher;
mod mode;
mod name;
mod policy;
mod preset;
mod proxy;
mod ranges;
mod record;
mod request;
mod rule;
mod scope;
mod secret;
mod setup;
mod stored;
#[cfg(test)]
mod tests;
mod tls;

pub use ceiling::NetworkCeiling;
pub use cidr::Cidr;
pub use decision::{DecidedBy, Decision};
pub use destination::Destination;
pub use file::NetworkFile;
pub use header::SetHeader;
pub use matcher::{ASK_TO_ALLOW, Matcher};
pub use mode::NetworkMode;
pub use name::{DomainName, DomainPattern};
pub use policy::NetworkPolicy;
pub use preset::{Preset, PresetHost, presets, presets_version};
pub use proxy::{ProxyHost, ProxyProtocol, UpstreamProxy};
pub use ranges::{ALWAYS_DENIED, DeniedRange, always_denied, always_denied_name, is_link_local, is_metadata};
pub use record::{NetworkEvent, NetworkEventKind, NetworkRecord, NetworkReport, NetworkTotals};
pub use request::RequestRule;
pub use rule::{MAX_RULES, Ports, Rule, Target};
pub use scope::{SecretScope, SecretUse};
pub use secret::{Secret, SecretFile, SecretSource, check_secret_value, placeholder};
pub use setup::NetworkSetup;
pub use stored::is_secret_name;
pub use tls::TlsMode;
