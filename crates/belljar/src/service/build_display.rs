//! Progress of a build: on a terminal one line per step, the last of which moves; elsewhere plain lines, with the steps' whole output.
//!
//! ```text
//! [1/3] apt python3 git                     cached
//! [2/3] pip numpy pandas                    12.3 s  45.2 MiB
//! [3/3] run make install                    1.2 s  cc -O2 -c main.c
//! ```

use std::io::Write as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle as BarStyle};
use serde_json::Value;

use crate::colour;
use crate::message::one_line;
use crate::units::bytes;

/// Interval between updates of the moving line.
pub(super) const TICK_INTERVAL: Duration = Duration::from_millis(100);

/// Time without a line after which plain progress says that a step continues.
const SILENCE: Duration = Duration::from_secs(10);

/// Width of a step's description, in characters.
const WIDTH: usize = 48;

/// Maximum length of a line of output, in characters.
const MAX_LINE: usize = 400;

/// How the progress of a build is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum ProgressStyle {
    #[default]
    Auto,
    Tty,
    Plain,
}

/// The progress of a build.
pub(super) struct BuildDisplay {
    style: Style,
    step: Option<CurrentStep>,
}

enum Style {
    Quiet,
    /// The line of the current step.
    Terminal(ProgressBar),
    /// The time of the last line.
    Plain(Instant),
}

/// The step that runs.
struct CurrentStep {
    label: String,
    description: String,
    begin: Instant,
    /// Bytes that have been packed so far.
    packing: Option<u64>,
    /// Its last line of output.
    output: String,
    layer: Option<u64>,
    is_cached: bool,
}

/// Says how many builds are before one.
pub(super) fn queued(ahead: u64) -> String {
    match ahead {
        0 => "it is next".to_owned(),
        1 => "1 build before it".to_owned(),
        more => format!("{more} builds before it"),
    }
}

/// Returns the number of a step, as an event or a build has it. An image that is pulled by itself has no steps.
pub(super) fn label(step: &Value) -> String {
    let number = |key: &str| step.get(key).and_then(Value::as_u64).unwrap_or_default();
    match number("total") {
        0 => "[image]".to_owned(),
        total => format!("[{}/{total}]", number("number")),
    }
}

fn seconds(span: Duration) -> String {
    format!("{:.1} s", span.as_secs_f64())
}

impl BuildDisplay {
    pub(super) fn new(quiet: bool, style: ProgressStyle) -> Self {
        let is_terminal = rustix::termios::isatty(rustix::stdio::stderr()) && colour::has_escapes();
        let style = match (quiet, style) {
            (true, _) => Style::Quiet,
            (false, ProgressStyle::Tty) => Style::Terminal(bar()),
            (false, ProgressStyle::Auto) if is_terminal => Style::Terminal(bar()),
            (false, ProgressStyle::Auto | ProgressStyle::Plain) => Style::Plain(Instant::now()),
        };
        Self { style, step: None }
    }

    /// Shows an event of the server.
    pub(super) fn event(&mut self, name: &str, value: &Value) {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| value.get(key).and_then(Value::as_u64).unwrap_or_default();
        match (name, &mut self.step) {
            ("queued", _) => {
                let line = format!("queued: {}", queued(number("ahead")));
                match &self.style {
                    Style::Terminal(bar) => bar.set_message(line),
                    _ => self.print(&line),
                }
            }
            ("step", _) => {
                self.end_step("");
                let step = CurrentStep {
                    label: label(value),
                    description: one_line(&format!("{} {}", text("kind"), text("summary")), MAX_LINE),
                    begin: Instant::now(),
                    packing: None,
                    output: String::new(),
                    layer: None,
                    is_cached: value.get("cached").and_then(Value::as_bool).unwrap_or_default(),
                };
                if matches!(self.style, Style::Plain(_)) {
                    self.print(&format!("{} {}", step.label, step.description));
                }
                self.step = Some(step);
            }
            ("log", Some(step)) => {
                let line = one_line(text("line"), MAX_LINE);
                let plain = format!("{} {:.1} {line}", step.label, step.begin.elapsed().as_secs_f64());
                step.output = line;
                if matches!(self.style, Style::Plain(_)) {
                    self.print(&plain);
                }
            }
            // Before the first step, an image is pulled.
            ("log", None) => {
                let line = one_line(text("line"), MAX_LINE);
                match &self.style {
                    Style::Terminal(bar) => bar.set_message(line),
                    _ => self.print(&line),
                }
            }
            ("packing", Some(step)) => step.packing = Some(number("bytes")),
            ("layer", Some(step)) => step.layer = Some(number("bytes")),
            _ => {}
        }
        self.tick();
    }

