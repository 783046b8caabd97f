//! Lossless encoding of bytes in JSON: as text if they are UTF-8, else in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Encoding of bytes in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Encoding {
    /// Text: the bytes are valid UTF-8.
    #[serde(rename = "utf-8")]
    Utf8,
    /// Base64 with padding: the bytes are not valid UTF-8.
    #[serde(rename = "base64")]
    Base64,
}

impl Encoding {
    /// Encodes bytes as text, and returns the encoding.
    pub fn encode(bytes: &[u8]) -> (Self, String) {
        match std::str::from_utf8(bytes) {
            Ok(text) => (Self::Utf8, text.to_owned()),
            Err(_) => (Self::Base64, STANDARD.encode(bytes)),
        }
    }

    /// Encodes bytes as text in this encoding; none if they are not UTF-8 although they should be.
    pub fn text(self, bytes: Vec<u8>) -> Option<String> {
        match self {
            Self::Utf8 => String::from_utf8(bytes).ok(),
            Self::Base64 => Some(STANDARD.encode(bytes)),
        }
    }

    /// Decodes the bytes of a text; none if it is not base64 although it should be.
    pub fn decode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Utf8 => Some(text.as_bytes().to_vec()),
            Self::Base64 => STANDARD.decode(text).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn encode_and_decode() {
        let cases: [(&[u8], Encoding, &str); 4] = [
            (b"", Encoding::Utf8, ""),
            (b"a\0b\n", Encoding::Utf8, "a\0b\n"),
            ("ü".as_bytes(), Encoding::Utf8, "ü"),
            (b"\xff\xfe", Encoding::Base64, "//4="),
        ];
        for (bytes, encoding, text) in cases {
            assert_eq!(Encoding::encode(bytes), (encoding, text.to_owned()));
            assert_eq!(encoding.decode(text).unwrap(), bytes);
        }
        assert_eq!(Encoding::Base64.decode("*"), None);
    }

    proptest! {
        #[test]
        fn round_trip(bytes: Vec<u8>) {
            let (encoding, text) = Encoding::encode(&bytes);
            prop_assert_eq!(encoding.decode(&text), Some(bytes));
        }
    }
}
