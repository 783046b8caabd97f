//! One call of a tool: who calls, in which sandbox, and what is answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belljar_keeper::{
    Caller, CreateSandbox, Labels, Lifetime, PortSettings, SESSION_IDLE_TIMEOUT, SandboxName, Waiting,
};
use belljar_model::{HintReader, SpecFile, StreamOutput};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rmcp::RoleServer;
use rmcp::handler::server::tool::{schema_for_input, schema_for_output};
use rmcp::model::{
    CallToolResult, ContentBlock, JsonObject, ProgressNotificationParam, ProgressToken, Tool as ToolInfo,
    ToolAnnotations,
};
use rmcp::service::Peer;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;

use super::offer::Offer;
use super::parked::message;
use crate::api::Shared;
use crate::extract::parse_json;
use crate::guard::Held;
use crate::problem::{Code, Problem};
use crate::stream::KeptOutput;

/// Maximum number of bytes of each output stream in an answer; of longer output, head and tail are kept.
/// Source: docs/spec.md; held by `mcp::long_output_is_cut`.
pub(super) const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// Maximum length of the message of one progress notification, in characters. Longer output is cut at its beginning.
const MAX_PROGRESS_CHARS: usize = 4096;

/// Who reads the hints of Belljar's own tools. Held by `hints_are_for_callers` of the tests of tools.
pub(super) const HINT_READER: HintReader =
    HintReader::Model { timeout: "timeout", create: Some("create_sandbox") };

/// What a tool does, for clients that ask a person first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hints {
    /// Changes nothing.
    pub(super) reads_only: bool,
    /// May remove or overwrite something.
    pub(super) destroys: bool,
    /// Has no further effect when it is repeated.
    pub(super) repeats: bool,
    /// Runs programs, which reach the network as far as the policy allows.
    pub(super) runs: bool,
}

impl Hints {
    pub(super) const READ: Self = Self { reads_only: true, destroys: false, repeats: true, runs: false };
    pub(super) const WRITE: Self = Self { reads_only: false, destroys: true, repeats: true, runs: false };
    pub(super) const ADD: Self = Self { reads_only: false, destroys: false, repeats: false, runs: false };
    pub(super) const RUN: Self = Self { reads_only: false, destroys: true, repeats: false, runs: true };
}

/// A built-in tool.
pub(super) trait Tool: 'static {
    /// Name.
    const NAME: &'static str;
    /// Title for people.
    const TITLE: &'static str;
    /// Description for models.
    const DESCRIPTION: &'static str;
    /// What it does.
    const HINTS: Hints;
    /// Its arguments.
    type Input: DeserializeOwned + JsonSchema + Send + 'static;
    /// Its structured answer.
    type Output: Serialize + JsonSchema + 'static;

    /// Runs it. When the future is dropped, what it runs is ended.
    fn run(
        call: &Call,
        input: Self::Input,
    ) -> impl Future<Output = Result<Reply<Self::Output>, Problem>> + Send;
}

/// The answer of a tool.
pub(super) struct Reply<T> {
    pub(super) output: T,
    pub(super) content: Vec<ContentBlock>,
    /// Whether what the tool ran has failed.
    pub(super) is_error: bool,
}

impl<T> Reply<T> {
    /// Returns an answer with a text.
    pub(super) fn text(output: T, text: impl Into<String>) -> Self {
        Self { output, content: vec![ContentBlock::text(text)], is_error: false }
    }
}

/// Entry of a table of built-in tools.
pub(super) struct BuiltIn {
    pub(super) name: &'static str,
    hints: Hints,
    describe: fn() -> ToolInfo,
    run: for<'a> fn(&'a Call, JsonObject) -> BoxFuture<'a, CallToolResult>,
}

impl BuiltIn {
    /// Returns the entry of a tool.
    pub(super) const fn of<T: Tool>() -> Self {
        Self { name: T::NAME, hints: T::HINTS, describe: describe::<T>, run: run::<T> }
    }

