//! Parsers of values on the command line, by the rules of specifications.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

use belljar_client::{MessageField, v1, well_known};
use belljar_model::{ByteSize, EnvVar, ModelError, Timeout, VolumeFile, parse_span};

use crate::message::Quit;

/// Longest duration that the server accepts for a key.
const MAX_LIFETIME: Duration = Duration::from_hours(366 * 24);

/// Parses a time such as `30`, `500ms` or `10m`; `0` is allowed.
pub(crate) fn time(field: &str, text: &str) -> Result<Duration, Quit> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    text.parse::<Timeout>().map(Timeout::duration).map_err(|error| usage_error(field, &error))
}

/// Parses the time until a key expires, such as `12h` or `90d`.
pub(crate) fn lifetime(field: &str, text: &str) -> Result<Duration, Quit> {
    parse_span(text).filter(|span| *span <= MAX_LIFETIME).ok_or_else(|| {
        Quit::Usage(format!(
            "--{field}: {text:?} is not an allowed time; give up to 366d, such as 12h or 90d"
        ))
    })
}

/// Parses a time for a field of a message.
pub(crate) fn span(field: &str, text: Option<&str>) -> Result<MessageField<well_known::Duration>, Quit> {
    Ok(match text {
        Some(text) => MessageField::some(well_known::Duration::from(time(field, text)?)),
        None => MessageField::none(),
    })
}

/// Parses a size such as `256m`, and returns bytes.
pub(crate) fn size(field: &str, text: Option<&str>) -> Result<Option<u64>, Quit> {
    text.map(|text| text.parse::<ByteSize>().map(ByteSize::bytes).map_err(|error| usage_error(field, &error)))
        .transpose()
}

/// Parses a number.
pub(crate) fn number<T: FromStr>(field: &str, text: Option<&str>) -> Result<Option<T>, Quit> {
    let read = |text: &str| {
        text.parse().map_err(|_| Quit::Usage(format!("--{field}: {text:?} is not an allowed number")))
    };
    text.map(read).transpose()
}

/// Parses labels as `KEY=VALUE`.
pub(crate) fn labels(texts: &[String]) -> Result<HashMap<String, String>, Quit> {
    pairs("label", texts)
}

/// Parses the `KEY=VALUE` pairs of a flag.
pub(crate) fn pairs(flag: &str, texts: &[String]) -> Result<HashMap<String, String>, Quit> {
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Quit::Usage(format!("--{flag}: {text:?} is not allowed; give KEY=VALUE"))),
    };
    texts.iter().map(pair).collect()
}

/// Parses mounts of volumes as `NAME:DST[:ro|rw]`. The server validates name, path and mode.
pub(crate) fn volumes(texts: &[String]) -> Result<Vec<v1::VolumeMount>, Quit> {
    let volume = |text: &String| {
        let VolumeFile { name, path, mode } =
            text.parse().map_err(|error: ModelError| Quit::Usage(error.to_string()))?;
        Ok(v1::VolumeMount { name, path, mode: mode.unwrap_or_default(), ..Default::default() })
    };
    texts.iter().map(volume).collect()
}

/// Parses environment variables as `NAME=VALUE`, or `NAME` for the value in this process's environment.
pub(crate) fn variables(flag: &str, texts: &[String]) -> Result<HashMap<String, String>, Quit> {
    let mut variables = HashMap::new();
    for text in texts {
        let variable = match text.split_once('=') {
            Some(_) => text.parse::<EnvVar>()?,
            None => match std::env::var(text) {
                Ok(value) => EnvVar::new(text.clone(), value)?,
                Err(_) => {
                    return Err(Quit::Usage(format!("--{flag}: {text} is not set here; give {text}=VALUE")));
                }
            },
        };
        variables.insert(variable.name().to_owned(), variable.value().to_owned());
    }
    Ok(variables)
}

/// Parses the action on expiry.
pub(crate) fn on_timeout(text: Option<&str>) -> Result<v1::TimeoutAction, Quit> {
    match text {
        None => Ok(v1::TimeoutAction::TIMEOUT_ACTION_UNSPECIFIED),
        Some("kill") => Ok(v1::TimeoutAction::TIMEOUT_ACTION_KILL),
        Some("pause") => Ok(v1::TimeoutAction::TIMEOUT_ACTION_PAUSE),
        Some(other) => {
            Err(Quit::Usage(format!("--on-timeout: {other:?} is not allowed; give kill or pause")))
        }
    }
}

/// Replaces the field name at the start of the model's error by the name of the flag.
pub(crate) fn usage_error(field: &str, error: &ModelError) -> Quit {
    let text = error.to_string();
    let rest = text.split_once(": ").map_or(text.as_str(), |(_, rest)| rest);
    Quit::Usage(format!("--{field}: {rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage<T: std::fmt::Debug>(result: Result<T, Quit>) -> String {
        match result.unwrap_err() {
            Quit::Usage(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_are_read_as_in_a_specification() {
        assert_eq!(time("timeout", "10m").unwrap(), Duration::from_secs(600));
        assert_eq!(time("timeout", "0").unwrap(), Duration::ZERO);
        assert_eq!(size("memory", Some("256m")).unwrap(), Some(256 << 20));
        assert_eq!(labels(&["a=b=c".to_owned()]).unwrap()["a"], "b=c");
        assert!(usage(time("idle-timeout", "soon")).starts_with("--idle-timeout: \"soon\" is not allowed"));
        assert!(usage(size("memory", Some("much"))).starts_with("--memory: "));
        assert!(usage(labels(&["a".to_owned()])).contains("KEY=VALUE"));
        assert!(usage(on_timeout(Some("sleep"))).contains("kill or pause"));
        assert!(usage(number::<u32>("pids", Some("-1"))).contains("--pids"));
    }
}
