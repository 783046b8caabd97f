//! The service without wire protocols: life cycle, access and limits of sandboxes. Facades only translate to and from it.
#![forbid(unsafe_code)]

pub mod action;
mod approval;
mod approvals;
mod archive;
mod audit;
mod background;
mod bounds;
mod build_queue;
mod build_steps;
mod builds;
mod built;
mod caller;
mod code;
mod code_request;
mod code_step;
mod code_steps;
mod collect;
mod config;
mod contexts;
mod create;
mod creating;
mod denials;
mod disk;
mod entry;
mod error;
mod events;
mod exec;
mod exits;
mod exports;
mod fair;
mod gate;
mod head_room;
mod idempotency;
mod images;
mod info;
mod json;
mod keeper;
mod keys;
mod lifecycle;
mod metrics;
mod network;
pub mod operation;
mod outputs;
mod plan;
mod pool;
mod ports;
mod program;
mod query;
mod quota;
mod reachable;
mod reconcile;
mod request;
mod run;
mod screen;
mod secrets;
mod session;
mod sessions;
mod shares;
mod snapshot;
mod steps;
mod tags;
mod templates;
mod token;
mod tools;
mod unsettled;
mod uploads;
mod validity;
mod verdicts;
mod volumes;
mod warm;
mod webhooks;

pub use approval::{
    ApprovalBudget, ApprovalContent, ApprovalDecision, ApprovalFinding, ApprovalInfo, ApprovalRequest,
    ApprovalScreening, ApprovalsConfig, Approve, CallingCode, MAX_APPROVAL_BYTES, MAX_BUDGET_TIME,
    MAX_BUDGET_USES, MAX_CALLING_CODE_BYTES, MAX_NOTE_BYTES, NewBudget,
};
pub use approvals::ListApprovals;
pub use archive::ArchivedFile;
pub use background::Started;
pub use belljar_engine::{ErrorCode, v1};
pub use belljar_image::{BuildError, BuildEvent, ImageExport};
pub use belljar_screen::{Modules, Report as ScreenReport};
pub use belljar_store::{
    ArchiveUntil, AuditFilter, AuditRecord, Head, SecretValue, ServiceWall, TemplateKind, Verification,
};
pub use bounds::{AskedPolicy, NetworkBounds, NetworkForecast};
pub use build_queue::{BuildInfo, BuildProgress, BuildState, ReachedStep, TemplateBuild};
pub use builds::{
    BASE_STEP, BuildLine, BuildReport, BuildStatus, FINAL_STEP, LogLevel, RequestedBuild, StepFailure,
};
pub use built::{BuildTemplate, Exported, MAX_BUILD_FILE_BYTES};
pub use caller::{CPU_WINDOW, Caller, DEFAULT_TENANT, Quotas};
pub use code_request::{CodeRequest, MAX_CODE_BYTES, OnDisconnect};
pub use code_step::{CallAnswer, CodeCall, CodeStep};
pub use collect::Leftover;
pub use config::{HeadRoom, KeeperConfig, WebhooksConfig};
pub use contexts::NewContext;
pub use create::Created;
pub use error::{GuestResource, KeeperError, chain};
pub use events::{Event, EventFilter, Occurrence, Published};
pub use exec::{ExecEvent, MAX_KEPT_BYTES, MAX_STDIN_BYTES};
pub use exports::{ExportPlace, ExportedImage};
pub use images::{ENGINE_IMAGE_PREFIX, IMAGE_PREFIX, ImagesConfig, RegistryLogin, image_template};
pub use info::{
    AuditHead, AuditVerdict, CreatedKey, DiskUse, EngineInfo, ExecResult, KeyInfo, KeyUsage, LogEntry, Me,
    PublishedPort, SandboxInfo, SandboxMetrics, SpecInfo, TemplateInfo, TemplateStep,
};
pub use keeper::{Entered, Keeper};
pub use keys::{Denied, E2B_KEY_PREFIX, KEY_PREFIX, KeyChange, NewKey};
pub use plan::{
    BuildPlan, CopyFiles, CopySource, DEFAULT_TAG, FilesHash, MAX_PLAN_STEPS, NewBuild, PlanStep, TaggedName,
};
pub use ports::{FileOperation, IssuedToken, SignedFile};
pub use query::{MAX_PAGE, Page, Part};
pub use reconcile::OnShutdown;
pub use request::{
    Command, CreateSandbox, DEFAULT_LIFETIME, ExecRequest, ForkRequest, HostMask, Idempotency, Labels,
    Lifetime, ListSandboxes, MAX_CREATE_FILE_BYTES, MAX_LABEL_KEY_BYTES, MAX_LABEL_VALUE_BYTES, MAX_LABELS,
    MAX_LIFETIME, NewFile, PortAccess, PortSettings, SandboxName, SandboxUpdate, SnapshotName,
    SnapshotRequest, TimeoutAction,
};
pub use run::{Run, RunEvent, Waiting};
pub use screen::{OccupiedScreenings, ScreenRequest};
pub use secrets::{NewSecret, SecretInfo, SecretUpdate};
pub use session::Session;
pub use sessions::{LINK_PREFIX, NewSession, SessionLink};
pub use snapshot::{Forks, MAX_FORKS};
pub use tags::TemplateTag;
pub use templates::DEFAULT_TEMPLATE;
pub use tools::{
    BUILT_IN_TOOLS, CodeTools, MAX_TOOL_FILES, MAX_TOOL_VERSIONS, MAX_TOOLS, SESSION_IDLE_TIMEOUT, StepEnd,
    ToolCall, ToolInfo, ToolResult, ToolVerdict, WrittenFile,
};
pub use uploads::{MAX_UPLOAD_BYTES, OpenUpload, UploadLink};
pub use validity::{KeyEnds, Rights, Validity};
pub use volumes::{NewVolume, VolumeInfo, VolumesConfig};
