//! Times and durations.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// Longest accepted duration. Each use has a lower limit of its own.
const MAX: Duration = Duration::from_secs(366 * 24 * 3600);

const EXPECTED: &str =
    "a number of seconds, or a time such as \"500ms\", \"30s\", \"10m\", \"2h\" or \"90d\"";

/// A duration, from 0 to a year: a number of seconds, or a text such as `10m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl Span {
    fn from_seconds(seconds: f64) -> Option<Self> {
        let span = Duration::try_from_secs_f64(seconds).ok()?;
        (span <= MAX).then_some(Self(span))
    }

    fn from_text(text: &str) -> Option<Self> {
        if let Ok(seconds) = text.parse::<f64>() {
            // Only plain decimal numbers: no inf, no exponent.
            let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            return Self::from_seconds(seconds).filter(|_| plain);
        }
        let other = || Duration::try_from(text.parse::<SignedDuration>().ok()?).ok();
        let span = belljar_model::parse_span(text).or_else(other)?;
        (span <= MAX).then_some(Self(span))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Span;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(EXPECTED)
            }

            fn visit_u64<E: Error>(self, seconds: u64) -> Result<Span, E> {
                let span = Some(Duration::from_secs(seconds)).filter(|span| *span <= MAX);
                span.map(Span).ok_or_else(|| invalid_span(&seconds))
            }

            fn visit_i64<E: Error>(self, seconds: i64) -> Result<Span, E> {
                u64::try_from(seconds)
                    .map_err(|_| invalid_span(&seconds))
                    .and_then(|seconds| self.visit_u64(seconds))
            }

            fn visit_f64<E: Error>(self, seconds: f64) -> Result<Span, E> {
                Span::from_seconds(seconds).ok_or_else(|| invalid_span(&seconds))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
                Span::from_text(text).ok_or_else(|| invalid_span(&format_args!("{text:?}")))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

fn invalid_span<E: Error>(value: &dyn fmt::Display) -> E {
    E::custom(format_args!("{value} is not allowed; give {EXPECTED}"))
}

impl PartialSchema for Span {
    fn schema() -> RefOr<Schema> {
        let number =
            ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0.0)).description(Some("Seconds."));
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("A time with its unit, such as `500ms`, `30s`, `10m`, `2h` or `90d`."));
        RefOr::T(Schema::OneOf(OneOfBuilder::new().item(number).item(text).build()))
    }
}

impl ToSchema for Span {}

/// Formats a time as RFC 3339 in UTC with microseconds.
pub(crate) fn time(at: Timestamp) -> String {
    format!("{at:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<Duration> {
        serde_json::from_str::<Span>(json).ok().map(|span| span.0)
    }

    #[test]
    fn spans_are_parsed() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let cases = [
            ("0", ms(0)),
            ("300", ms(300_000)),
            ("1.5", ms(1500)),
            (r#""500ms""#, ms(500)),
            (r#""30s""#, ms(30_000)),
            (r#""10m""#, ms(600_000)),
            (r#""2h""#, ms(7_200_000)),
            (r#""1.5h""#, ms(5_400_000)),
            (r#""90d""#, ms(90 * 86_400_000)),
            (r#""PT2H""#, ms(7_200_000)),
            (r#""300""#, ms(300_000)),
            ("-1", None),
            ("-0.5", None),
            ("1e300", None),
            (r#""-5s""#, None),
            (r#""5s ago""#, None),
            (r#""""#, None),
            (r#""inf""#, None),
            (r#""nan""#, None),
            (r#""1e3""#, None),
            (r#""10 parsecs""#, None),
            (r#""99999h""#, None),
            (r#""367d""#, None),
            ("18446744073709551615", None),
            ("true", None),
            ("null", None),
            ("[1]", None),
        ];
        for (json, expected) in cases {
            assert_eq!(read(json), expected, "{json}");
        }
    }

    #[test]
    fn times_have_microseconds() {
        assert_eq!(
            time(Timestamp::from_microsecond(1_795_273_445_123_456).unwrap()),
            "2026-11-21T15:04:05.123456Z"
        );
        assert_eq!(time(Timestamp::UNIX_EPOCH), "1970-01-01T00:00:00.000000Z");
    }
}
