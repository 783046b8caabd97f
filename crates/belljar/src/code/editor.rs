//! The line editor of a session on a terminal.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::mpsc;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, CompletionType, ConditionalEventHandler, Config, Context, Event, EventContext, EventHandler, Helper,
    KeyCode, KeyEvent, Modifiers, Movement, RepeatCount,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::highlight::{highlight, keywords, words};
use super::history::{self, History};
use super::lexical::{INDENT, is_complete, next_indent};
use super::session::MAX_CELL_BYTES;
use crate::colour;
use crate::message::{Quit, chain, say};
use crate::signals::{self, Signals};

/// Maximum number of words that are offered for completion at once.
const MAX_CANDIDATES: usize = 200;

/// Maximum number of words that are remembered for completion.
const MAX_WORDS: usize = 10_000;

/// Switches bracketed paste off (xterm's control sequences).
const PASTE_OFF: &[u8] = b"\x1b[?2004l";

/// The end of a line that was being edited.
#[derive(Debug)]
pub(super) enum Typed {
    /// A cell.
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D on an empty line, or a terminal that is gone.
    End,
}

/// The editor. It waits for keys on a thread of its own, so that signals are handled meanwhile.
pub(super) struct Editor {
    prompts: mpsc::Sender<String>,
    typed: UnboundedReceiver<Result<Typed, ReadlineError>>,
    history: History,
    /// Attributes of the terminal, restored if the command ends while a line is edited.
    terminal: Termios,
    is_editing: bool,
    quiet: bool,
}

impl Editor {
    /// Reports whether lines can be edited here: on a terminal with escape sequences, for input and output.
    pub(super) fn is_possible() -> bool {
        rustix::termios::isatty(rustix::stdio::stdin())
            && rustix::termios::isatty(rustix::stdio::stdout())
            && colour::has_escapes()
    }

    /// Starts the editor. A history that cannot be used is reported, unless `quiet`.
    pub(super) fn start(language: &str, quiet: bool) -> Result<Self, Quit> {
        let terminal = tcgetattr(rustix::stdio::stdin())?;
        let opened =
            history::path(|name| std::env::var_os(name)).map(|path| History::open(&path)).transpose();
        let history = opened.unwrap_or_else(|error| {
            if !quiet {
                say(&chain(&error));
            }
            None
        });
        let history = history.unwrap_or_default();
        let mut typing = Typing::new(language);
        history.cells().iter().for_each(|cell| typing.learn(cell));
        let cells = history.cells().to_vec();
        let (prompts, next) = mpsc::channel();
        let (results, typed) = unbounded_channel();
        std::thread::Builder::new()
            .name("line-editor".to_owned())
            .spawn(move || edit(typing, cells, &next, &results))?;
        Ok(Self { prompts, typed, history, terminal, is_editing: false, quiet })
    }

    /// Reads a cell.
    pub(super) async fn read(&mut self, prompt: &str, signals: &mut Signals) -> Result<Typed, Quit> {
        let ended = || Quit::from(anyhow::anyhow!("the line editor has ended"));
        self.is_editing = true;
        self.prompts.send(prompt.to_owned()).map_err(|_| ended())?;
        let typed = tokio::select! {
            typed = self.typed.recv() => typed.ok_or_else(ended)?,
            signal = signals.next() => return Err(Quit::Status(signals::status(signal))),
        };
        self.is_editing = false;
        let typed =
            typed.map_err(|error| anyhow::Error::new(error).context("cannot read from the terminal"))?;
        if let Typed::Text(text) = &typed
            && let Err(error) = self.history.add(text)
            && !self.quiet
        {
            say(&chain(&error));
        }
        Ok(typed)
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        if self.is_editing {
            // A terminal that is gone needs no restoring.
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.terminal);
            let mut stdout = std::io::stdout();
            let _ = stdout
                .write_all(PASTE_OFF)
                .and_then(|()| stdout.write_all(b"\n"))
                .and_then(|()| stdout.flush());
        }
    }
}

