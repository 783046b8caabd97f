//! Types of JSON requests and responses.

mod build;
mod bytes;
mod code;
mod exec;
mod file;
mod key;
mod network;
mod object;
mod port;
mod process;
mod sandbox;
mod secret;
mod span;
mod template;
mod tool;
mod unique;
mod volume;

pub(crate) use build::{BuildBody, BuildEventBody, DEFAULT_MODE, check_build_files, check_definition};
pub(crate) use bytes::{EncodedBytes, check_path, decode_base64, parse_path, to_text};
pub(crate) use code::{
    AnswerBody, CodeBody, CodeErrorBody, ContextBody, ContextsBody, EndBody, InterruptedBody, NewContextBody,
    OutcomeBody, ResultBody, StepBody, ToolResultsBody,
};
pub(crate) use exec::{ExecBody, ExecResultBody, StartBody};
pub(crate) use file::{FileEntry, FileKind, Mode, modified_time};
pub(crate) use key::{KeyUpdateBody, NewKeyBody};
pub(crate) use network::NetworkBody;
pub(crate) use object::{Object, TextOr, object, objects, text_or};
pub(crate) use port::{PortBody, PortInfoBody, PortsBody, TokenBody};
pub(crate) use process::{ExitedBody, ProcessInfoBody, ResizeBody, SignalBody, TerminalBody, signal_number};
pub(crate) use sandbox::{
    CreateSandboxBody, ForkBody, LogsBody, MetricsBody, SandboxBody, SnapshotBody, UpdateBody,
};
pub(crate) use secret::{NewSecretBody, SecretUpdateBody};
pub(crate) use span::{Span, time};
pub(crate) use template::TemplateInfoBody;
pub(crate) use tool::{ToolBody, ToolCallBody, ToolInfoBody, ToolResultBody};
pub(crate) use unique::{UniqueMap, parse_env};
pub(crate) use volume::NewVolumeBody;
