//! Contexts of interpreters, and code in them. The keeper runs the code, so that its end is in the audit log as well.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_engine::{CodeEvent, v1};
use belljar_keeper::{CodeRequest, CodeTools, KeeperError, NewContext, OnDisconnect, RunEvent};
use belljar_model::{CodeExecution, CodeStatus, Survival};
use belljar_proto::{
    ConnectError, MAX_MESSAGE_BYTES, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream,
};
use bytes::Bytes;

use super::super::call::Call;
use super::super::convert;
use crate::api::Shared;
use crate::problem::Problem;

/// Maximum number of bytes of a result in one message.
const MAX_PART_BYTES: usize = MAX_MESSAGE_BYTES / 4;

/// Maximum length of an answer to a question, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Maximum length of the answer to a call of a function, in bytes.
const MAX_TOOL_ANSWER_BYTES: usize = 1 << 20;

/// The service `Interpreter` of a sandbox.
pub(in super::super) struct Interpreter(pub(in super::super) Shared);

/// Returns the call with its caller, and the id of the sandbox that the header names.
fn parse_call(shared: &Shared, context: &RequestContext) -> Result<(Call, String), ConnectError> {
    let call = Call::new(shared, context)?;
    let id = call.sandbox(context)?;
    Ok((call, id))
}

impl v1::Interpreter for Interpreter {
    async fn create(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::CreateContextRequest>,
    ) -> ServiceResult<v1::ContextInfo> {
        let (call, id) = parse_call(&self.0, &context)?;
        let request = request.to_owned_message();
        let new = new_context(request).map_err(|problem| call.problem(&problem))?;
        let made = self.0.keeper.create_context(&call.caller, &id, new).await;
        Response::ok(made.map_err(|error| call.keeper_error(error))?)
    }

    async fn list(
        &self,
        context: RequestContext,
        _: ServiceRequest<'_, v1::ListContextsRequest>,
    ) -> ServiceResult<v1::ListContextsResponse> {
        let (call, id) = parse_call(&self.0, &context)?;
        let contexts = self.0.keeper.contexts(&call.caller, &id).await;
        let contexts = contexts.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::ListContextsResponse { contexts, ..Default::default() })
    }

    async fn restart(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ContextRequest>,
    ) -> ServiceResult<v1::ContextInfo> {
        let (call, id) = parse_call(&self.0, &context)?;
        let request = request.to_owned_message();
        let done = self.0.keeper.restart_context(&call.caller, &id, &request.context).await;
        Response::ok(done.map_err(|error| call.keeper_error(error))?)
    }

    async fn interrupt(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ContextRequest>,
    ) -> ServiceResult<v1::InterruptResponse> {
        let (call, id) = parse_call(&self.0, &context)?;
        let request = request.to_owned_message();
        let done = self.0.keeper.interrupt_context(&call.caller, &id, &request.context).await;
        let interrupted = done.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::InterruptResponse { interrupted, ..Default::default() })
    }

    async fn remove(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ContextRequest>,
    ) -> ServiceResult<v1::RemoveContextResponse> {
        let (call, id) = parse_call(&self.0, &context)?;
        let request = request.to_owned_message();
        let done = self.0.keeper.remove_context(&call.caller, &id, &request.context).await;
        done.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::RemoveContextResponse::default())
    }

    async fn execute(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ExecuteCodeRequest>,
    ) -> ServiceResult<ServiceStream<v1::CodeEvent>> {
        let (call, id) = parse_call(&self.0, &context)?;
        let slot = call.slot()?;
        let request = request.to_owned_message();
        let parsed = parse_request(request).map_err(|problem| call.problem(&problem))?;
        // Dropped with the stream: this tells the keeper that the caller has disconnected.
        let mut run = self.0.keeper.stream_code(&call.caller, &id, parsed);
        // An immediate refusal is the response itself. Code that waits for its turn may wait for long.
        run.accepted().await.map_err(|error| call.keeper_error(error))?;
        let failed_in = call.clone();
        let events = async_stream::stream! {
            while let Some(next) = run.next().await {
                match next {
                    RunEvent::Waiting(waiting) => {
                        let event = convert::waiting(waiting).into();
                        yield Ok(v1::CodeEvent { event, ..Default::default() });
                    }
                    RunEvent::Queued => {}
                    RunEvent::Progress(event) => for event in to_events(event) { yield Ok(event) },
                    RunEvent::Ended(Ok(done)) => {
                        yield Ok(v1::CodeEvent { event: to_code_ended(&done).into(), ..Default::default() });
                    }
                    RunEvent::Ended(Err(error)) => yield Err(failed_in.keeper_error(error)),
                }
            }
        };
        Response::ok(call.until_stopped(slot, events))
    }

    async fn answer(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::AnswerRequest>,
    ) -> ServiceResult<v1::AnswerResponse> {
        let (call, id) = parse_call(&self.0, &context)?;
        let request = request.to_owned_message();
        let limit = if request.call == 0 { MAX_ANSWER_BYTES } else { MAX_TOOL_ANSWER_BYTES };
        for (field, bytes) in [("value", request.value.len()), ("error", request.error.len())] {
            if bytes > limit {
                return Err(call.field(field, format!("it has {bytes} bytes; at most {limit} are allowed")));
            }
        }
        let done = self.0.keeper.answer_code(&call.caller, &id, request).await;
        done.map_err(|error| call.keeper_error(error))?;
        Response::ok(v1::AnswerResponse::default())
    }
}

