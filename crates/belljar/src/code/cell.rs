//! One execution of code: its output, results and questions on this terminal.

use std::path::PathBuf;
use std::time::Duration;

use belljar_engine::code::{CodeCollector, CodeEnd, text, to_result};
use belljar_engine::{CodeEvent, GuestClient, v1};
use belljar_model::{CodeError, CodeExecution, CodeResult, CodeStatus, Survival};
use bytes::Bytes;

use super::milliseconds;
use super::notebook::Record;
use super::pictures::{Pictures, first};
use super::place::Place;
use super::session::Lines;
use crate::descriptor::Inherited;
use crate::message::{Quit, clean, say, without_controls};
use crate::output::write_failed;
use crate::signals::{self, SIGINT, Signals};

/// Maximum bytes of each output stream in the JSON result.
const KEEP_BYTES: u64 = 8 << 20;

/// A request to run code.
#[derive(Debug, Clone, Default)]
pub(super) struct CodeRequest {
    pub(super) code: Bytes,
    pub(super) language: String,
    /// Time limit.
    pub(super) limit: Option<Duration>,
    /// Whether the user can answer questions.
    pub(super) allow_input: bool,
    /// Stored tools that the code may call.
    pub(super) tools: Vec<String>,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Text for people.
    Plain,
    /// One JSON value at the end.
    Json,
}

/// Destination of results.
pub(super) struct Screen {
    form: Form,
    pub(super) quiet: bool,
    stdout: Inherited,
    stderr: Inherited,
    pictures: Pictures,
    /// Outputs that a notebook keeps.
    record: Option<Record>,
    /// Whether the value of a cell is shown with its number.
    pub(super) numbered: bool,
}

impl Screen {
    pub(super) fn new(form: Form, pictures: PathBuf, quiet: bool) -> Self {
        Self {
            form,
            quiet,
            stdout: Inherited::stdout(),
            stderr: Inherited::stderr(),
            pictures: Pictures::new(pictures),
            record: None,
            numbered: false,
        }
    }

    /// Records the outputs from now on, up to this size in bytes.
    pub(super) fn begin_record(&mut self, room: usize) {
        self.record = Some(Record::new(room));
    }

    /// Returns the recorded outputs.
    pub(super) fn end_record(&mut self) -> Record {
        self.record.take().unwrap_or_default()
    }

    /// Writes to standard error, which may be closed.
    pub(super) async fn hint(&mut self, text: &str) {
        let _ = self.stderr.write_all(text.as_bytes()).await;
    }

    async fn output(&mut self, stream: v1::Stream, data: &[u8]) -> Result<(), Quit> {
        if let Some(record) = &mut self.record {
            record.stream(stream == v1::Stream::STREAM_STDERR, data);
        }
        if self.form == Form::Json {
            return Ok(());
        }
        if stream == v1::Stream::STREAM_STDERR {
            let _ = self.stderr.write_all(data).await;
            return Ok(());
        }
        self.stdout.write_all(data).await.map_err(write_failed)
    }

    async fn result(&mut self, result: &CodeResult, count: u64) -> Result<(), Quit> {
        if let Some(record) = &mut self.record {
            record.result(result, count);
        }
        if self.form == Form::Json {
            return Ok(());
        }
        if let Some(picture) = first(result) {
            if let Some(inline) = self.pictures.inline(&picture) {
                return self.stdout.write_all(inline.as_bytes()).await.map_err(write_failed);
            }
            let path = self.pictures.save(&picture)?;
            if !self.quiet {
                say(&format!("saved {}", path.display()));
            }
            return Ok(());
        }
        if let Some(text) = preferred_text(result) {
            let text = plain(&text);
            let number = if self.numbered && result.main { format!("Out[{count}]: ") } else { String::new() };
            // Text of several lines starts on a line of its own.
            let gap = if !number.is_empty() && text.contains('\n') { "\n" } else { "" };
            let line = format!("{number}{gap}{text}\n");
            self.stdout.write_all(line.as_bytes()).await.map_err(write_failed)?;
        }
        for cut in &result.cut {
            if !self.quiet {
                say(&format!("left out: {cut}"));
            }
        }
        Ok(())
    }

    async fn error(&mut self, error: &CodeError) {
        if let Some(record) = &mut self.record {
            record.error(error);
        }
        if self.form == Form::Plain {
            let text = match error.traceback.is_empty() {
                true => format!("{}: {}", error.name, error.value),
                false => error.traceback.clone(),
            };
            let text = plain(&text);
            self.hint(&format!("{}\n", text.trim_end())).await;
        }
    }

    /// Reports the end.
    async fn report_end(&mut self, done: &CodeExecution) -> Result<(), Quit> {
        if self.form == Form::Json {
            let line = without_controls(&serde_json::to_string(done)?) + "\n";
            self.stdout.write_all(line.as_bytes()).await.map_err(write_failed)?;
        } else {
            let what = match done.status {
                CodeStatus::TimedOut => Some("the code took longer than it may"),
                CodeStatus::Died => Some("the interpreter ended"),
                _ => None,
            };
            let lost = done.state != Survival::Preserved;
            let reason = done.reason.as_deref().filter(|_| lost);
            match (what, reason) {
                (Some(what), Some(reason)) => say(&format!("{what}: {reason}")),
                (Some(what), None) => say(what),
                (None, Some(reason)) => say(reason),
                (None, None) => {}
            }
            if lost && self.numbered {
                say("its variables are lost; the next code gets a fresh interpreter");
            }
            if let Some(hint) = done.hint.as_ref().filter(|_| !self.quiet) {
                say(&format!("hint: {hint}"));
            }
        }
        Ok(())
    }
}

