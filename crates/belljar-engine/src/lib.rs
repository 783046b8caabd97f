//! The engine interface, the client of the guest, the execution of one run, and the conformance suite of engines.

pub mod backend;
mod bootstrap;
mod capabilities;
mod changes;
mod client;
pub mod code;
mod collect;
#[cfg(feature = "conformance")]
pub mod conformance;
mod engine;
mod engine_error;
mod environment;
mod judge;
mod kind;
mod log_dir;
mod records;
mod run;
mod stored_output;
mod tunnel;

pub use bootstrap::{Dial, configure, connect_later, reconnect};
pub use capabilities::{Capabilities, Engines, IsolationLevel, Lack, Offer};
pub use client::{
    Archive, CodeEvent, CodeExecution, Download, Execution, GuestCall, GuestClient, GuestError, Pack,
    ProcessEvent, Search, Tunnel, Upload, Watch, events, receive_from, unpack_messages, write_messages,
};
pub use collect::{Collector, LogFile, MAX_IN_MEMORY_BYTES, OpenSpill};
pub use engine::{CreateRequest, Engine, First, Life, NetworkLog, Sandbox, Survivor, Usage, Walls};
pub use engine_error::{EngineError, THIS_COMMAND};
pub use environment::{Environment, visible_processors};
pub use judge::{Judgement, judge, judge_lost};
pub use kind::{EngineKind, EngineSetup, Finding, FindingState};
pub use log_dir::LogDir;
pub use records::Records;
pub use run::{DEADLINE_SLACK, InputFile, OutputStream, RunRequest, STOP_GRACE, Silent, Sink, first, run};
pub use stored_output::{Spill, StoredFile, StoredOutput};
pub use tunnel::TunnelIo;

/// Messages of the guest protocol that are visible to callers.
pub use belljar_proto::{ErrorCode, v1};
