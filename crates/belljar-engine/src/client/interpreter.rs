//! Contexts of interpreters, whose variables live on from one execution to the next.

use belljar_proto::v1::__buffa::oneof::code_event::Event;
use belljar_proto::{Connection, ServerStream, v1};
use bytes::{Bytes, BytesMut};

use super::{CALL_TIMEOUT, GuestClient, GuestError, Result};

/// The most contexts that a guest may tell of.
const MAX_CONTEXTS: usize = 64;

/// How long an interpreter may take to start, or to start anew: longer than the guest waits for it.
const KERNEL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// The most bytes of all results of one execution, with room for names beside the guest's own bound of 24 MiB.
const MAX_RESULT_BYTES: usize = 25 << 20;
/// The most bytes of JSON in the results of one execution: read into values it takes many times its length on the host.
const MAX_JSON_BYTES: usize = 4 << 20;
/// The most results of one execution.
const MAX_RESULTS: usize = 1000;
/// The most forms of one result.
const MAX_FORMS: usize = 64;

/// What happens while code runs. Each value is within its bounds, and they come in their order.
#[derive(Debug, Clone)]
pub enum CodeEvent {
    /// It has begun.
    Started(v1::CodeStarted),
    /// It has printed something.
    Output {
        /// Which stream.
        stream: v1::Stream,
        /// Where in the stream.
        offset: u64,
        /// What.
        data: Bytes,
    },
    /// It has shown something, which is whole.
    Result(v1::CodeResult),
    /// It has raised an error.
    Error(v1::CodeError),
    /// It waits for an answer.
    InputRequested(v1::InputRequested),
    /// It is over.
    Ended(v1::CodeEnded),
}

type CodeStream = ServerStream<v1::__buffa::view::CodeEventView<'static>>;

/// Code that runs, or waits for its turn. What happens when this is dropped is said in the request.
pub struct CodeExecution {
    stream: Box<CodeStream>,
    order: Order,
}

/// Checks that events come in their order and within their bounds, and puts large results together.
#[derive(Debug)]
struct Order {
    step: Step,
    /// A result that is not whole yet.
    partial: Option<v1::CodeResult>,
    results: usize,
    bytes: usize,
    json: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Waiting,
    Running,
    Over,
}

impl GuestClient {
    fn interpreters(&self, timeout: Option<std::time::Duration>) -> v1::InterpreterClient<Connection> {
        v1::InterpreterClient::new(self.connection.clone(), self.config(timeout))
    }

    /// Makes a context.
    ///
    /// # Errors
    /// See [`GuestError`]; `FailedPrecondition` when its interpreter cannot start, `ResourceExhausted` when there are too many.
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
            return Err(GuestError::Protocol { what: "there are more contexts than there can be" });
        }
        Ok(contexts)
    }

    /// Ends a context's interpreter and starts a fresh one.
    ///
    /// # Errors
    /// See [`GuestError`]; `NotFound` when there is no such context.
    pub async fn restart_context(&self, context: &str) -> Result<v1::ContextInfo> {
        Ok(self.interpreters(Some(KERNEL_TIMEOUT)).restart(named(context)).await?.into_owned())
    }

    /// Interrupts what runs in a context. Says whether there was something.
    ///
    /// # Errors
    /// See [`GuestError`]; `NotFound` when there is no such context.
    pub async fn interrupt_context(&self, context: &str) -> Result<bool> {
        let answer = self.interpreters(Some(CALL_TIMEOUT)).interrupt(named(context)).await?;
        Ok(answer.into_owned().interrupted)
    }

    /// Ends a context, with everything that was started in it.
    ///
    /// # Errors
    /// See [`GuestError`]; `NotFound` when there is no such context.
    pub async fn remove_context(&self, context: &str) -> Result<()> {
        self.interpreters(Some(CALL_TIMEOUT)).remove(named(context)).await?;
        Ok(())
    }

    /// Answers a question of an execution.
    ///
    /// # Errors
    /// See [`GuestError`]; `FailedPrecondition` when it waits for no answer.
    pub async fn answer_code(&self, request: v1::AnswerRequest) -> Result<()> {
        self.interpreters(Some(CALL_TIMEOUT)).answer(request).await?;
        Ok(())
    }

    /// Runs code in a context.
    ///
    /// # Errors
    /// See [`GuestError`]. What is wrong with the request may come with the first event.
    pub async fn execute_code(&self, request: v1::ExecuteCodeRequest) -> Result<CodeExecution> {
        let stream = Box::new(self.interpreters(None).execute(request).await?);
        Ok(CodeExecution { stream, order: Order::new() })
    }
}

