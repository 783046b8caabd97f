//! The `Interpreter` service: contexts that keep their variables from one execution to the next.
//!
//! ```text
//! Execute ──► waits its turn ──► the interpreter runs it ──done──► idle, preserved
//!                │  (a new one if it was lost)    │──timeout or disconnect: SIGINT, then SIGKILL──► lost
//!                │                                └──exit, a kill, out of memory──► lost
//!                └──the caller disconnects──► never run
//! ```
//!
//! An interpreter is a process like any other of the sandbox, and its messages are controlled by user code
//! (`frame.rs`). Its pipes are not read while it is idle: output of its threads then appears in the next execution.

mod calls;
mod context;
mod execution;
mod frame;
mod kernel;
mod marks;
mod outbox;
mod outlet;
mod shell;
mod warm;

use std::collections::HashMap;
use std::sync::Arc;

use belljar_proto::{
    ConnectError, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, v1,
};
use bytes::Bytes;
use futures::Stream;
use parking_lot::{Mutex, MutexGuard};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use self::context::Context;
use self::kernel::Language;
#[cfg(feature = "fuzzing")]
pub(crate) use self::marks::marked_output;
pub(crate) use self::warm::{Spare, prepare_spare};
use crate::guest::Guest;
use crate::service::Service;

/// Creates an unnamed file with the source code of the Python kernel.
pub(crate) fn python_kernel() -> Result<std::os::fd::OwnedFd, rustix::io::Errno> {
    kernel::create_source_file(Language::Python.kernel_source(), "/tmp".as_ref())
}

/// Maximum number of contexts.
const MAX_CONTEXTS: usize = 32;

/// Maximum length of code, in bytes.
const MAX_CODE_BYTES: usize = 4 << 20;

/// Maximum length of input, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Maximum length of the answer to a call of a tool, in bytes.
const MAX_TOOL_ANSWER_BYTES: usize = 1 << 20;

/// Capacity of the channel of events to a reader.
const EVENT_CAPACITY: usize = 16;

/// All contexts of a sandbox.
#[derive(Default)]
pub(crate) struct Contexts {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last_number: u64,
    last_execution: u64,
    by_id: HashMap<String, Arc<Context>>,
}

impl Contexts {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    fn get(&self, id: &str) -> Result<Arc<Context>, ConnectError> {
        self.inner().by_id.get(id).cloned().ok_or_else(|| {
            let id = frame::truncate(id.escape_debug().to_string(), 64);
            ConnectError::not_found(format!("context: there is no context \"{id}\""))
        })
    }

    /// Adds a context; it has no interpreter yet.
    fn add(
        &self,
        language: Language,
        request: &v1::CreateContextRequest,
        is_default: bool,
    ) -> Result<Arc<Context>, ConnectError> {
        let mut inner = self.inner();
        if is_default && let Some(context) = inner.by_id.get(language.name()) {
            return Ok(Arc::clone(context));
        }
        if inner.by_id.len() >= MAX_CONTEXTS {
            return Err(ConnectError::resource_exhausted(format!(
                "context limit of {MAX_CONTEXTS} reached; remove one"
            )));
        }
        inner.last_number += 1;
        let number = inner.last_number;
        let id = if is_default { language.name().to_owned() } else { format!("c{number}") };
        let context = Arc::new(Context::new(id, number, language, request));
        inner.by_id.insert(context.id.clone(), Arc::clone(&context));
        Ok(context)
    }

    /// Forgets a context, if it is still this one.
    fn forget(&self, context: &Arc<Context>) {
        let mut inner = self.inner();
        if inner.by_id.get(&context.id).is_some_and(|found| Arc::ptr_eq(found, context)) {
            inner.by_id.remove(&context.id);
        }
    }

    fn all(&self) -> Vec<Arc<Context>> {
        let mut all: Vec<_> = self.inner().by_id.values().cloned().collect();
        all.sort_by_key(|context| context.number);
        all
    }

    fn next_execution(&self) -> u64 {
        let mut inner = self.inner();
        inner.last_execution += 1;
        inner.last_execution
    }
}

impl v1::Interpreter for Service {
    async fn create(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::CreateContextRequest>,
    ) -> ServiceResult<v1::ContextInfo> {
        let request = request.to_owned_message();
        check_env(&request.env)?;
        check_cwd(&request.cwd)?;
        let language = Language::parse(&request.language, &self.guest.config.home)?;
        let contexts = &self.guest.table.contexts;
        let context = contexts.add(language, &request, false)?;
        let started = start(&self.guest, &context).await;
        if let Err(error) = started {
            contexts.forget(&context);
            return Err(error);
        }
        Response::ok(context.info())
    }

    async fn list(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::ListContextsRequest>,
    ) -> ServiceResult<v1::ListContextsResponse> {
        let contexts = self.guest.table.contexts.all().iter().map(|context| context.info()).collect();
        Response::ok(v1::ListContextsResponse { contexts, ..Default::default() })
    }

