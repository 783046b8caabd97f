//! Stored tools: code that a model may run by the name of a tool, in sandboxes as the operator has defined them.
//!
//! ```text
//!  call ─► tool, version ─► arguments within the tool ─► sandbox ─► files in ─► code ─► files out ─► end, unless it is a session
//! ```
//!
//! A call can only narrow what the tool allows. The sandbox is the caller's: its role, quotas and ceilings apply as to any other.

mod call;
mod check;
mod code_call;
mod files;
mod from_code;
mod sandbox;
mod steps;
mod stored;

pub use call::ToolResult;
pub use check::{MAX_TOOL_FILES, ToolCall, ToolVerdict};
pub use files::WrittenFile;
pub use from_code::CodeTools;
pub(crate) use from_code::{CallsFromCode, OfferedTools};
pub use sandbox::SESSION_IDLE_TIMEOUT;
pub use steps::StepEnd;
pub use stored::{BUILT_IN_TOOLS, MAX_TOOL_VERSIONS, MAX_TOOLS, ToolInfo};