    /// Updates the moving line; in plain style, says after a while that a step continues.
    pub(super) fn tick(&mut self) {
        let line = self.step.as_ref().map(CurrentStep::now);
        match &self.style {
            Style::Terminal(bar) => {
                if let Some(line) = line {
                    bar.set_message(line);
                }
                bar.tick();
            }
            Style::Plain(last) if last.elapsed() >= SILENCE => self.print(&line.unwrap_or_default()),
            Style::Plain(_) | Style::Quiet => {}
        }
    }

    /// Ends the display.
    pub(super) fn end(&mut self, is_success: bool) {
        self.end_step(if is_success { "" } else { "  not finished" });
        if let Style::Terminal(bar) = &self.style {
            bar.finish_and_clear();
        }
    }

    fn end_step(&mut self, note: &str) {
        let Some(step) = self.step.take() else { return };
        let end = format!("{}{note}", step.end());
        match &self.style {
            Style::Terminal(_) => self.print(&step.line(&end)),
            Style::Plain(_) => self.print(&format!("{} {end}", step.label)),
            Style::Quiet => {}
        }
    }

    /// Prints a line above the moving one.
    fn print(&mut self, line: &str) {
        // If standard error cannot be written, nothing else can be done.
        let write = || drop(writeln!(std::io::stderr(), "{line}"));
        match &mut self.style {
            Style::Quiet => {}
            Style::Terminal(bar) => bar.suspend(write),
            Style::Plain(last) => {
                write();
                *last = Instant::now();
            }
        }
    }
}

impl CurrentStep {
    /// Returns the line of the step with what is to be said of it.
    fn line(&self, state: &str) -> String {
        let start = one_line(&format!("{} {}", self.label, self.description), WIDTH);
        format!("{start:WIDTH$}  {state}")
    }

    fn now(&self) -> String {
        let elapsed = seconds(self.begin.elapsed());
        match (self.packing, self.output.as_str()) {
            (Some(count), _) => self.line(&format!("{elapsed}  packing {}", bytes(count))),
            (None, "") => self.line(&elapsed),
            (None, output) => self.line(&format!("{elapsed}  {output}")),
        }
    }

    fn end(&self) -> String {
        match (self.is_cached, self.layer) {
            (true, _) => "cached".to_owned(),
            (false, Some(count)) => format!("{}  {}", seconds(self.begin.elapsed()), bytes(count)),
            (false, None) => seconds(self.begin.elapsed()),
        }
    }
}

/// Returns the moving line, which is cut at the terminal's width.
fn bar() -> ProgressBar {
    let style = BarStyle::with_template("{wide_msg}").unwrap_or_else(|_| BarStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_say_what_they_do_and_what_they_made() {
        let mut display = BuildDisplay { style: Style::Quiet, step: None };
        let step =
            |cached| json!({"number": 1, "total": 2, "kind": "run", "summary": "make", "cached": cached});
        display.event("step", &step(false));
        let mut now = |name: &str, value: Value| {
            display.event(name, &value);
            let step = display.step.as_mut().unwrap();
            step.begin = Instant::now();
            (step.now(), step.end())
        };
        let begin = format!("{:WIDTH$}  0.0 s", "[1/2] run make");
        assert_eq!(now("other", json!({})), (begin.clone(), "0.0 s".to_owned()));
        let (line, _) = now("log", json!({"line": "cc \u{1b}[31mmain.c"}));
        assert_eq!(line, format!("{begin}  cc \u{fffd}[31mmain.c"));
        let (line, _) = now("packing", json!({"bytes": 3 << 20}));
        assert_eq!(line, format!("{begin}  packing 3.0 MiB"));
        let (_, end) = now("layer", json!({"bytes": 1 << 20}));
        assert_eq!(end, "0.0 s  1.0 MiB");
        display.event("step", &step(true));
        assert_eq!(display.step.as_ref().unwrap().end(), "cached");
        assert_eq!(
            [queued(0), queued(1), queued(2)],
            ["it is next", "1 build before it", "2 builds before it"]
        );
    }
}
