//! Screening: reads code before it runs, and reports what it seems to do.
//!
//! Advice and a trigger, never a wall: code can do what its text does not show. Nothing in Belljar relies on it.
//!
//! ```text
//! code ─► tree (tree-sitter) ─► names and imports ─► calls, members, literals, with aliases followed and constants folded
//!                                                     └─► rules (screening/*.toml) ─► findings ─► risk
//!                                                     └─► code inside of code: `os.system("…")`, `exec(b64decode("…"))`
//! ```

mod budget;
mod cells;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod host;
mod language;
mod query;
mod reading;
mod report;
mod rules;
mod screen;
mod start;
mod syntax;
mod table;
mod values;

pub use host::{ScreenError, Screeners, screen_in_jail};
pub use language::Language;
pub use report::{ADVICE, Finding, MAX_FINDINGS, Report, Severity};
pub use rules::{Rule, RuleError, rules};
pub use screen::{
    MAX_CODE_BYTES, MAX_DEPTH, MAX_MODULE_BYTES, MAX_MODULES, MAX_TIME, Modules, Request, screen,
};
pub use start::{ARGUMENT, enter_screener};
