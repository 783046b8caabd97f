//! The end of a step of code: calls of functions that wait for their answers.

use std::collections::BTreeMap;

use belljar_model::SandboxId;
use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::oneshot;

use crate::validity::Standing;

/// Begin of the id of a call.
pub(crate) const CALL_PREFIX: &str = "call_";

/// Number of bytes of an id that are those of the server's start, and of the run. They are written in hexadecimal.
pub(crate) const START_BYTES: usize = 4;
pub(crate) const RUN_BYTES: usize = 12;

/// A call of a function that waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeCall {
    /// Its id, of at most 64 letters, digits and `_`, which also says of which run it is.
    pub id: String,
    /// The function.
    pub name: String,
    /// Its arguments, a JSON object.
    pub arguments: Bytes,
}

/// The end of a step: calls that wait. The sandbox is frozen until they are answered, all together, or their time is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeStep {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The context.
    pub context: String,
    /// The context's language.
    pub language: String,
    /// Number of the execution.
    pub execution: u64,
    /// The calls, the oldest first.
    pub calls: Vec<CodeCall>,
    /// Time after which they fail.
    pub expires_at: Timestamp,
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallAnswer {
    /// Id of the call.
    pub call: String,
    /// Its result as JSON of at most 1 MiB, or the message of the error that the code gets, of 1 byte to 64 KiB.
    pub answer: std::result::Result<Bytes, String>,
}

/// Answers to the calls of a step, by their numbers in the execution.
pub(crate) type Answers = BTreeMap<u64, std::result::Result<Bytes, String>>;

/// A step that has ended, on its way from the run to where its calls wait. Dropping it makes them fail.
#[derive(Debug)]
pub(crate) struct EndedStep {
    pub(crate) run: String,
    /// The key whose run it is.
    pub(crate) standing: Standing,
    pub(crate) step: CodeStep,
    /// Where the answers go, or why there are none.
    pub(crate) answers: oneshot::Sender<std::result::Result<Answers, &'static str>>,
}

/// Returns the id of a call.
pub(crate) fn call_id(run: &str, call: u64) -> String {
    format!("{run}_{call}")
}

/// Returns the run of a call, if it has the form of one.
pub(crate) fn run_of(call: &str) -> Option<&str> {
    let (run, number) = call.rsplit_once('_')?;
    let digits = run.strip_prefix(CALL_PREFIX)?;
    let is_run = digits.len() == 2 * (START_BYTES + RUN_BYTES)
        && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let is_number = (1..=4).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_run && is_number).then_some(run)
}
