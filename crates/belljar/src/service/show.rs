//! Formatting of responses: as a table for people, or as JSON, one value per line, with the keys of the protocol's messages.

use std::io::Write as _;
use std::time::Duration;

use belljar_client::{MessageField, v1, well_known};
use belljar_keeper::Leftover;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::args::Format;
use super::link::Link;
use crate::colour;
use crate::message::{Quit, clean, without_controls};
use crate::units::bytes;

/// Keys of maps, whose own keys are defined by the caller and stay unchanged.
const MAPS: [&str; 6] = ["labels", "env", "details", "metadata", "requests", "secrets"];

/// Prefixes of the names of enum values. The rest is shown in lower case.
const ENUM_PREFIXES: [&str; 4] = ["SANDBOX_STATE_", "TIMEOUT_ACTION_", "TEMPLATE_KIND_", "KEY_ROLE_"];

/// Keys that hold an enum value.
const ENUM_KEYS: [&str; 4] = ["state", "on_timeout", "kind", "role"];

/// Keys, besides those that end with `_bytes`, that hold a 64-bit number, which messages encode as a string.
const NUMBER_KEYS: [&str; 20] = [
    "bytes",
    "count",
    "seq",
    "records",
    "broken_seq",
    "steps_back",
    "process",
    "pids",
    "inodes",
    "inodes_total",
    "inodes_used",
    "cpu_seconds",
    "cpu_seconds_per_hour",
    "user_us",
    "system_us",
    "wall_us",
    "number",
    "flow",
    "sent",
    "received",
];

/// A table with columns as wide as their widest cells.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| clean(cell)).collect());
    }

    /// Prints all cells in full.
    pub(crate) fn print(&self) -> Result<(), Quit> {
        print(&self.format(None, false))
    }

    /// Formats the rows. With `most`, cells are shortened so that lines have at most that many characters, as far as that is possible;
    /// the first column is never shortened.
    fn format(&self, most: Option<usize>, colour: bool) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..columns).map(width).collect();
        if let Some(most) = most {
            shrink(&mut widths, most);
        }
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let last = row.iter().rposition(|cell| !cell.is_empty()).unwrap_or(0);
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate().take(last + 1) {
                let cell = shortened(cell, *width);
                let style = if index == 0 { Some(HEAD) } else { state_colour(&cell) }.filter(|_| colour);
                let padding = if column == last { 0 } else { width + GAP - cell.chars().count() };
                match style {
                    Some(style) => text.extend([style, &cell, RESET]),
                    None => text.push_str(&cell),
                }
                text.push_str(&" ".repeat(padding));
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
        text
    }
}

/// Shows what is left over, or was, and how much of the disk that takes.
pub(super) fn show_leftovers(link: &Link, dry_run: bool, leftovers: &[Leftover]) -> Result<(), Quit> {
    if link.format == Format::Json {
        for leftover in leftovers {
            link.json(leftover)?;
        }
        return Ok(());
    }
    if link.quiet {
        let paths = leftovers.iter().filter_map(|one| one.path.as_ref());
        return print(&paths.map(|path| format!("{}\n", path.display())).collect::<String>());
    }
    let mut table = Table::new(&["KIND", "COUNT", "SIZE", "NAME"]);
    for one in leftovers {
        let name = one.path.as_ref().map_or_else(|| "-".to_owned(), |path| path.display().to_string());
        let size = if one.bytes == 0 { "-".to_owned() } else { bytes(one.bytes) };
        table.row(vec![one.kind.to_string(), one.count.to_string(), size, name]);
    }
    if !leftovers.is_empty() {
        table.print()?;
    }
    let sum = leftovers.iter().map(|one| one.bytes).sum();
    link.remark(&match (leftovers.is_empty(), dry_run) {
        (true, _) => "nothing is left over".to_owned(),
        (false, true) => format!("{} can be freed", bytes(sum)),
        (false, false) => format!("{} freed", bytes(sum)),
    });
    Ok(())
}

/// Spaces between two columns.
const GAP: usize = 2;

/// Minimum width of a column that is shortened.
const MIN_WIDTH: usize = 6;

const HEAD: &str = "\u{1b}[1m";
const RESET: &str = "\u{1b}[0m";

/// Shortens the widest columns until a line has at most `most` characters.
fn shrink(widths: &mut [usize], most: usize) {
    let gaps = widths.len().saturating_sub(1) * GAP;
    while widths.iter().sum::<usize>() + gaps > most {
        match widths.iter_mut().skip(1).max() {
            Some(widest) if *widest > MIN_WIDTH => *widest -= 1,
            _ => return,
        }
    }
}

/// Returns the first characters of a cell, with a mark if some are left out.
fn shortened(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    cell.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Returns the colour of a cell that is a state.
fn state_colour(cell: &str) -> Option<&'static str> {
    match cell {
        "running" => Some("\u{1b}[32m"),
        "creating" | "paused" | "stopping" => Some("\u{1b}[33m"),
        "gone" | "revoked" => Some("\u{1b}[90m"),
        _ => None,
    }
}

impl Link {
    /// Prints a message as JSON if that format is selected, and returns whether it did.
    pub(crate) fn json(&self, message: &impl Serialize) -> Result<bool, Quit> {
        if self.format != Format::Json {
            return Ok(false);
        }
        let value = normalize(serde_json::to_value(message)?);
        print(&format!("{}\n", without_controls(&value.to_string())))?;
        Ok(true)
    }

