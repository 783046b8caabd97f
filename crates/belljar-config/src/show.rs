//! The effective settings, with their origins.

use std::fmt::Write as _;

use crate::error::quote;
use crate::layers::{ConfigLayers, Value};
use crate::origin::Origin;
use crate::secret::{HIDDEN, redact_address};
use crate::setting::{Setting, ValueKind, Visibility};
use crate::settings::SETTINGS;

/// Formats every setting with its value and origin, as TOML with comments. Secrets are not shown.
#[must_use]
pub fn show(layers: &ConfigLayers) -> String {
    let mut text = String::new();
    let mut section = "";
    for setting in SETTINGS.iter() {
        if setting.section() != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            section = setting.section();
            // Writing to memory does not fail.
            let _ = writeln!(text, "{gap}[{section}]");
        }
        let (value, origin) = match layers.get(setting.key) {
            Some((value, origin)) => (format_value(setting, value), origin.clone()),
            None => (setting.default.to_owned(), Origin::Default),
        };
        let _ = writeln!(text, "{} = {value}  # {origin}", setting.name());
    }
    text
}

/// Formats a value as in the file.
fn format_value(setting: &Setting, value: &Value) -> String {
    match (setting.visibility, value) {
        (Visibility::Address, Value::Scalar(text)) => quote(&redact_address(text)),
        (Visibility::Hidden, Value::Scalar(text)) if !text.is_empty() => quote(HIDDEN),
        (_, Value::Scalar(text)) if setting.kind == ValueKind::Flag => text.clone(),
        (_, Value::Scalar(text)) if is_number(setting, text) => text.clone(),
        (_, Value::Scalar(text)) => quote(text),
        (_, Value::List(items)) => {
            let items: Vec<_> = items.iter().map(|(text, _)| quote(text)).collect();
            format!("[{}]", items.join(", "))
        }
        (_, Value::Table(entries)) => {
            let entries: Vec<_> =
                entries.iter().map(|(name, ..)| format!("{} = \"{HIDDEN}\"", quote(name))).collect();
            format!("{{ {} }}", entries.join(", "))
        }
    }
}

fn is_number(setting: &Setting, text: &str) -> bool {
    setting.kind == ValueKind::Number && text.parse::<f64>().is_ok_and(f64::is_finite)
}