/// Returns the preferred text form of a result.
fn preferred_text(result: &CodeResult) -> Option<String> {
    let texts = ["text/plain", "text/markdown", "text/latex", "text/html"];
    let text = texts.iter().find_map(|mime| result.text(mime)).map(str::to_owned);
    text.or_else(|| result.data.get("application/json").map(ToString::to_string))
}

/// Sanitizes text from the sandbox for a terminal: of all that it interprets, only line ends and tabs are kept.
fn plain(text: &str) -> String {
    text.split_inclusive(['\n', '\t', ' ']).map(clean_word).collect()
}

/// Sanitizes one word, and keeps the white space that follows it, which [`clean`] would remove.
fn clean_word(part: &str) -> String {
    let word = part.trim_end_matches(['\n', '\t', ' ']);
    let rest = part.get(word.len()..).unwrap_or_default();
    let marked = format!("{word}.");
    let clean = clean(&marked);
    format!("{}{rest}", clean.strip_suffix('.').unwrap_or(&clean))
}

/// Runs code. The first Ctrl-C interrupts it; another one ends the command. The lines of a session answer questions.
pub(super) async fn run_cell(
    place: &Place,
    request: CodeRequest,
    screen: &mut Screen,
    signals: &mut Signals,
    lines: Option<&mut Lines>,
) -> Result<CodeExecution, Quit> {
    let done = execute(place, request, screen, signals, lines).await?;
    screen.report_end(&done).await?;
    Ok(done)
}

async fn execute(
    place: &Place,
    request: CodeRequest,
    screen: &mut Screen,
    signals: &mut Signals,
    mut lines: Option<&mut Lines>,
) -> Result<CodeExecution, Quit> {
    let guest = place.guest();
    let before = place.usage().await;
    let request = v1::ExecuteCodeRequest {
        code: request.code,
        language: request.language,
        timeout_ms: milliseconds(request.limit),
        allow_input: request.allow_input,
        tools: request.tools,
        on_disconnect: v1::OnDisconnect::ON_DISCONNECT_KILL.into(),
        ..Default::default()
    };
    let mut stream = guest.execute_code(request).await?;
    let mut collector = CodeCollector::new(KEEP_BYTES);
    let (mut context, mut execution, mut count) = (String::new(), 0, 0);
    let mut interrupted = false;
    loop {
        let event = tokio::select! {
            event = stream.next() => event?,
            signal = signals.next() => {
                if signal != SIGINT || interrupted || context.is_empty() {
                    return Err(Quit::Status(signals::status(signal)));
                }
                interrupted = true;
                let (guest, context) = (guest.clone(), context.clone());
                // If this one gets lost, the user can press Ctrl-C again.
                tokio::spawn(async move { guest.interrupt_context(&context).await });
                continue;
            }
        };
        let Some(event) = event else {
            return Err(anyhow::anyhow!("the sandbox did not report the end of the code").into());
        };
        collector.push(&event);
        match event {
            CodeEvent::Started(started) => {
                context = started.context.as_option().map(|info| info.id.clone()).unwrap_or_default();
                (execution, count) = (started.execution, started.count);
                if !started.rebuilt.is_empty() && !screen.quiet {
                    say(&format!("a fresh interpreter: {}", started.rebuilt));
                }
            }
            CodeEvent::Output { stream, data, .. } => screen.output(stream, &data).await?,
            CodeEvent::Result(result) => screen.result(&to_result(&result), count).await?,
            CodeEvent::Error(error) => screen.error(&belljar_engine::code::to_error(&error)).await,
            CodeEvent::InputRequested(question) => {
                screen.hint(&plain(&question.prompt)).await;
                let line = match &mut lines {
                    Some(lines) => tokio::select! {
                        line = lines.next(question.password) => line?,
                        signal = signals.next() => {
                            if signal != SIGINT {
                                return Err(Quit::Status(signals::status(signal)));
                            }
                            interrupt(guest, &context).await;
                            continue;
                        }
                    },
                    None => None,
                };
                let answer = v1::AnswerRequest {
                    context: context.clone(),
                    execution,
                    end_of_file: line.is_none(),
                    value: line.unwrap_or_default().into(),
                    ..Default::default()
                };
                guest.answer_code(answer).await?;
            }
            // Of a stored tool: the server answers it.
            CodeEvent::ToolCalled(_) => {}
            CodeEvent::Ended(ended) => {
                let after = place.usage().await;
                let mut done = collector.finish(CodeEnd::judge(&ended, &before, &after));
                done.hint =
                    Some(belljar_model::for_command_line(&text(&ended.hint))).filter(|hint| !hint.is_empty());
                return Ok(done);
            }
        }
    }
}

async fn interrupt(guest: &GuestClient, context: &str) {
    // The code may have just ended.
    let _ = guest.interrupt_context(context).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_controls_are_removed_from_sandbox_text() {
        assert_eq!(plain("a\tb\n c\u{1b}[31m\u{9b}2J\r\n"), "a\tb\n c\u{fffd}[31m\u{fffd}2J\u{fffd}\n");
        assert_eq!(plain("  x  y \n\n"), "  x  y \n\n");
    }

    #[test]
    fn preferred_text_is_shown() {
        let mut result = CodeResult::default();
        result.add("application/json", b"{\"a\": 1}");
        assert_eq!(preferred_text(&result).as_deref(), Some("{\"a\":1}"));
        result.add("text/html", b"<b>");
        result.add("text/plain", b"b");
        assert_eq!(preferred_text(&result).as_deref(), Some("b"));
    }
}
