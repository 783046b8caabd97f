//! Data model of sandboxes: ids, limits, mounts, languages, outcomes, results.
//!
//! Everything here is plain data with its parsing and validation. There is no I/O, no clock and no randomness: callers provide
//! those.
#![forbid(unsafe_code)]

mod approval;
mod checks;
mod chunks;
mod code;
mod docker_settings;
mod encoding;
mod engine;
mod env;
mod error;
mod event;
mod event_kinds;
mod files;
mod gvisor_settings;
mod hint;
mod id;
mod image_info;
mod image_reference;
mod isolation;
mod language;
mod languages;
mod limits;
mod limits_change;
mod mount_policy;
mod mounts;
mod nearest;
mod network;
mod node;
mod outcome;
mod result;
mod role;
mod sandbox_state;
mod size;
mod spec;
mod spec_file;
mod spec_wire;
mod stream;
mod text;
mod timeout;
mod tool_file;
mod tree;
mod volumes;
mod webhook;

pub use approval::{ApprovalState, BudgetScope};
pub use checks::{Approval, Screening};
pub use chunks::{Chunk, Chunks};
pub use code::{
    CodeContext, CodeError, CodeExecution, CodeResult, CodeStatus, MimeForm, Survival, Written,
    signal_number, signal_text,
};
pub use docker_settings::DockerSettings;
pub use encoding::Encoding;
pub use engine::EngineName;
pub use env::EnvVar;
pub use error::ModelError;
pub use event::Event;
pub use event_kinds::{EVENT_KINDS, selects_events};
pub use files::{ChangeKind, FileChange, FilePath};
pub use gvisor_settings::{GvisorPlatform, GvisorSettings};
pub use hint::{HintReader, LimitEvents, crash_name, for_command_line, hint};
pub use id::SandboxId;
pub use image_info::{ImageInfo, ImageLayer};
pub use image_reference::{ImageReference, ImageReferenceError, ImageRegistry};
pub use isolation::{HOST_TREE, Isolation, Layer, LayerState, Layers, WATCHED};
pub use language::{CommandTemplate, CommandValues, Language, LanguageLimits};
pub use languages::Languages;
pub use limits::{
    Cpus, DiskSize, Inodes, LimitInfo, LimitNumbers, LimitScope, Limits, LimitsFile, LimitsGrade, LogSize,
    Memory, OpenFiles, OutputSize, Pids, TmpSize,
};
pub use limits_change::LimitsChange;
pub use mount_policy::{FORBIDDEN_IN_HOME, MountPolicy, MountRefusal};
pub use mounts::{Mount, MountMode, check_targets};
pub use nearest::nearest;
pub use network::{
    ALWAYS_DENIED, ASK_TO_ALLOW, Cidr, DecidedBy, Decision, DeniedRange, Destination, DomainName,
    DomainPattern, MAX_RULES, Matcher, NetworkCeiling, NetworkEvent, NetworkEventKind, NetworkFile,
    NetworkMode, NetworkPolicy, NetworkRecord, NetworkReport, NetworkSetup, NetworkTotals, Ports, Preset,
    PresetHost, ProxyHost, ProxyProtocol, RequestRule, Rule, Secret, SecretFile, SecretScope, SecretSource,
    SecretUse, SetHeader, Target, TlsMode, UpstreamProxy, always_denied, always_denied_name,
    check_secret_value, is_link_local, is_metadata, is_secret_name, placeholder, presets, presets_version,
};
pub use outcome::{LimitKind, Outcome, signal_name};
pub use result::{Phase, PhaseResult, RESULT_SCHEMA, RunResult, milliseconds};
pub use role::Role;
pub use sandbox_state::SandboxState;
pub use size::ByteSize;
pub use spec::{Hostname, SandboxSpec};
pub use spec_file::{MAX_SPEC_BYTES, SpecFile};
pub use stream::StreamOutput;
pub use text::{Scalar, is_directional};
pub use timeout::{Timeout, format_span, parse_span};
pub use tool_file::{
    MAX_TOOL_DESCRIPTION, MAX_TOOL_LANGUAGES, MAX_TOOL_NAME, ToolFile, ToolListError, ToolsError,
};
pub use tree::{
    DISK_CHANGES, DISK_HOME, DISK_WORK, MAX_TREE_LAYERS, ShownDir, TEMPLATE_DIR, TREE_BEFORE, TREE_CHANGES,
    TemplateStart, TemplateTree, Tree, TreeBase, TreeBuild, TreeLayer, one_or_several,
};
pub use volumes::{
    MAX_VOLUME_BYTES, MAX_VOLUMES, MIN_VOLUME_BYTES, VolumeFile, VolumeId, VolumeImage, VolumeMount,
    VolumeName,
};
pub use webhook::WebhookSecret;
