//! Head of the chain, and its base: the last record that is archived.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::canonical::from_hex;

/// Purposes of a MAC.
const HEAD: &str = "belljar audit head 1";
const BASE: &str = "belljar audit base 1";

/// End of the chain at some time. A copy kept elsewhere shows later that nothing before it was changed.
///
/// Its text form is `SEQ:HASH`, with the hash in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Number of the last record; 0 if there is none.
    pub seq: i64,
    /// Hash of the last record; zeros if there is none.
    pub hash: [u8; 32],
}

impl Head {
    /// Head of an empty chain.
    pub const EMPTY: Self = Self { seq: 0, hash: [0; 32] };

    /// Returns the MAC with which the server authenticates the head.
    pub(crate) fn mac(self, secret: &[u8; 32]) -> Vec<u8> {
        self.hmac(HEAD, secret).finalize().into_bytes().to_vec()
    }

    pub(crate) fn is_authentic(self, secret: &[u8; 32], mac: &[u8]) -> bool {
        self.hmac(HEAD, secret).verify_slice(mac).is_ok()
    }

    /// Returns the MAC with which the server authenticates the base. No head has it: every record was the head once.
    pub(crate) fn base_mac(self, secret: &[u8; 32]) -> Vec<u8> {
        self.hmac(BASE, secret).finalize().into_bytes().to_vec()
    }

    pub(crate) fn is_authentic_base(self, secret: &[u8; 32], mac: &[u8]) -> bool {
        self.hmac(BASE, secret).verify_slice(mac).is_ok()
    }

    fn hmac(self, purpose: &str, secret: &[u8; 32]) -> Hmac<Sha256> {
        // HMAC pads a key with zeros to the length of a block.
        let mut key = [0; 64];
        key[..32].copy_from_slice(secret);
        let mut hmac = Hmac::<Sha256>::new(&key.into());
        hmac.update(format!("{purpose}\n{self}\n").as_bytes());
        hmac
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, hex::encode(self.hash))
    }
}

impl FromStr for Head {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("invalid head {text:?}: expected SEQ:HASH, as `belljar audit verify` prints it");
        let (seq, hash) = text.split_once(':').ok_or_else(wrong)?;
        let head = Self { seq: seq.parse().map_err(|_| wrong())?, hash: from_hex(hash).ok_or_else(wrong)? };
        if head.seq < 0 || head.to_string() != text {
            return Err(wrong());
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trip() {
        let head = Head { seq: 42, hash: [0xab; 32] };
        assert_eq!(head.to_string(), format!("42:{}", "ab".repeat(32)));
        assert_eq!(head.to_string().parse::<Head>().unwrap(), head);
        for text in [
            "",
            "1",
            "1:",
            "-1:00",
            "01:00",
            &format!("x:{}", "ab".repeat(32)),
            &format!("1:{}", "AB".repeat(32)),
        ] {
            assert!(text.parse::<Head>().is_err(), "{text}");
        }
    }

    #[test]
    fn mac_depends_on_secret_and_head() {
        let head = Head { seq: 42, hash: [0xab; 32] };
        let mac = head.mac(&[1; 32]);
        assert!(head.is_authentic(&[1; 32], &mac));
        assert!(!head.is_authentic(&[2; 32], &mac));
        assert!(!Head { seq: 41, ..head }.is_authentic(&[1; 32], &mac));
        assert!(!Head { hash: [0; 32], ..head }.is_authentic(&[1; 32], &mac));
        assert!(!head.is_authentic(&[1; 32], &[]));
        assert!(head.is_authentic_base(&[1; 32], &head.base_mac(&[1; 32])));
        assert!(!head.is_authentic_base(&[1; 32], &mac));
    }
}
