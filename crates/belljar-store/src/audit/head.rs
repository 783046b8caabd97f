//! The end of the chain.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::canonical::from_hex;

/// The end of the chain at some time: who keeps it elsewhere can show later that nothing before it was changed.
///
/// As text it is `SEQ:HASH`, with the hash in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The last record; 0 if there is none.
    pub seq: i64,
    /// Its hash; zeros if there is none.
    pub hash: [u8; 32],
}

impl Head {
    /// The head of an empty chain.
    pub const EMPTY: Self = Self { seq: 0, hash: [0; 32] };

    /// What the server vouches for the head with.
    pub(crate) fn mac(self, secret: &[u8; 32]) -> Vec<u8> {
        self.keyed(secret).finalize().into_bytes().to_vec()
    }

    pub(crate) fn is_vouched_for(self, secret: &[u8; 32], mac: &[u8]) -> bool {
        self.keyed(secret).verify_slice(mac).is_ok()
    }

    fn keyed(self, secret: &[u8; 32]) -> Hmac<Sha256> {
        // HMAC fills a key up with zeros to the length of a block.
        let mut key = [0; 64];
        key[..32].copy_from_slice(secret);
        let mut keyed = Hmac::<Sha256>::new(&key.into());
        keyed.update(format!("belljar audit head 1\n{self}\n").as_bytes());
        keyed
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
        let wrong = || format!("{text:?} is no head; give SEQ:HASH, as `belljar audit verify` shows it");
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
    fn heads_are_read_back() {
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
    fn a_head_is_vouched_for_with_one_secret_only() {
        let head = Head { seq: 42, hash: [0xab; 32] };
        let mac = head.mac(&[1; 32]);
        assert!(head.is_vouched_for(&[1; 32], &mac));
        assert!(!head.is_vouched_for(&[2; 32], &mac));
        assert!(!Head { seq: 41, ..head }.is_vouched_for(&[1; 32], &mac));
        assert!(!Head { hash: [0; 32], ..head }.is_vouched_for(&[1; 32], &mac));
        assert!(!head.is_vouched_for(&[1; 32], &[]));
    }
}