    async fn restart(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ContextRequest>,
    ) -> ServiceResult<v1::ContextInfo> {
        let context = self.guest.table.contexts.get(request.view().context)?;
        let guest = Arc::clone(&self.guest);
        let restarted = Arc::clone(&context);
        // Runs to completion even if the caller disconnects: otherwise an interpreter could lose its context.
        let restarting = tokio::spawn(async move {
            let mut slot = restarted.stop(&guest, "the context was restarted").await;
            restarted.clear_lost();
            restarted.ensure_started(&guest, &mut slot).await
        });
        join_task(restarting).await?;
        Response::ok(context.info())
    }

    async fn interrupt(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ContextRequest>,
    ) -> ServiceResult<v1::InterruptResponse> {
        let context = self.guest.table.contexts.get(request.view().context)?;
        Response::ok(v1::InterruptResponse { interrupted: context.interrupt(), ..Default::default() })
    }

    async fn remove(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ContextRequest>,
    ) -> ServiceResult<v1::RemoveContextResponse> {
        let contexts = &self.guest.table.contexts;
        let context = contexts.get(request.view().context)?;
        contexts.forget(&context);
        context.remove();
        let guest = Arc::clone(&self.guest);
        let removing = tokio::spawn(async move {
            drop(context.stop(&guest, "the context was removed").await);
            Ok(())
        });
        join_task(removing).await?;
        Response::ok(v1::RemoveContextResponse::default())
    }

    async fn execute(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ExecuteCodeRequest>,
    ) -> ServiceResult<ServiceStream<v1::CodeEvent>> {
        let mut request = request.to_owned_message();
        let code = check_code(&request.code)?;
        check_env(&request.env)?;
        check_env(&request.context_env)?;
        check_cwd(&request.cwd)?;
        calls::check(&request)?;
        let kill_on_disconnect = match request.on_disconnect.as_known() {
            Some(v1::OnDisconnect::ON_DISCONNECT_KILL) => true,
            Some(_) => false,
            None => return Err(ConnectError::invalid_argument("on_disconnect: give CONTINUE or KILL")),
        };
        let contexts = &self.guest.table.contexts;
        let context = match (request.context.is_empty(), request.language.is_empty()) {
            (false, true) => contexts.get(&request.context)?,
            (false, false) => {
                return Err(ConnectError::invalid_argument(
                    "context and language: give one of them, not both",
                ));
            }
            (true, _) => {
                let language = Language::parse(&request.language, &self.guest.config.home)?;
                let mut env = std::mem::take(&mut request.context_env);
                let mut cwd = Bytes::new();
                if language.has_fixed_environment() {
                    env.retain(|own| request.env.iter().all(|variable| variable.name != own.name));
                    env.extend(request.env.iter().cloned());
                    cwd.clone_from(&request.cwd);
                }
                let environment = v1::CreateContextRequest { cwd, env, ..Default::default() };
                contexts.add(language, &environment, true)?
            }
        };
        context.strip_fixed_environment(&mut request);
        context.check_tools(&request)?;
        let ticket = context.enqueue()?;
        let (events, receiver) = mpsc::channel(EVENT_CAPACITY);
        let guest = Arc::clone(&self.guest);
        tokio::spawn(execution::run(
            guest,
            context,
            ticket,
            execution::Job { code, request, kill_on_disconnect },
            events,
        ));
        Ok(Response::from(Box::pin(stream(receiver)) as ServiceStream<_>))
    }

    async fn answer(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::AnswerRequest>,
    ) -> ServiceResult<v1::AnswerResponse> {
        let request = request.to_owned_message();
        let limit = if request.call == 0 { MAX_ANSWER_BYTES } else { MAX_TOOL_ANSWER_BYTES };
        let bytes = request.value.len().max(request.error.len());
        if bytes > limit {
            return Err(ConnectError::invalid_argument(format!(
                "value: too large: {bytes} bytes > limit {limit}"
            )));
        }
        let context = self.guest.table.contexts.get(&request.context)?;
        if request.call != 0 {
            let answer = tool_answer(&request)?;
            context.answer_call(request.execution, (request.call, request.of_tool), answer)?;
            return Response::ok(v1::AnswerResponse::default());
        }
        let value = match (request.end_of_file, request.value.is_empty()) {
            (true, true) => None,
            (true, false) => {
                return Err(ConnectError::invalid_argument(
                    "value and end_of_file: give one of them, not both",
                ));
            }
            (false, _) => Some(
                String::from_utf8(request.value.to_vec())
                    .map_err(|_| ConnectError::invalid_argument("value: it is not UTF-8"))?,
            ),
        };
        context.answer(request.execution, value)?;
        Response::ok(v1::AnswerResponse::default())
    }
}

/// Returns the answer to a call: a value of JSON, or the message of an error.
fn tool_answer(request: &v1::AnswerRequest) -> Result<Result<Box<RawValue>, String>, ConnectError> {
    match (request.value.is_empty(), request.error.is_empty()) {
        (true, false) => Ok(Err(request.error.clone())),
        (false, true) => match serde_json::from_slice(&request.value) {
            Ok(value) => Ok(Ok(value)),
            Err(error) => Err(ConnectError::invalid_argument(format!("value: it is not JSON: {error}"))),
        },
        _ => Err(ConnectError::invalid_argument("value and error: give one of them for a call")),
    }
}

