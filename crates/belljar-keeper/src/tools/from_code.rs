//! Calls of stored tools by running code, as `belljar.tools.NAME(…)`.
//!
//! ```text
//!  code ─► its guest: allowed? within the budget? ─► keeper: a call like any other of the same caller ─► answer ─► code
//!                                                    └─► waits for approval: the sandbox of the code is frozen ─┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{CodeEvent, v1};
use belljar_model::{Encoding, StreamOutput, Timeout};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::ToolResult;
use super::check::ToolCall;
use crate::action::TOOL_CALL;
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::keeper::{Entered, Keeper, Result};
use crate::run::{Reporter, RunEvent};

/// Maximum number of tools and functions of one execution.
const MAX_CODE_TOOLS: usize = 64;

/// Maximum number of calls of one execution.
const MAX_TOOL_CALLS: u32 = 1000;

/// Maximum length of an answer to code, in bytes, and of each stream of output in one that would be longer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const MAX_SHORT_OUTPUT_BYTES: usize = 64 << 10;

/// What the code of an execution may call.
#[derive(Debug, Clone, Default)]
pub struct CodeTools {
    /// Stored tools, as `NAME` or `NAME@VERSION`. The code calls them by `NAME`; each call is one of the execution's caller.
    pub tools: Vec<String>,
    /// Functions, by name. Whoever reads the events of the execution answers their calls, with [`Keeper::answer_code`].
    pub functions: Vec<String>,
    /// How often the code may call them together, at most 1,000; 100 if not given.
    pub max_calls: Option<u32>,
}

/// The stored tools of an execution with their versions when it began, by the names by which its code calls them.
#[derive(Debug, Default)]
pub(crate) struct OfferedTools(BTreeMap<String, String>);

impl OfferedTools {
    /// Returns the names by which code calls them.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Returns the tools, as `NAME@VERSION`.
    pub(crate) fn versions(&self) -> Vec<String> {
        self.0.values().cloned().collect()
    }
}

impl CodeTools {
    /// Checks all but whether there are such tools.
    pub(crate) fn check(&self) -> Result<()> {
        let count = self.tools.len() + self.functions.len();
        if count > MAX_CODE_TOOLS {
            let reason = format!("{count} with the functions; at most {MAX_CODE_TOOLS} are allowed");
            return Err(KeeperError::field("tools", reason));
        }
        let is_name = |name: &str| {
            name.len() <= 64
                && name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if let Some(name) = self.functions.iter().find(|name| !is_name(name)) {
            let reason =
                format!("invalid name {name:?}: give up to 64 letters, digits and _, first no digit");
            return Err(KeeperError::field("functions", reason));
        }
        if let Some(most) = self.max_calls.filter(|most| !(1..=MAX_TOOL_CALLS).contains(most)) {
            let reason = format!("{most} is not allowed; give 1 to {MAX_TOOL_CALLS}");
            return Err(KeeperError::field("max_tool_calls", reason));
        }
        if count == 0 && self.max_calls.is_some() {
            return Err(KeeperError::field(
                "max_tool_calls",
                "there is nothing to call; give tools or functions",
            ));
        }
        Ok(())
    }
}

impl CodeTools {
    /// Returns what may be called, for the audit record of the code.
    pub(crate) fn details(&self, offered: &OfferedTools) -> Option<(&'static str, String)> {
        let all: Vec<String> = offered.0.values().cloned().chain(self.functions.iter().cloned()).collect();
        Some(("tools", all.join(" "))).filter(|_| !all.is_empty())
    }
}

impl Keeper {
    /// Finds the tools that code may call.
    ///
    /// # Errors
    /// Needs the role user; fails if there is no such tool, or two have the same name.
    pub(crate) async fn offer_tools(&self, caller: &Caller, asked: &CodeTools) -> Result<OfferedTools> {
        let mut offered = OfferedTools::default();
        if !asked.tools.is_empty() {
            self.require(caller, TOOL_CALL)?;
        }
        let mut names: Vec<&str> = asked.functions.iter().map(String::as_str).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_owned());
        if let Some(name) = twice {
            return Err(KeeperError::field("functions", format!("{name:?} is given twice")));
        }
        for named in &asked.tools {
            let info = self.find_tool(caller, named).await?;
            let (name, version) = (info.tool.name, info.version);
            let is_new = names.binary_search(&name.as_str()).is_err() && !offered.0.contains_key(&name);
            if !is_new {
                return Err(KeeperError::field("tools", format!("{name:?} is given twice")));
            }
            let versioned = format!("{name}@{version}");
            offered.0.insert(name, versioned);
        }
        Ok(offered)
    }

