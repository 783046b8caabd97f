//! Sizes in bytes, in human-readable form.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_scalar;

const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// Size in bytes.
///
/// Parsed from `4096`, `100k`, `256m`, `1g`, `512MiB` and the like. Every unit is a power of 1024, also `kb`, `mb` and `gb`;
/// case is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Creates a size from a number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Creates a size from a number of MiB. Saturates at 2^64 - 1 bytes.
    pub const fn mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// Returns the number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Parses a size; none if the text is not a whole number with a known unit, or exceeds 64 bits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches(' ');
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let factor = match unit.trim_start_matches(' ').to_ascii_lowercase().as_str() {
            "" | "b" | "byte" | "bytes" => 1,
            "k" | "ki" | "kb" | "kib" => 1 << 10,
            "m" | "mi" | "mb" | "mib" => 1 << 20,
            "g" | "gi" | "gb" | "gib" => 1 << 30,
            "t" | "ti" | "tb" | "tib" => 1 << 40,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(factor).map(Self)
    }
}

impl FromStr for ByteSize {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::parse(text).ok_or_else(|| {
            ModelError::not_allowed(
                "size",
                text,
                "a whole number of bytes, or one with k, m, g or t, such as 256m",
            )
        })
    }
}

impl fmt::Display for ByteSize {
    /// Formats the size exactly, in the greatest unit that needs no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(factor, _)| self.0 != 0 && self.0.is_multiple_of(*factor)) {
            Some((factor, unit)) => write!(f, "{} {unit}", self.0 / factor),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

serde_as_scalar!(ByteSize);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_parsed() {
        let cases = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4096b", Some(4096)),
            ("100k", Some(102_400)),
            ("100KB", Some(102_400)),
            ("1ki", Some(1024)),
            ("256m", Some(256 << 20)),
            ("512MiB", Some(512 << 20)),
            ("512 MiB", Some(512 << 20)),
            (" 1g ", Some(1 << 30)),
            ("2Gi", Some(2 << 30)),
            ("1t", Some(1 << 40)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("16777216t", None),
            ("", None),
            ("m", None),
            ("-1", None),
            ("+1", None),
            ("1.5g", None),
            ("1e3", None),
            ("12 parsecs", None),
            ("1 m m", None),
            ("0x10", None),
            ("١٢", None),
            ("1\0", None),
        ];
        for (text, expected) in cases {
            assert_eq!(ByteSize::parse(text).map(ByteSize::bytes), expected, "{text:?}");
        }
    }

    #[test]
    fn sizes_are_displayed() {
        let cases = [
            (0, "0 bytes"),
            (1, "1 bytes"),
            (1000, "1000 bytes"),
            (1024, "1 KiB"),
            (512 << 20, "512 MiB"),
            (1 << 40, "1 TiB"),
            ((1 << 40) + 1024, "1073741825 KiB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(ByteSize::new(bytes).to_string(), expected);
        }
        assert_eq!(ByteSize::mib(512), ByteSize::new(512 << 20));
        assert_eq!(ByteSize::mib(u64::MAX), ByteSize::new(u64::MAX));
    }

    #[test]
    fn error_names_the_value() {
        assert_eq!(
            "12 parsecs".parse::<ByteSize>().unwrap_err().to_string(),
            "size: \"12 parsecs\" is not allowed; give a whole number of bytes, or one with k, m, g or t, such as 256m"
        );
    }

    proptest! {
        #[test]
        fn display_round_trip(bytes: u64) {
            prop_assert_eq!(ByteSize::new(bytes).to_string().parse::<ByteSize>().unwrap(), ByteSize::new(bytes));
        }

        #[test]
        fn units_are_powers_of_1024(number in 0_u64..(1 << 23), unit in 0_usize..4) {
            let (factor, name) = UNITS[unit];
            let short = name[..1].to_lowercase();
            prop_assert_eq!(ByteSize::parse(&format!("{number}{name}")), Some(ByteSize::new(number * factor)));
            prop_assert_eq!(ByteSize::parse(&format!("{number}{short}")), Some(ByteSize::new(number * factor)));
        }
    }
}
