//! What an engine is, how its guest is spoken with, one run from beginning to end, and the suite that every engine
//! passes.

mod capabilities;
mod changes;
mod client;
pub mod code;
mod collect;
#[cfg(feature = "conformance")]
pub mod conformance;
mod engine;
mod engine_error;
mod judge;
mod kept;
mod log_dir;
mod run;
mod tunnel;

pub use capabilities::{Capabilities, Engines, IsolationLevel, Offer};
pub use client::{
    Archive, Ask, CodeEvent, CodeExecution, Download, Execution, GuestClient, GuestError, Pack, ProcessEvent,
    Search, Tunnel, Upload, Watch, events, received, unpacked, written,
};
pub use collect::{Collector, IN_MEMORY_BYTES, LogFile, OpenSpill};
pub use engine::{CreateRequest, Engine, Life, NetworkLog, Sandbox, Survivor, Usage, Walls};
pub use engine_error::EngineError;
pub use judge::{Judgement, judge, judge_lost};
pub use kept::{Kept, KeptFile, Spill};
pub use log_dir::LogDir;
pub use run::{InputFile, OutputStream, RunRequest, STOP_GRACE, Silent, Sink, run};
pub use tunnel::TunnelIo;

/// Messages of the guest protocol that callers see.
pub use belljar_proto::{ErrorCode, v1};