    /// Calls a tool for code, and returns the answer as JSON, or the message of an error.
    async fn call_from_code(&self, code: &CallingCode<'_>, named: &str, arguments: &[u8]) -> Result<Vec<u8>> {
        let call = parse(arguments)?;
        let mut run = self.stream_tool(code.caller, named, call);
        let done = loop {
            match run.next().await {
                Some(RunEvent::Waiting(waiting)) => {
                    self.hold(&code.entered.entry, &waiting.approval).await?;
                    *code.held.lock() = Some(waiting.approval.clone());
                    code.report.waiting(waiting);
                }
                Some(RunEvent::Ended(done)) => break done,
                Some(RunEvent::Queued | RunEvent::Progress(_)) => code.release(self).await?,
                None => return Err(KeeperError::ShuttingDown),
            }
        };
        code.release(self).await?;
        Ok(to_answer(&done?))
    }
}

/// The execution whose code calls.
#[derive(Clone)]
struct CallingCode<'a> {
    caller: &'a Caller,
    entered: &'a Entered,
    report: Reporter<CodeEvent>,
    /// The approval for which the sandbox is frozen.
    held: Arc<Mutex<Option<String>>>,
    /// One call at a time: while one waits for approval the answer to another could not reach the code.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl CallingCode<'_> {
    /// Resumes the sandbox, if it is frozen for a call.
    async fn release(&self, keeper: &Keeper) -> Result<()> {
        let held = self.held.lock().take();
        match held {
            Some(approval) => keeper.release_hold(&self.entered.entry, &approval).await,
            None => Ok(()),
        }
    }
}

/// Calls of tools by the code of one execution.
pub(crate) struct CallsFromCode<'a> {
    keeper: &'a Keeper,
    code: CallingCode<'a>,
    offered: &'a OfferedTools,
    /// The code's context and execution.
    place: (String, u64),
    running: FuturesUnordered<BoxFuture<'a, ()>>,
}

impl<'a> CallsFromCode<'a> {
    pub(crate) fn new(
        keeper: &'a Keeper,
        caller: &'a Caller,
        entered: &'a Entered,
        report: Reporter<CodeEvent>,
        offered: &'a OfferedTools,
    ) -> Self {
        let code = CallingCode { caller, entered, report, held: Arc::default(), turn: Arc::default() };
        Self { keeper, code, offered, place: Default::default(), running: FuturesUnordered::new() }
    }

    /// Records where the code runs.
    pub(crate) fn set_place(&mut self, context: &str, execution: u64) {
        self.place = (context.to_owned(), execution);
    }

    /// Begins a call, unless it is one of a function, which somebody else answers.
    pub(crate) fn begin(&mut self, called: &v1::ToolCalled) {
        let Some(named) = self.offered.0.get(&called.name) else { return };
        let (keeper, code, (context, execution)) = (self.keeper, self.code.clone(), self.place.clone());
        let (call, arguments) = (called.call, called.arguments.clone());
        let answering = async move {
            let _turn = code.turn.lock().await;
            let answer = v1::AnswerRequest { context, execution, call, ..Default::default() };
            let answer = match keeper.call_from_code(&code, named, &arguments).await {
                Ok(value) => v1::AnswerRequest { value: value.into(), ..answer },
                Err(error) => v1::AnswerRequest { error: crate::error::chain(&error), ..answer },
            };
            // The code may have ended meanwhile.
            let _ = code.entered.guest().answer_code(answer).await;
        };
        self.running.push(answering.boxed());
    }

    /// Goes on with the calls, until one has been answered.
    pub(crate) async fn next(&mut self) {
        if self.running.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends the calls that go on, and resumes the sandbox if it is frozen for one.
    pub(crate) async fn end(&mut self) -> Result<()> {
        self.running.clear();
        self.code.release(self.keeper).await
    }
}

/// Arguments as code gives them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    code: String,
    language: Option<String>,
    timeout: Option<Value>,
    #[serde(default)]
    files: BTreeMap<String, Value>,
}

