//! Timeouts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::ModelError;
use crate::text::serde_as_scalar;

const ALLOWED: &str = "a time from 1 ms to 24 h, such as 30, 1.5, 500ms, 30s, 10m or 1h";

/// Maximum number of decimals of a time: nanosecond precision.
const MAX_DECIMALS: usize = 9;

/// Timeout of an execution, from 1 ms to 24 h.
///
/// Parsed from `30` (seconds), `1.5`, `500ms`, `30s`, `10m` or `1h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timeout(Duration);

impl Timeout {
    /// Minimum, 1 ms.
    pub const MIN: Self = Self(Duration::from_millis(1));
    /// Maximum, 24 h.
    pub const MAX: Self = Self(Duration::from_secs(24 * 60 * 60));

    /// Creates a timeout.
    ///
    /// # Errors
    ///
    /// Fails if the duration is out of range.
    pub fn new(duration: Duration) -> Result<Self, ModelError> {
        Self::checked(duration)
            .ok_or_else(|| ModelError::not_allowed("timeout", format!("{duration:?}"), ALLOWED))
    }

    /// Returns the timeout as a duration.
    pub const fn duration(self) -> Duration {
        self.0
    }

    fn checked(duration: Duration) -> Option<Self> {
        (Self::MIN.0..=Self::MAX.0).contains(&duration).then_some(Self(duration))
    }

    fn parse(text: &str) -> Option<Self> {
        parse_span(text).and_then(Self::checked)
    }
}

/// Parses a time span: `30` (seconds), `1.5`, `500ms`, `30s`, `10m`, `2h` or `7d`. Returns none if it is invalid or exceeds
/// 2^64 nanoseconds.
pub fn parse_span(text: &str) -> Option<Duration> {
    let text = text.trim_matches(' ');
    let number_len = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at(number_len);
    let nanos_per_unit: u128 = match unit.trim_start_matches(' ').to_ascii_lowercase().as_str() {
        "ms" => 1_000_000,
        "" | "s" | "sec" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    };
    let (value, scale) = parse_decimal(number, MAX_DECIMALS)?;
    let nanos = value.checked_mul(nanos_per_unit)? / scale;
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

/// Formats a time span in the largest unit of which it is a multiple, from seconds on, such as `24 h`.
#[must_use]
pub fn format_span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        _ if seconds.is_multiple_of(86_400) && seconds > 86_400 => format!("{} d", seconds / 86_400),
        _ if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ => format!("{seconds} s"),
    }
}

impl Default for Timeout {
    /// Returns 60 s.
    fn default() -> Self {
        Self(Duration::from_secs(60))
    }
}

impl FromStr for Timeout {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::parse(text).ok_or_else(|| ModelError::not_allowed("timeout", text, ALLOWED))
    }
}

impl fmt::Display for Timeout {
    /// Formats the timeout in seconds, or in milliseconds if it is shorter than a second.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= Duration::from_secs(1) {
            write!(f, "{}", Decimal { whole: self.0.as_secs(), nanos: self.0.subsec_nanos() })?;
            f.write_str(" s")
        } else {
            let nanos = self.0.subsec_nanos();
            write!(
                f,
                "{}",
                Decimal { whole: u64::from(nanos / 1_000_000), nanos: nanos % 1_000_000 * 1000 }
            )?;
            f.write_str(" ms")
        }
    }
}

serde_as_scalar!(Timeout);

/// Number with up to nine decimals, displayed without trailing zeros.
struct Decimal {
    whole: u64,
    nanos: u32,
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.whole)?;
        if self.nanos != 0 {
            let digits = format!("{:09}", self.nanos);
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        Ok(())
    }
}

/// Parses a decimal number exactly, as a whole number and the power of ten to divide it by.
pub(crate) fn parse_decimal(text: &str, max_decimals: usize) -> Option<(u128, u128)> {
    let (whole, decimals) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (text, ""),
    };
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    // No allowed number has more digits than these, so the sums below cannot overflow.
    let in_bounds = !whole.is_empty() && whole.len() <= 18 && decimals.len() <= max_decimals;
    if !in_bounds || !all_digits(whole) || !all_digits(decimals) {
        return None;
    }
    let scale = 10_u128.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    Some((format!("{whole}{decimals}").parse().ok()?, scale))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn timeouts_are_parsed() {
        let ms = Duration::from_millis;
        let cases = [
            ("30", Some(ms(30_000))),
            ("1.5", Some(ms(1500))),
            ("0.001", Some(ms(1))),
            ("1ms", Some(ms(1))),
            ("500ms", Some(ms(500))),
            ("500 MS", Some(ms(500))),
            ("30s", Some(ms(30_000))),
            ("10m", Some(ms(600_000))),
            ("1.5h", Some(ms(5_400_000))),
            ("24h", Some(ms(86_400_000))),
            ("86400", Some(ms(86_400_000))),
            ("86400.000000001", None),
            ("24.1h", None),
            ("25h", None),
            ("0", None),
            ("0.0009", None),
            ("0.9ms", None),
            ("-1", None),
            ("", None),
            (".", None),
            ("5.", None),
            (".5", None),
            ("1.2.3", None),
            ("1e3", None),
            ("inf", None),
            ("NaN", None),
            ("30 parsecs", None),
            ("1d", Some(Duration::from_secs(86_400))),
            ("2d", None),
            ("1us", None),
            ("99999999999999999999999999999999999999999", None),
            ("1.0000000000", None),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Timeout>().ok().map(Timeout::duration), expected, "{text:?}");
        }
    }

    #[test]
    fn timeouts_are_displayed() {
        let cases =
            [("60", "60 s"), ("1.5", "1.5 s"), ("1h", "3600 s"), ("500ms", "500 ms"), ("1.5ms", "1.5 ms")];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Timeout>().unwrap().to_string(), expected);
        }
    }

    #[test]
    fn error_names_value_and_range() {
        assert_eq!(
            "25h".parse::<Timeout>().unwrap_err().to_string(),
            "timeout: \"25h\" is not allowed; give a time from 1 ms to 24 h, such as 30, 1.5, 500ms, 30s, 10m or 1h"
        );
        assert!(Timeout::new(Duration::ZERO).is_err());
        assert!(Timeout::new(Duration::MAX).is_err());
        assert_eq!(Timeout::new(Duration::from_secs(5)).unwrap().duration(), Duration::from_secs(5));
    }

    proptest! {
        #[test]
        fn display_round_trip(nanos in 1_000_000_u64..=86_400_000_000_000) {
            let timeout = Timeout::new(Duration::from_nanos(nanos)).unwrap();
            prop_assert_eq!(timeout.to_string().parse::<Timeout>().unwrap(), timeout);
        }

        #[test]
        fn units_are_consistent(minutes in 1_u32..=1440) {
            let as_minutes: Timeout = format!("{minutes}m").parse().unwrap();
            let as_seconds: Timeout = format!("{}", minutes * 60).parse().unwrap();
            prop_assert_eq!(as_minutes, as_seconds);
        }
    }
}