    /// Returns the description for clients.
    pub(super) fn info(&self, reaches_network: bool) -> ToolInfo {
        let Hints { reads_only, destroys, repeats, runs } = self.hints;
        let annotations = ToolAnnotations::new()
            .read_only(reads_only)
            .destructive(destroys)
            .idempotent(repeats)
            .open_world(runs && reaches_network);
        (self.describe)().with_annotations(annotations)
    }

    /// Runs the tool.
    pub(super) async fn run(&self, call: &Call, arguments: JsonObject) -> CallToolResult {
        (self.run)(call, arguments).await
    }
}

fn describe<T: Tool>() -> ToolInfo {
    // Fails for types only that are no object.
    let input = schema_for_input::<T::Input>().unwrap_or_default();
    let info = ToolInfo::new(T::NAME, T::DESCRIPTION, input).with_title(T::TITLE);
    info.with_raw_output_schema(schema_for_output::<T::Output>())
}

fn run<T: Tool>(call: &Call, arguments: JsonObject) -> BoxFuture<'_, CallToolResult> {
    async move {
        match parse_json(Value::Object(arguments).to_string().as_bytes()) {
            Ok(input) => match T::run(call, input).await {
                Ok(reply) => to_result(reply),
                Err(problem) if problem.code() == Code::SandboxNotFound && call.offer.lists_sandboxes() => {
                    let detail = format!("{}; list_sandboxes shows those that there are", problem.detail());
                    to_error(&Problem::new(Code::SandboxNotFound, detail))
                }
                Err(problem) => to_error(&problem),
            },
            Err(problem) => to_error(&problem),
        }
    }
    .boxed()
}

pub(super) fn to_result<T: Serialize>(reply: Reply<T>) -> CallToolResult {
    let mut result = CallToolResult::success(reply.content);
    result.structured_content = serde_json::to_value(&reply.output).ok();
    result.is_error = Some(reply.is_error);
    result
}

/// Returns a refusal as an answer, so that the model reads it and can do better.
pub(super) fn to_error(problem: &Problem) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(format!(
        "{}: {}",
        problem.code().as_str(),
        problem.detail()
    ))])
}

/// A call of a tool.
pub(super) struct Call {
    pub(super) shared: Shared,
    pub(super) caller: Caller,
    pub(super) offer: Offer,
    /// Base URL of the server as the client reaches it, if it does by URL.
    pub(super) base_url: Option<String>,
    pub(super) progress: Option<Progress>,
    /// Gets what the call waits for, if its client can be told.
    pub(super) waiting: Option<mpsc::Sender<Waiting>>,
    /// How far the output of background processes has been read.
    pub(super) sessions: Arc<Sessions>,
}

/// The sandbox of a call.
pub(super) struct Place {
    /// Its id or name.
    pub(super) id: String,
    /// Whether it was created for this call.
    pub(super) created: bool,
    /// Whether the call has named none.
    pub(super) is_default: bool,
}

impl Place {
    /// Returns the line that tells a model which sandbox was used, if it has not named it itself.
    pub(super) fn note(&self) -> Option<ContentBlock> {
        let how = if self.created { ", new and kept for further calls" } else { "" };
        self.is_default.then(|| ContentBlock::text(format!("[sandbox {}{how}]", self.id)))
    }
}

impl Call {
    /// Returns the named sandbox, or the default one of the key, which is created if it does not exist.
    pub(super) async fn place(&self, named: Option<String>) -> Result<Place, Problem> {
        if let Some(id) = named {
            return Ok(Place { id, created: false, is_default: false });
        }
        // The token of a sandbox is for that one only.
        if let Some(only) = &self.caller.only {
            return Ok(Place { id: only.to_string(), created: false, is_default: true });
        }
        let key = self.caller.key.replace('_', "-");
        let label = self.offer.label.as_deref().map(|label| format!("-{label}")).unwrap_or_default();
        let name: SandboxName = format!("mcp-{key}{label}").parse()?;
        let created =
            self.shared.keeper.create(&self.caller, default_sandbox(name, self.max_lifetime())).await?;
        if created.info.key != self.caller.key {
            let detail = format!(
                "sandbox: the name of this key's default sandbox belongs to {}, which another key has created; end that one, or name a \
                 sandbox of your own",
                created.info.id
            );
            return Err(Problem::new(Code::PolicyRefused, detail).with_field("sandbox"));
        }
        Ok(Place { id: created.info.id.to_string(), created: !created.existing, is_default: true })
    }

