//! Interpreter contexts, which keep their variables from one execution to the next.

use belljar_proto::v1::__buffa::oneof::code_event::Event;
use belljar_proto::{Connection, ServerStream, v1};
use bytes::{Bytes, BytesMut};

use super::{CALL_TIMEOUT, GuestClient, GuestError, ReportWaiting, Result, report_waiting};

/// Maximum number of contexts in a list.
const MAX_CONTEXTS: usize = 64;

/// Timeout for starting or restarting an interpreter: longer than the guest waits for it.
const KERNEL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Maximum total size of the results of one execution, in bytes, with room for names beyond the guest's own limit of 24
/// MiB.
const MAX_RESULT_BYTES: usize = 25 << 20;
/// Maximum total size of JSON in the results of one execution, in bytes: parsed values take many times its size on the
/// host.
const MAX_JSON_BYTES: usize = 4 << 20;
/// Maximum number of results of one execution.
const MAX_RESULTS: usize = 1000;
/// Maximum number of forms of one result.
const MAX_FORMS: usize = 64;
/// Maximum number of calls of tools by one execution, and maximum length of the arguments of one, in bytes, as in the guest.
const MAX_CALLS: usize = 1000;
const MAX_ARGUMENTS_BYTES: usize = 256 << 10;

/// Event of running code. Values are within their limits, and events are in order.
#[derive(Debug, Clone)]
pub enum CodeEvent {
    /// The code was started.
    Started(v1::CodeStarted),
    /// The code has printed output.
    Output {
        /// The stream.
        stream: v1::Stream,
        /// Offset in the stream.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// The code has produced a result, which is complete.
    Result(v1::CodeResult),
    /// The code has raised an error.
    Error(v1::CodeError),
    /// The code waits for input.
    InputRequested(v1::InputRequested),
    /// The code calls a tool, and waits for the answer.
    ToolCalled(v1::ToolCalled),
    /// The code has ended.
    Ended(v1::CodeEnded),
}

type CodeStream = ServerStream<v1::__buffa::view::CodeEventView<'static>>;

/// Running or queued code. The request defines what happens when this is dropped.
pub struct CodeExecution {
    stream: Box<CodeStream>,
    validator: EventValidator,
    waits: Option<ReportWaiting>,
}

/// Checks the order and the limits of events, and assembles large results.
#[derive(Debug)]
struct EventValidator {
    step: Step,
    /// An incomplete result.
    partial: Option<v1::CodeResult>,
    results: usize,
    bytes: usize,
    json: usize,
    calls: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Waiting,
    Running,
    Ended,
}

impl GuestClient {
    fn interpreters(&self, timeout: Option<std::time::Duration>) -> v1::InterpreterClient<Connection> {
        v1::InterpreterClient::new(self.links.calls.clone(), self.config(timeout))
    }

    /// Creates a context.
    ///
    /// # Errors
    /// See [`GuestError`]; `FailedPrecondition` if its interpreter cannot start, `ResourceExhausted` if there are too many.
    pub async fn create_context(&self, request: v1::CreateContextRequest) -> Result<v1::ContextInfo> {
        Ok(self.interpreters(Some(KERNEL_TIMEOUT)).create(request).await?.into_owned())
    }

    /// Lists the contexts, the oldest first.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn list_contexts(&self) -> Result<Vec<v1::ContextInfo>> {
        let request = v1::ListContextsRequest::default();
        let contexts = self.interpreters(Some(CALL_TIMEOUT)).list(request).await?.into_owned().contexts;
        if contexts.len() > MAX_CONTEXTS {
            return Err(GuestError::Protocol { what: "more contexts are listed than can exist" });
        }
        Ok(contexts)
    }

    /// Ends a context's interpreter and starts a new one.
    ///
    /// # Errors
    /// See [`GuestError`]; `NotFound` if the context does not exist.
    pub async fn restart_context(&self, context: &str) -> Result<v1::ContextInfo> {
        Ok(self.interpreters(Some(KERNEL_TIMEOUT)).restart(context_request(context)).await?.into_owned())
    }