fn parse_env(env: Vec<v1::EnvVar>) -> Result<BTreeMap<String, String>, Problem> {
    let text = |bytes: &Bytes| {
        let text = std::str::from_utf8(bytes).map(str::to_owned);
        text.map_err(|_| Problem::field("env", "a name or value is not UTF-8"))
    };
    let mut variables = BTreeMap::new();
    for variable in env {
        let (name, value) = (text(&variable.name)?, text(&variable.value)?);
        if name.is_empty() || name.contains('=') {
            return Err(Problem::field("env", "a name must not be empty or contain \"=\""));
        }
        if name.contains('\0') || value.contains('\0') {
            return Err(Problem::field("env", "a NUL byte is not allowed"));
        }
        belljar_model::EnvVar::new(&*name, &*value).map_err(KeeperError::from)?;
        variables.insert(name, value);
    }
    Ok(variables)
}

fn parse_cwd(cwd: Bytes) -> Result<Option<Bytes>, Problem> {
    if cwd.is_empty() {
        return Ok(None);
    }
    convert::path("cwd", &cwd)?;
    Ok(Some(cwd))
}

fn new_context(request: v1::CreateContextRequest) -> Result<NewContext, Problem> {
    Ok(NewContext {
        language: convert::non_empty(request.language),
        cwd: parse_cwd(request.cwd)?,
        env: parse_env(request.env)?,
    })
}

fn parse_request(request: v1::ExecuteCodeRequest) -> Result<CodeRequest, Problem> {
    Ok(CodeRequest {
        code: request.code,
        context: convert::non_empty(request.context),
        language: convert::non_empty(request.language),
        cwd: parse_cwd(request.cwd)?,
        env: parse_env(request.env)?,
        // Zero means no limit, in both protocols.
        timeout: Some(Duration::from_millis(request.timeout_ms)),
        grace: Some(request.grace_ms).filter(|ms| *ms != 0).map(Duration::from_millis),
        allow_input: request.allow_input,
        tools: CodeTools {
            tools: request.tools,
            functions: request.functions,
            max_calls: Some(request.max_tool_calls).filter(|most| *most != 0),
            ..CodeTools::default()
        },
        on_disconnect: match request.on_disconnect.as_known() {
            Some(v1::OnDisconnect::ON_DISCONNECT_KILL) => OnDisconnect::Kill,
            Some(_) => OnDisconnect::Continue,
            None => return Err(Problem::field("on_disconnect", "give CONTINUE or KILL")),
        },
        keep_bytes: Some(0),
        ..CodeRequest::default()
    })
}

/// Converts an event to messages: a large result takes several.
fn to_events(event: CodeEvent) -> Vec<v1::CodeEvent> {
    let event = match event {
        CodeEvent::Started(started) => started.into(),
        CodeEvent::Output { stream, offset, data } => {
            v1::Output { stream: stream.into(), offset, data, ..Default::default() }.into()
        }
        CodeEvent::Result(result) => return split_result(result),
        CodeEvent::Error(error) => error.into(),
        CodeEvent::InputRequested(asked) => asked.into(),
        CodeEvent::ToolCalled(called) => called.into(),
        CodeEvent::Ended(_) => return Vec::new(),
    };
    vec![v1::CodeEvent { event, ..Default::default() }]
}

