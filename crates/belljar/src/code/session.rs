//! A session: cells that are typed one after the other.

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use super::cell::{Asked, Screen, in_session};
use super::complete::is_complete;
use super::place::Place;
use crate::message::Quit;
use crate::signals::{self, SIGINT, Signals};
use crate::stdin::Stdin;

/// The longest line that is read, in bytes.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// The longest cell that is typed, in bytes.
const MAX_CELL_BYTES: usize = 3 << 20;

/// Lines of standard input.
pub(super) struct Lines {
    input: Option<BufReader<Stdin>>,
    /// A line that was begun when the waiting for it was given up.
    begun: Vec<u8>,
}

impl Lines {
    fn open() -> Self {
        Self { input: Stdin::open().map(BufReader::new), begun: Vec::new() }
    }

    /// The next line without its end; none at the end of the input. What is typed is not shown if it is hidden.
    pub(super) async fn next(&mut self, hidden: bool) -> Result<Option<String>, Quit> {
        let _hidden = hidden.then(Hidden::enter).transpose()?;
        let Some(input) = &mut self.input else { return Ok(None) };
        let count = input.take(MAX_LINE_BYTES).read_until(b'\n', &mut self.begun).await?;
        if count == 0 && self.begun.is_empty() {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.begun);
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        Ok(Some(String::from_utf8_lossy(line).into_owned()))
    }
}

/// A terminal that does not show what is typed, until this is dropped.
struct Hidden(rustix::termios::Termios);

impl Hidden {
    fn enter() -> Result<Self, Quit> {
        let stdin = rustix::stdio::stdin();
        let before = tcgetattr(stdin)?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        hidden.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(stdin, OptionalActions::Now, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Runs cells until the end of the input.
pub(super) async fn session(
    place: &Place,
    asked: &Asked,
    screen: &mut Screen,
    signals: &mut Signals,
) -> Result<u8, Quit> {
    let mut lines = Lines::open();
    screen.numbered = true;
    let mut number = 1;
    loop {
        let Some(code) = cell(&mut lines, &asked.language, number, screen, signals).await? else {
            screen.hint("\n").await;
            return Ok(0);
        };
        let ends = ["exit", "quit", "exit()", "quit()"];
        if ends.contains(&code.trim()) {
            return Ok(0);
        }
        if code.trim().is_empty() {
            continue;
        }
        let asked = Asked { code: code.into(), may_ask: true, ..asked.clone() };
        let done = in_session(place, asked, screen, signals, &mut lines).await?;
        number = done.count + 1;
    }
}

/// One cell. Ctrl-C begins it anew.
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
                lines.begun.clear();
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
            let text =
                format!("code: more than {MAX_CELL_BYTES} bytes are typed; at most that many are allowed");
            return Err(anyhow::anyhow!(text).into());
        }
        screen.hint(&next).await;
    }
}