    /// Prints a listing whose column `id` has the ids: as a table that fits the terminal, or only the ids. JSON has been printed already.
    pub(crate) fn list(&self, table: &Table, id: usize) -> Result<(), Quit> {
        if self.format == Format::Json {
            return Ok(());
        }
        if self.quiet {
            let ids = table.rows.iter().skip(1).filter_map(|row| row.get(id));
            return print(&ids.map(|id| format!("{id}\n")).collect::<String>());
        }
        let stdout = rustix::stdio::stdout();
        let width = rustix::termios::tcgetwinsize(stdout).ok().map(|size| usize::from(size.ws_col));
        let is_terminal = rustix::termios::isatty(stdout);
        print(&table.format(width.filter(|width| *width > 0), is_terminal && colour::is_allowed()))
    }

    /// Prints a remark that is only of interest to people.
    pub(crate) fn remark(&self, text: &str) {
        if !self.quiet && self.format == Format::Table {
            crate::message::say(text);
        }
    }
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), Quit> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(crate::output::write_failed)
}

/// Converts keys to snake case, enum values to words and numbers to numbers, as everywhere else in Belljar's JSON.
fn normalize(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let field = |(key, value): (String, Value)| {
                let name = snake(&key);
                let value = match value {
                    value if MAPS.contains(&name.as_str()) => value,
                    Value::String(text) => plain(&name, text),
                    value => normalize(value),
                };
                (name, value)
            };
            Value::Object(fields.into_iter().map(field).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(normalize).collect()),
        other => other,
    }
}

fn plain(name: &str, text: String) -> Value {
    if ENUM_KEYS.contains(&name)
        && let Some(word) = ENUM_PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix))
    {
        return word.to_ascii_lowercase().into();
    }
    if name.ends_with("_bytes") || NUMBER_KEYS.contains(&name) {
        return text.parse::<u64>().map_or(Value::String(text), Value::from);
    }
    Value::String(text)
}

fn snake(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 4);
    for character in key.chars() {
        if character.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(character.to_ascii_lowercase());
    }
    name
}

/// Returns a state's name.
pub(crate) fn state(info: &v1::SandboxInfo) -> &'static str {
    use v1::SandboxState as State;
    match info.state.as_known().unwrap_or_default() {
        State::SANDBOX_STATE_CREATING => "creating",
        State::SANDBOX_STATE_RUNNING => "running",
        State::SANDBOX_STATE_PAUSED => "paused",
        State::SANDBOX_STATE_STOPPING => "stopping",
        State::SANDBOX_STATE_GONE => "gone",
        State::SANDBOX_STATE_UNSPECIFIED => "unknown",
    }
}

/// Formats the time since or until a timestamp of a message.
pub(crate) fn distance(at: &MessageField<well_known::Timestamp>) -> String {
    let at = at.as_option().and_then(|at| Timestamp::from_second(at.seconds).ok());
    at.map_or_else(|| "-".to_owned(), away)
}

/// Formats the time since or until a timestamp.
pub(crate) fn away(at: Timestamp) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let at = Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0));
    if at > now { format!("in {}", rough(at - now)) } else { format!("{} ago", rough(now - at)) }
}

/// Returns the time span of a message.
pub(crate) fn span(span: &MessageField<well_known::Duration>) -> Option<Duration> {
    let span = span.as_option()?;
    Some(Duration::new(u64::try_from(span.seconds).ok()?, u32::try_from(span.nanos).ok()?))
}

/// Formats a time span in its largest unit.
pub(crate) fn rough(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds @ 7200..=172_799 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_snake_case_except_in_maps() {
        let value = serde_json::json!({
            "createdAt": 1, "secrets": {"API_KEY": {"host": "h"}}, "labels": {"myKey": "V", "bytes": "1"}, "a": [{"bC": 2}],
            "state": "SANDBOX_STATE_RUNNING", "name": "KEY_ROLE_USER", "diskBytes": "7", "seq": "18446744073709551615",
        });
        let expected = serde_json::json!({
            "created_at": 1, "secrets": {"API_KEY": {"host": "h"}}, "labels": {"myKey": "V", "bytes": "1"}, "a": [{"b_c": 2}],
            "state": "running", "name": "KEY_ROLE_USER", "disk_bytes": 7, "seq": u64::MAX,
        });
        assert_eq!(normalize(value), expected);
    }

    #[test]
    fn tables_fit_a_width() {
        let mut table = Table::new(&["ID", "NAME", "STATE", "NOTE"]);
        table.row(
            ["sb_1234567890", "short", "running", "a long note of many words"].map(str::to_owned).to_vec(),
        );
        table.row(["sb_2", "ä name that is long", "gone", ""].map(str::to_owned).to_vec());
        let wide = "\
ID             NAME                 STATE    NOTE
sb_1234567890  short                running  a long note of many words
sb_2           ä name that is long  gone
";
        assert_eq!(table.format(None, false), wide);
        assert_eq!(table.format(Some(100), false), wide);
        let narrow = "\
ID             NAME          STATE    NOTE
sb_1234567890  short         running  a long note…
sb_2           ä name that…  gone
";
        assert_eq!(table.format(Some(50), false), narrow);
        // Ids are never shortened.
        assert!(table.format(Some(10), false).contains("sb_1234567890  short   runni…  a lon…\n"));
        let coloured = table.format(Some(50), true);
        assert!(
            coloured.contains("\u{1b}[1mSTATE\u{1b}[0m    \u{1b}[1mNOTE")
                && coloured.contains("\u{1b}[32mrunning\u{1b}[0m  a")
        );
        let plain = ["\u{1b}[1m", "\u{1b}[32m", "\u{1b}[90m", RESET]
            .iter()
            .fold(coloured, |text, code| text.replace(code, ""));
        assert_eq!(plain, narrow);
    }

    #[test]
    fn times_are_human_readable() {
        for (seconds, text) in [(5, "5 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")] {
            assert_eq!(rough(Duration::from_secs(seconds)), text);
        }
    }
}
