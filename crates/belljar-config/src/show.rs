//! What holds, and where it was said.

use std::fmt::Write as _;

use crate::error::shown;
use crate::origin::Origin;
use crate::said::{Said, Value};
use crate::secret::{HIDDEN, hide_in_address};
use crate::setting::{Form, Setting, Showing};
use crate::settings::SETTINGS;

/// Every setting with its value and the place where it was said, as TOML with comments. Secrets are not shown.
#[must_use]
pub fn show(said: &Said) -> String {
    let mut text = String::new();
    let mut section = "";
    for setting in SETTINGS {
        if setting.section() != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            section = setting.section();
            // Writing into memory does not fail.
            let _ = writeln!(text, "{gap}[{section}]");
        }
        let (value, origin) = match said.get(setting.key) {
            Some((value, origin)) => (written(setting, value), origin.clone()),
            None => (setting.default.to_owned(), Origin::Default),
        };
        let _ = writeln!(text, "{} = {value}  # {origin}", setting.name());
    }
    text
}

/// A value as the file would have it.
fn written(setting: &Setting, value: &Value) -> String {
    match (setting.showing, value) {
        (Showing::Address, Value::Scalar(text)) => shown(&hide_in_address(text)),
        (_, Value::Scalar(text)) if setting.form == Form::Flag => text.clone(),
        (_, Value::Scalar(text)) if is_number(setting, text) => text.clone(),
        (_, Value::Scalar(text)) => shown(text),
        (_, Value::List(items)) => {
            let items: Vec<_> = items.iter().map(|(text, _)| shown(text)).collect();
            format!("[{}]", items.join(", "))
        }
        (_, Value::Table(entries)) => {
            let entries: Vec<_> =
                entries.iter().map(|(name, ..)| format!("{} = \"{HIDDEN}\"", shown(name))).collect();
            format!("{{ {} }}", entries.join(", "))
        }
    }
}

fn is_number(setting: &Setting, text: &str) -> bool {
    setting.form == Form::Number && text.parse::<f64>().is_ok_and(f64::is_finite)
}