/// Starts a context's interpreter if it has none.
async fn start(guest: &Arc<Guest>, context: &Arc<Context>) -> Result<(), ConnectError> {
    let (guest, context) = (Arc::clone(guest), Arc::clone(context));
    join_task(tokio::spawn(async move {
        let mut slot = context.slot().await;
        context.ensure_started(&guest, &mut slot).await
    }))
    .await
}

async fn join_task(task: tokio::task::JoinHandle<Result<(), ConnectError>>) -> Result<(), ConnectError> {
    task.await.unwrap_or_else(|_| Err(ConnectError::internal("the guest's task was cancelled")))
}

fn stream(
    receiver: mpsc::Receiver<Result<v1::CodeEvent, ConnectError>>,
) -> impl Stream<Item = Result<v1::CodeEvent, ConnectError>> {
    futures::stream::unfold(receiver, |mut receiver| async move {
        let event = receiver.recv().await?;
        Some((event, receiver))
    })
}

fn check_code(code: &bytes::Bytes) -> Result<String, ConnectError> {
    let invalid = |why: String| Err(ConnectError::invalid_argument(format!("code: {why}")));
    if code.len() > MAX_CODE_BYTES {
        return invalid(format!("too large: {} bytes > limit {MAX_CODE_BYTES}", code.len()));
    }
    if let Some(place) = memchr::memchr(0, code) {
        return invalid(format!("a NUL byte, at {place}, is not allowed"));
    }
    match std::str::from_utf8(code) {
        Ok(code) => Ok(code.to_owned()),
        Err(error) => invalid(format!("it is not UTF-8, from byte {} on", error.valid_up_to())),
    }
}

fn check_env(env: &[v1::EnvVar]) -> Result<(), ConnectError> {
    for variable in env {
        let invalid = |why: &str| Err(ConnectError::invalid_argument(format!("env: {why}")));
        if variable.name.is_empty() || variable.name.contains(&b'=') {
            return invalid("a name must not be empty or contain \"=\"");
        }
        if variable.name.contains(&0) || variable.value.contains(&0) {
            return invalid("a NUL byte is not allowed");
        }
        if std::str::from_utf8(&variable.name).is_err() || std::str::from_utf8(&variable.value).is_err() {
            return invalid("a name or a value is not UTF-8");
        }
    }
    Ok(())
}

fn check_cwd(cwd: &bytes::Bytes) -> Result<(), ConnectError> {
    if cwd.contains(&0) {
        return Err(ConnectError::invalid_argument("cwd: a NUL byte is not allowed"));
    }
    match std::str::from_utf8(cwd) {
        Ok(_) => Ok(()),
        Err(_) => Err(ConnectError::invalid_argument("cwd: it is not UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_checked() {
        assert_eq!(check_code(&"1 + 1 # ü".into()).unwrap(), "1 + 1 # ü");
        assert_eq!(check_code(&"".into()).unwrap(), "");
        let message = |code: Vec<u8>| check_code(&code.into()).unwrap_err().message.unwrap();
        assert_eq!(message(b"ab\0".to_vec()), "code: a NUL byte, at 2, is not allowed");
        assert_eq!(message(b"ab\xff".to_vec()), "code: it is not UTF-8, from byte 2 on");
        assert!(message(vec![b' '; MAX_CODE_BYTES + 1]).contains("4194305 bytes > limit"));
    }

    #[test]
    fn working_directories_are_checked() {
        assert!(check_cwd(&"a/ü".into()).is_ok() && check_cwd(&"".into()).is_ok());
        for (cwd, why) in [(b"/a\0b".as_slice(), "a NUL byte"), (b"/\xff", "not UTF-8")] {
            let message = check_cwd(&cwd.to_vec().into()).unwrap_err().message.unwrap();
            assert!(message.starts_with("cwd: ") && message.contains(why), "{message}");
        }
    }

    #[test]
    fn contexts_are_limited_and_their_ids_never_reused() {
        let contexts = Contexts::default();
        let add = |is_default| contexts.add(Language::Python, &Default::default(), is_default);
        let first = add(false).unwrap();
        let default = add(true).unwrap();
        assert_eq!((first.id.as_str(), default.id.as_str()), ("c1", "python"));
        assert!(Arc::ptr_eq(&default, &add(true).unwrap()));
        contexts.forget(&first);
        assert_eq!(add(false).unwrap().id, "c3");
        for _ in 2..MAX_CONTEXTS {
            add(false).unwrap();
        }
        assert!(add(false).unwrap_err().message.unwrap().contains("remove one"));
        assert!(contexts.get("c1").unwrap_err().message.unwrap().contains("no context \"c1\""));
        assert_eq!(contexts.all().first().unwrap().id, "python");
    }
}