    /// Interrupts the running code in a context. Returns whether there was any.
    ///
    /// # Errors
    /// See [`GuestError`]; `NotFound` if the context does not exist.
    pub async fn interrupt_context(&self, context: &str) -> Result<bool> {
        let answer = self.interpreters(Some(CALL_TIMEOUT)).interrupt(context_request(context)).await?;
        Ok(answer.into_owned().interrupted)
    }

    /// Ends a context with everything that was started in it.
    ///
    /// # Errors
    /// See [`GuestError`]; `NotFound` if the context does not exist.
    pub async fn remove_context(&self, context: &str) -> Result<()> {
        self.interpreters(Some(CALL_TIMEOUT)).remove(context_request(context)).await?;
        Ok(())
    }

    /// Sends input, or the answer to a call of a tool, to an execution that waits for it.
    ///
    /// # Errors
    /// See [`GuestError`]; `FailedPrecondition` if it does not wait for it.
    pub async fn answer_code(&self, request: v1::AnswerRequest) -> Result<()> {
        self.interpreters(Some(CALL_TIMEOUT)).answer(request).await?;
        Ok(())
    }

    /// Runs code in a context.
    ///
    /// # Errors
    /// See [`GuestError`]. An error in the request may only be returned in place of the first event.
    pub async fn execute_code(&self, request: v1::ExecuteCodeRequest) -> Result<CodeExecution> {
        let stream = Box::new(self.interpreters(None).execute(request).await?);
        Ok(CodeExecution { stream, validator: EventValidator::new(), waits: self.waits.clone() })
    }
}

fn context_request(context: &str) -> v1::ContextRequest {
    v1::ContextRequest { context: context.to_owned(), ..Default::default() }
}

const fn protocol_error(what: &'static str) -> GuestError {
    GuestError::Protocol { what }
}

impl CodeExecution {
    /// Returns the next event; `None` after the last.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<CodeEvent>> {
        loop {
            let Some(message) = self.stream.message::<v1::CodeEvent>().await? else {
                return match self.stream.error() {
                    Some(error) => Err(error.clone().into()),
                    None if self.validator.step == Step::Ended => Ok(None),
                    None => Err(protocol_error("an execution ended without its end event")),
                };
            };
            let event = message.to_owned_message().event.ok_or(protocol_error("an event has no content"))?;
            let event = match event {
                // Before the code starts, or for a call that it makes.
                Event::Waiting(waiting) if self.validator.step != Step::Ended => {
                    report_waiting(self.waits.as_ref(), *waiting)?;
                    continue;
                }
                event => event,
            };
            if let Some(event) = self.validator.accept(event)? {
                return Ok(Some(event));
            }
        }
    }
}

impl EventValidator {
    const fn new() -> Self {
        Self { step: Step::Waiting, partial: None, results: 0, bytes: 0, json: 0, calls: 0 }
    }