/// Splits a result into messages that are not too long.
fn split_result(mut result: v1::CodeResult) -> Vec<v1::CodeEvent> {
    use v1::__buffa::oneof::code_event::Event;
    let total: usize = result.data.iter().map(|form| form.data.len()).sum();
    if total <= MAX_PART_BYTES {
        return vec![v1::CodeEvent { event: result.into(), ..Default::default() }];
    }
    let mut pieces = Vec::new();
    for form in std::mem::take(&mut result.data) {
        let mut rest = form.data;
        loop {
            let data = rest.split_to(rest.len().min(MAX_PART_BYTES));
            pieces.push(v1::MimeData { mime: form.mime.clone(), data, more: true, ..Default::default() });
            if rest.is_empty() {
                break;
            }
        }
    }
    if let Some(last) = pieces.last_mut() {
        last.more = false;
    }
    let mut pieces = pieces.into_iter();
    result.data.extend(pieces.next());
    let first = v1::CodeEvent { event: result.into(), ..Default::default() };
    let rest = pieces.map(|part| v1::CodeEvent { event: Some(Event::from(part)), ..Default::default() });
    std::iter::once(first).chain(rest).collect()
}

/// Converts the end of an execution, as judged by the keeper.
fn to_code_ended(done: &CodeExecution) -> v1::CodeEnded {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    v1::CodeEnded {
        status: match done.status {
            CodeStatus::Ok => v1::CodeStatus::CODE_STATUS_OK,
            CodeStatus::Error => v1::CodeStatus::CODE_STATUS_ERROR,
            CodeStatus::Interrupted => v1::CodeStatus::CODE_STATUS_INTERRUPTED,
            CodeStatus::TimedOut => v1::CodeStatus::CODE_STATUS_TIMED_OUT,
            CodeStatus::Died => v1::CodeStatus::CODE_STATUS_DIED,
        }
        .into(),
        state: match done.state {
            Survival::Preserved => v1::Survival::SURVIVAL_PRESERVED,
            Survival::Lost => v1::Survival::SURVIVAL_LOST,
            Survival::Unknown => v1::Survival::SURVIVAL_UNKNOWN,
        }
        .into(),
        reason: done.reason.clone().unwrap_or_default(),
        cause: match done.cause.as_deref() {
            Some("timed_out") => v1::Cause::CAUSE_TIMED_OUT,
            Some("out_of_memory") => v1::Cause::CAUSE_MEMORY,
            Some("pids") => v1::Cause::CAUSE_PIDS,
            Some("stopped") => v1::Cause::CAUSE_STOPPED,
            _ => v1::Cause::CAUSE_UNSPECIFIED,
        }
        .into(),
        exit_code: done.exit_code.unwrap_or(0),
        signal: done.signal.as_deref().and_then(belljar_model::signal_number).map_or(0, i32::from),
        wall_us: micros(done.wall),
        cpu_us: micros(done.cpu),
        stdout_bytes: done.stdout.total_bytes,
        stderr_bytes: done.stderr.total_bytes,
        hint: done.hint.clone().unwrap_or_default(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_results_are_split() {
        let form = |mime: &str, bytes: usize| v1::MimeData {
            mime: mime.to_owned(),
            data: vec![b'x'; bytes].into(),
            ..Default::default()
        };
        let result = |data: Vec<v1::MimeData>| v1::CodeResult { main: true, data, ..Default::default() };
        assert_eq!(split_result(result(vec![form("text/plain", 10), form("text/html", 10)])).len(), 1);
        let messages =
            split_result(result(vec![form("text/plain", 10), form("image/png", 2 * MAX_PART_BYTES + 1)]));
        assert_eq!(messages.len(), 4);
        let (mut bytes, mut more) = (0, Vec::new());
        for message in messages {
            use v1::__buffa::oneof::code_event::Event;
            let part = match message.event {
                Some(Event::Result(result)) => result.data[0].clone(),
                Some(Event::ResultPart(part)) => *part,
                other => panic!("{other:?}"),
            };
            bytes += part.data.len();
            more.push(part.more);
        }
        assert_eq!((bytes, more), (10 + 2 * MAX_PART_BYTES + 1, vec![true, true, true, false]));
    }
}
