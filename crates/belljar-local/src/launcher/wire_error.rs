//! Wire form of errors from the launcher to the server.

use std::io;

use belljar_engine::EngineError;
use belljar_model::{EngineName, FilePath, MountRefusal, SandboxId};
use serde::{Deserialize, Serialize};

/// Wire form of [`EngineError`]. Errors that the launcher never returns are sent as the end of a sandbox.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum WireError {
    WrongEngine { asked: EngineName, this: EngineName },
    Layer { layer: String, reason: String, fix: String },
    Launch { step: String, source: WireSource },
    Mount(MountRefusal),
    MountSource { path: FilePath, source: WireSource },
    Ended { how: String },
    Left { id: SandboxId, count: u32, source: WireSource },
    HostFile { action: String, path: FilePath, source: WireSource },
    Unsupported { what: String, engine: EngineName, reason: String },
    NoNetwork,
    LimitInUse { field: String, value: String, in_use: String },
    SetLimit { field: String, value: String, source: WireSource },
    IdInUse { id: SandboxId },
    NoSandbox { id: SandboxId },
}

/// Error number of the kernel, or another cause as text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum WireSource {
    Errno(i32),
    Text(String),
}

impl From<io::Error> for WireSource {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or_else(|| Self::Text(error.to_string()), Self::Errno)
    }
}

impl From<WireSource> for io::Error {
    fn from(source: WireSource) -> Self {
        match source {
            WireSource::Errno(number) => Self::from_raw_os_error(number),
            WireSource::Text(text) => Self::other(text),
        }
    }
}

impl From<EngineError> for WireError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::WrongEngine { asked, this } => Self::WrongEngine { asked, this },
            EngineError::Layer { layer, reason, fix } => {
                Self::Layer { layer: layer.into_owned(), reason, fix }
            }
            EngineError::Launch { step, source } => Self::Launch { step, source: source.into() },
            EngineError::Mount(refusal) => Self::Mount(refusal),
            EngineError::MountSource { path, source } => {
                Self::MountSource { path: FilePath::from(path.as_path()), source: source.into() }
            }
            EngineError::Ended { how } => Self::Ended { how },
            EngineError::Leftovers { id, count, source } => Self::Left { id, count, source: source.into() },
            EngineError::HostFile { action, path, source } => Self::HostFile {
                action: action.into_owned(),
                path: FilePath::from(path.as_path()),
                source: source.into(),
            },
            EngineError::Unsupported { what, engine, reason } => {
                Self::Unsupported { what: what.into_owned(), engine, reason: reason.into_owned() }
            }
            EngineError::NoNetwork => Self::NoNetwork,
            EngineError::LimitInUse { field, value, in_use } => {
                Self::LimitInUse { field: field.into_owned(), value, in_use }
            }
            EngineError::SetLimit { field, value, source } => {
                Self::SetLimit { field: field.into_owned(), value, source: source.into() }
            }
            EngineError::IdInUse { id } => Self::IdInUse { id },
            EngineError::NoSandbox { id } => Self::NoSandbox { id },
            other => Self::Ended { how: other.to_string() },
        }
    }
}

impl From<WireError> for EngineError {
    fn from(error: WireError) -> Self {
        match error {
            WireError::WrongEngine { asked, this } => Self::WrongEngine { asked, this },
            WireError::Layer { layer, reason, fix } => Self::Layer { layer: layer.into(), reason, fix },
            WireError::Launch { step, source } => Self::Launch { step, source: source.into() },
            WireError::Mount(refusal) => Self::Mount(refusal),
            WireError::MountSource { path, source } => {
                Self::MountSource { path: path.to_path_buf(), source: source.into() }
            }
            WireError::Ended { how } => Self::Ended { how },
            WireError::Left { id, count, source } => Self::Leftovers { id, count, source: source.into() },
            WireError::HostFile { action, path, source } => {
                Self::HostFile { action: action.into(), path: path.to_path_buf(), source: source.into() }
            }
            WireError::Unsupported { what, engine, reason } => {
                Self::Unsupported { what: what.into(), engine, reason: reason.into() }
            }
            WireError::NoNetwork => Self::NoNetwork,
            WireError::LimitInUse { field, value, in_use } => {
                Self::LimitInUse { field: field.into(), value, in_use }
            }
            WireError::SetLimit { field, value, source } => {
                Self::SetLimit { field: field.into(), value, source: source.into() }
            }
            WireError::IdInUse { id } => Self::IdInUse { id },
            WireError::NoSandbox { id } => Self::NoSandbox { id },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error with all its causes.
    fn with_causes(error: &EngineError) -> String {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        text
    }

    #[test]
    fn errors_round_trip() {
        let id: SandboxId = "abcdefghij0123456789".parse().unwrap();
        let denied = || io::Error::from_raw_os_error(13);
        let (a, b) = (|| "a".to_owned(), || "b".to_owned());
        let errors = [
            EngineError::WrongEngine { asked: EngineName::LOCAL, this: EngineName::known("none") },
            EngineError::Layer { layer: "network".into(), reason: a(), fix: b() },
            EngineError::Launch { step: a(), source: io::Error::other("odd") },
            EngineError::Mount(MountRefusal::NotAllowed {
                source_path: "/a".into(),
                resolved: "/b".into(),
                allowed: vec!["/c".into()],
            }),
            EngineError::MountSource { path: "/a".into(), source: denied() },
            EngineError::Ended { how: a() },
            EngineError::Leftovers { id: id.clone(), count: 2, source: denied() },
            EngineError::HostFile { action: "open".into(), path: "/a".into(), source: denied() },
            EngineError::Unsupported {
                what: "freeze".into(),
                engine: EngineName::known("none"),
                reason: "b".into(),
            },
            EngineError::NoNetwork,
            EngineError::LimitInUse { field: "pids".into(), value: a(), in_use: b() },
            EngineError::SetLimit { field: "cpus".into(), value: a(), source: denied() },
            EngineError::IdInUse { id: id.clone() },
            EngineError::NoSandbox { id },
        ];
        for error in errors {
            let before = with_causes(&error);
            let json = serde_json::to_string(&WireError::from(error)).unwrap();
            let wire: WireError = serde_json::from_str(&json).unwrap();
            assert_eq!(with_causes(&EngineError::from(wire)), before, "{json}");
        }
    }
}