/// Edits a line for each prompt, until the sender is gone.
fn edit(
    typing: Typing,
    cells: Vec<String>,
    prompts: &mpsc::Receiver<String>,
    results: &UnboundedSender<Result<Typed, ReadlineError>>,
) {
    let config = Config::builder()
        .auto_add_history(false)
        .completion_type(CompletionType::List)
        .indent_size(u8::try_from(INDENT.len()).unwrap_or(u8::MAX))
        .build();
    let mut editor = match rustyline::Editor::<Typing, MemHistory>::with_history(config, MemHistory::new()) {
        Ok(editor) => editor,
        Err(error) => return drop(results.send(Err(error))),
    };
    for (key, handler) in typing.handlers() {
        editor.bind_sequence(key, handler);
    }
    editor.set_helper(Some(typing));
    for cell in cells {
        let _ = editor.add_history_entry(cell);
    }
    while let Ok(prompt) = prompts.recv() {
        let typed = match editor.readline(&prompt) {
            Ok(text) => {
                let _ = editor.add_history_entry(text.as_str());
                if let Some(typing) = editor.helper_mut() {
                    typing.learn(&text);
                }
                Ok(Typed::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error),
        };
        if results.send(typed).is_err() {
            return;
        }
    }
}

/// What the editor knows of the language.
struct Typing {
    language: String,
    /// Words of earlier cells.
    words: BTreeSet<String>,
    colour: bool,
    /// Whether the last line was short enough to be coloured with each key.
    is_short: Cell<bool>,
}

impl Typing {
    fn new(language: &str) -> Self {
        let words = keywords(language).iter().map(|word| (*word).to_owned()).collect();
        Self { language: language.to_owned(), words, colour: colour::is_allowed(), is_short: Cell::new(true) }
    }

    /// Returns what keys do besides what they do in all lines. Pasted text comes without keys.
    fn handlers(&self) -> [(KeyEvent, EventHandler); 2] {
        let enter = Box::new(IndentNext { language: self.language.clone() });
        [
            (KeyEvent(KeyCode::Enter, Modifiers::NONE), EventHandler::Conditional(enter)),
            (KeyEvent(KeyCode::Backspace, Modifiers::NONE), EventHandler::Conditional(Box::new(Dedent))),
        ]
    }

    /// Remembers the words of a cell.
    fn learn(&mut self, cell: &str) {
        if cell.len() > MAX_CELL_BYTES {
            return;
        }
        for word in words(&self.language, cell).filter(|word| word.len() > 2) {
            if self.words.len() >= MAX_WORDS {
                return;
            }
            self.words.insert(word.to_owned());
        }
    }

    /// Returns the start of the word before the cursor, and what may take its place.
    fn candidates(&self, line: &str, cursor: usize) -> (usize, Vec<String>) {
        let (before, after) = line.split_at_checked(cursor).unwrap_or((line, ""));
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let start = before.trim_end_matches(is_word).len();
        let word = before.get(start..).unwrap_or_default();
        if word.is_empty() {
            let is_indented = before.rsplit('\n').next().is_some_and(|line| line.trim().is_empty());
            return (cursor, if is_indented { vec![INDENT.to_owned()] } else { Vec::new() });
        }
        let others = [before.get(..start).unwrap_or_default(), after];
        let here = others.iter().flat_map(|text| words(&self.language, text)).map(str::to_owned);
        let mut found: BTreeSet<String> = here.filter(|other| other.starts_with(word)).collect();
        let known = self.words.range(word.to_owned()..).take_while(|other| other.starts_with(word));
        found.extend(known.cloned());
        (start, found.into_iter().filter(|other| other != word).take(MAX_CANDIDATES).collect())
    }
}

/// Indents the line that Enter begins.
struct IndentNext {
    language: String,
}

impl ConditionalEventHandler for IndentNext {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        let line = context.line();
        if context.pos() < line.len() || line.len() > MAX_CELL_BYTES {
            return None;
        }
        Some(Cmd::Insert(1, format!("\n{}", next_indent(&self.language, line)?)))
    }
}

/// Removes a level of indentation by Backspace.
struct Dedent;

impl ConditionalEventHandler for Dedent {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        let (before, after) = context.line().split_at_checked(context.pos())?;
        let indent = before.rsplit('\n').next()?;
        let is_indent = indent.bytes().all(|byte| byte == b' ') && indent.len() % INDENT.len() == 0;
        // The command takes all lines from this one on.
        let is_last = !after.contains('\n');
        (is_indent && !indent.is_empty() && is_last).then_some(Cmd::Dedent(Movement::WholeLine))
    }
}

impl Completer for Typing {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        cursor: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.candidates(line, cursor))
    }
}

impl Hinter for Typing {
    type Hint = String;
}

impl Highlighter for Typing {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        let coloured = if self.colour { highlight(&self.language, line) } else { None };
        self.is_short.set(line.is_empty() || coloured.is_some());
        coloured.map_or(Cow::Borrowed(line), Cow::Owned)
    }

    fn highlight_char(&self, _: &str, _: usize, kind: CmdKind) -> bool {
        self.colour && self.is_short.get() && kind != CmdKind::MoveCursor
    }
}

impl Validator for Typing {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input();
        // What is too long is refused later.
        let is_complete = text.len() > MAX_CELL_BYTES || is_complete(&self.language, text);
        Ok(if is_complete { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Helper for Typing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_cells_complete_the_one_before_the_cursor() {
        let mut typing = Typing::new("python");
        typing.learn("result = compute(10)\nprint('resume')");
        let found = |line: &str| typing.candidates(line, line.len());
        assert_eq!(found("x = res"), (4, vec!["result".to_owned()]));
        assert_eq!(found("retry = 1; r.re"), (13, ["result", "retry", "return"].map(str::to_owned).to_vec()));
        assert_eq!(found("result"), (0, Vec::new()));
        assert_eq!(found("'ü' + comp"), (7, vec!["compute".to_owned()]));
        assert_eq!(found("f("), (2, Vec::new()));
        for line in ["", "if x:\n"] {
            assert_eq!(found(line), (line.len(), vec![INDENT.to_owned()]));
        }
        assert_eq!(typing.candidates("res + 1", 3), (0, vec!["result".to_owned()]));
    }

    #[test]
    fn remembered_words_are_bounded() {
        let mut typing = Typing::new("r");
        let text: String = (0..2 * MAX_WORDS).map(|number| format!("word{number} ")).collect();
        typing.learn(&text);
        assert_eq!(typing.words.len(), MAX_WORDS);
        assert_eq!(typing.candidates("word", 4).1.len(), MAX_CANDIDATES);
    }
}