    /// Returns the sandbox of a call, as [`Self::place`] does, by its id, which no other tenant's has.
    pub(super) async fn place_by_id(&self, named: Option<String>) -> Result<Place, Problem> {
        let place = self.place(named).await?;
        let id = self.shared.keeper.get(&self.caller, &place.id).await?.id.to_string();
        Ok(Place { id, ..place })
    }

    fn max_lifetime(&self) -> Duration {
        self.shared.keeper.max_lifetime()
    }

    /// Counts bytes that the call needs, until the result is dropped.
    pub(super) fn hold(&self, bytes: usize) -> Result<Held, Problem> {
        self.shared.answers.hold(&self.caller.key, bytes)
    }

    /// Reports whether anybody reads the events of what the call runs.
    pub(super) fn has_reader(&self) -> bool {
        self.progress.is_some() || self.waiting.is_some()
    }

    /// Reports output that a running program has written, if the client wants to know.
    pub(super) async fn report(&self, text: &str) {
        if let Some(progress) = &self.progress {
            progress.send(text).await;
        }
    }
}

impl Call {
    /// Reports that the call waits for approval, if the client wants to know.
    pub(super) async fn report_waiting(&self, waiting: Waiting) {
        self.report(&format!("[{}]", message(&waiting))).await;
        if let Some(waits) = &self.waiting {
            // There is room for the only one.
            let _ = waits.try_send(waiting);
        }
    }
}

fn default_sandbox(name: SandboxName, max_lifetime: Duration) -> CreateSandbox {
    CreateSandbox {
        template: None,
        name: Some(name),
        return_existing: true,
        spec: SpecFile::default(),
        lifetime: Lifetime {
            timeout: max_lifetime,
            idle_timeout: Some(SESSION_IDLE_TIMEOUT.min(max_lifetime)),
            ..Lifetime::default()
        },
        labels: Labels::default(),
        files: Vec::new(),
        idempotency: None,
        ports: PortSettings::default(),
    }
}

/// Progress notifications of one call.
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    /// Number of notifications, which is their progress: it has no other measure.
    count: AtomicU32,
}

impl Progress {
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self { peer, token, count: AtomicU32::new(0) }
    }

    async fn send(&self, text: &str) {
        let count = self.count.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let skip = text.chars().count().saturating_sub(MAX_PROGRESS_CHARS);
        let message: String = text.chars().skip(skip).collect();
        let param =
            ProgressNotificationParam::new(self.token.clone(), f64::from(count)).with_message(message);
        // The client may be gone.
        let _ = self.peer.notify_progress(param).await;
    }
}

/// Offsets in the output of a process: of standard output, standard error and its terminal.
pub(super) type Offsets = [u64; 3];

/// Maximum number of processes whose offsets are kept. Beyond, all are forgotten, and their output is read again from its beginning.
const MAX_SESSIONS: usize = 4096;

/// How far the output of background processes has been read, by the sandbox's id and number.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<(String, u64), Offsets>>);

impl Sessions {
    /// Returns the offsets of a process.
    pub(super) fn get(&self, sandbox: &str, process: u64) -> Offsets {
        self.0.lock().get(&(sandbox.to_owned(), process)).copied().unwrap_or_default()
    }

    /// Sets the offsets of a process, or forgets one that has ended.
    pub(super) fn set(&self, sandbox: &str, process: u64, offsets: Option<Offsets>) {
        let mut all = self.0.lock();
        let key = (sandbox.to_owned(), process);
        let Some(offsets) = offsets else {
            all.remove(&key);
            return;
        };
        if all.len() >= MAX_SESSIONS && !all.contains_key(&key) {
            all.clear();
        }
        all.insert(key, offsets);
    }
}

/// Converts output to text for a model; of omitted bytes, their number is in between.
pub(super) fn output_text(output: &StreamOutput) -> String {
    let kept = KeptOutput::from(output);
    kept.text(0..kept.total)
}

/// The built-in tools of a profile.
pub(super) type Table = &'static [BuiltIn];