    /// Validates the next event of the guest; returns it if it is complete.
    fn accept(&mut self, event: Event) -> Result<Option<CodeEvent>> {
        if self.partial.is_some() && !matches!(event, Event::ResultPart(_)) {
            return Err(protocol_error("a result is incomplete"));
        }
        Ok(Some(match (self.step, event) {
            (Step::Waiting, Event::Started(started)) => {
                self.step = Step::Running;
                CodeEvent::Started(*started)
            }
            (Step::Running, Event::Output(output)) => CodeEvent::Output {
                stream: output.stream.as_known().unwrap_or_default(),
                offset: output.offset,
                data: output.data,
            },
            (Step::Running, Event::Result(result)) => {
                self.results += 1;
                self.count(result.data.iter().map(|form| form.data.len()).sum())?;
                if result.data.last().is_some_and(|last| last.more) {
                    self.partial = Some(*result);
                    return Ok(None);
                }
                CodeEvent::Result(self.limit_json(finish_result(*result)?))
            }
            (Step::Running, Event::ResultPart(part)) => match self.add_part(*part)? {
                Some(result) => CodeEvent::Result(self.limit_json(result)),
                None => return Ok(None),
            },
            (Step::Running, Event::Error(error)) => CodeEvent::Error(*error),
            (Step::Running, Event::InputRequested(request)) => CodeEvent::InputRequested(*request),
            (Step::Running, Event::ToolCalled(called)) => {
                self.calls += 1;
                if self.calls > MAX_CALLS || called.arguments.len() > MAX_ARGUMENTS_BYTES {
                    return Err(protocol_error("the calls of an execution exceed their limit"));
                }
                CodeEvent::ToolCalled(*called)
            }
            (Step::Running, Event::Ended(ended)) => {
                self.step = Step::Ended;
                CodeEvent::Ended(*ended)
            }
            _ => return Err(protocol_error("the events of an execution are out of order")),
        }))
    }

    /// Removes JSON that exceeds the limit, with a note.
    fn limit_json(&mut self, mut result: v1::CodeResult) -> v1::CodeResult {
        let mut cut = Vec::new();
        result.data.retain(|form| {
            let is_json = form.mime == "application/json" || form.mime.ends_with("+json");
            let fits = !is_json || self.json + form.data.len() <= MAX_JSON_BYTES;
            if !fits {
                let (mime, bytes) = (&form.mime, form.data.len());
                cut.push(format!(
                    "{mime}: its {bytes} bytes exceed the rest of the {MAX_JSON_BYTES} bytes of JSON of one execution"
                ));
            } else if is_json {
                self.json += form.data.len();
            }
            fits
        });
        result.cut.extend(cut);
        result.cut.truncate(MAX_FORMS);
        result
    }

    fn count(&mut self, more: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(more);
        if self.bytes > MAX_RESULT_BYTES || self.results > MAX_RESULTS {
            return Err(protocol_error("the results of an execution exceed their limit"));
        }
        Ok(())
    }

    /// Adds a part to the incomplete result; returns the result once it is complete.
    fn add_part(&mut self, part: v1::MimeData) -> Result<Option<v1::CodeResult>> {
        self.count(part.data.len())?;
        let Some(mut result) = self.partial.take() else {
            return Err(protocol_error("a part does not belong to a result"));
        };
        let more = part.more;
        match result.data.last_mut() {
            Some(last) if last.mime == part.mime => {
                let mut joined = BytesMut::from(std::mem::take(&mut last.data));
                joined.extend_from_slice(&part.data);
                last.data = joined.freeze();
            }
            _ => result.data.push(part),
        }
        if result.data.len() > MAX_FORMS {
            return Err(protocol_error("a result has too many forms"));
        }
        if more {
            self.partial = Some(result);
            return Ok(None);
        }
        finish_result(result).map(Some)
    }
}

/// Checks a complete result.
fn finish_result(mut result: v1::CodeResult) -> Result<v1::CodeResult> {
    if result.data.len() > MAX_FORMS || result.cut.len() > MAX_FORMS {
        return Err(protocol_error("a result has too many forms"));
    }
    for form in &mut result.data {
        form.more = false;
    }
    Ok(result)
}

