//! An interactive session: cells that are typed one after the other.

use belljar_model::Survival;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use super::cell::{CodeRequest, Screen, run_cell};
use super::editor::{Editor, Typed};
use super::lexical::is_complete;
use super::place::Place;
use crate::message::{Quit, say};
use crate::signals::{self, SIGINT, Signals};
use crate::stdin::{Hidden, Stdin};

/// Maximum length of an input line, in bytes.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Maximum length of a typed cell, in bytes.
pub(super) const MAX_CELL_BYTES: usize = 3 << 20;

/// Lines of standard input.
pub(super) struct Lines {
    input: Option<BufReader<Stdin>>,
    /// Start of a line whose read was cancelled.
    partial: Vec<u8>,
}

impl Lines {
    fn open() -> Self {
        Self { input: Stdin::open().map(BufReader::new), partial: Vec::new() }
    }

    /// Returns the next line without its line ending, or `None` at the end of the input. With `hidden`, typed text is not echoed.
    pub(super) async fn next(&mut self, hidden: bool) -> Result<Option<String>, Quit> {
        let _hidden = hidden.then(Hidden::enter).transpose()?;
        let Some(input) = &mut self.input else { return Ok(None) };
        let count = input.take(MAX_LINE_BYTES).read_until(b'\n', &mut self.partial).await?;
        if count == 0 && self.partial.is_empty() {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.partial);
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        Ok(Some(String::from_utf8_lossy(line).into_owned()))
    }
}

/// Runs cells until the end of the input.
pub(super) async fn session(
    place: &Place,
    request: &CodeRequest,
    screen: &mut Screen,
    signals: &mut Signals,
) -> Result<u8, Quit> {
    let mut lines = Lines::open();
    let mut editor = match Editor::is_possible() {
        true => Some(Editor::start(&request.language, screen.quiet)?),
        false => None,
    };
    screen.numbered = true;
    let mut number = 1;
    loop {
        let code = match &mut editor {
            Some(editor) => edited_cell(editor, number, signals).await?,
            None => cell(&mut lines, &request.language, number, screen, signals).await?,
        };
        let Some(code) = code else {
            if editor.is_none() {
                screen.hint("\n").await;
            }
            return Ok(0);
        };
        let ends = ["exit", "quit", "exit()", "quit()"];
        if ends.contains(&code.trim()) {
            return Ok(0);
        }
        if code.trim().is_empty() {
            continue;
        }
        let request = CodeRequest { code: code.into(), allow_input: place.allows_input(), ..request.clone() };
        let done = run_cell(place, request, screen, signals, Some(&mut lines)).await?;
        // A fresh interpreter counts anew.
        number = if done.state == Survival::Lost { 1 } else { done.count + 1 };
    }
}

/// Reads one cell from the editor. Ctrl-C discards it and starts over, and so does one that is too long.
async fn edited_cell(
    editor: &mut Editor,
    number: u64,
    signals: &mut Signals,
) -> Result<Option<String>, Quit> {
    loop {
        match editor.read(&format!("In [{number}]: "), signals).await? {
            Typed::Text(text) if text.len() > MAX_CELL_BYTES => say(&too_long()),
            Typed::Text(text) => return Ok(Some(text)),
            Typed::Interrupted => {}
            Typed::End => return Ok(None),
        }
    }
}

fn too_long() -> String {
    format!("code: more than {MAX_CELL_BYTES} bytes typed; at most that many are allowed")
}

/// Reads one cell. Ctrl-C discards it and starts over.
async fn cell(
    lines: &mut Lines,
    language: &str,
    number: u64,
    screen: &mut Screen,
    signals: &mut Signals,
) -> Result<Option<String>, Quit> {
    let first = format!("In [{number}]: ");
    let next = format!("{:>width$}: ", "...", width = first.len() - 2);
    let mut text = String::new();
    screen.hint(&first).await;
    loop {
        let line = tokio::select! {
            line = lines.next(false) => line?,
            signal = signals.next() => {
                if signal != SIGINT {
                    return Err(Quit::Status(signals::status(signal)));
                }
                lines.partial.clear();
                text.clear();
                screen.hint(&format!("\n{first}")).await;
                continue;
            }
        };
        let Some(line) = line else {
            return Ok(Some(text).filter(|text| !text.trim().is_empty()));
        };
        text.push_str(&line);
        if is_complete(language, &text) {
            return Ok(Some(text));
        }
        text.push('\n');
        if text.len() > MAX_CELL_BYTES {
            return Err(anyhow::anyhow!(too_long()).into());
        }
        screen.hint(&next).await;
    }
}
