//! Webhooks: the secret that signs messages.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Beginning of a secret as text. The rest is base64.
const PREFIX: &str = "whsec_";

/// Length of a secret in bytes, as the specification Standard Webhooks says.
const BYTES: RangeInclusive<usize> = 24..=64;

/// A secret that signs messages of webhooks. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    /// Returns the secret itself, 24 to 64 bytes.
    #[must_use]
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for WebhookSecret {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = text.strip_prefix(PREFIX).and_then(|rest| STANDARD.decode(rest).ok());
        let bytes = bytes.filter(|bytes| BYTES.contains(&bytes.len()));
        bytes.map(Self).ok_or("whsec_ and 24 to 64 random bytes in base64")
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("WebhookSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_have_a_form() {
        let text = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for (text, valid) in [
            (text(24), true),
            (text(64), true),
            (text(23), false),
            (text(65), false),
            (text(24).replace("whsec_", ""), false),
            ("whsec_!".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(text.parse::<WebhookSecret>().is_ok(), valid, "{text}");
        }
        assert_eq!(format!("{:?}", text(24).parse::<WebhookSecret>()), "Ok(WebhookSecret)");
    }
}