impl std::fmt::Debug for CodeExecution {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CodeExecution").field("step", &self.validator.step).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> Event {
        Event::from(v1::CodeStarted { execution: 1, ..Default::default() })
    }

    fn form(mime: &str, bytes: usize, more: bool) -> v1::MimeData {
        v1::MimeData { mime: mime.to_owned(), data: vec![b'x'; bytes].into(), more, ..Default::default() }
    }

    fn result(data: Vec<v1::MimeData>) -> Event {
        Event::from(v1::CodeResult { data, ..Default::default() })
    }

    /// Validates events, up to the first one that is refused.
    fn accept_all(events: Vec<Event>) -> std::result::Result<Vec<CodeEvent>, String> {
        let mut validator = EventValidator::new();
        let mut accepted = Vec::new();
        for event in events {
            accepted.extend(validator.accept(event).map_err(|error| error.to_string())?);
        }
        Ok(accepted)
    }

    #[test]
    fn json_of_one_execution_is_bounded() {
        let form = |mime: &str, bytes: usize| v1::MimeData {
            mime: mime.to_owned(),
            data: vec![b'1'; bytes].into(),
            ..Default::default()
        };
        let mut validator = EventValidator::new();
        for (bytes, fits) in [(3 << 20, true), (2 << 20, false), (1 << 20, true), (1, false)] {
            let data = vec![form("text/plain", 5 << 20), form("application/x+json", bytes)];
            let result = validator.limit_json(v1::CodeResult { data, ..Default::default() });
            assert_eq!((result.data.len(), result.cut.len()), if fits { (2, 0) } else { (1, 1) }, "{bytes}");
        }
    }

    #[test]
    fn event_order_is_enforced() {
        let output = || Event::from(v1::Output::default());
        let ended = || Event::from(v1::CodeEnded::default());
        assert_eq!(accept_all(vec![started(), output(), ended()]).unwrap().len(), 3);
        let invalid = [
            vec![output()],
            vec![ended()],
            vec![started(), started()],
            vec![started(), ended(), output()],
            vec![started(), ended(), ended()],
            vec![started(), Event::from(form("a/b", 1, false))],
            vec![started(), result(vec![form("a/b", 1, true)]), output()],
            vec![started(), result(vec![form("a/b", 1, true)]), ended()],
        ];
        for events in invalid {
            let refused = accept_all(events.clone()).unwrap_err();
            assert!(refused.starts_with("the guest broke the protocol"), "{events:?}: {refused}");
        }
    }

    #[test]
    fn parts_are_assembled_to_a_result() {
        let parts = vec![
            started(),
            result(vec![form("text/plain", 3, false), form("image/png", 5, true)]),
            Event::from(form("image/png", 7, true)),
            Event::from(form("text/html", 2, false)),
        ];
        let events = accept_all(parts).unwrap();
        let Some(CodeEvent::Result(result)) = events.last() else { panic!("{events:?}") };
        let sizes: Vec<_> =
            result.data.iter().map(|form| (&*form.mime, form.data.len(), form.more)).collect();
        assert_eq!(sizes, [("text/plain", 3, false), ("image/png", 12, false), ("text/html", 2, false)]);
    }

    #[test]
    fn results_are_bounded() {
        let many = |count| {
            let results = std::iter::repeat_with(|| result(vec![form("a/b", 1, false)])).take(count);
            std::iter::once(started()).chain(results).collect()
        };
        assert!(accept_all(many(MAX_RESULTS)).is_ok());
        assert!(accept_all(many(MAX_RESULTS + 1)).is_err());
        let wide = |forms| vec![started(), result(vec![form("a/b", 1, false); forms])];
        assert!(accept_all(wide(MAX_FORMS)).is_ok() && accept_all(wide(MAX_FORMS + 1)).is_err());
        // Endless parts, of the same type and of different types.
        let mut validator = EventValidator::new();
        validator.accept(started()).unwrap();
        validator.accept(result(vec![form("a/b", 1 << 20, true)])).unwrap();
        let refused = (0..64).find(|_| validator.accept(Event::from(form("a/b", 1 << 20, true))).is_err());
        assert_eq!(refused, Some(24));
        let mut validator = EventValidator::new();
        validator.accept(started()).unwrap();
        validator.accept(result(vec![form("a/b", 1, true)])).unwrap();
        let part = |number| Event::from(form(&format!("a/{number}"), 1, true));
        let refused = (0..200).find(|number| validator.accept(part(*number)).is_err());
        assert_eq!(refused, Some(MAX_FORMS - 1));
    }
}