fn named(context: &str) -> v1::ContextRequest {
    v1::ContextRequest { context: context.to_owned(), ..Default::default() }
}

const fn broke(what: &'static str) -> GuestError {
    GuestError::Protocol { what }
}

impl CodeExecution {
    /// The next event; `None` after the last.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<CodeEvent>> {
        loop {
            let Some(message) = self.stream.message::<v1::CodeEvent>().await? else {
                return match self.stream.error() {
                    Some(error) => Err(error.clone().into()),
                    None if self.order.step == Step::Over => Ok(None),
                    None => Err(broke("an execution did not tell its end")),
                };
            };
            let event = message.to_owned_message().event.ok_or(broke("an event without content"))?;
            if let Some(event) = self.order.take(event)? {
                return Ok(Some(event));
            }
        }
    }
}

impl Order {
    const fn new() -> Self {
        Self { step: Step::Waiting, partial: None, results: 0, bytes: 0, json: 0 }
    }

    /// Takes what the guest sends next, and hands it out if it is whole.
    fn take(&mut self, event: Event) -> Result<Option<CodeEvent>> {
        if self.partial.is_some() && !matches!(event, Event::ResultPart(_)) {
            return Err(broke("a result did not go on"));
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
                CodeEvent::Result(self.lighter(whole(*result)?))
            }
            (Step::Running, Event::ResultPart(part)) => match self.go_on(*part)? {
                Some(result) => CodeEvent::Result(self.lighter(result)),
                None => return Ok(None),
            },
            (Step::Running, Event::Error(error)) => CodeEvent::Error(*error),
            (Step::Running, Event::InputRequested(request)) => CodeEvent::InputRequested(*request),
            (Step::Running, Event::Ended(ended)) => {
                self.step = Step::Over;
                CodeEvent::Ended(*ended)
            }
            _ => return Err(broke("an execution's events came out of order")),
        }))
    }

    /// Leaves out JSON that is too much by now, and says so.
    fn lighter(&mut self, mut result: v1::CodeResult) -> v1::CodeResult {
        let mut cut = Vec::new();
        result.data.retain(|form| {
            let is_json = form.mime == "application/json" || form.mime.ends_with("+json");
            let fits = !is_json || self.json + form.data.len() <= MAX_JSON_BYTES;
            if !fits {
                let (mime, bytes) = (&form.mime, form.data.len());
                cut.push(format!(
                    "{mime}: its {bytes} bytes are more than is left of the {MAX_JSON_BYTES} of JSON of one execution"
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
            return Err(broke("an execution shows more than it may"));
        }
        Ok(())
    }

    /// Takes a part of the result that is not whole; hands the result out when it is.
    fn go_on(&mut self, part: v1::MimeData) -> Result<Option<v1::CodeResult>> {
        self.count(part.data.len())?;
        let Some(mut result) = self.partial.take() else { return Err(broke("a part belongs to no result")) };
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
            return Err(broke("a result has more forms than it may"));
        }
        if more {
            self.partial = Some(result);
            return Ok(None);
        }
        whole(result).map(Some)
    }
}

/// A result that has come whole.
fn whole(mut result: v1::CodeResult) -> Result<v1::CodeResult> {
    if result.data.len() > MAX_FORMS || result.cut.len() > MAX_FORMS {
        return Err(broke("a result has more forms than it may"));
    }
    for form in &mut result.data {
        form.more = false;
    }
    Ok(result)
}

impl std::fmt::Debug for CodeExecution {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CodeExecution").field("order", &self.order.step).finish_non_exhaustive()
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

    /// What comes of events, up to the first that is refused.
    fn taken(events: Vec<Event>) -> std::result::Result<Vec<CodeEvent>, String> {
        let mut order = Order::new();
        let mut whole = Vec::new();
        for event in events {
            whole.extend(order.take(event).map_err(|error| error.to_string())?);
        }
        Ok(whole)
    }

    #[test]
    fn json_of_one_execution_is_bounded() {
        let form = |mime: &str, bytes: usize| v1::MimeData {
            mime: mime.to_owned(),
            data: vec![b'1'; bytes].into(),
            ..Default::default()
        };
        let mut order = Order::new();
        for (bytes, fits) in [(3 << 20, true), (2 << 20, false), (1 << 20, true), (1, false)] {
            let data = vec![form("text/plain", 5 << 20), form("application/x+json", bytes)];
            let result = order.lighter(v1::CodeResult { data, ..Default::default() });
            assert_eq!((result.data.len(), result.cut.len()), if fits { (2, 0) } else { (1, 1) }, "{bytes}");
        }
    }

    #[test]
    fn events_come_in_their_order() {
        let output = || Event::from(v1::Output::default());
        let ended = || Event::from(v1::CodeEnded::default());
        assert_eq!(taken(vec![started(), output(), ended()]).unwrap().len(), 3);
        let wrong = [
            vec![output()],
            vec![ended()],
            vec![started(), started()],
            vec![started(), ended(), output()],
            vec![started(), ended(), ended()],
            vec![started(), Event::from(form("a/b", 1, false))],
            vec![started(), result(vec![form("a/b", 1, true)]), output()],
            vec![started(), result(vec![form("a/b", 1, true)]), ended()],
        ];
        for events in wrong {
            let refused = taken(events.clone()).unwrap_err();
            assert!(refused.starts_with("the guest broke the protocol"), "{events:?}: {refused}");
        }
    }

    #[test]
    fn parts_make_a_whole_result() {
        let parts = vec![
            started(),
            result(vec![form("text/plain", 3, false), form("image/png", 5, true)]),
            Event::from(form("image/png", 7, true)),
            Event::from(form("text/html", 2, false)),
        ];
        let events = taken(parts).unwrap();
        let Some(CodeEvent::Result(result)) = events.last() else { panic!("{events:?}") };
        let sizes: Vec<_> =
            result.data.iter().map(|form| (&*form.mime, form.data.len(), form.more)).collect();
        assert_eq!(sizes, [("text/plain", 3, false), ("image/png", 12, false), ("text/html", 2, false)]);
    }

    #[test]
    fn what_is_shown_is_bounded() {
        let many = |count| {
            let results = std::iter::repeat_with(|| result(vec![form("a/b", 1, false)])).take(count);
            std::iter::once(started()).chain(results).collect()
        };
        assert!(taken(many(MAX_RESULTS)).is_ok());
        assert!(taken(many(MAX_RESULTS + 1)).is_err());
        let wide = |forms| vec![started(), result(vec![form("a/b", 1, false); forms])];
        assert!(taken(wide(MAX_FORMS)).is_ok() && taken(wide(MAX_FORMS + 1)).is_err());
        // Parts without end, each of another kind or of the same.
        let mut order = Order::new();
        order.take(started()).unwrap();
        order.take(result(vec![form("a/b", 1 << 20, true)])).unwrap();
        let refused = (0..64).find(|_| order.take(Event::from(form("a/b", 1 << 20, true))).is_err());
        assert_eq!(refused, Some(24));
        let mut order = Order::new();
        order.take(started()).unwrap();
        order.take(result(vec![form("a/b", 1, true)])).unwrap();
        let part = |number| Event::from(form(&format!("a/{number}"), 1, true));
        let refused = (0..200).find(|number| order.take(part(*number)).is_err());
        assert_eq!(refused, Some(MAX_FORMS - 1));
    }
}