fn parse(arguments: &[u8]) -> Result<ToolCall> {
    let given: Arguments = serde_json::from_slice(arguments)
        .map_err(|error| KeeperError::field("arguments", error.to_string()))?;
    let content = |(path, content): (String, Value)| {
        let encoded = content
            .get("base64")
            .and_then(Value::as_str)
            .filter(|_| content.as_object().is_some_and(|all| all.len() == 1));
        let bytes = match (&content, encoded) {
            (Value::String(text), _) => Some(text.clone().into_bytes()),
            (_, Some(text)) => Encoding::Base64.decode(text),
            _ => None,
        };
        let invalid = || {
            KeeperError::field("files", format!("{path:?}: give a text, or an object with bytes in base64"))
        };
        Ok((path.clone(), bytes.map(Bytes::from).ok_or_else(invalid)?))
    };
    let timeout = given.timeout.map(|timeout| {
        let text = timeout.as_str().map_or_else(|| timeout.to_string(), str::to_owned);
        let parsed: std::result::Result<Timeout, _> = text.parse();
        parsed.map(|timeout| timeout.duration()).map_err(KeeperError::from)
    });
    Ok(ToolCall {
        code: given.code.into(),
        language: given.language,
        timeout: timeout.transpose()? as Option<Duration>,
        files: given.files.into_iter().map(content).collect::<Result<_>>()?,
    })
}

/// Returns what code gets: the result with all output, results and files, or what fits.
fn to_answer(done: &ToolResult) -> Vec<u8> {
    let execution = &done.execution;
    let output = |stream: &StreamOutput, most: usize| {
        let bytes = stream.decode().unwrap_or_default();
        String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).into_owned()
    };
    let files = |with_content: bool| {
        let file = |file: &super::WrittenFile| {
            let content =
                file.content.as_ref().filter(|_| with_content).map(|content| Encoding::encode(content));
            let content = content.map(|(encoding, data)| json!({"encoding": encoding, "data": data}));
            json!({"path": file.path, "bytes": file.size, "content": content})
        };
        done.files.iter().map(file).collect::<Vec<_>>()
    };
    let answer = |most: usize, whole: bool| {
        let results: Vec<_> = execution.results.iter().filter(|_| whole).map(|result| &result.data).collect();
        // Cannot fail: texts and numbers only.
        serde_json::to_vec(&json!({
            "success": execution.status == belljar_model::CodeStatus::Ok,
            "outcome": execution.status.as_str(),
            "stdout": output(&execution.stdout, most),
            "stderr": output(&execution.stderr, most),
            "results": results,
            "error": execution.error.as_ref().filter(|_| whole),
            "files": files(whole),
            "hint": execution.hint,
            "complete": whole && !execution.stdout.truncated && !execution.stderr.truncated && !done.more_files,
        }))
        .unwrap_or_default()
    };
    let whole = answer(usize::MAX, true);
    if whole.len() <= MAX_ANSWER_BYTES { whole } else { answer(MAX_SHORT_OUTPUT_BYTES, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_code_are_parsed() {
        let text = r#"{"code": "1", "language": "python", "timeout": 2.5, "files": {"a": "x", "b": {"base64": "AAE="}}}"#;
        let call = parse(text.as_bytes()).unwrap();
        assert_eq!((&call.code[..], call.timeout), (&b"1"[..], Some(Duration::from_millis(2500))));
        assert_eq!(call.files["b"][..], [0, 1]);
        assert_eq!(
            parse(br#"{"code": "1", "timeout": "500ms"}"#).unwrap().timeout,
            Some(Duration::from_millis(500))
        );
        for (text, said) in [
            ("{}", "arguments: missing field `code`"),
            (r#"{"code": "1", "key": "x"}"#, "arguments: unknown field `key`"),
            (r#"{"code": "1", "timeout": true}"#, "timeout"),
            (r#"{"code": "1", "files": {"a": 5}}"#, "files: \"a\": give a text"),
            (r#"{"code": "1", "files": {"a": {"base64": "?"}}}"#, "files: \"a\": give a text"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn names_are_checked() {
        let functions = |names: &[&str]| CodeTools {
            functions: names.iter().map(|name| (*name).to_owned()).collect(),
            ..CodeTools::default()
        };
        assert!(functions(&["lookup", "_a1"]).check().is_ok() && CodeTools::default().check().is_ok());
        for name in ["", "1a", "a-b", "a.b", "ä", "a\n", &"a".repeat(65)] {
            let error = functions(&[name]).check().unwrap_err().to_string();
            assert!(error.starts_with("functions: invalid name"), "{error}");
        }
        let most = |max_calls| CodeTools { max_calls: Some(max_calls), ..functions(&["a"]) };
        assert!(most(1000).check().is_ok() && most(0).check().is_err() && most(1001).check().is_err());
        assert!(CodeTools { max_calls: Some(1), ..CodeTools::default() }.check().is_err());
        let many: Vec<String> = (0..65).map(|number| format!("a{number}")).collect();
        assert!(CodeTools { functions: many, ..CodeTools::default() }.check().is_err());
    }
}
